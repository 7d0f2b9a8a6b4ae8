"""The admin socket: status, and changes that hold at once, on all GPUs or none, and last."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from gpupool.admin import Admin
from gpupool.status import Status
from gpupool_common.errors import RefusedError
from gpupool_server.admin import AdminHandler, AdminServer
from gpupool_server.board import Grant
from server_harness import (
    MakeOffice,
    MakeServer,
    Office,
    accepted,
    eventually,
    hello,
)
from test_tenants import MIB, ask, meta_of, refusal, research, restarted


async def do(office: Office, **question: Any) -> dict[str, Any]:
    handler = AdminHandler(office.supervisor, office.gpus)
    line = await handler.answer(json.dumps(question).encode() + b"\n")
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    answer: dict[str, Any] = json.loads(line)
    return answer


async def done(office: Office, **question: Any) -> dict[str, Any]:
    answer = await do(office, **question)
    assert answer.pop("ok", None) is True, answer
    return answer


async def error(office: Office, **question: Any) -> tuple[str, str]:
    answer = await do(office, **question)
    assert set(answer) == {"error", "code"}, answer
    return answer["code"], answer["error"]


# Status -------------------------------------------------------------------------------


async def test_status_of_an_idle_server(make_office: MakeOffice) -> None:
    status = await done(await make_office(), do="status")
    gpu = status["gpus"][1]
    assert (gpu["index"], gpu["policy"], gpu["max_inst"], gpu["prio_ratio"]) == (1, "share", 20, 90)
    assert gpu["default_memory_bytes"] is None
    assert gpu["utilisation_permille"] is None
    assert gpu["free_weight"] == 20
    assert gpu["tenants"] == [] and status["sessions"] == []
    Status.model_validate(status)


async def test_status_names_tenants_sessions_and_processes(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research(memory="64MiB"))
    session = (await ask(office, group="g", devices="0", memory=str(40 * MIB)))["session"]
    pid = meta_of(office, session).pid
    office.boards.of(0).join(pid, "research/g", 7 * MIB)
    status = await done(office, do="status")
    (tenant,) = status["gpus"][0]["tenants"]
    assert tenant["name"] == "research/g"
    assert (tenant["memory_limit_bytes"], tenant["memory_used_bytes"]) == (40 * MIB, 7 * MIB)
    assert tenant["sessions"] == [session]
    (process,) = tenant["processes"]
    assert (process["pid"], process["session"]) == (pid, session)
    assert process["program"] == "test"
    parsed = Status.model_validate(status)
    assert parsed.tenant_of(session) == "research/g"


async def test_utilisation_is_of_the_last_second(make_office: MakeOffice) -> None:
    office = await make_office()
    accepted(await office.handler.answer(hello(devices="0")))
    board = office.boards.of(0)
    for now, busy in ((10**9, 10**9), (2 * 10**9, 1_250_000_000)):
        board.now_ns, board.busy_ns = now, {"default": busy}
        office.gpus.look()
    gpu = (await done(office, do="status"))["gpus"][0]
    assert gpu["utilisation_permille"] == 250
    assert gpu["tenants"][0]["utilisation_permille"] == 250


# Settings of a GPU ----------------------------------------------------------------------


async def test_gpu_set_holds_at_once_and_lasts(make_office: MakeOffice) -> None:
    office = await make_office(on_stop="leave", gpu={"policy": "average", "max_inst": 4})
    answer = await done(office, do="gpu-set", gpu=1, policy="fixed", default_memory_bytes=8 * MIB)
    assert answer["policy"] == "fixed"
    gpu = office.boards.of(1).gpu
    assert gpu is not None and (gpu.policy, gpu.max_inst) == ("fixed", 4)
    other = office.boards.of(0).gpu
    assert other is not None and other.policy == "average"
    after = await restarted(office, make_office, on_stop="leave", gpu={"policy": "average"})
    gpu = after.boards.of(1).gpu
    assert gpu is not None and (gpu.policy, gpu.max_inst) == ("fixed", 20)
    status = await done(after, do="status")
    assert status["gpus"][1]["default_memory_bytes"] == 8 * MIB
    answer = await done(after, do="gpu-set", gpu=1, default_memory_bytes=None)
    assert answer["default_memory_bytes"] is None
    assert (await done(after, do="status"))["gpus"][1]["default_memory_bytes"] is None


@pytest.mark.parametrize(
    ("question", "code", "says"),
    [
        ({"gpu": 7, "policy": "fixed"}, "not-found", "GPU 7 is not served here"),
        ({"gpu": 0}, "bad-request", "name what to set"),
        ({"policy": "fixed"}, "bad-request", "'gpu' must name"),
        ({"gpu": True, "policy": "fixed"}, "bad-request", "'gpu' must be a whole number"),
        ({"gpu": 0, "policy": "best"}, "bad-request", "'policy' is not allowed; allowed: average"),
        ({"gpu": 0, "max_inst": 26}, "bad-request", "'max_inst' is not allowed; allowed: a whole"),
        ({"gpu": 0, "prio_ratio": 19}, "bad-request", "20..99"),
        ({"gpu": 0, "default_memory_bytes": 5}, "bad-request", "a size from 1MiB"),
        ({"gpu": 0, "hardware": True}, "bad-request", "'hardware' cannot be set"),
    ],
)
async def test_bad_settings(
    make_office: MakeOffice, question: dict[str, Any], code: str, says: str
) -> None:
    office = await make_office()
    got, message = await error(office, do="gpu-set", **question)
    assert got == code
    assert says in message
    gpu = office.boards.of(0).gpu
    assert gpu is not None and gpu.policy == "share"


async def test_slices_cannot_be_fewer_than_the_weights(make_office: MakeOffice) -> None:
    office = await make_office()
    accepted(await office.handler.answer(hello(devices="0", weight="9")))
    code, message = await error(office, do="gpu-set", gpu=0, policy="weighted", max_inst=8)
    assert (code, "weights of its tenants sum to 9" in message) == ("over-quota", True)
    await done(office, do="gpu-set", gpu=0, policy="weighted", max_inst=9)


# Limits ------------------------------------------------------------------------------------


async def test_limits_of_a_group_change_on_all_its_gpus(make_office: MakeOffice) -> None:
    office = await make_office(on_stop="leave", tenants=research(memory="64MiB", share="50%"))
    session = (await ask(office, group="g", memory=str(8 * MIB)))["session"]
    answer = await done(
        office,
        do="tenant-set",
        tenant="research/g",
        memory_bytes=16 * MIB,
        share_permille=100,
        ceiling_permille=200,
        high_priority=True,
    )
    assert answer == {"tenant": "research/g", "gpus": [0, 1]}
    expected = Grant(16 * MIB, 1, 100, 200, True)
    for index in (0, 1):
        assert office.boards.of(index).grants["research/g"] == expected
    answer = await done(office, do="tenant-set", session=session, gpu=1, weight=0)
    note = "a weight of 0 changes nothing where the policy has no weights: GPU 1 ('share')"
    assert answer == {"tenant": "research/g", "gpus": [1], "note": note}
    assert office.boards.of(0).grants["research/g"] == expected
    assert office.boards.of(1).grants["research/g"].weight == 0
    await ask(office, group="g", memory=str(8 * MIB))  # it asks for what it asked for
    after = await restarted(
        office, make_office, on_stop="leave", tenants=research(memory="64MiB", share="50%")
    )
    assert after.boards.of(0).grants["research/g"] == expected
    assert (await refusal(after, group="h", memory=str(49 * MIB)))[0] == "over-quota"


async def test_memory_in_use_is_not_taken_away(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research(memory="64MiB"))
    session = (await ask(office, group="g", memory=str(40 * MIB)))["session"]
    board = office.boards.of(1)
    board.join(meta_of(office, session).pid, "research/g", 30 * MIB)
    question = {"do": "tenant-set", "tenant": "research/g", "memory_bytes": 20 * MIB}
    code, message = await error(office, **question)
    assert code == "in-use"
    assert message == "'research/g' on GPU 1 has 30MiB in use, more than 20MiB"
    for index in (0, 1):  # on all or on none
        assert office.boards.of(index).grants["research/g"].memory == 40 * MIB
    waiting = asyncio.create_task(do(office, **question, wait=60))
    await asyncio.sleep(0)
    board.members.clear()
    assert (await waiting)["ok"] is True
    assert board.grants["research/g"].memory == 20 * MIB


async def test_a_wait_in_vain_ends(make_office: MakeOffice) -> None:
    office = await make_office()
    session = accepted(await office.handler.answer(hello(memory=str(8 * MIB))))["session"]
    name = f"default/{session}"
    office.boards.of(0).join(meta_of(office, session).pid, name, 8 * MIB)
    code, _ = await error(office, do="tenant-set", session=session, memory_bytes=MIB, wait=0.15)
    assert code == "in-use"


@pytest.mark.filterwarnings(
    # A program that was being told when the server stopped is no coroutine that nobody awaits.
    "error:coroutine:RuntimeWarning",
    "error::pytest.PytestUnraisableExceptionWarning",
)
async def test_a_quota_changes_while_its_tenant_runs(make_office: MakeOffice) -> None:
    tenants = research(memory="64MiB")
    office = await make_office(on_stop="leave", tenants=tenants)
    await ask(office, group="g", devices="0", memory=str(40 * MIB))
    await ask(office, devices="0")
    assert office.boards.of(0).grants["research"].memory == 24 * MIB
    await done(office, do="tenant-set", tenant="research", gpu=0, memory_bytes=56 * MIB)
    assert office.boards.of(0).grants["research"].memory == 16 * MIB
    code, message = await error(office, do="tenant-set", tenant="research", memory_bytes=39 * MIB)
    assert code == "in-use"
    assert "its groups have 40MiB, more than 39MiB" in message
    after = await restarted(office, make_office, on_stop="leave", tenants=tenants)
    assert after.boards.of(0).grants["research"].memory == 16 * MIB
    assert (await refusal(after, devices="1", memory=str(65 * MIB)))[0] == "over-quota"
    await done(after, do="tenant-set", tenant="research", memory_bytes=80 * MIB)
    await ask(after, devices="1", memory=str(65 * MIB))


@pytest.mark.parametrize(
    ("question", "code", "says"),
    [
        ({"tenant": "research/g", "memory_bytes": 65 * MIB}, "over-quota", "its quota is 64MiB"),
        ({"tenant": "research/g", "share_permille": 501}, "over-quota", "its quota is 50%"),
        (
            {"tenant": "research/g", "share_permille": 300, "ceiling_permille": 200},
            "bad-request",
            "less than the",
        ),
        ({"tenant": "research/g", "gpu": 1, "weight": 0}, "not-found", "is not on GPU 1"),
        ({"tenant": "research/h", "weight": 1}, "not-found", "no tenant or group 'research/h'"),
        (
            {"tenant": "nobody", "weight": 1},
            "not-found",
            "no tenant or group 'nobody'; gpupool session",
        ),
        ({"session": "0" * 12, "weight": 1}, "not-found", "no session"),
        ({"weight": 1}, "bad-request", "name one of 'tenant' and 'session'"),
        ({"tenant": 5, "weight": 1}, "bad-request", "as a text"),
        ({"tenant": "research/g"}, "bad-request", "name what to set"),
        (
            {"tenant": "research/g", "memory_bytes": 5},
            "bad-request",
            "'memory_bytes' must be a whole number",
        ),
        ({"tenant": "research/g", "weight": "1"}, "bad-request", "'weight' must be"),
        ({"tenant": "research/g", "high_priority": 1}, "bad-request", "true or false"),
        ({"tenant": "research/g", "tokens": 1}, "bad-request", "'tokens' cannot be set"),
        ({"tenant": "research/g", "weight": 1, "wait": -1}, "bad-request", "'wait' must be"),
    ],
)
async def test_bad_limits(
    make_office: MakeOffice, question: dict[str, Any], code: str, says: str
) -> None:
    office = await make_office(tenants=research(memory="64MiB", share="50%"))
    await ask(office, group="g", devices="0", memory=str(8 * MIB))
    before = dict(office.boards.of(0).grants)
    got, message = await error(office, do="tenant-set", **question)
    assert got == code
    assert says in message
    assert office.boards.of(0).grants == before


@pytest.mark.parametrize("line", [b"\n", b"[]\n", b"{\n", b'{"do": 3}\n', b"{}\n", b"\xff\n"])
async def test_lines_that_are_no_questions(make_office: MakeOffice, line: bytes) -> None:
    office = await make_office()
    answer = json.loads(await AdminHandler(office.supervisor, office.gpus).answer(line))
    assert answer["code"] == "bad-request"


# The socket ---------------------------------------------------------------------------------


async def test_the_socket_is_the_user_s_own_and_goes_with_the_server(
    make_server: MakeServer, folder: Path
) -> None:
    server = await make_server()
    path = folder / "run/admin.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    status = await asyncio.to_thread(Admin(folder / "run").ask, {"do": "status"})
    assert [gpu["index"] for gpu in status["gpus"]] == [0, 1]
    with pytest.raises(RefusedError, match="'do' must be one of"):
        await asyncio.to_thread(Admin(folder / "run").ask, {"do": "nothing"})
    await server.close()
    assert not path.exists()


async def test_several_questions_long_ones_and_hang_ups(
    make_office: MakeOffice, folder: Path
) -> None:
    office = await make_office()
    path = folder / "a.sock"
    path.touch()  # what a server that was killed leaves
    server = AdminServer(AdminHandler(office.supervisor, office.gpus), path)
    await server.open()
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
        for _ in range(2):
            writer.write(b'{"do": "status"}\n')
            assert json.loads(await reader.readline())["ok"] is True
        writer.write(b"x" * 200_000 + b"\n")
        assert b"too long" in await reader.readline()
        writer.close()
        _, rude = await asyncio.open_unix_connection(str(path))
        rude.write(b'{"do": "sta')
        rude.close()
        await eventually(lambda: not server._serving)
    finally:
        await server.close()


def test_who_hangs_up_with_answers_unread_is_no_fault_of_ours(folder: Path) -> None:
    """uvloop raises RuntimeError where the next answer is written, which filled the log."""
    faults: list[dict[str, Any]] = []

    class Slow(AdminHandler):
        def __init__(self) -> None:
            self.asked, self.gone = asyncio.Event(), asyncio.Event()

        async def answer(self, line: bytes) -> bytes:
            if line == b"slow\n":
                self.asked.set()
                await self.gone.wait()
            return b"{}\n"

    async def hang_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        handler = Slow()
        server = AdminServer(handler, folder / "a.sock")
        await server.open()
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(str(folder / "a.sock"))
            rude.sendall(b"quick\nslow\n")
            await handler.asked.wait()
        await asyncio.sleep(0.1)  # that the loop sees it
        handler.gone.set()
        await eventually(lambda: not server._serving)
        await server.close()

    uvloop.run(hang_up())
    assert faults == []


def test_a_lack_of_descriptors_ends_the_socket_of_no_server(folder: Path) -> None:
    """The listener of an event loop closes for good then, and no command reached the server."""

    class Echo(AdminHandler):
        def __init__(self) -> None:
            pass

        async def answer(self, line: bytes) -> bytes:
            return line

    async def lack() -> None:
        server = AdminServer(Echo(), folder / "a.sock")
        await server.open()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket(socket.AF_UNIX) as client, capture_logs() as captured:
            client.setblocking(False)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                client.connect(str(folder / "a.sock"))
                client.send(b"word\n")
                await eventually(lambda: bool(captured))
                await asyncio.sleep(0.5)  # it is tried several times
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            async with asyncio.timeout(30):
                assert await asyncio.get_running_loop().sock_recv(client, 64) == b"word\n"
        await server.close()
        assert [line["event"] for line in captured] == ["connections cannot be accepted"]

    uvloop.run(lack())
