"""The socket where programs get shared memory: who gets through, what strangers leave behind."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from gpupool_common import protocol
from gpupool_common.ask import ask_info
from gpupool_common.errors import (
    ConfigError,
    GpupoolError,
    RefusedError,
    ServerAwayError,
    UnreachableError,
)
from gpupool_server import shm_door, shm_socket
from gpupool_server.local_users import Admitted, LocalUser
from gpupool_server.shm_door import KNOCK, MAGIC, QUESTION, ShmDoor, digest_of
from gpupool_server.worker import Control, WorkerError
from lingering import lingering
from server_harness import TOKEN, MakeServer, eventually, hello_fields, make_settings, refused

WORD = bytes(range(16))
RIGHT = KNOCK.pack(MAGIC, WORD)


class FakeWorker(Control):
    """Takes what is handed over; or does not, if it is ``gone``."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.connections: list[socket.socket] = []
        self.processes: list[int] = []
        self.gone = False

    async def hand_over(self, connection: int, process: int) -> None:
        if self.gone:
            raise WorkerError("the worker takes no client")
        self.connections.append(socket.socket(fileno=os.dup(connection)))
        self.processes.append(process)


class Door:
    """A door with one worker behind it."""

    def __init__(self, path: Path, admitted: Admitted) -> None:
        self.path = path
        self.worker = FakeWorker()
        self.door = ShmDoor(path, admitted, {digest_of(WORD): self.worker}.get, self.answer)

    async def answer(self, question: bytes, address: str) -> bytes:
        return f"{address} asked {len(question)}".encode()

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.setblocking(False)
        client.connect(str(self.path))
        return client


MakeDoor = Callable[..., Door]


@pytest_asyncio.fixture
async def make_door(folder: Path) -> AsyncIterator[MakeDoor]:
    doors: list[Door] = []

    def make(*allowed: str) -> Door:
        doors.append(Door(folder / "shm.sock", Admitted(allowed)))
        return doors[-1]

    yield make
    for each in doors:
        await each.door.close()
        for connection in each.worker.connections:
            connection.close()


async def shown_out(client: socket.socket) -> bool:
    """Whether the other end hangs up; bounded by the test's own time limit."""
    try:
        return await asyncio.get_running_loop().sock_recv(client, 64) == b""
    except ConnectionError:  # it left our words unread
        return True


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def test_a_word_opens(make_door: MakeDoor) -> None:
    door = make_door()
    assert stat.S_IMODE(door.path.stat().st_mode) == 0o666
    with door.connect() as client:
        client.send(RIGHT)
        client.send(b"what the worker is told")
        await eventually(lambda: bool(door.worker.connections))
        assert door.worker.connections[0].recv(64) == b"what the worker is told"
        assert door.worker.processes[0] >= 0
        # The worker's copy alone is left.
        await eventually(lambda: not door.door._busy)
        door.worker.connections.pop().close()
        assert await shown_out(client)


@pytest.mark.parametrize(
    "knock",
    [
        pytest.param(KNOCK.pack(MAGIC, bytes(16)), id="another word"),
        pytest.param(KNOCK.pack(b"gpupool-door/2\0\0", WORD), id="another magic"),
        pytest.param(RIGHT[:-1], id="too short"),
        pytest.param(RIGHT + b"\0", id="too long"),
        pytest.param(RIGHT * 200, id="much too long"),
        pytest.param(b"x", id="junk"),
    ],
)
async def test_other_words_do_not(make_door: MakeDoor, knock: bytes) -> None:
    door = make_door()
    with door.connect() as client:
        client.send(knock)
        assert await shown_out(client)
    assert door.worker.connections == []


@pytest.mark.parametrize("knock", [RIGHT, KNOCK.pack(MAGIC, bytes(16))], ids=["right", "wrong"])
async def test_descriptors_with_a_word_are_nobodys(make_door: MakeDoor, knock: bytes) -> None:
    door = make_door()
    with open("/dev/zero", "rb") as zero:
        before = descriptors()
        for count in (1, 3, 250):
            with door.connect() as client:
                socket.send_fds(client, [knock], [zero.fileno()] * count)
                assert await shown_out(client)
        assert descriptors() == before
    assert door.worker.connections == []


@pytest.mark.parametrize("words", [[b"x"], [RIGHT[:-1], b"x"], [QUESTION, b"x"], [b""]])
async def test_a_descriptor_that_lingers_keeps_nobody(
    make_door: MakeDoor, words: list[bytes]
) -> None:
    """The last close of it waits for who has sent it: not here, whether it was read or not."""
    door = make_door()
    with lingering() as one:
        with door.connect() as hostile:
            for each in words[:-1]:
                hostile.send(each)
            socket.send_fds(hostile, [words[-1]], [one.end.fileno()])
            one.end.close()
            await asyncio.sleep(0)
        with door.connect() as client:
            client.send(RIGHT)
            await eventually(lambda: bool(door.worker.connections))
        assert not one.waited


async def test_a_question_has_an_answer(make_door: MakeDoor) -> None:
    door = make_door()
    loop = asyncio.get_running_loop()
    for size in (20, protocol.MAX_BYTES):
        with door.connect() as client:
            client.send(QUESTION.ljust(size, b"x"))
            said = await loop.sock_recv(client, 200)
            assert said == f"uid {os.geteuid()} asked {size}".encode()
            assert await shown_out(client)


async def test_too_long_a_question_has_none(make_door: MakeDoor) -> None:
    door = make_door()
    with door.connect() as client, open("/dev/zero", "rb") as zero:
        client.send(QUESTION.ljust(protocol.MAX_BYTES + 1, b"x"))
        assert await shown_out(client)
        with door.connect() as other:
            socket.send_fds(other, [QUESTION], [zero.fileno()])
            assert await shown_out(other)


async def test_who_asks_too_much_is_told_so(
    make_door: MakeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_door, "QUESTION_RATE", 0.001)
    monkeypatch.setattr(shm_door, "QUESTION_BURST", 2.0)
    door = make_door()
    said = []
    for _ in range(3):
        with door.connect() as client:
            client.send(QUESTION)
            said.append(await asyncio.get_running_loop().sock_recv(client, 8192))
    assert said[0] == said[1] and refused(said[2])[0] == "busy"


async def test_a_server_is_asked_at_its_socket(folder: Path, make_server: MakeServer) -> None:
    server = await make_server()
    url = f"unix://{folder}/run/shm.sock"
    for where in (url, server.url):
        info = await asyncio.to_thread(ask_info, where, TOKEN)
        assert len(info["devices"]) == 2
    with pytest.raises(RefusedError, match="GPUPOOL_TOKEN"):
        await asyncio.to_thread(ask_info, url, "wrong")
    with pytest.raises(ServerAwayError, match="No such file"):
        await asyncio.to_thread(ask_info, f"{url}x", TOKEN)
    with pytest.raises(UnreachableError, match="no key"):
        await asyncio.to_thread(ask_info, f"{url}?key={'0' * 64}", TOKEN)


async def test_a_worker_that_has_gone(make_door: MakeDoor) -> None:
    door = make_door()
    door.worker.gone = True
    before = descriptors()
    with door.connect() as client:
        client.send(RIGHT)
        assert await shown_out(client)
    assert descriptors() == before


async def test_the_silent_make_room(make_door: MakeDoor) -> None:
    """However many say nothing, who speaks gets in, and the oldest of them are sent away."""
    door = make_door()
    silent = []
    for _ in range(shm_door.MOST_OF_ONE + 20):
        silent.append(door.connect())
        await asyncio.sleep(0)
    await eventually(lambda: len(door.door._guests) == shm_door.MOST_OF_ONE)
    with door.connect() as client:
        client.send(RIGHT)
        await eventually(lambda: bool(door.worker.connections))
    assert await shown_out(silent[0])
    for each in silent:
        each.close()
    await eventually(lambda: not door.door._guests)


async def test_silence_has_an_end(make_door: MakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_door, "SILENCE", 0.05)
    door = make_door()
    with door.connect() as client:
        assert await shown_out(client)


async def test_without_descriptors_it_waits(
    make_door: MakeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_door, "PAUSE", 0.001)
    door = make_door()
    listener, refusals = door.door._listener, [OSError(24, "Too many open files")] * 100

    class Full:
        """The listening socket of a process that has no descriptor left, a hundred times."""

        def __getattr__(self, name: str) -> object:
            return getattr(listener, name)

        def fileno(self) -> int:
            return listener.fileno()

        def accept(self) -> object:
            if refusals:
                raise refusals.pop()
            return listener.accept()

    monkeypatch.setattr(door.door, "_listener", Full())
    with capture_logs() as captured, door.connect() as client:
        client.send(RIGHT)
        await eventually(lambda: bool(door.worker.connections))
    assert not refusals
    assert 0 < len([line for line in captured if line["event"] == "connections wait"]) < 50


async def test_only_who_is_admitted(make_door: MakeDoor) -> None:
    own = next(iter(os.getgroups() or [os.getgid()]))
    user = LocalUser(os.getpid(), 4711, frozenset((own, 4712)))
    assert user in Admitted([])
    assert user in Admitted(["4711"]) and user in Admitted(["@4712"])
    assert user not in Admitted(["4710", "@4711"])
    assert LocalUser(1, os.geteuid(), frozenset()) in Admitted(["4710"])
    assert LocalUser(1, 0, frozenset((0,))) in Admitted(["root"])
    for unknown in ("no-such-user", "@no-such-group"):
        with pytest.raises(ConfigError, match="shm_allow"):
            Admitted([unknown])


async def test_whom_the_kernel_names() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        user = LocalUser.of(ours)
    assert (user.pid, user.uid) == (os.getpid(), os.geteuid())
    assert user.groups == {os.getgid(), *os.getgroups()}


async def test_who_is_not_admitted(make_door: MakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    door = make_door("4710")
    stranger = LocalUser(os.getpid(), 4711, frozenset())
    monkeypatch.setattr(LocalUser, "of", classmethod(lambda cls, connection: stranger))
    with door.connect() as client:
        client.send(RIGHT)
        assert await shown_out(client)
    assert door.worker.connections == []


# The file ------------------------------------------------------------------------------------


def test_what_a_killed_server_left_is_replaced(folder: Path) -> None:
    path = folder / "shm.sock"
    shm_socket.listen(path).close()
    assert path.is_socket()
    with shm_socket.listen(path), pytest.raises(GpupoolError, match="another process does"):
        shm_socket.listen(path)


def test_a_file_that_is_no_socket_stays(folder: Path) -> None:
    path = folder / "shm.sock"
    path.write_text("mine")
    with pytest.raises(GpupoolError, match="no socket is there"):
        shm_socket.listen(path)
    assert path.read_text() == "mine"


def test_folders_that_others_may_write_to(folder: Path) -> None:
    for mode, below in ((0o777, "s"), (0o1777, "s"), (0o775, "a/s"), (0o777, "a/b/s")):
        top = folder / f"{mode:o}"
        path = top / below
        path.parent.mkdir(parents=True, exist_ok=True)
        top.chmod(mode)
        with pytest.raises(ConfigError, match="others may write"):
            shm_socket.listen(path)
        assert not path.exists()


def test_a_folder_is_made_for_all(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        shm_socket.listen(folder / "new" / "s").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "new").stat().st_mode) == 0o755


def test_where_it_is(folder: Path) -> None:
    def of(**changes: object) -> Path | None:
        return shm_socket.socket_path(make_settings(folder, **changes))

    assert of() == folder / "run/shm.sock"
    assert of(shm_listen="none") is None
    assert of(shm_listen="/run/x/y.sock") == Path("/run/x/y.sock")
    root = of(run_dir=None)
    assert root == (shm_socket.FOR_ALL if os.geteuid() == 0 else root)


async def test_a_server_takes_its_socket_away(folder: Path, make_server: MakeServer) -> None:
    from gpupool_common.ask import ask

    server = await make_server()
    fields = hello_fields(token=TOKEN)
    said = (await asyncio.to_thread(ask, server.url, "hello", fields)).fields
    path, _, word = said["shm"].removeprefix("shm://").partition("?door=")
    assert path == str(folder / "run/shm.sock") and Path(path).is_socket()
    meta = (folder / "run/sessions" / said["session"] / "meta.json").read_text()
    assert word not in meta and digest_of(bytes.fromhex(word)) in meta
    await server.close()
    assert not Path(path).exists()
