"""Budgets by name: what sessions get, what workers say of them, what is shown."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from gpupool_common import protocol
from gpupool_common.errors import ConfigError
from gpupool_server import budgets, refusals, sessions
from gpupool_server.budget_settings import BudgetSettings
from gpupool_server.claims import Refusal
from gpupool_server.config import Settings, load_settings
from gpupool_server.refusals import Refusals
from gpupool_server.tenants import Tenant
from server_harness import MakeOffice, accepted, eventually, hello, hello_fields, refused

MIB = 1 << 20


def make(**changes: object) -> Settings:
    return Settings.model_validate(changes)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("session_host_memory", ["15MiB", "-1", "much", 1 << 51, True]),
        ("session_pinned_memory", ["15MiB", "0", "1EiB", ""]),
        ("session_shares", [15, 60001, "many", 1e30]),
        ("session_open_files", [255, 1 << 21, -1]),
        ("session_disk", ["15MiB", "2EiB", "all", True]),
        ("session_log_lines", [99, 10**10, "all"]),
        ("session_log_rate", [0, 0.09, 1001, "nan", "inf", "fast"]),
        ("tenant_sessions", [0, 4097, "all"]),
        ("max_sessions", [0, 4097]),
    ],
)
def test_numbers_are_checked(key: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ValidationError):
            BudgetSettings.model_validate({key: value})
        with pytest.raises(ConfigError, match=key.replace("_", "[-_]")):
            load_settings(None, {key: value})


def test_a_tenants_part_is_checked() -> None:
    for value in ("15MiB", "none", -5):
        with pytest.raises(ValidationError):
            Settings.model_validate({"tenants": {"red": {"token": "x", "pinned_memory": value}}})


def test_a_session_gets_what_is_left() -> None:
    settings = make(session_pinned_memory=64 * MIB, session_host_memory=32 * MIB)
    free = budgets.allot(settings, Tenant("red"), [], 0)
    assert free == {
        "host_memory": 32 * MIB,
        "pinned_memory": 64 * MIB,
        "shares": 16384,
        "disk": 320 * MIB,
        "open_files": 8192,
        "log_lines": 10_000,
    }
    limited = Tenant("red", budgets={"pinned_memory": 100 * MIB})
    second = budgets.allot(settings, limited, [free], 0)
    assert second == {**free, "pinned_memory": 36 * MIB}
    with pytest.raises(Refusal, match=r"100MiB of pinned memory and have been given 128MiB"):
        budgets.allot(settings, limited, [free], 1)


@pytest.mark.parametrize(
    ("name", "whole", "words"),
    [
        ("disk", 330 * MIB, "330MiB of disk and have been given 320MiB"),
        ("open_files", 8447, "8447 open files and have been given 8192"),
        ("log_lines", 10_099, "10099 lines in the server's log and have been given 10000"),
    ],
)
def test_whatever_a_tenant_has_is_handed_out(name: str, whole: int, words: str) -> None:
    limited = Tenant("red", budgets={name: whole})
    first = budgets.allot(make(), limited, [], 0)
    with pytest.raises(Refusal, match=words):
        budgets.allot(make(), limited, [first], 0)
    assert budgets.allot(make(), Tenant("blue"), [first], 0) == first


def test_what_no_layer_holds_has_no_limit() -> None:
    told = {name: {"used": 9, "refused": 0} for name in ("disk", "open_files", "shares")}
    limits = {"disk": 5, "open_files": 6, "shares": 7}
    assert set(budgets.read(told, limits)) == {"shares"}
    held = budgets.read(told, limits, {"root": "on", "rlimits": "on"})
    assert {name: each["limit"] for name, each in held.items()} == limits
    assert "log_lines" not in budgets.of_worker(budgets.allot(make(), Tenant("red"), [], 0))


def test_one_of_several_tenants_leaves_room() -> None:
    settings = make(max_sessions=64)
    assert budgets.sessions_of(settings, Tenant("red"), several=False) == 64
    assert budgets.sessions_of(settings, Tenant("red"), several=True) == 48
    all_there_are = Tenant("red", budgets={"sessions": 64})
    assert budgets.sessions_of(settings, all_there_are, several=True) == 64
    own = make(max_sessions=64, tenant_sessions=3)
    assert budgets.sessions_of(own, Tenant("red"), several=False) == 3


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        "x",
        {"host_memory": 7},
        {"host_memory": {"used": -1, "refused": 0}},
        {"host_memory": {"used": 1 << 63, "refused": 0}},
        {"host_memory": {"used": True, "refused": 0}},
        {"host_memory": {"used": 1.5, "refused": 0}},
        {"host_memory": {"used": "1", "refused": None}},
        {"other": {"used": 1, "refused": 0}},
    ],
)
def test_a_worker_that_lies_is_not_believed(told: object) -> None:
    assert budgets.read(told, {"host_memory": 5}) == {}


def test_limits_are_the_servers_own() -> None:
    told = {"host_memory": {"used": 9, "limit": 1 << 60, "refused": 2}}
    assert budgets.read(told, {"host_memory": 5}) == {
        "host_memory": {"used": 9, "limit": 5, "refused": 2}
    }


async def test_what_waits_and_runs_is_counted(make_office: MakeOffice) -> None:
    office = await make_office(max_sessions=2)
    accepted(await office.handler.answer(hello()))
    accepted(await office.handler.answer(hello()))
    assert refused(await office.handler.answer(hello()))[0] == "full"
    described = await office.supervisor.describe()
    of_default = office.supervisor.budgets(described)["default"]
    assert of_default["sessions"] == {"used": 2, "limit": 2, "refused": 0}
    assert of_default["pending"]["limit"] == 4
    assert of_default["log_lines"]["used"] == sum(
        each["budgets"]["log_lines"]["used"] for each in described
    )


async def test_what_a_tenant_was_refused_never_falls(make_office: MakeOffice) -> None:
    """It is a counter: one that fell would be taken for a server that began anew."""
    office = await make_office()
    opened = [accepted(await office.handler.answer(hello()))["session"] for _ in range(2)]

    async def refused_lines() -> int | None:
        described = await office.supervisor.describe()
        return office.supervisor.budgets(described)["default"]["log_lines"]["refused"]

    for name in opened:
        office.supervisor._sessions[name].log.admit(10_000)
    total = await refused_lines()
    office.supervisor._sessions[opened[0]].process.kill()
    await eventually(lambda: len(office.supervisor) == 1)
    assert total is not None and total > 0 and await refused_lines() == total


async def test_a_refused_session_counts_once(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it was tried, and not where somebody only asks whether it would be."""
    monkeypatch.setattr(sessions, "LEAVING_SECONDS", 0.5)
    office = await make_office(tenant_sessions=1)
    accepted(await office.handler.answer(hello()))

    async def leave() -> None:
        while True:
            await asyncio.sleep(0.02)
            office.supervisor._left.set()
            office.supervisor._left = asyncio.Event()

    leaving = asyncio.create_task(leave())
    answer = await office.handler.answer(hello())
    assert refused(answer)[0] == "over-quota"
    asked = protocol.encode("info", {**hello_fields(), "check": "1"})
    assert refused(await office.handler.answer(asked))[0] == "over-quota"
    leaving.cancel()
    described = await office.supervisor.describe()
    assert office.supervisor.budgets(described)["default"]["sessions"]["refused"] == 1


def test_refusals_of_tenants_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MOST_TENANTS", 3)
    counts = Refusals()
    for n in range(100):
        counts.add(f"tenant-{n}", {"shares": n})
    assert len(counts) == 3 and counts.of("tenant-99") == {"shares": 99}
    counts.add("tenant-99", {"shares": 1})
    assert counts.of("tenant-99") == {"shares": 100} and counts.of("tenant-0") == {}
