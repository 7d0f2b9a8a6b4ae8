"""Workers: reaped when they end, found again after a restart, ended only on request."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpupool_common import protocol
from gpupool_common.errors import GpupoolError
from gpupool_server.process import Process, start_time
from gpupool_server.rundir import Meta, RunDir, own_token
from server_harness import (
    MakeOffice,
    Office,
    accepted,
    eventually,
    hello,
    process_lives,
    refused,
    write_worker,
)


async def opened(office: Office, **changes: str | None) -> tuple[str, int]:
    """A new session's id and its worker's pid."""
    session = accepted(await office.handler.answer(hello(**changes)))["session"]
    meta = Meta.parse((office.run_dir.sessions / session / "meta.json").read_text())
    assert meta.session == session
    assert process_lives(meta.pid)
    return session, meta.pid


async def restarted(office: Office, make_office: MakeOffice, **changes: object) -> Office:
    """The next server on the same run directory, after the first one let go of everything."""
    await office.supervisor.close()
    office.run_dir.close()
    after = await make_office(**changes)
    after.supervisor.adopt()
    return after


async def test_the_end_of_a_worker_ends_its_session(make_office: MakeOffice) -> None:
    office = await make_office()
    session, pid = await opened(office)
    other, _ = await opened(office)
    with capture_logs() as events:
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: len(office.supervisor) == 1)
    assert not (office.run_dir.sessions / session).exists()
    assert (office.run_dir.sessions / other).exists()
    (event,) = [event for event in events if event["event"] == "session ended"]
    assert event["session"] == session
    assert event["reason"] == "killed by SIGKILL"
    assert event["log_level"] == "warning"


async def test_the_workers_of_a_test_end_with_it(make_office: MakeOffice, folder: Path) -> None:
    """However it ends, and whatever its servers leave: none is found again later."""
    with subprocess.Popen(["sleep", "600"]) as owner:
        try:
            worker = write_worker(folder / "worker", "stubborn", owner.pid)
            office = await make_office(worker=worker)
            _, pid = await opened(office)
        finally:
            owner.kill()
    await eventually(lambda: not process_lives(pid))


async def test_sessions_leave_no_descriptor_behind(make_office: MakeOffice, folder: Path) -> None:
    office = await make_office()
    _, pid = await opened(office)
    await office.supervisor.describe()  # connects to the worker, and stays so
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        _, pid = await opened(office)
        await office.supervisor.describe()
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: len(office.supervisor) == 1)
    write_worker(office.run_dir.path / "../home/libexec/gpupool-worker", "exit")
    for _ in range(3):
        assert refused(await office.handler.answer(hello()))[0] == "no-worker"
    (folder / "home/libexec/gpupool-worker").unlink()
    assert refused(await office.handler.answer(hello()))[0] == "no-worker"
    await eventually(lambda: len(list(Path("/proc/self/fd").iterdir())) == before)


async def test_a_server_without_descriptors_says_so(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that no worker could be started, as if something were wrong with that."""
    monkeypatch.setattr("gpupool_server.sessions.LEAVING_SECONDS", 0.02)
    office = await make_office()
    await opened(office)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = []
    try:
        for more in range(12):
            os.close(free := os.dup(0))  # the lowest number that is not in use
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, limits[1]))
            answer = protocol.decode(await office.handler.answer(hello()))
            said.append(answer.fields.get("code", "ok"))
            if said[-1] != "ok":
                assert "no file descriptors left" in answer.fields["message"]
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert set(said) <= {"ok", "full"} and "full" in said, said
    await opened(office)


async def test_a_host_whose_sessions_do_not_start_tries_by_itself(
    make_office: MakeOffice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool put lease after lease there, and each program failed."""
    monkeypatch.setattr("gpupool_server.start_health.PROBE_SECONDS", 0.05)
    worker = write_worker(folder / "worker", "exit")
    office = await make_office(worker=worker)
    changes: list[str] = []
    office.supervisor.on_change = lambda: changes.append(office.supervisor.health.trouble)
    for _ in range(2):
        assert refused(await office.handler.answer(hello()))[0] == "no-worker"
    assert (office.supervisor.health.trouble, changes) == ("", [])
    assert refused(await office.handler.answer(hello()))[0] == "no-worker"
    assert "sessions do not start: the worker ended" in office.supervisor.health.trouble
    assert changes == [office.supervisor.health.trouble]
    worker.unlink()
    write_worker(folder / "worker", "good")
    await eventually(lambda: office.supervisor.health.trouble == "" and len(office.supervisor) == 0)
    assert changes[-1] == ""
    # One that starts in between makes those before it be forgotten.
    write_worker(folder / "worker", "exit")
    for _ in range(2):
        refused(await office.handler.answer(hello()))
    write_worker(folder / "worker", "good")
    await opened(office)
    write_worker(folder / "worker", "exit")
    refused(await office.handler.answer(hello()))
    assert office.supervisor.health.trouble == ""


async def test_a_server_without_a_state_directory(make_office: MakeOffice) -> None:
    """The key for copies between workers must not ask for more than the token does."""
    office = await make_office(state_dir=Path("/proc/none"))
    await opened(office)
    assert (office.run_dir.path / "peer.key").is_file()


async def test_a_gpu_whose_board_was_ruined_is_used_again(make_office: MakeOffice) -> None:
    """Every session that came later was ended as well, for as long as the server lived."""
    office = await make_office()
    gpu = office.gpus.get(0)
    assert gpu is not None
    office.supervisor.adopt()
    _, first = await opened(office)
    for _ in range(3):
        gpu.renew(None)
    assert gpu.ruined
    await eventually(lambda: not process_lives(first))
    assert not gpu.ruined
    _, second = await opened(office)
    before = gpu.snapshots
    await eventually(lambda: not set(map(id, gpu.snapshots)) & set(map(id, before)))
    assert process_lives(second)


RED = {"red": {"token": "of-red"}}


async def test_sessions_nobody_comes_to_are_bounded_for_each_tenant(
    make_office: MakeOffice, folder: Path
) -> None:
    """One tenant had all places by asking for sessions and never coming to them."""
    worker = write_worker(folder / "worker", "alone")
    office = await make_office(worker=worker, max_sessions=16, tenants=RED)
    answers = [await office.handler.answer(hello(token="of-red")) for _ in range(5)]
    waiting = [accepted(answer)["session"] for answer in answers[:4]]
    code, message = refused(answers[4])
    assert code == "busy"
    assert "4 sessions of tenant 'red' wait for their programs to connect, and 4 may" in message
    await opened(office)
    assert {s["state"] for s in await office.supervisor.describe("red")} == {"waiting"}
    # One that gives up, and one whose client comes, make room.
    os.kill(pid_of(office, waiting[0]), signal.SIGKILL)
    await eventually(lambda: len(office.supervisor) == 4)
    write_worker(folder / "worker", "good")
    for _ in range(4):
        session = accepted(await office.handler.answer(hello(token="of-red")))["session"]
        await eventually(partial(is_running, office, session))
    assert len(office.supervisor) == 8


def pid_of(office: Office, session: str) -> int:
    return int(json.loads((office.run_dir.sessions / session / "meta.json").read_text())["pid"])


def is_running(office: Office, session: str) -> bool:
    return office.supervisor.state_of(session) == "running"


async def test_those_that_do_not_start_are_not_waited_for(
    make_office: MakeOffice, folder: Path
) -> None:
    office = await make_office(worker=write_worker(folder / "worker", "exit"))
    for _ in range(20):
        assert refused(await office.handler.answer(hello()))[0] == "no-worker"
    write_worker(folder / "worker", "good")
    await opened(office)


async def test_few_of_a_tenant_wait_for_others_to_end(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is one of the questions that a server answers at once."""
    monkeypatch.setattr("gpupool_server.sessions.MOST_PATIENT", 2)
    monkeypatch.setattr("gpupool_server.sessions.LEAVING_SECONDS", 600.0)
    office = await make_office(tenants={"red": {"token": "of-red", "sessions": 1}})
    session = accepted(await office.handler.answer(hello(token="of-red")))["session"]
    asked = [asyncio.create_task(office.handler.answer(hello(token="of-red"))) for _ in range(6)]
    await eventually(lambda: sum(task.done() for task in asked) == 4)
    assert {refused(task.result())[0] for task in asked if task.done()} == {"over-quota"}
    await opened(office)
    os.kill(pid_of(office, session), signal.SIGKILL)
    await eventually(lambda: sum(task.done() for task in asked) == 5)
    for task in asked:
        task.cancel()


async def test_a_session_that_ended_makes_room(make_office: MakeOffice) -> None:
    office = await make_office(max_sessions=1)
    _, pid = await opened(office)
    assert refused(await office.handler.answer(hello()))[0] == "full"
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: len(office.supervisor) == 0)
    await opened(office)


async def test_what_a_worker_logs_is_passed_on(make_office: MakeOffice) -> None:
    with capture_logs() as events:
        office = await make_office()
        session, _ = await opened(office)
        await eventually(lambda: any(event["event"] == "fake worker" for event in events))
    (event,) = [event for event in events if event["event"] == "fake worker"]
    assert event["session"] == session
    assert event["worker_mode"] == "good"


async def test_leaving_keeps_workers_and_a_restart_finds_them(make_office: MakeOffice) -> None:
    office = await make_office(on_stop="leave")
    session, pid = await opened(office, devices="1", program="long")
    after = await restarted(office, make_office)
    assert process_lives(pid)
    (listed,) = await after.supervisor.describe()
    assert listed["session"] == session
    assert listed["pid"] == pid
    assert listed["devices"] == [1]
    assert listed["program"] == "long"
    assert listed["calls"] == 7
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: len(after.supervisor) == 0)
    assert not (after.run_dir.sessions / session).exists()


async def test_adopted_sessions_count_against_the_limit(make_office: MakeOffice) -> None:
    office = await make_office(on_stop="leave")
    await opened(office)
    after = await restarted(office, make_office, max_sessions=1)
    assert refused(await after.handler.answer(hello()))[0] == "full"


async def test_what_died_meanwhile_is_removed(make_office: MakeOffice) -> None:
    office = await make_office(on_stop="leave")
    session, pid = await opened(office)
    await office.supervisor.close()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    after = await restarted(office, make_office)
    assert len(after.supervisor) == 0
    assert not (after.run_dir.sessions / session).exists()


async def test_a_pid_that_passed_to_another_is_not_adopted(make_office: MakeOffice) -> None:
    office = await make_office(on_stop="leave")
    session, pid = await opened(office)
    path = office.run_dir.sessions / session / "meta.json"
    raw = json.loads(path.read_text())
    raw["start_time"] -= 1
    path.write_text(json.dumps(raw))
    after = await restarted(office, make_office)
    assert len(after.supervisor) == 0
    assert process_lives(pid), "a process that is not ours must not be touched"
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"session": "abc"}', "null", '"x"', "\x00"],
)
async def test_metas_that_cannot_be_read_are_removed(make_office: MakeOffice, text: str) -> None:
    office = await make_office()
    folder = office.run_dir.new_session()
    folder.meta.write_text(text)
    bare = office.run_dir.new_session()
    office.supervisor.adopt()
    assert len(office.supervisor) == 0
    assert not folder.path.exists()
    assert not bare.path.exists()


async def test_only_folders_of_sessions_are_removed(make_office: MakeOffice) -> None:
    office = await make_office()
    foreign = office.run_dir.sessions / "notes"
    foreign.mkdir()
    office.supervisor.adopt()
    assert foreign.is_dir()


async def test_ending_stops_workers_gently(make_office: MakeOffice) -> None:
    office = await make_office(on_stop="end")
    pids = [(await opened(office))[1] for _ in range(3)]
    with capture_logs() as events:
        await office.supervisor.close()
    assert not any(map(process_lives, pids))
    reasons = [event["reason"] for event in events if event["event"] == "session ended"]
    assert reasons == ["exit code 0"] * 3
    assert list(office.run_dir.sessions.iterdir()) == []


async def test_ending_kills_workers_that_will_not(
    make_office: MakeOffice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool_server.sessions.STOP_SECONDS", 0.2)
    office = await make_office(on_stop="end", worker=write_worker(folder / "worker", "stubborn"))
    _, pid = await opened(office)
    await office.supervisor.close()
    assert not process_lives(pid)


async def test_a_deaf_worker_is_listed_with_its_trouble(
    make_office: MakeOffice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool_server.worker.CONTROL_SECONDS", 0.1)
    office = await make_office(worker=write_worker(folder / "worker", "deaf"))
    await opened(office)
    (listed,) = await office.supervisor.describe()
    assert "no answer from the worker" in listed["trouble"]


async def test_a_worker_that_nobody_hears_goes_on(make_office: MakeOffice, folder: Path) -> None:
    office = await make_office(on_stop="leave", worker=write_worker(folder / "worker", "loud"))
    session, pid = await opened(office)
    await office.supervisor.close()  # from here on nobody reads what it writes
    office.run_dir.close()
    after = await make_office()
    after.supervisor.adopt()
    (listed,) = await after.supervisor.describe()
    assert listed["calls"] == 7
    assert process_lives(pid)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool_server.sessions.GONE_SECONDS", 0.05)


@pytest.mark.usefixtures("_soon")
async def test_a_worker_that_says_while_no_server_runs_that_it_is_over(
    make_office: MakeOffice, folder: Path
) -> None:
    """The next server hears it, and kills what hangs; its neighbour goes on."""
    office = await make_office(on_stop="leave", worker=write_worker(folder / "worker", "hung"))
    session, pid = await opened(office)
    _, neighbour = await opened(office)
    await office.supervisor.close()
    office.run_dir.close()
    os.kill(pid, signal.SIGUSR1)
    assert process_lives(pid)
    after = await make_office()
    after.supervisor.adopt()
    await eventually(lambda: len(after.supervisor) == 1)
    assert not process_lives(pid)
    assert not (after.run_dir.sessions / session).exists()
    assert process_lives(neighbour)


@pytest.mark.parametrize("heard", [True, False])
async def test_a_worker_whose_session_is_over_when_the_server_stops(
    make_office: MakeOffice, folder: Path, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    """Its word was taken by a server that stopped before it acted on it, and told to no other."""
    monkeypatch.setattr("gpupool_server.sessions.GONE_SECONDS", 600.0)
    office = await make_office(on_stop="leave", worker=write_worker(folder / "worker", "hung"))
    session, pid = await opened(office)
    _, neighbour = await opened(office)
    fifo = os.open(office.run_dir.sessions / session / "stdout", os.O_RDONLY | os.O_NONBLOCK)
    os.kill(pid, signal.SIGUSR1)
    if heard:
        await eventually(lambda: session in office.supervisor._leaving)
    else:
        assert select.select([fifo], [], [], 60)[0]  # and nothing else runs here meanwhile
    os.close(fifo)
    with capture_logs() as events:
        after = await restarted(office, make_office)
    assert [e["count"] for e in events if "continue without the server" in e["event"]] == [1]
    await eventually(lambda: not process_lives(pid))
    await eventually(lambda: len(after.supervisor) == 1)
    assert process_lives(neighbour)


async def test_two_servers_on_one_run_dir(make_office: MakeOffice, folder: Path) -> None:
    await make_office()
    with pytest.raises(GpupoolError, match=rf"another gpupool-server \(pid {os.getpid()}\)"):
        RunDir(folder / "run")


def test_the_run_dir_is_private(folder: Path) -> None:
    (folder / "run").mkdir(mode=0o777)
    run_dir = RunDir(folder / "run")
    assert (folder / "run").stat().st_mode & 0o777 == 0o700
    token, path = own_token(run_dir.path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(token) >= 32
    assert own_token(run_dir.path) == (token, path)
    path.chmod(0o644)
    with pytest.raises(GpupoolError, match="chmod 600"):
        own_token(run_dir.path)
    run_dir.close()


@pytest.mark.parametrize("made", [0, 1])
def test_a_session_that_cannot_be_made_leaves_no_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, made: int
) -> None:
    """The next start took what was left for a session."""
    run_dir = RunDir(folder / "run")
    left = [os.mkfifo] * made

    def mkfifo(path: Path, mode: int) -> None:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left.pop()(path, mode)

    monkeypatch.setattr("gpupool_server.rundir.os.mkfifo", mkfifo)
    with pytest.raises(OSError, match="No space"):
        run_dir.new_session()
    assert list(run_dir.sessions.iterdir()) == []
    run_dir.close()


def test_a_run_dir_that_is_a_link_is_refused(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "run").symlink_to(folder / "real")
    with pytest.raises(GpupoolError, match="is not a folder of this user"):
        RunDir(folder / "run")


async def test_processes_are_known_by_their_start() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = start_time(child.pid)
    assert started is not None
    assert Process.find(child.pid, started + 1) is None
    process = Process.find(child.pid, started)
    assert process is not None
    process.kill(signal.SIGTERM)
    assert "ended" in await process.wait()
    assert not process.alive
    process.kill()  # of a process that is gone: nothing
    child.wait()
    assert start_time(child.pid) is None
    assert Process.find(child.pid, started) is None
