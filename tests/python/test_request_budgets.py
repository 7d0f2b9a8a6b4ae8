"""A tenant that asks the manager without end is refused, and nobody else is."""

from __future__ import annotations

from functools import partial

import httpx
import pytest

from console_visitor import Visitor
from gpupool_common import logs
from gpupool_common.logs import Meter
from gpupool_manager import request_budgets
from gpupool_manager.app import make_app
from gpupool_manager.request_budgets import ANSWER_BYTES, RequestBudgets
from manager_rest import Rest


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_and_then_so_many_a_second() -> None:
    clock = Clock()
    budgets = RequestBudgets(2.0, clock)
    assert sum(budgets.spend("red") for _ in range(1000)) == 20
    assert budgets.spend("blue"), "each has its own"
    clock.now += 1.0
    assert sum(budgets.spend("red") for _ in range(10)) == 2
    clock.now += 1e9
    assert sum(budgets.spend("red") for _ in range(1000)) == 20, "no more for having waited"
    assert budgets.refused() == {"blue": 0, "red": 980 + 8 + 980}


def test_long_answers_count_as_more() -> None:
    clock = Clock()
    budgets = RequestBudgets(2.0, clock)
    assert budgets.spend("red")
    budgets.answered("red", ANSWER_BYTES - 1)
    assert sum(budgets.spend("red") for _ in range(100)) == 19
    budgets.answered("red", 10 * ANSWER_BYTES)
    clock.now += 5.0
    assert not budgets.spend("red"), "it owes them"
    clock.now += 0.5
    assert budgets.spend("red") and budgets.spend("blue")
    budgets.answered("nobody", 1 << 30)
    assert len(budgets) == 2


def test_the_slowest_rate_still_admits_one() -> None:
    assert RequestBudgets(0.01, Clock()).spend("red")


def test_it_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_budgets, "MOST_TENANTS", 3)
    budgets = RequestBudgets(1.0, Clock())
    for number in range(100):
        budgets.spend(f"tenant-{number}")
    assert len(budgets) == 3


async def test_to_explain_costs_what_is_looked_at(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_budgets, "LOOKED_GPUS", 1)
    await rest.world.join("n1", 2)
    await rest.tenant("blue")
    mine = await rest.lease("blue", memory_bytes=1 << 20, share_permille=1)
    budgets = RequestBudgets(2.0, Clock())
    rest.app = make_app(rest.world.pool, budgets=budgets)
    await rest.client.aclose()
    rest.client = httpx.AsyncClient(
        transport=httpx.ASGITransport(rest.app), base_url="http://pool/v1"
    )
    asked = {"memory_bytes": 1 << 20}
    assert (await rest.ask("POST", "/leases/explain", asked, by="blue")).status_code == 200
    assert budgets._tenants["blue"].left == 20 - 1 - 2
    assert (await rest.ask("GET", f"/leases/{mine['id']}/explain", by="blue")).status_code == 200
    assert budgets._tenants["blue"].left == 20 - 2 - 4


def told(rest: Rest) -> list[int]:
    """How many refusals were said to have no line of their own."""
    return [each["count"] for each in rest.logged if each["event"].startswith("too many requests")]


async def test_a_flood_over_rest(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("red", "blue"):
        await rest.tenant(name)
    clock = Clock()
    budgets = RequestBudgets(1.0, clock)
    monkeypatch.setattr(logs, "Meter", partial(Meter, clock))
    rest.app = make_app(rest.world.pool, budgets=budgets)
    await rest.client.aclose()
    rest.client = httpx.AsyncClient(
        transport=httpx.ASGITransport(rest.app), base_url="http://pool/v1"
    )
    first = len(rest.logged)
    answers = [await rest.ask("GET", "/leases", by="blue") for _ in range(1000)]
    assert [each.status_code for each in answers] == [200] * 10 + [429] * 990
    assert int(answers[-1].headers["retry-after"]) > 0
    of_requests = [each for each in rest.logged[first:] if each["event"] == "request"]
    assert len(of_requests) == 10 + Meter.BURST, "what is refused fills no log"
    assert told(rest) == [1], "and that is said while it goes on"
    problem = await rest.no(429, "too-many", "POST", "/leases", {}, by="blue")
    assert "'blue' makes more than 1 requests a second" in problem["detail"]
    # Others are as before: tenants, operators, and who shows a wrong token or none.
    assert (await rest.ask("GET", "/leases", by="red")).status_code == 200
    for _ in range(30):
        assert (await rest.ask("GET", "/tenants")).status_code == 200
    assert (await rest.ask("GET", "/leases", by="gpp_none")).status_code == 401
    shown = (await rest.ask("GET", "/metrics")).text
    assert 'gpupool_manager_tenant_requests_refused_total{tenant="blue"} 991.0' in shown
    assert 'gpupool_manager_tenant_requests_refused_total{tenant="red"} 0.0' in shown
    clock.now += 1.0
    assert (await rest.ask("GET", "/leases", by="blue")).status_code == 200
    assert (await rest.ask("GET", "/leases", by="blue")).status_code == 429
    assert told(rest) == [1, 990 - Meter.BURST], "of all that had no line"


async def test_a_page_fills_no_log(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "Meter", partial(Meter, Clock()))
    rest.app = make_app(rest.world.pool)
    await rest.client.aclose()
    rest.client = httpx.AsyncClient(
        transport=httpx.ASGITransport(rest.app), base_url="http://pool/v1"
    )
    first = len(rest.logged)
    for _ in range(Meter.BURST + 50):
        assert (await rest.ask("GET", "/health", origin="https://evil.example")).status_code == 403
    of_requests = [each for each in rest.logged[first:] if each["event"] == "request"]
    assert len(of_requests) == Meter.BURST
    assert told(rest) == [1]


async def test_long_lists_and_pages_cost_their_tenant(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_budgets, "ANSWER_BYTES", 1 << 10)
    await rest.world.join("n1")
    await rest.tenant("blue")
    for _ in range(8):
        await rest.lease("blue", memory_bytes=1 << 20, share_permille=1)
    budgets = RequestBudgets(2.0, Clock())
    rest.app = make_app(rest.world.pool, budgets=budgets)
    await rest.client.aclose()
    rest.client = httpx.AsyncClient(
        transport=httpx.ASGITransport(rest.app), base_url="http://pool/v1"
    )
    budget = budgets._tenants
    answer = await rest.ask("GET", "/leases", by="blue")
    assert budget["blue"].left == 20 - 1 - len(answer.content) // 1024
    blue = Visitor(rest.app)
    budget.clear()
    await blue.sign_in(rest.tokens["blue"])
    before = budget["blue"].left
    inner = len((await rest.ask("GET", "/leases?limit=100")).content)
    page = await blue.client.get("/console/leases")
    assert page.status_code == 200 and len(page.content) > 10_000
    assert budget["blue"].left <= before - 1 - inner // 1024 - len(page.content) // 1024
    refused = await blue.client.get("/console/leases")
    assert refused.status_code == 429 and "more than 2 requests" in refused.text
