"""Leases whose programs do nothing: who is told, who goes back, and who is kept."""

from __future__ import annotations

from typing import Any

import pytest

from gpupool.lease import _row
from gpupool.lease_files import LeaseFiles
from gpupool.pool_address import Where
from gpupool.renewer import Renewer
from gpupool_manager.idle import IdleRules
from gpupool_manager.records import IdleAction, Lease, Quota
from manager_rest import Rest
from queue_world import GRACE, QueueWorld

AFTER = 600.0
WARN, RECLAIM = IdleRules("warn", AFTER), IdleRules("reclaim", AFTER)
WHOLE = {"share_permille": 1000, "memory_bytes": None}


def pool(rules: IdleRules, *quotas: Quota, gpus: int = 1) -> QueueWorld:
    return QueueWorld(*(quotas or (Quota("a"), Quota("b"))), gpus=gpus, idle=rules)


def work(world: QueueWorld, lease: Lease) -> None:
    world.ledger.works(lease.id, world.now)


@pytest.mark.parametrize("action", ["off", "warn", "reclaim"])
def test_what_comes_of_a_lease_that_does_nothing(action: IdleAction) -> None:
    world = pool(IdleRules(action, AFTER))
    lease = world.ask("a")
    waits = world.ask("b")
    world.later(AFTER - 1)
    assert not world.leases.idle.is_told(lease)
    world.later(1)
    assert world.leases.idle.count(world.now) == 1
    assert world.events == ([] if action == "off" else ["lease.idle"])
    assert (lease.ending is not None) == (action == "reclaim")
    world.later(GRACE)
    assert (lease.state, waits.state) == (
        ("reclaimed", "active") if action == "reclaim" else ("active", "queued")
    )
    if action == "reclaim":
        assert lease.reason == "its programs have done nothing for 600 s"


@pytest.mark.parametrize("rules", [WARN, RECLAIM])
def test_who_works_again_is_kept(rules: IdleRules) -> None:
    world = pool(rules)
    lease = world.ask("a")
    world.later(AFTER)
    world.later(GRACE - 1)
    work(world, lease)
    world.later(0)
    assert world.events == ["lease.kept"]
    assert lease.ending is None and not world.leases.idle.is_told(lease)
    world.later(AFTER - 1)
    assert world.events == []
    world.later(1)
    assert world.events == ["lease.idle"]


def test_who_works_is_never_told() -> None:
    world = pool(RECLAIM)
    lease = world.ask("a")
    for _ in range(20):
        world.later(AFTER - 1)
        assert world.events == []
        work(world, lease)


def test_work_in_the_last_moment_counts() -> None:
    world = pool(RECLAIM)
    lease = world.ask("a")
    world.later(AFTER)
    world.now += GRACE
    work(world, lease)
    world.later(0)
    assert (lease.state, lease.ending) == ("active", None)


def test_a_tenant_has_a_rule_of_its_own() -> None:
    quotas = Quota("a", idle_action="reclaim", idle_seconds=60), Quota("b")
    world = pool(IdleRules("off", AFTER), *quotas, gpus=2)
    short, kept = world.ask("a"), world.ask("b")
    world.later(60)
    world.later(GRACE)
    assert (short.state, kept.state) == ("reclaimed", "active")
    world = pool(RECLAIM, Quota("a", idle_action="off"), Quota("b", idle_seconds=1200), gpus=2)
    off, late = world.ask("a"), world.ask("b")
    world.later(1199)
    assert late.ending is None
    world.later(1)
    assert late.ending is not None and off.ending is None


def test_another_rule_keeps_who_was_told() -> None:
    world = pool(RECLAIM)
    lease = world.ask("a")
    world.later(AFTER)
    world.ledger.quotas["a"].idle_action = "warn"
    world.leases.idle.look_again()
    world.later(0)
    assert world.events == ["lease.kept", "lease.idle"]
    assert lease.ending is None and world.leases.idle.is_told(lease)


def test_what_cannot_be_seen_is_not_idle() -> None:
    world = pool(RECLAIM)
    lease = world.ask("a")
    world.later(AFTER)
    assert lease.ending is not None
    world.ledger.nodes["n0"].lost = True
    world.later(GRACE)
    assert lease.state == "active" and lease.ending is None
    world.later(10 * AFTER)
    assert lease.ending is None


def test_another_manager_counts_anew() -> None:
    world = pool(RECLAIM)
    lease = world.ask("a")
    world.later(AFTER)
    world.restart()
    assert world.events == ["lease.kept"]
    world.later(AFTER - 1)
    assert lease.ending is None
    world.later(1)
    assert lease.ending is not None


def test_a_borrowed_lease_that_is_idle_goes_back_though_nobody_waits() -> None:
    world = pool(RECLAIM, Quota("a", gpus=0, borrow=True), Quota("b"), gpus=2)
    lent = world.ask("a", beyond="borrow")
    world.later(AFTER)
    assert lent.ending is not None and lent.ending.cause == "idle"
    world.pump()  # who takes back what is lent leaves it alone
    assert lent.ending is not None
    world.later(GRACE)
    assert lent.state == "reclaimed"


async def test_nodes_and_sessions_say_that_it_works(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a", idle_action="warn", idle_seconds=100)
    lease = await rest.lease("a", **WHOLE, ttl_seconds=3600)
    (grant,) = lease["grants"]
    busy = {"lease": lease["id"], "gpu": grant["gpu"]}
    session = {"id": "s1", "lease": lease["id"]}
    await rest.world.beat("n1")  # it has its orders

    async def look(seconds: float, **beat: Any) -> tuple[float, bool]:
        await rest.world.later(seconds)
        await rest.world.beat("n1", **beat)
        await rest.world.pool.tick()
        live = rest.world.pool.ledger.leases[lease["id"]]
        idle = rest.world.pool.leases.idle
        now = rest.world.clock.now
        return now - idle.of(live, now).since, idle.is_told(live)

    assert await look(30) == (30, False)
    assert await look(30, busy=[{**busy, "busy_ms": 5}]) == (0, False)
    assert await look(30, busy=[{**busy, "busy_ms": 5}], sessions=[session]) == (0, False)
    assert await look(30, sessions=[session]) == (30, False)
    assert await look(35, sessions=[session]) == (65, False)
    assert await look(35, sessions=[session]) == (100, True)
    shown = await rest.do("GET", f"/leases/{lease['id']}", by="a")
    assert (shown["idle"]["action"], shown["idle"]["told"]) == ("warn", True)
    assert "gpupool_manager_leases_idle 1.0" in (await rest.ask("GET", "/metrics")).text
    assert await look(1, busy=[{**busy, "busy_ms": 6}], sessions=[session]) == (0, False)


async def test_an_idle_lease_is_explained_and_ends(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a", idle_action="reclaim", idle_seconds=60)
    lease = await rest.lease("a", **WHOLE, ttl_seconds=3600)
    await rest.world.beat("n1")
    await rest.world.later(30)
    await rest.world.beat("n1")
    await rest.world.later(30)
    path = f"/leases/{lease['id']}"
    ending = (await rest.do("GET", path, by="a"))["ending"]
    assert ending["reason"] == "its programs have done nothing for 60 s"
    explained = await rest.do("GET", f"{path}/explain", by="a")
    assert explained["decision"].endswith(f"it goes back: {ending['reason']}")
    await rest.world.beat("n1")
    await rest.world.later(30)
    await rest.world.beat("n1")
    await rest.world.later(30)
    ended = await rest.do("GET", path, by="a")
    assert (ended["state"], ended["idle"]) == ("reclaimed", None)


async def test_a_quota_keeps_its_rule_over_a_restart(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a", idle_action="reclaim", idle_seconds=60)
    quota = await rest.do("GET", "/tenants/a/quota")
    assert (quota["idle_action"], quota["idle_seconds"]) == ("reclaim", 60)
    lease = await rest.lease("a", **WHOLE, ttl_seconds=3600)
    for end, goes in ((30, False), (30, True)):
        await rest.world.beat("n1")
        await rest.world.later(end)
        assert (rest.world.pool.ledger.leases[lease["id"]].ending is not None) is goes
    await rest.world.restart()
    kept = rest.world.pool.ledger.leases[lease["id"]]
    assert kept.ending is None
    await rest.world.beat("n1")
    await rest.world.later(30)
    await rest.world.beat("n1")
    await rest.world.later(30)
    assert kept.ending is not None


@pytest.mark.parametrize(
    "quota",
    [{"idle_action": "end"}, {"idle_seconds": 0}, {"idle_seconds": 1.5}, {"idle_seconds": "60"}],
)
async def test_other_rules_are_refused(rest: Rest, quota: dict[str, Any]) -> None:
    await rest.tenant("a")
    await rest.no(422, "bad-request", "PUT", "/tenants/a/quota", quota)


def test_a_list_says_which_are_idle() -> None:
    idle = {"since": "2020-01-15T08:00:00Z", "after_seconds": 60.0}
    lease = {"id": "l", "tenant": "a", "state": "active", "grants": [], "idle": idle, "label": ""}
    lease |= {"request": {"gpus": 1}, "created": "2020-01-15T08:00:00Z"}
    assert _row(lease)[2] == "idle"
    assert _row({**lease, "idle": {**idle, "after_seconds": 1e12}})[2] == "active"
    assert _row({**lease, "state": "queued", "idle": None})[2] == "queued"


def test_its_programs_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    idle = {"since": "2027-01-15T08:00:00Z", "told": True}
    lease = {"id": "lease-1", "grants": [{"node": "one", "ordinal": 0}], "idle": idle}
    with LeaseFiles() as files:
        renewer = Renewer(Where("http://127.0.0.1:1", "t"), lease, files)
        line = "gpupool: the lease lease-1 has done nothing since 2027-01-15T08:00:00Z"
        assert capsys.readouterr().err.startswith(line)
        renewer.renewed(lease)
        assert capsys.readouterr().err == ""
        assert not files.notice.exists(), "nothing goes, so nobody needs to end"
        renewer.renewed({**lease, "idle": {**idle, "told": False}})
        renewer.renewed(lease)
        assert capsys.readouterr().err.startswith(line)
        renewer.renewed({**lease, "ending": {"at": "2027-01-15T08:01:00Z", "reason": "idle"}})
        assert "the lease ends at 2027-01-15T08:01:00Z: idle" in capsys.readouterr().err
        assert files.notice.exists()
