"""Borrowed GPUs through the REST API and over a restart, and what their programs are told."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from gpupool.renewer import notice_of
from manager_rest import Rest

WHOLE = {"share_permille": 1000, "memory_bytes": None}


async def test_what_is_borrowed_is_shown_and_goes_back_over_a_restart(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a", gpus=1, borrow=True, weight=2)
    await rest.tenant("b", gpus=1)
    await rest.lease("a", **WHOLE, ttl_seconds=3600)
    lent = await rest.lease("a", **WHOLE, ttl_seconds=3600, beyond_quota="borrow")
    assert (lent["borrowed"], lent["ending"], lent["beyond_quota"]) == (True, None, "borrow")
    quota = await rest.do("GET", "/tenants/a/quota")
    assert (quota["weight"], quota["borrow"], quota["borrowed"]["gpus"]) == (2, True, 1)
    owner = await rest.lease("b", **WHOLE, wait_seconds=3600)
    assert owner["state"] == "queued"
    path = f"/leases/{lent['id']}"
    ending = (await rest.do("GET", path, by="a"))["ending"]
    assert "within its own asks" in ending["reason"]
    await rest.world.restart()
    live = rest.world.pool.ledger.leases[lent["id"]]
    assert live.borrowed and live.ending is not None
    assert rest.world.pool.ledger.borrowed["a"].gpus == 1
    await rest.world.later(30)
    await rest.world.beat("n1")
    await rest.world.later(31)
    assert rest.world.state(live) == "gone"
    assert rest.world.pool.ledger.leases[owner["id"]].state == "active"


async def test_a_full_quota_is_waited_for_and_explained(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a", gpus=1)
    await rest.lease("a")
    refused = await rest.ask("POST", "/leases", {"beyond_quota": "borrow"}, by="a")
    assert (refused.status_code, refused.json()["limits"][0]["quantity"]) == (403, "gpus")
    waits = await rest.lease("a", wait_seconds=60, beyond_quota="wait")
    explained = await rest.do("GET", f"/leases/{waits['id']}/explain", by="a")
    assert explained["decision"] == (
        "it waits at position 1: quota: virtual GPUs: 1 asked, 1 in use, quota 1"
    )
    (entry,) = (await rest.do("GET", "/queue", by="a"))["items"]
    assert entry["beyond_quota"] == "wait"


async def test_what_is_borrowed_does_not_grow(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a", compute_permille=0, borrow=True)
    lent = await rest.lease("a", share_permille=100, beyond_quota="borrow")
    refused = await rest.ask("PATCH", f"/leases/{lent['id']}", {"share_permille": 200}, by="a")
    assert refused.status_code == 403
    await rest.do("PATCH", f"/leases/{lent['id']}", {"share_permille": 50}, by="a")


async def test_a_time_limit_is_kept_over_a_restart_and_gives_a_start(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    timed = await rest.lease("a", **WHOLE, ttl_seconds=3600, time_seconds=100)
    assert (timed["time_seconds"], timed["ending"]) == (100, None)
    waits = await rest.lease("a", **WHOLE, wait_seconds=3600)
    explained = await rest.do("GET", f"/leases/{waits['id']}/explain", by="a")
    assert when(explained["expected_start"]) == when(timed["granted"]) + timedelta(seconds=100)
    await rest.world.restart()
    leases = rest.world.pool.ledger.leases
    live = leases[timed["id"]]
    await rest.world.later(39)
    assert live.ending is None
    await rest.world.beat("n1")
    await rest.world.later(1)
    assert live.ending is not None
    await rest.world.later(30)
    await rest.world.beat("n1")
    await rest.world.later(30)
    assert (live.state, live.reason) == ("expired", "its time limit of 100 s is over")
    assert leases[waits["id"]].state == "active"


def when(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    "body",
    [{"beyond_quota": "steal"}, {"beyond_quota": None}, {"time_seconds": 0}, {"time_seconds": 1.5}],
)
async def test_other_words_are_refused(rest: Rest, body: dict[str, object]) -> None:
    await rest.tenant("a")
    assert (await rest.ask("POST", "/leases", body, by="a")).status_code == 422


def test_a_program_is_told_that_its_gpus_go_back() -> None:
    grants = [{"node": "two", "ordinal": 1}, {"node": "one", "ordinal": 0, "draining": True}]
    ending = {"at": "2027-01-15T08:01:00Z", "reason": "it was borrowed"}
    assert notice_of({"id": "lease-1", "grants": grants, "ending": ending}) == {
        "reason": "ending",
        "at": "2027-01-15T08:01:00Z",
        "why": "it was borrowed",
        "lease": "lease-1",
        "nodes": ["one", "two"],
        "devices": [0, 1],
    }
