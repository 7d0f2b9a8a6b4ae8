"""Server and programs of different users on one machine: they share memory, others see none."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import mmap
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import OURS, PATIENCE, Talk, run_program, wait_until
from test_failures import StartTalk
from toolchain import Toolchain
from users import NEIGHBOUR, SERVER, TENANT, UsersServer, as_user

KNOCK_MAGIC = b"gpupool-door/1\0\0"
MAGIC = b"gpupool-shm/1\0\0\0"
PACKET = struct.Struct("=16sIIQQQ")
HELLO, READY, SHARE = 1, 2, 3
RINGS = (64 << 10) + 2 * (8 << 20)

#: Whatever a process can open of another's: memory files by its descriptors and its mappings,
#: and its memory itself.
LOOK = """
import glob, json, os, sys
found = []
for pid in sys.argv[1:]:
    paths = glob.glob(f"/proc/{pid}/fd/*") + glob.glob(f"/proc/{pid}/map_files/*")
    for path in [*paths, f"/proc/{pid}/fd", f"/proc/{pid}/mem", f"/proc/{pid}/maps"]:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            found.append(path)
        except OSError:
            pass
print(json.dumps(found))
"""


class RootsServer(UsersServer):
    """One of root's, with the same socket for all."""

    uid = 0


@pytest.fixture(scope="module")
def server(python: str) -> Iterator[UsersServer]:
    made = UsersServer(python)
    made.start()
    yield made
    made.close()


class Held:
    """A program that holds pinned memory."""

    def __init__(self, talk: Talk, pid: int, address: int) -> None:
        self.talk, self.pid, self.address = talk, pid, address
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        self.talk.say("go")
        assert self.talk.line() == f"step {self.steps}"

    def end(self) -> None:
        self.talk.say("end")
        result = self.talk.finish()
        assert result.returncode == 0, result.explain()


def holding(server: UsersServer, toolchain: Toolchain, talk: StartTalk, uid: int) -> Held:
    program = server.program(toolchain, "driver_pinned")
    held = talk([*as_user(uid), program], server.environment("shm"))
    pid, address = held.line().split()
    return Held(held, int(pid), int(address, 16))


def mapped(pid: int, address: int) -> str | None:
    """The memory file that a process has at an address: device and number."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        begin, end, device, inode, name = re.match(  # type: ignore[union-attr]
            r"(\w+)-(\w+) \S+ \w+ (\S+) (\d+)\s*(.*)", line
        ).groups()
        if int(begin, 16) <= address < int(end, 16) and name.startswith("/memfd:gpupool-share"):
            return f"{device} {inode}"
    return None


def uid_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def look(python: str, uid: int, *pids: int) -> list[str]:
    """What a process of a user can open of these processes."""
    command = [*as_user(uid), python, "-I", "-c", LOOK, *map(str, pids)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_a_program_shares_memory_with_another_users_server(
    server: UsersServer, toolchain: Toolchain, talk: StartTalk
) -> None:
    result = server.run_as(TENANT, server.program(toolchain, "driver_memory"), "shm")
    assert result.returncode == 0, result.explain()
    others = server.worker_pids()
    held = holding(server, toolchain, talk, TENANT)
    (worker,) = [pid for pid in server.worker_pids() if pid not in others]
    assert (uid_of(held.pid), uid_of(worker)) == (TENANT, SERVER)
    held.step()
    # Its pinned memory is the worker's, at the same address: no byte was copied between them.
    assert mapped(held.pid, held.address) is not None
    assert mapped(held.pid, held.address) == mapped(worker, held.address)
    held.end()


def test_a_worker_may_be_of_a_third_user(
    python: str, toolchain: Toolchain, talk: StartTalk
) -> None:
    """As in the jail that a server of root's makes: users, processes and folders of its own."""
    server = RootsServer(sys.executable)
    try:
        server.start()
        held = holding(server, toolchain, talk, TENANT)
        (worker,) = server.worker_pids()
        held.step()
        assert mapped(held.pid, held.address) == mapped(worker, held.address) is not None
        assert look(python, NEIGHBOUR, held.pid, worker) == []
        # The client's end ends the worker, whose processes its client is none of.
        held.talk.process.kill()
        wait_until(lambda: worker not in server.worker_pids(), "the worker ends with its client")
    finally:
        server.close()


def test_no_user_sees_anothers_memory(
    server: UsersServer, toolchain: Toolchain, talk: StartTalk
) -> None:
    others = server.worker_pids()
    first = holding(server, toolchain, talk, TENANT)
    second = holding(server, toolchain, talk, NEIGHBOUR)
    workers = [pid for pid in server.worker_pids() if pid not in others]
    assert len(workers) == 2
    assert look(server.python, NEIGHBOUR, first.pid, *workers) == []
    assert look(server.python, TENANT, second.pid, *workers) == []
    # Looking finds what there is to be found, where nothing forbids it.
    assert f"/proc/{first.pid}/mem" in look(server.python, TENANT, first.pid)
    # There is no name in any folder: the socket that all connect to is all that they can reach.
    seen = subprocess.run(
        [*as_user(NEIGHBOUR), "find", str(server.folder), "-readable", "-name", "*"],
        capture_output=True,
        text=True,
        check=False,
    )
    inside = [Path(line) for line in seen.stdout.splitlines()]
    assert server.socket in inside
    assert not [path for path in inside if (server.folder / "run") in path.parents]
    for held in (first, second):
        held.step()
        held.end()


def test_users_that_are_not_admitted(python: str, toolchain: Toolchain) -> None:
    server = UsersServer(python, **{"shm-allow": f"{TENANT},@{NEIGHBOUR + 1}"})
    try:
        server.start()
        program = server.program(toolchain, "driver_events")
        assert server.run_as(TENANT, program, "shm").returncode == 0
        refused = server.run_as(NEIGHBOUR, program, "shm")
        assert refused.returncode != 0
        (line,) = [each for each in refused.stderr.splitlines() if each.startswith(OURS)]
        assert "does not admit this user" in line and str(server.socket) in line
        # Left to itself it takes the network.
        result = server.run_as(NEIGHBOUR, program, "", GPUPOOL_LOG="info")
        assert result.returncode == 0, result.explain()
        assert any("not over shm://" in line for line in result.own_lines())
        assert "shm_allow does not name this user" in server.log.read_text()
    finally:
        server.close()


#: A container with nothing of the host but the socket's folder, at a path of its own: no network
#: but a loopback that is down, and processes of its own.
CONTAINER = """
set -e
mount --bind "$1" "$2"
mount -t proc proc /proc
shift 2
exec "$@"
"""


def test_a_container_needs_the_sockets_folder_alone(
    server: UsersServer, toolchain: Toolchain
) -> None:
    program = server.program(toolchain, "driver_memory")
    inside = server.folder / "inside"
    inside.mkdir()
    spaces = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
    container = [*spaces, "sh", "-c", CONTAINER, "sh", str(server.socket.parent), str(inside)]
    if run_program([*container, "true"]).returncode != 0:
        pytest.skip("this machine makes no namespaces")
    command = [*container, *as_user(TENANT), program]
    asked = {"GPUPOOL_SERVER": f"unix://{inside}/server.sock", "GPUPOOL_LOG": "info"}
    result = run_program(command, server.environment("", **asked))
    assert result.returncode == 0, result.explain()
    assert any(" over shm, " in line for line in result.own_lines()), result.explain()
    # Over the network it finds nobody.
    alone = run_program(command, server.environment("", GPUPOOL_LOG="error"))
    assert alone.returncode != 0 and server.url in alone.stderr, alone.explain()
    # The socket does not say where its server's network is.
    asked["GPUPOOL_TRANSPORT"] = "zmq"
    refused = run_program(command, server.environment("zmq", **asked))
    assert refused.returncode != 0 and len(refused.own_lines()) == 1, refused.explain()


# Hostile programs ----------------------------------------------------------------------------


def knock(server: UsersServer, word: bytes) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(PATIENCE)
    client.connect(str(server.socket))
    client.send(KNOCK_MAGIC + word)
    return client


def memory(size: int, *, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 1) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def packet(kind: int, size: int, number: int = 0) -> bytes:
    return PACKET.pack(MAGIC, kind, 0, size, number, 0)


def send(client: socket.socket, said: bytes, fds: list[int]) -> None:
    """Unless the other side has hung up already: who listens notices that."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    with contextlib.suppress(ConnectionError):
        client.sendmsg([said], rights)


def greets(client: socket.socket) -> bool:
    """Whether the worker takes a hello with good memory; False: it hangs up."""
    fd = memory(RINGS)
    try:
        send(client, packet(HELLO, RINGS), [fd])
        said = client.recv(256)
    except ConnectionError:
        return False
    finally:
        os.close(fd)
    return len(said) == PACKET.size and PACKET.unpack(said)[:2] == (MAGIC, READY)


def hangs_up(client: socket.socket) -> bool:
    try:
        return client.recv(256) == b""
    except ConnectionError:
        return True


def bad_memories() -> list[int]:
    """Whatever is no memory of the right size that nobody can make smaller."""
    pipe, write = os.pipe()
    os.close(write)
    read_only = memory(RINGS)
    again = os.open(f"/proc/self/fd/{read_only}", os.O_RDONLY)
    os.close(read_only)
    return [
        memory(RINGS, seals=0),
        memory(RINGS, seals=fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL),
        memory(RINGS - mmap.PAGESIZE),
        memory(RINGS + mmap.PAGESIZE),
        again,
        os.open("/dev/zero", os.O_RDWR),
        os.open("/", os.O_RDONLY | os.O_DIRECTORY),
        os.open("/etc", os.O_PATH),
        pipe,
    ]


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_hostile_descriptors_harm_nobody(
    server: UsersServer, toolchain: Toolchain, talk: StartTalk
) -> None:
    neighbour = holding(server, toolchain, talk, NEIGHBOUR)
    neighbour.step()
    assert server.pid is not None
    session, word = server.open_session()
    worker = int(
        json.loads((server.folder / f"run/sessions/{session}/meta.json").read_text())["pid"]
    )
    with knock(server, word) as client:  # its driver is open once it answers
        send(client, b"junk", [])
        assert hangs_up(client)
    server_files, worker_files = open_files(server.pid), open_files(worker)
    good, bad = memory(RINGS), bad_memories()
    hostile = [[fd] for fd in bad] + [[], [good, good], [good] * 250, [bad[-1]] * 250]
    for fds in hostile:
        with knock(server, word) as client:
            send(client, packet(HELLO, RINGS), fds)
            assert hangs_up(client), fds
    for fds in ([good], [good] * 250):  # with the word itself, where there is to be none
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(PATIENCE)
            client.connect(str(server.socket))
            send(client, KNOCK_MAGIC + word, fds)
            assert hangs_up(client)
    with knock(server, os.urandom(16)) as client:
        assert hangs_up(client)
    wait_until(lambda: open_files(worker) <= worker_files, "the worker closes what it was sent")
    pid = server.pid
    wait_until(lambda: open_files(pid) <= server_files, "the server closes what it was sent")
    # The session is still its client's, who may do it right.
    with knock(server, word) as client:
        assert greets(client)
        for fd in bad:
            send(client, packet(SHARE, RINGS, 1), [fd])
        assert hangs_up(client)
    with knock(server, word) as late:
        assert not greets(late)
    for fd in (good, *bad):
        os.close(fd)
    neighbour.step()
    neighbour.end()


def test_a_client_comes_though_its_server_was_started_again(server: UsersServer) -> None:
    _, word = server.open_session()
    server.kill()
    server.start()
    with knock(server, word) as client:
        assert greets(client)


def test_a_word_opens_one_worker_alone(server: UsersServer) -> None:
    first, second = server.open_session(), server.open_session()
    assert first[1] != second[1]
    with knock(server, first[1]) as one, knock(server, second[1]) as other:
        assert greets(one) and greets(other)
        with knock(server, first[1]) as again:  # its client is in
            assert not greets(again)
