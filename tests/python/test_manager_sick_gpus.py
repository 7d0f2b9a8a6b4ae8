"""What the manager makes of GPUs that servers have put aside."""

from __future__ import annotations

from typing import Any

from gpupool_common.node_protocol import Apply, Heartbeat
from gpupool_common.quantities import MEBIBYTE as MIB
from manager_rest import Rest
from manager_world import gpu

SICK = "XID 79 at 2026-11-23T02:00:00Z"
ONE, TWO = "GPU-n1-0", "GPU-n1-1"


async def shown(rest: Rest, uuid: str = ONE) -> dict[str, Any]:
    found: dict[str, Any] = await rest.do("GET", f"/gpus/{uuid}")
    return found


async def test_nothing_is_placed_there_and_tenants_are_told(rest: Rest) -> None:
    world = rest.world
    await world.join("n1", 2)
    await rest.tenant("red")
    await rest.tenant("blue")
    lease = await rest.lease("red", gpus=2)
    watcher = world.pool.bus.watch()
    for _ in range(2):  # a node says it with each heartbeat
        await world.beat("n1", sick={ONE: SICK, "GPU-elsewhere": "made up"})
    assert (await shown(rest))["aside"] == SICK
    assert (await shown(rest))["closed"] == f"gpu: it is put aside: {SICK}"
    events = [await watcher.next(10.0) for _ in range(2)]
    assert [(e.event.kind, e.event.tenant) for e in events if e] == [
        ("gpu.aside", None),
        ("lease.gpu-aside", "red"),
    ]
    assert [grant["aside"] for grant in (await rest.do("GET", f"/leases/{lease['id']}"))["grants"]]
    for _ in range(2):
        assert (await rest.lease("blue"))["grants"][0]["gpu"] == TWO
    await rest.no(409, "full", "POST", "/leases", {"gpus": 2, "memory_bytes": MIB}, "blue")
    lines = (await rest.ask("GET", "/metrics")).text.splitlines()
    assert 'gpupool_manager_gpus{state="aside"} 1.0' in lines
    # Over a restart, and by what a node says when it joins.
    await world.restart()
    assert world.pool.ledger.gpus[ONE].trouble == SICK
    await world.join("n1", [gpu("n1", 0), gpu("n1", 1, sick="it has fallen off the bus")])
    assert world.pool.ledger.gpus[ONE].trouble == ""
    assert world.pool.ledger.gpus[TWO].trouble == "it has fallen off the bus"


async def test_who_waits_gets_it_when_it_is_well(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("red")
    await rest.world.beat("n1", sick={ONE: SICK})
    lease = await rest.lease("red", wait_seconds=600)
    assert lease["state"] == "queued"
    await rest.world.beat("n1")  # a server that does not know of sick GPUs says nothing
    assert (await shown(rest))["aside"] == SICK
    await rest.world.beat("n1", sick={})
    assert (await rest.do("GET", f"/leases/{lease['id']}"))["state"] == "active"


async def test_an_operator_opens_it(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("red")
    await rest.no(422, "bad-request", "PATCH", f"/gpus/{ONE}", {"aside": True})
    await rest.world.beat("n1", sick={ONE: SICK})
    await rest.no(403, "forbidden", "PATCH", f"/gpus/{ONE}", {"aside": False}, "red")
    for _ in range(2):
        changed = await rest.do("PATCH", f"/gpus/{ONE}", {"aside": False})
    assert changed["aside"] is None and changed["usable"]
    # Its server is told; until it has heard that, what it says is nothing new.
    assert opened(await beat(rest, {ONE: SICK})) == SICK
    assert (await shown(rest))["usable"]
    assert opened(await beat(rest, {})) == ""
    await rest.world.beat("n1", sick={ONE: "XID 48"})
    assert (await shown(rest))["aside"] == "XID 48", "that is another one"
    assert opened(await beat(rest, {ONE: "XID 48"})) == ""


async def beat(rest: Rest, sick: dict[str, str]) -> Apply:
    """What a node is ordered that has applied nothing yet."""
    orders = await rest.world.beat("n1", sick=sick)
    (apply,) = [command for command in orders.commands if isinstance(command, Apply)]
    return apply


def opened(orders: Apply) -> str:
    (only,) = orders.gpus
    return only.opened


def test_a_heartbeat_has_bounds() -> None:
    for bad in ({"GPU 0": "x"}, {"GPU-0": "two\nlines"}, {str(i): "" for i in range(65)}):
        try:
            Heartbeat.model_validate({"sick": bad})
        except ValueError:
            continue
        raise AssertionError(bad)
