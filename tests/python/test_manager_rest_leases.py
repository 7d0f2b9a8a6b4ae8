"""The REST API: leases and the queue."""

from __future__ import annotations

import asyncio

import pytest

from gpupool_common.quantities import MEBIBYTE as MIB
from manager_rest import Rest

pytestmark = pytest.mark.timeout(60)


async def test_a_lease_is_granted_renewed_explained_and_released(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a")
    made = await rest.ask(
        "POST",
        "/leases",
        {"gpus": 2, "memory_bytes": 500 * MIB, "share_permille": 10, "label": "train"},
        "a",
    )
    assert made.status_code == 201
    lease = made.json()
    assert (lease["state"], lease["tenant"], lease["label"]) == ("active", "a", "train")
    assert [grant["memory_bytes"] for grant in lease["grants"]] == [500 * MIB, 500 * MIB]
    assert lease["servers"] == [
        {"node": "n1", "address": "tcp://n1:7700", "key": None, "devices": [0, 1]}
    ]
    assert lease["token"]
    path = f"/leases/{lease['id']}"
    rest.world.clock.now += 30
    renewed = await rest.do("POST", f"{path}/renew", by="a")
    assert renewed["expires"] > lease["expires"]
    why = await rest.do("GET", f"{path}/explain", by="a")
    assert "placed by the rule: one node" in why["decision"]
    assert [one["gpu"] for one in why["placement"]["gpus"]] == ["GPU-n1-0", "GPU-n1-1"]
    released = await rest.do("POST", f"{path}/release", by="a")
    assert (released["state"], released["servers"], released["token"]) == ("released", [], None)
    assert await rest.do("POST", f"{path}/release", by="a") == released, "a second time is none"
    await rest.no(409, "ended", "POST", f"{path}/renew", by="a")
    assert (await rest.do("GET", path, by="a"))["state"] == "released"


async def test_a_lease_that_is_not_renewed_expires(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    lease = await rest.lease("a", ttl_seconds=5)
    await rest.world.later(6)
    ended = await rest.do("GET", f"/leases/{lease['id']}", by="a")
    assert (ended["state"], ended["reason"]) == ("expired", "not renewed for 5 s")
    assert ended["token"] is None


async def test_a_full_pool_queues_and_says_the_position(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a", priority=9)
    await rest.tenant("b")
    first = await rest.lease("a", share_permille=1000)
    whole = {"memory_bytes": 10 * MIB, "share_permille": 1000}
    answer = await rest.ask("POST", "/leases", {**whole, "wait_seconds": 60}, "b")
    assert answer.status_code == 202
    queued = answer.json()
    assert (queued["state"], queued["position"]) == ("queued", 1)
    assert queued["reason"] == "10MiB with 100% of a GPU fits on 0 GPUs, asked 1"
    assert (queued["servers"], queued["grants"], queued["token"]) == ([], [], None)
    urgent = await rest.lease("a", share_permille=1000, wait_seconds=60, priority=9)
    assert urgent["position"] == 1
    assert (await rest.do("GET", f"/leases/{queued['id']}", by="b"))["position"] == 2
    line = await rest.pages("/queue", limit=1)
    assert [(one["position"], one["lease"]) for one in line] == [
        (1, urgent["id"]),
        (2, queued["id"]),
    ]
    [mine] = await rest.pages("/queue", by="b")
    assert (mine["position"], mine["lease"], mine["tenant"]) == (2, queued["id"], "b")
    why = await rest.do("GET", f"/leases/{queued['id']}/explain", by="b")
    assert "position 2:" in why["decision"]
    assert (why["summary"], why["gpus"]) == ({"not free": 1}, [])
    why = await rest.do("GET", f"/leases/{queued['id']}/explain")
    assert "position 2 of 2" in why["decision"]
    assert [one["fits"] for one in why["gpus"]] == [False]
    await rest.do("POST", f"/leases/{first['id']}/release")
    assert (await rest.do("GET", f"/leases/{urgent['id']}"))["state"] == "active"
    cancelled = await rest.do("POST", f"/leases/{queued['id']}/release", by="b")
    assert (cancelled["state"], cancelled["position"]) == ("cancelled", None)


async def test_waiting_in_the_queue_ends(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    await rest.lease("a", share_permille=1000, ttl_seconds=3600)
    queued = await rest.lease("a", wait_seconds=30)
    await rest.world.later(31)
    ended = await rest.do("GET", f"/leases/{queued['id']}", by="a")
    assert (ended["state"], ended["reason"]) == ("timed-out", "no room within 30 s")


async def test_asking_keeps_a_place_in_the_queue(rest: Rest) -> None:
    world = rest.world
    await world.join("n1", 1)
    await rest.tenant("a")
    await rest.lease("a", share_permille=1000, ttl_seconds=3600)
    queued = await rest.lease("a", wait_seconds=3600)
    path = f"/leases/{queued['id']}"

    def silence() -> float:
        waiting = world.pool.ledger.queue.get(queued["id"])
        assert waiting is not None
        return world.clock.now - waiting.heard

    await world.later(20)
    await rest.do("GET", path)
    assert silence() == 20, "an operator that looks does not keep it"
    await rest.do("GET", path, by="a")
    assert silence() == 0
    await world.later(20)
    await rest.do("POST", f"{path}/renew", by="a")
    assert silence() <= 0
    await world.later(20)
    await rest.do("GET", f"{path}?wait=1")
    assert silence() == -1, "whoever waits for it wants it"


async def test_who_waits_for_a_lease_hears_at_once(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    first = await rest.lease("a", share_permille=1000)
    queued = await rest.lease("a", wait_seconds=60)
    watching = asyncio.create_task(rest.do("GET", f"/leases/{queued['id']}?wait=60", by="a"))
    await asyncio.sleep(0)
    await rest.do("POST", f"/leases/{first['id']}/release", by="a")
    granted = await asyncio.wait_for(watching, 30)
    assert granted["state"] == "active" and granted["token"]


async def test_who_waits_for_a_lease_that_stays_queued_is_told(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    await rest.lease("a", share_permille=1000)
    queued = await rest.lease("a", wait_seconds=60)
    answer = await rest.do("GET", f"/leases/{queued['id']}?wait=1", by="a")
    assert answer["state"] == "queued"


async def test_a_request_that_the_quota_refuses_is_explained_so(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a", gpus=4)
    before = await rest.everything()
    asked = {"gpus": 9, "memory_bytes": MIB, "share_permille": 1}
    for by, body in (("a", asked), ("admin", {**asked, "tenant": "a"})):
        why = await rest.do("POST", "/leases/explain", body, by)
        said = "over the quota: tenant 'a': virtual GPUs: 9 asked, 0 in use, quota 4"
        assert why["decision"] == said
    why = await rest.do("POST", "/leases/explain", {**asked, "gpus": 2}, "a")
    assert why["decision"].startswith("it would be granted")
    why = await rest.do("POST", "/leases/explain", {**asked, "priority": 3}, "a")
    assert why["decision"] == "over the quota: tenant 'a': priority 3 asked, quota 0"
    missing = {**asked, "tenant": "nobody"}
    await rest.no(404, "not-found", "POST", "/leases/explain", missing)
    assert await rest.everything() == before


async def test_what_would_come_of_a_request_is_explained(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a")
    before = await rest.everything()
    why = await rest.do(
        "POST", "/leases/explain", {"memory_bytes": 9000 * MIB, "share_permille": 500}
    )
    assert "GPU-n1-0" in why["decision"] and why["summary"] == {"fits": 2}
    assert [one["rank"] for one in why["gpus"]] == [1, 2]
    why = await rest.do("POST", "/leases/explain?limit=1", {"memory_bytes": 90_000 * MIB})
    assert why["decision"].startswith("no room") and len(why["gpus"]) == 1
    assert await rest.everything() == before


async def test_leases_are_filtered_and_paged_with_their_history(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.world.join("n2", 1)
    for name in ("a", "b"):
        await rest.tenant(name)
    made = [await rest.lease(name, hosts="any") for name in "abababa"]
    await rest.do("POST", f"/leases/{made[0]['id']}/release")
    ids = [lease["id"] for lease in made]

    async def found(query: str, by: str = "admin") -> list[str]:
        return [lease["id"] for lease in await rest.pages(f"/leases{query}", by)]

    assert await found("") == ids == sorted(ids)
    assert await found("", "b") == await found("?tenant=b") == ids[1::2]
    assert await found("?state=released") == ids[:1]
    assert await found("?state=active&state=released&tenant=a") == ids[::2]
    on = {lease["id"]: lease["grants"][0]["node"] for lease in made}
    assert await found("?node=n1") == [name for name in ids if on[name] == "n1"]
    uuid = made[3]["grants"][0]["gpu"]
    assert ids[3] in await found(f"?gpu={uuid}")
    assert await found("?gpu=GPU-none") == []


async def test_the_list_shows_no_lease_tokens(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    lease = await rest.lease("a")
    [listed] = await rest.pages("/leases", by="a")
    assert listed["token"] is None and listed["id"] == lease["id"]
