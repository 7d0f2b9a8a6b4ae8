"""Budgets of a pool's tenants: set by an operator, told to servers, kept there."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gpupool.quota import read_budgets
from gpupool_common.budgets import LEAST, TenantBudgets
from gpupool_common.errors import ConfigError
from gpupool_common.node_protocol import OrderedTenant
from gpupool_server import budgets as kept
from gpupool_server import pool_member
from gpupool_server.budget_settings import BudgetSettings
from gpupool_server.pool_member import BUDGETS
from gpupool_server.sharing import TenantSettings
from link_end import MakeEnd
from link_host import Host, MakePeer, applied
from manager_rest import Rest
from server_harness import accepted, eventually, hello, refused

MIB = 1 << 20

#: By name: what cannot be. None has a float, a negative or a nothing.
WRONG: list[tuple[str, list[Any]]] = [
    ("sessions", [0, 4097, "8", True, 1.0]),
    ("pending", [0, 4097, "many"]),
    ("host_memory", [0, 16 * MIB - 1, "15MiB", "much", True, 1 << 60]),
    ("pinned_memory", [-1, "0"]),
    ("shares", [15, 10**10, "99", 1.5]),
    ("disk", ["15MiB", 1 << 60]),
    ("log_lines", [99, 10**10, "all"]),
    ("open_files", [255, -5, True]),
    ("threads", [1]),
]

# One model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "values"), WRONG)
def test_what_cannot_be_is_refused_wherever_it_is_said(name: str, values: list[Any]) -> None:
    for value in values:
        for model in (TenantBudgets, TenantSettings):
            with pytest.raises(ValidationError):
                model.model_validate({name: value})


def test_every_budget_is_the_servers_own_too() -> None:
    """What a tenant has of a budget is handed out by what a session may have of it."""
    assert {each.name for each in kept.ALLOTTED} == set(LEAST)
    assert set(LEAST) | {"sessions", "pending"} == set(TenantBudgets.model_fields) == BUDGETS
    assert {f"session_{name}" for name in LEAST} < set(BudgetSettings.model_fields)
    assert set(TenantBudgets.model_fields) < set(TenantSettings.model_fields)


def test_what_an_operator_types() -> None:
    assert read_budgets(["host_memory=1GiB", "log_lines=500", "disk=none"]) == {
        "host_memory": 1 << 30,
        "log_lines": 500,
        "disk": None,
    }
    for text in ("host_memory", "=5", "threads=5", "log_lines=5", "disk=1KiB", "sessions=x", ""):
        with pytest.raises(ConfigError, match=r"^--budget "):
            read_budgets([text])


# REST --------------------------------------------------------------------------------------------


async def test_budgets_are_part_of_a_quota(rest: Rest) -> None:
    await rest.do("POST", "/tenants", {"name": "a", "quota": {"budgets": {"disk": 64 * MIB}}})
    shown = (await rest.do("GET", "/tenants/a/quota"))["budgets"]
    assert set(shown) == set(TenantBudgets.model_fields)
    assert {name: each for name, each in shown.items() if each} == {"disk": 64 * MIB}
    body = {"gpus": 2, "budgets": {"log_lines": 5000, "sessions": 3}}
    put = await rest.do("PUT", "/tenants/a/quota", body)
    assert (put["gpus"], put["budgets"]["log_lines"], put["budgets"]["disk"]) == (2, 5000, None)
    again = await rest.do("PUT", "/tenants/a/quota", {})
    assert not any(again["budgets"].values())


@pytest.mark.parametrize(("name", "values"), WRONG)
async def test_rest_names_what_cannot_be(rest: Rest, name: str, values: list[Any]) -> None:
    await rest.do("POST", "/tenants", {"name": "a"})
    for value in values:
        await rest.no(422, "bad-request", "PUT", "/tenants/a/quota", {"budgets": {name: value}})
    assert not any((await rest.do("GET", "/tenants/a/quota"))["budgets"].values())


async def test_a_tenant_does_not_raise_its_own(rest: Rest) -> None:
    await rest.tenant("a")
    more = {"budgets": {"host_memory": 1 << 40}}
    await rest.no(403, "forbidden", "PUT", "/tenants/a/quota", more, "a")
    await rest.no(403, "forbidden", "POST", "/tenants", {"name": "b", "quota": more}, "a")
    assert not any((await rest.do("GET", "/tenants/a/quota"))["budgets"].values())


# On servers --------------------------------------------------------------------------------------


async def set_budgets(host: Host, **budgets: int) -> None:
    tenancy = host.pool.tenancy
    await host.pool.commands.do(
        lambda transaction: tenancy.set_quota(transaction, "red", {"budgets": budgets})
    )


async def test_they_travel_with_the_grants(host: Host, make_peer: MakePeer) -> None:
    await host.tenant()
    peer = make_peer()
    assert applied(await peer.join((await host.token())[1])).tenants == []
    await set_budgets(host, log_lines=500)  # nobody there has a lease of it
    lease = await host.lease()
    told = applied(await peer.told()).tenants
    assert told == [OrderedTenant(tenant="red", budgets={"log_lines": 500})]
    await set_budgets(host, log_lines=600, sessions=2)
    (told_now,) = applied(await peer.told()).tenants
    assert told_now.budgets == {"log_lines": 600, "sessions": 2}
    await host.end(lease)
    assert applied(await peer.told()).tenants == []


async def test_a_server_keeps_to_what_it_is_told(host: Host, make_end: MakeEnd) -> None:
    await host.tenant()
    end = await make_end()
    await end.link.joined.wait()
    await set_budgets(host, sessions=1, log_lines=300)
    lease = await host.lease()
    token = host.pool.signer.issue(host.pool.ledger, lease, host.pool.clock())
    office = end.office  # type: ignore[attr-defined]
    tenants = office.gpus.tenants
    await eventually(lambda: tenants.of_pool.get("red", {}).get("sessions") == 1)
    name = accepted(await office.handler.answer(hello(token=token)))["session"]
    assert office.supervisor._sessions[name].log.limit == 300
    code, text = refused(await office.handler.answer(hello(token=token)))
    assert code == "over-quota" and "1" in text
    shown = office.supervisor.budgets(await office.supervisor.describe())["red"]
    assert (shown["sessions"]["limit"], shown["log_lines"]["limit"]) == (1, 300)
    # What an operator changes holds for the next session, without any restart.
    await set_budgets(host, sessions=3, log_lines=399)
    await eventually(lambda: tenants.of_pool.get("red", {}).get("sessions") == 3)
    code, text = refused(await office.handler.answer(hello(token=token)))
    assert code == "over-quota" and "399 lines in the server's log" in text
    await set_budgets(host, sessions=3)
    await eventually(lambda: "log_lines" not in tenants.of_pool.get("red", {}))
    accepted(await office.handler.answer(hello(token=token)))


async def test_budgets_of_a_later_release_are_not_ours(
    host: Host, make_end: MakeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_member, "BUDGETS", frozenset({"log_lines"}))
    await host.tenant()
    end = await make_end()
    await end.link.joined.wait()
    await set_budgets(host, sessions=1, log_lines=500)
    await host.lease()
    tenants = end.office.gpus.tenants  # type: ignore[attr-defined]
    await eventually(lambda: tenants.of_pool == {"red": {"log_lines": 500}})


@pytest.mark.parametrize("wrong", [{"log_lines": 0}, {"log_lines": 1 << 70}, {"a b": 5}])
def test_orders_with_budgets_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        OrderedTenant.model_validate({"tenant": "red", "budgets": wrong})
