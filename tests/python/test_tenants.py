"""Tenants: tokens, quotas, groups, what stands on the boards, and what a restart keeps."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpupool_common import protocol
from gpupool_common.errors import ConfigError, InstallError
from gpupool_server.board import Grant
from gpupool_server.rundir import Meta
from gpupool_server.sharing import TenantSettings
from gpupool_server.tenants import Quota, Tenants
from server_harness import (
    TOKEN,
    MakeOffice,
    Office,
    accepted,
    eventually,
    hello,
    hello_fields,
    make_settings,
    process_lives,
    refused,
    write_worker,
)

#: What the fake driver's devices have, as `gpupool info` tells it.
GIB = 1 << 30
MIB = 1 << 20


def research(**more: object) -> dict[str, dict[str, object]]:
    """A table [tenants.research]."""
    return {"research": {"token": "of-research", **more}}


async def ask(office: Office, **changes: str | None) -> dict[str, str]:
    return accepted(await office.handler.answer(hello(**{"token": "of-research", **changes})))


async def refusal(office: Office, **changes: str | None) -> tuple[str, str]:
    return refused(await office.handler.answer(hello(**{"token": "of-research", **changes})))


def meta_of(office: Office, session: str) -> Meta:
    return Meta.parse((office.run_dir.sessions / session / "meta.json").read_text())


async def ended(office: Office, session: str) -> None:
    """Kill a session's worker and wait until the server has seen it."""
    left = len(office.supervisor) - 1
    os.kill(meta_of(office, session).pid, signal.SIGKILL)
    await eventually(lambda: len(office.supervisor) == left)


# Tokens --------------------------------------------------------------------------------


def test_each_token_has_one_owner(folder: Path) -> None:
    settings = make_settings(folder, tenants=research())
    tenants = Tenants.load(TOKEN, settings)
    for token, name in ((TOKEN, "default"), ("of-research", "research")):
        found = tenants.of_token(token)
        assert found is not None and found.name == name
    for wrong in ("", "of-researc", "of-research ", "OF-RESEARCH", "\udc80", "ü"):
        assert tenants.of_token(wrong) is None


def test_two_tenants_cannot_have_one_token(folder: Path) -> None:
    same = {"a": {"token": "x"}, "b": {"token": "x"}}
    with pytest.raises(ConfigError, match=r"'a' and 'b' have the same token.*tenants\.b\.token"):
        Tenants.load(TOKEN, make_settings(folder, tenants=same))
    with pytest.raises(ConfigError, match="'default' and 'research'"):
        Tenants.load("of-research", make_settings(folder, tenants=research()))


def test_token_files_are_read_and_bad_ones_named(folder: Path) -> None:
    path = folder / "research.token"
    path.write_text("from-a-file\n")
    settings = make_settings(folder, tenants={"research": {"token_file": path}})
    with pytest.raises(ConfigError, match=r"key 'tenants\.research\.token_file'.*chmod 600"):
        Tenants.load(TOKEN, settings)
    path.chmod(0o600)
    found = Tenants.load(TOKEN, settings).of_token("from-a-file")
    assert found is not None and found.name == "research"


def test_the_default_tenant_is_limited_only_by_what_is_said(folder: Path) -> None:
    settings = make_settings(folder, tenants={"default": {"memory": "1GiB"}})
    tenant = Tenants.load(TOKEN, settings).named("default")
    assert tenant is not None
    assert tenant.quota == Quota(memory=GIB, weight=None, high_priority=True)


def test_what_a_pool_gives_a_tenant_of_ours_counts_here(folder: Path) -> None:
    settings = make_settings(folder, tenants=research(sessions=8, log_lines=700))
    tenants = Tenants.load(TOKEN, settings)
    tenants.of_pool = {"research": {"sessions": 3}, "default": {"sessions": 4}}
    ours = tenants.known("research")
    assert (ours.budgets["sessions"], ours.budgets["log_lines"]) == (3, 700)
    assert tenants.known("default").budgets == {"sessions": 4}
    assert tenants.known("another").budgets == {}


async def test_a_tenant_sees_only_its_own_sessions(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research())
    mine = (await ask(office))["session"]
    other = accepted(await office.handler.answer(hello()))["session"]
    for token, session in (("of-research", mine), (TOKEN, other)):
        question = protocol.encode("info", {"token": token})
        info = json.loads(accepted(await office.handler.answer(question))["json"])
        assert [listed["session"] for listed in info["sessions"]] == [session]
    (listed,) = await office.supervisor.describe("research")
    assert (listed["tenant"], listed["group"]) == ("research", None)


# Sessions on boards -------------------------------------------------------------------


async def test_without_tenants_all_is_one_unlimited_tenant(make_office: MakeOffice) -> None:
    office = await make_office()
    first, second = [accepted(await office.handler.answer(hello()))["session"] for _ in range(2)]
    for index in (0, 1):
        assert office.boards.of(index).grants == {"default": Grant()}
    await ended(office, first)
    assert office.boards.of(0).grants == {"default": Grant()}
    await ended(office, second)
    assert office.boards.of(0).grants == {}


async def test_with_an_older_worker_all_is_as_before(make_office: MakeOffice, folder: Path) -> None:
    office = await make_office(boards=False, worker=write_worker(folder / "worker", "old"))
    session = accepted(await office.handler.answer(hello(group="g")))["session"]
    assert meta_of(office, session).grant == {}
    code, message = refused(await office.handler.answer(hello(memory=str(GIB))))
    assert (code, "keeps no limits" in message) == ("bad-request", True)


@pytest.mark.parametrize("changes", [{"tenants": research()}, {"gpu": {"policy": "fixed"}}])
async def test_tenants_need_boards(make_office: MakeOffice, changes: dict[str, object]) -> None:
    with pytest.raises(InstallError, match="need libexec/gpupool-arbiter"):
        await make_office(boards=False, **changes)


async def test_the_worker_is_handed_its_seats(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research(memory="64MiB"))
    session = (await ask(office, group="g", devices="1,0", memory=str(MIB)))["session"]
    process = Path(f"/proc/{meta_of(office, session).pid}")
    line = (process / "cmdline").read_bytes().decode().split("\0")
    seats = [line[at + 1] for at, word in enumerate(line) if word == "--seat"]
    assert len(seats) == 2
    for page, bell in (seat.split(",") for seat in seats):
        assert "memfd:" in os.readlink(process / "fd" / page)
        assert "eventfd" in os.readlink(process / "fd" / bell)


async def test_requests_stand_on_the_boards(make_office: MakeOffice) -> None:
    office = await make_office(
        tenants=research(memory="64MiB", share="50%", ceiling="80%", high_priority=True)
    )
    await ask(
        office,
        group="g",
        devices="1",
        memory=str(8 * MIB),
        share="200",
        ceiling="300",
        weight="1",
        priority="1",
    )
    assert office.boards.of(0).grants == {}
    assert office.boards.of(1).grants == {"research/g": Grant(8 * MIB, 1, 200, 300, True)}


async def test_memory_is_summed_on_each_gpu(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research(memory="64MiB"))
    await ask(office, group="a", devices="0", memory=str(40 * MIB))
    code, message = await refusal(office, group="b", devices="0", memory=str(30 * MIB))
    assert code == "over-quota"
    assert "tenant 'research' on GPU 0: 30MiB are requested, 40MiB are in use" in message
    await ask(office, group="b", devices="1", memory=str(30 * MIB))
    # Asked for by number it goes where it fits.
    assert (await ask(office, gpus="1", memory=str(30 * MIB)))["devices"] == "1"
    await ask(office)  # without a request: what is left
    left = [office.boards.of(index).grants["research"].memory for index in (0, 1)]
    assert left == [24 * MIB, 4 * MIB]


async def test_a_group_is_one_request_for_all_its_sessions(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research(memory="64MiB"))
    first = await ask(office, group="g", gpus="1", memory=str(40 * MIB))
    for changes in ({}, {"memory": str(40 * MIB)}, {"gpus": "1"}):
        again = await ask(office, group="g", **changes)
        assert again["devices"] == first["devices"]
    code, message = await refusal(office, group="g", memory=str(41 * MIB))
    assert code == "bad-request"
    assert "the group 'g' runs with another request: its memory is 40MiB, not 41MiB" in message
    code, message = await refusal(office, group="g", share="10")
    assert "its share is not set, not 1%" in message
    index = int(first["devices"])
    assert office.boards.of(index).grants["research/g"].memory == 40 * MIB
    for session in list((office.run_dir.sessions).iterdir()):
        assert "research/g" in office.boards.of(index).grants
        await ended(office, session.name)
    assert office.boards.of(index).grants == {}


async def test_a_request_without_a_group_is_one_session_s(make_office: MakeOffice) -> None:
    office = await make_office()
    one, two = [
        accepted(await office.handler.answer(hello(memory=str(MIB), devices="0")))["session"]
        for _ in range(2)
    ]
    assert set(office.boards.of(0).grants) == {f"default/{one}", f"default/{two}"}


async def test_two_that_ask_at_once_do_not_both_get_the_last(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research(memory="64MiB"))
    questions = [hello(token="of-research", devices="0", memory=str(40 * MIB)) for _ in range(4)]
    answers = await asyncio.gather(*map(office.handler.answer, questions))
    words = sorted(protocol.decode(answer).word for answer in answers)
    assert words == ["ok", "refused", "refused", "refused"]


async def test_a_worker_that_fails_leaves_nothing_on_the_boards(
    make_office: MakeOffice, folder: Path
) -> None:
    office = await make_office(tenants=research(), worker=write_worker(folder / "worker", "exit"))
    assert (await refusal(office, group="g", memory=str(MIB)))[0] == "no-worker"
    assert office.boards.of(0).grants == office.boards.of(1).grants == {}
    assert office.gpus.group("research/g") is None


async def test_a_refused_gpu_leaves_nothing_on_the_others(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research(memory="64MiB"))
    await ask(office, group="a", devices="1", memory=str(64 * MIB))
    assert (await refusal(office, group="b", devices="0,1", memory=str(MIB)))[0] == "over-quota"
    assert office.boards.of(0).grants == {}


async def test_a_full_board(make_office: MakeOffice) -> None:
    office = await make_office()
    for number in range(64):
        office.boards.of(1).grants[f"somebody/{number}"] = Grant()
    code, message = refused(await office.handler.answer(hello(memory=str(MIB))))
    assert (code, "GPU 1 is full: 64 tenants" in message) == ("full", True)
    assert office.boards.of(0).grants == {}


async def test_gpus_and_sessions_of_a_tenant(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research(gpus=[1], sessions=2))
    assert (await ask(office))["devices"] == "1"
    code, message = await refusal(office, devices="0")
    assert (code, "may not use GPU 0; it may use 1" in message) == ("over-quota", True)
    code, message = await refusal(office, gpus="2")
    assert (code, "of which its tenant may use 1" in message) == ("bad-request", True)
    session = (await ask(office))["session"]
    code, message = await refusal(office)
    assert (code, "2 of 2 sessions" in message) == ("over-quota", True)
    accepted(await office.handler.answer(hello()))  # others are not held up
    await ended(office, session)
    await ask(office)


async def test_one_after_the_other(make_office: MakeOffice) -> None:
    """Who asks while the last one is leaving gets what that gives back."""
    office = await make_office(tenants=research(sessions=1))
    session = (await ask(office))["session"]
    asked = asyncio.create_task(ask(office))
    await asyncio.sleep(0)  # it has been refused once by now
    os.kill(meta_of(office, session).pid, signal.SIGKILL)
    assert (await asked)["session"] != session


async def test_devices_by_uuid(make_office: MakeOffice) -> None:
    office = await make_office()
    second = office.gpus.get(1)
    assert second is not None
    for name in (second.device.uuid, second.device.uuid.removeprefix("GPU-").upper()):
        fields = accepted(await office.handler.answer(hello(devices=f"{name},0")))
        assert fields["devices"] == "1,0"


async def test_no_free_weight_is_no_compute(make_office: MakeOffice) -> None:
    office = await make_office(gpu={"policy": "weighted", "max_inst": 3})
    for weight, granted in (("2", 2), (None, 1), ("2", 0), (None, 0)):
        session = accepted(
            await office.handler.answer(hello(devices="0", memory=str(MIB), weight=weight))
        )["session"]
        assert office.boards.of(0).grants[f"default/{session}"].weight == granted


@pytest.mark.parametrize(
    ("policy", "asked", "said"),
    [
        ("share", {"weight": "3"}, "a weight of 3 changes nothing where the policy has no weights"),
        ("average", {"weight": "0"}, "a weight of 0 changes nothing"),
        ("share", {"weight": "1"}, None),
        ("share", {"share": "300", "ceiling": "500"}, None),
        ("weighted", {"weight": "3"}, None),
        ("fixed", {"share": "300", "ceiling": "500"}, "a share of 30% with a ceiling of 50%"),
        ("native", {"share": "300", "weight": "2"}, "a weight of 2 changes nothing"),
        ("native", {"memory": str(MIB)}, None),
    ],
)
async def test_what_a_policy_has_no_use_for_is_said(
    make_office: MakeOffice, policy: str, asked: dict[str, str], said: str | None
) -> None:
    """It was taken, and changed nothing, without a word."""
    office = await make_office(gpu={"policy": policy})
    fields = accepted(await office.handler.answer(hello(devices="0", **asked)))
    assert ("note" in fields) == (said is not None)
    if said is not None:
        assert said in fields["note"] and f"GPU 0 ('{policy}')" in fields["note"]


async def test_default_memory_is_each_session_s_own(make_office: MakeOffice) -> None:
    office = await make_office(gpus={0: {"default_memory": "8MiB"}})
    session = accepted(await office.handler.answer(hello()))["session"]
    assert office.boards.of(0).grants[f"default/{session}"].memory == 8 * MIB
    assert office.boards.of(1).grants[f"default/{session}"].memory == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"group": "a b"}, "'group' must be"),
        ({"group": "x" * 33}, "'group' must be"),
        ({"group": "a/b"}, "'group' must be"),
        ({"memory": "8GiB"}, "'memory' must be a whole number"),
        ({"memory": "1"}, "'memory' must be"),
        ({"share": "0"}, "'share' must be 1..1000"),
        ({"ceiling": "1001"}, "'ceiling' must be"),
        ({"share": "500", "ceiling": "400"}, "'ceiling' must not be less than 'share'"),
        ({"weight": "26"}, "'weight' must be 0..25"),
        ({"priority": "2"}, "'priority' must be 0..1"),
        ({"memory-fraction": "6"}, "'memory-fraction' must be parts"),
        ({"memory-fraction": "7/6"}, "'memory-fraction' must be above 0"),
        ({"memory-fraction": "0/6"}, "'memory-fraction' must be above 0"),
        ({"memory-fraction": "1/1", "memory": "1048576"}, "exclude each other"),
        ({"policy": "best"}, "'policy' must be one of"),
        ({"devices": "GPU-0000"}, "'GPU-0000' is not a GPU of this server"),
    ],
)
async def test_bad_requests(
    make_office: MakeOffice, changes: dict[str, str | None], says: str
) -> None:
    office = await make_office()
    code, message = refused(await office.handler.answer(hello(**changes)))
    assert code == "bad-request"
    assert says in message
    assert len(office.supervisor) == 0


# Dying and restarting -------------------------------------------------------------------


async def test_the_dead_are_taken_off_the_boards(make_office: MakeOffice) -> None:
    office = await make_office()
    session = accepted(await office.handler.answer(hello()))["session"]
    pid = meta_of(office, session).pid
    board = office.boards.of(0)
    board.join(pid, "default", 3 * MIB)
    board.join(99999, "default", MIB)  # one that the server knows nothing of
    await ended(office, session)
    assert pid not in board.members
    assert "default" in board.grants, "it has a worker still"
    board.dead.add(99999)
    office.gpus.look()
    assert board.members == {} and board.grants == {}


async def restarted(office: Office, make_office: MakeOffice, **changes: object) -> Office:
    await office.supervisor.close()
    office.run_dir.close()
    after = await make_office(**changes)
    after.supervisor.adopt()
    return after


async def test_a_restart_keeps_groups_and_their_claims(make_office: MakeOffice) -> None:
    tenants = research(memory="64MiB")
    office = await make_office(on_stop="leave", tenants=tenants)
    session = (await ask(office, group="g", devices="0", memory=str(40 * MIB)))["session"]
    before = dict(office.boards.of(0).grants)
    after = await restarted(office, make_office, tenants=tenants)
    assert after.boards.of(0).grants == before
    assert (await refusal(after, group="h", devices="0", memory=str(25 * MIB)))[0] == "over-quota"
    code, message = await refusal(after, group="g", memory=str(MIB))
    assert "runs with another request" in message
    (listed,) = await after.supervisor.describe("research")
    assert (listed["session"], listed["group"]) == (session, "g")
    await ended(after, session)
    assert after.boards.of(0).grants == {}


async def test_a_tenant_that_is_no_longer_configured_runs_on(make_office: MakeOffice) -> None:
    office = await make_office(on_stop="leave", tenants=research(memory="64MiB"))
    session = (await ask(office, group="g", devices="0", memory=str(40 * MIB)))["session"]
    after = await restarted(office, make_office)
    assert after.boards.of(0).grants["research/g"].memory == 40 * MIB
    assert process_lives(meta_of(after, session).pid)
    assert (await refusal(after))[0] == "bad-token"


async def test_metas_of_an_earlier_release_are_the_default_tenant_s(
    make_office: MakeOffice, folder: Path
) -> None:
    old = write_worker(folder / "worker", "old")
    office = await make_office(on_stop="leave", boards=False, worker=old)
    session = accepted(await office.handler.answer(hello()))["session"]
    path = office.run_dir.sessions / session / "meta.json"
    raw: dict[str, Any] = json.loads(path.read_text())
    for key in ("tenant", "group", "grant"):
        del raw[key]
    path.write_text(json.dumps(raw))
    after = await restarted(office, make_office, tenants=research())
    (listed,) = await after.supervisor.describe("default")
    assert listed["session"] == session
    assert after.boards.of(0).grants == {}, "its worker is on no board"
    await ended(after, session)


async def test_saved_state_that_cannot_be_read_is_left_aside(make_office: MakeOffice) -> None:
    office = await make_office(on_stop="leave")
    for text in ("", "[]", '{"settings": {"policy": "best"}}', '{"claims": {"a": 3}}', "\x00"):
        (office.run_dir.gpus / "0.json").write_text(text)
        office = await restarted(office, make_office, on_stop="leave")
        gpu = office.gpus.get(0)
        assert gpu is not None and gpu.settings.policy == "share"


def test_settings_of_tenants_do_not_show_their_tokens() -> None:
    assert "secret-word" not in repr(TenantSettings.model_validate({"token": "secret-word"}))


async def test_a_request_is_checked_without_being_granted(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research(memory="64MiB"))
    fields = {"token": "of-research", "check": "1"}

    async def check(**asked: str) -> bytes:
        return await office.handler.answer(protocol.encode("info", hello_fields(**fields, **asked)))

    before = dict(office.boards.of(0).grants)
    accepted(await check(memory=str(60 * MIB)))
    accepted(await check(memory=str(60 * MIB)))  # the first one has taken nothing
    code, message = refused(await check(memory=str(65 * MIB)))
    assert (code, "its quota is 64MiB" in message) == ("over-quota", True)
    code, message = refused(await check(gpus="9"))
    assert (code, "9 GPUs are requested" in message) == ("bad-request", True)
    assert dict(office.boards.of(0).grants) == before
    assert not await office.supervisor.describe()
