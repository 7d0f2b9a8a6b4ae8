"""Reservations through the REST API: who may make them, see them and cancel them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpupool_manager.api_reservations import CHANGE_SECONDS, CHANGES
from manager_rest import Rest

WHOLE = {"share_permille": 1000, "memory_bytes": None}


def at(rest: Rest, seconds: float) -> str:
    return datetime.fromtimestamp(rest.world.clock.now + seconds, UTC).isoformat()


def body(rest: Rest, after: float = 3600, seconds: int = 3600, **more: Any) -> dict[str, Any]:
    return {"gpus": 1, "start": at(rest, after), "seconds": seconds, **more}


async def test_it_becomes_a_lease_of_its_id(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    await rest.tenant("b")
    made = await rest.do("POST", "/reservations", body(rest, label="lecture"), by="a")
    assert (made["tenant"], made["label"], made["certain"]) == ("a", "lecture", True)
    path = f"/reservations/{made['id']}"
    assert await rest.do("GET", path, by="a") == made
    assert (await rest.do("GET", "/reservations", by="a"))["items"] == [made]
    early = await rest.ask("GET", f"/leases/{made['id']}", by="a")
    assert (early.status_code, "it is a reservation" in early.text) == (409, True)
    full = await rest.ask("POST", "/leases", WHOLE, by="b")
    assert "reserved" in full.json()["detail"]
    explained = await rest.do("POST", "/leases/explain", WHOLE, by="b")
    assert explained["decision"].startswith("no room: reserved: ")
    timed = {**WHOLE, "time_seconds": 3600}
    explained = await rest.do("POST", "/leases/explain", timed, by="b")
    assert explained["decision"].startswith("it would be granted")
    await rest.world.later(3600)
    await rest.world.join("n1", 1)  # its heartbeats were missed
    await rest.world.later(0)
    lease = await rest.do("GET", f"/leases/{made['id']}", by="a")
    assert (lease["state"], lease["reserved"], lease["label"]) == ("active", True, "lecture")
    assert lease["time_seconds"] == 3600
    await rest.no(404, "not-found", "GET", path, by="a")


async def test_tenants_see_their_own(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    for name in ("a", "b"):
        await rest.tenant(name)
    made = await rest.do("POST", "/reservations", body(rest, tenant="a"))
    path = f"/reservations/{made['id']}"
    assert (await rest.do("GET", "/reservations", by="b"))["items"] == []
    await rest.no(404, "not-found", "GET", path, by="b")
    await rest.no(404, "not-found", "DELETE", path, by="b")
    await rest.no(403, "forbidden", "POST", "/reservations", body(rest, tenant="a"), by="b")
    await rest.no(422, "bad-request", "POST", "/reservations", body(rest))
    await rest.no(409, "in-use", "DELETE", "/tenants/a")
    assert (await rest.ask("GET", f"/leases/{made['id']}", by="b")).status_code == 404
    assert [each["id"] for each in await rest.pages("/reservations")] == [made["id"]]
    assert (await rest.ask("DELETE", path, by="a")).status_code == 204
    await rest.no(404, "not-found", "DELETE", path, by="a")


async def test_what_is_in_its_way_is_counted(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a", gpus=1)
    await rest.lease("a", **WHOLE, ttl_seconds=86400)
    made = await rest.do("POST", "/reservations", body(rest), by="a")
    assert not made["certain"]
    assert made["reason"] == "1 leases that may last longer are on GPUs that it needs"
    await rest.no(403, "over-quota", "POST", "/reservations", body(rest), by="a")


async def test_it_is_there_after_a_restart(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    half = {"share_permille": 500, "memory_bytes": 1 << 30}
    made = await rest.do("POST", "/reservations", body(rest, tenant="a", **half))
    before = dict(rest.world.pool.ledger.reservations)
    await rest.world.restart()
    assert rest.world.pool.ledger.reservations == before and made["id"] in before
    await rest.world.later(3600)
    assert rest.world.pool.ledger.leases[made["id"]].reserved
    await rest.world.restart()
    assert rest.world.pool.ledger.leases[made["id"]].reserved
    assert not rest.world.pool.ledger.reservations


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "2027-01-15T08:00:00"},
        {"start": "soon"},
        {"start": "0001-01-01T00:00:00Z"},
        {"start": "9999-12-31T23:59:59Z"},
        {"seconds": 59},
        {"seconds": 32 * 86400},
        {"seconds": "3600"},
        {"gpus": 0},
        {"wait_seconds": 5},
        {"share_permille": 500},
    ],
)
async def test_what_cannot_be_is_refused(rest: Rest, wrong: dict[str, Any]) -> None:
    await rest.tenant("a")
    await rest.no(422, "bad-request", "POST", "/reservations", {**body(rest), **wrong}, by="a")


async def test_a_tenant_keeps_so_many_and_others_have_room(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool_manager.reservations.MOST_EACH", 2)
    await rest.world.join("n1", 1)
    for name in ("a", "b"):
        await rest.tenant(name)
    for after in (3600, 7200):
        await rest.do("POST", "/reservations", body(rest, after), by="a")
    refused = await rest.ask("POST", "/reservations", body(rest, 10800), by="a")
    assert (refused.status_code, "of a tenant" in refused.text) == (409, True)
    made = await rest.do("POST", "/reservations", body(rest, 10800), by="b")
    await rest.do("DELETE", f"/reservations/{made['id']}", by="b")


async def test_a_tenant_changes_them_so_often(rest: Rest) -> None:
    """Also what is refused is reckoned with all that is kept."""
    await rest.world.join("n1", 1)
    for name in ("a", "b"):
        await rest.tenant(name)
    for _ in range(CHANGES):
        refused = await rest.ask("POST", "/reservations", body(rest, gpus=2), by="a")
        assert refused.status_code == 409
    await rest.no(429, "too-many", "POST", "/reservations", body(rest), by="a")
    await rest.no(429, "too-many", "DELETE", "/reservations/lease-x", by="a")
    await rest.do("POST", "/reservations", body(rest), by="b")
    await rest.do("POST", "/reservations", body(rest, 7200, tenant="a"))
    rest.world.clock.now += CHANGE_SECONDS
    await rest.do("POST", "/reservations", body(rest, 10800), by="a")
