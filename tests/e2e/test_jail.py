"""The jail of a worker: what it can see and do from inside, and programs under the whole of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpupool_common import paths
from gpupool_server.process import start_time
from harness import PATIENCE, PoolServer, Talk, alive, wait_until
from jail_harness import FILES, PYTHON, UID, Starter, holder_line
from toolchain import Toolchain

MakeServer = Callable[..., PoolServer]
StartTalk = Callable[[list[str], dict[str, str]], Talk]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make every layer")

#: Layers that the starter makes by itself, without anything of a server's.
LAYERS = (
    *("descriptors", "pid", "ipc", "net", "uts", "mount", "root", "devices", "proc", "uid"),
    *("capabilities", "no-new-privs", "environment"),
)

LOOK = r"""
import ctypes, glob, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def fails(call, *args):
    try:
        call(*args)
    except OSError as error:
        return type(error).__name__
    return ""
def connects(address):
    with socket.socket() as probe:
        probe.settimeout(2)
        return not fails(probe.connect, address)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "root": sorted(os.listdir("/")),
    "dev": sorted(os.listdir("/dev")),
    "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()),
    "pid": os.getpid(), "session": os.getsid(0),
    "host": os.uname().nodename,
    "links": sorted(name for _, name in socket.if_nameindex()),
    "capabilities": [status[name].strip() for name in
                     ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"].strip(),
    "environment": dict(os.environ),
    "descriptors": [fd for fd in range(1000) if not fails(os.fstat, fd)],
    "mounts": [line.split()[1:4] for line in open("/proc/self/mounts")],
    "write": {path: fails(open, path, "w") for path in
              ("/new", "/usr/lib/new", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger",
               "/dev/new", "/tmp/new", "/dev/shm/new")},
    "others": fails(os.kill, 1, 9), "root_of_1": fails(os.listdir, "/proc/1/root"),
    "mount": libc.mount(b"x", b"/tmp", b"tmpfs", 0, None), "chroot": fails(os.chroot, "/tmp"),
    "raw_socket": fails(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1),
    "become_root": fails(os.setuid, 0),
    "host_port": connects(("127.0.0.1", PORT)),
}))
"""


@pytest.fixture
def starter(tmp_path: Path, home: paths.Home) -> Iterator[Starter]:
    one = Starter(tmp_path, home)
    yield one
    one.close()


# From inside -----------------------------------------------------------------------


def test_a_worker_sees_nothing_of_its_host(starter: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        handed, not_handed = os.pipe()
        os.set_inheritable(not_handed, True)
        more = (f"keep {handed}", "env GPUPOOL_X=1")
        one = starter.look(LOOK.replace("PORT", str(port)), *more, keep=[handed])
        seen = one.seen()
    os.close(not_handed)
    off = {n: why for n, why in one.report.off.items() if n in LAYERS}
    assert not off, off
    assert seen["ids"] == [[UID] * 3, [UID] * 3, []]
    folders = {path.split("/")[1] for path in FILES} | {"dev", "proc", "tmp"}
    assert seen["root"] == sorted(folders)
    assert seen["dev"] == ["null", "shm", "urandom", "zero"]
    assert seen["pids"] == [seen["pid"]] and seen["session"] == seen["pid"]
    assert seen["host"] == "inside" and seen["links"] == ["lo"] and not seen["host_port"]
    assert set(seen["capabilities"]) == {"0" * 16} and seen["no_new_privs"] == "1"
    told = {"HOME": "/tmp", "GPUPOOL_X": "1", "GPUPOOL_PID": str(one.report.pid)}
    assert {k: v for k, v in seen["environment"].items() if k != "LC_CTYPE"} == told
    assert seen["descriptors"] == [0, 1, 2, handed]
    os.close(handed)
    writable = {path for path, error in seen["write"].items() if not error}
    assert writable == {"/tmp/new", "/dev/shm/new"}
    assert seen["others"] == "PermissionError" and seen["root_of_1"]
    assert seen["mount"] == -1 and seen["chroot"] == "PermissionError"
    assert seen["raw_socket"] == "PermissionError" and seen["become_root"] == "PermissionError"
    for path, kind, options in seen["mounts"]:
        words = set(options.split(","))
        assert "nosuid" in words or kind == "devtmpfs", (path, options)
        assert "ro" in words or path.startswith(("/tmp", "/dev/", "/proc")), (path, options)


def test_memory_folders_are_bounded(starter: Starter) -> None:
    code = (
        "import json, errno\n"
        "try:\n  open('/tmp/x', 'wb').write(b'x' * (2 << 20)); got = 0\n"
        "except OSError as error:\n  got = error.errno\n"
        "print(json.dumps(got == errno.ENOSPC))"
    )
    assert starter.look(code).seen() is True


SHARED = r"""
import json, os, time
kinds = ("ipc", "net", "uts", "pid")
mine = {kind: os.stat("/proc/self/ns/" + kind).st_ino for kind in kinds}
before = sorted(os.listdir("/dev/shm"))
open("/dev/shm/" + str(os.getuid()), "w").close()
print(json.dumps([mine, before]), flush=True)
"""


#: Before this the first of a lease has looked, and left its own file.
SECOND = "import os, time\nwhile not os.listdir('/dev/shm'): time.sleep(0.01)\n"


def test_workers_of_a_lease_share_and_others_do_not(starter: Starter) -> None:
    first = starter.look(SHARED)
    line, fd = holder_line(first)
    second = starter.look(SECOND + SHARED, line, keep=[fd])
    os.close(fd)
    other = starter.look(SHARED)
    assert second.report.holder == 0 and other.report.holder
    of_first, of_second, of_other = first.seen(), second.seen(), other.seen()
    assert of_first[0] == of_second[0]
    assert all(of_other[0][kind] != inode for kind, inode in of_first[0].items())
    assert of_first[1] == [] and of_second[1] == [str(UID)] and of_other[1] == []


def test_a_worker_ends_with_its_lease(starter: Starter) -> None:
    one = starter.look("import time; time.sleep(600)")
    os.kill(one.report.holder, signal.SIGKILL)
    assert one.wait() == -signal.SIGKILL


def own_cgroup(name: str) -> Path:
    """A group of this machine's cgroup v2."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [Path(path) for _, path, kind, *_ in mounts if kind == "cgroup2"]
    if not roots:
        pytest.skip("no cgroup v2 is mounted here")
    try:
        (roots[0] / name).mkdir()
    except OSError as error:
        pytest.skip(f"{roots[0]} gives nobody here a group: {error.strerror}")
    return roots[0] / name


def test_a_worker_is_in_its_group_and_its_lease_is_not(starter: Starter) -> None:
    group = own_cgroup(f"gpupool-test-{os.getpid()}")
    try:
        one = starter.look("import time; time.sleep(600)", f"cgroup {group}")
        assert one.report.layers["cgroup"] == "on"
        assert (group / "cgroup.procs").read_text().split() == [str(one.report.pid)]
        (group / "cgroup.kill").write_text("1")
        assert one.wait() == -signal.SIGKILL
        assert alive(one.report.holder)
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


def test_a_group_that_is_none_is_said(starter: Starter, tmp_path: Path) -> None:
    one = starter.look("print(1)", f"cgroup {tmp_path / 'none'}")
    assert one.seen() == 1
    assert "cannot be entered: No such file" in one.report.off["cgroup"]


def test_a_worker_ends_with_its_server_where_it_is_asked_to(tmp_path: Path) -> None:
    path = [str(Path(__file__).parent), *filter(None, sys.path)]
    code = (
        f"import sys, pathlib, time; sys.path[:0] = {path!r}\n"
        "from gpupool_common import paths; from jail_harness import Starter, PYTHON\n"
        f"s = Starter(pathlib.Path({str(tmp_path)!r}), paths.find_home())\n"
        "lines = s.lines('with-server 1', 'off pid the test wants no holder to end it')\n"
        "one = s.run(lines, [PYTHON, '-IS', '-c', 'import time; time.sleep(600)'])\n"
        "print(one.report.pid, one.report.holder, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        worker, holder = map(int, server.stdout.readline().split())
        assert alive(worker)
        server.kill()
    wait_until(lambda: not alive(worker), "the worker ended with its server")
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder, signal.SIGKILL)


def test_without_rights_a_user_namespace_is_made(home: paths.Home) -> None:
    user = 65533
    with tempfile.TemporaryDirectory(prefix="gpe-", dir="/tmp") as folder:
        starter = Starter(Path(folder), home)
        starter.program = Path(shutil.copy(starter.program, folder))  # where that user may go
        for path in (starter.root, Path(folder)):
            os.chown(path, user, user)
        lines = [f"root {starter.root}", "off uid the server is not root"]
        lines += [f"library {path}" for path in ("/usr/bin", "/bin", "/usr/lib", "/lib", "/lib64")]
        one = starter.run(lines, ["/bin/sh", "-c", "id -u; echo /*"], user=user)
        try:
            if why := one.report.off.get("user-namespace"):
                pytest.skip(f"the layer user-namespace is off: {why}")
            on = {name for name, state in one.report.layers.items() if state == "on"}
            assert on >= {"root", "net", "pid", "ipc", "capabilities", "no-new-privs"}, on
            assert one.wait() == 0
            seen = one.output.read_text().split()
            assert seen == [str(user), "/bin", "/dev", "/lib", "/lib64", "/proc", "/usr"]
        finally:
            starter.close()


# The starter's own input -------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("colour blue", "'colour' is not known"),
        ("uid", "'uid' has no value"),
        ("", "'' has no value"),
        ("uid 0", "'uid' comes twice"),
        ("root /tmp", "'root' comes twice"),
        ("hostname a b", "'hostname' comes twice"),
        ("library usr", "absolute, plain path"),
        ("library /usr/../etc", "absolute, plain path"),
        ("library /usr/./lib", "absolute, plain path"),
        ("library //usr", "absolute, plain path"),
        ("library /usr/", "absolute, plain path"),
        ("library /", "absolute, plain path"),
        ("library /" + "x" * 5000, "absolute, plain path"),
        ("device /etc/passwd", "must be below /dev"),
        ("device /dev/../etc/passwd", "absolute, plain path"),
        ("tmpfs /x", "needs a path and a size"),
        ("tmpfs /x -1", "needs a path and a size"),
        ("tmpfs /x 0", "needs a path and a size"),
        ("tmpfs /x 99999999999999999999999", "needs a path and a size"),
        ("tmpfs /x 1,mode=777", "needs a path and a size"),
        ("env LD_PRELOAD=/x", "names a variable that a worker does not get"),
        ("env GPUPOOL_X", "names a variable that a worker does not get"),
        ("keep 2", "must be an open descriptor above 2"),
        ("keep 999", "must be an open descriptor above 2"),
        ("keep 3x", "must be an open descriptor above 2"),
        ("holder 999", "must be an open descriptor above 2"),
        ("off colour it is blue", "names no layer"),
        ("off net", "needs a layer and a reason"),
        ("require colour", "names no layer"),
        ("with-server 2", "must be 1"),
        ("seccomp maybe", "must be off, log, enforce or learn"),
        ("library /nowhere/at/all", "/nowhere/at/all cannot be put into the worker's root"),
    ],
)
def test_what_cannot_be_a_jail_starts_nothing(starter: Starter, line: str, words: str) -> None:
    one = starter.run(starter.lines(line), [PYTHON, "-IS", "-c", "print('it ran')"])
    assert words in one.report.error
    assert one.output.read_text() == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "does not end with a line's end"),
        (b"root /tmp", "does not end with a line's end"),
        (b"root /tmp\0\n", "holds a zero byte"),
        (b"root /tmp\nuid 5\n", "one of 'uid' and 'gid'"),
        (b"uid 5\ngid 5\n", "has no 'root'"),
        (b"uid 0\ngid 0\nroot /tmp\n", "must be a number from 1"),
        (b"uid 4294967295\ngid 5\nroot /tmp\n", "must be a number from 1"),
        (b"library /a\n" * 7000, "longer than 65536 bytes"),
        (b"library /a\n" * 600, "is one place too many"),
    ],
)
def test_what_is_no_description_starts_nothing(starter: Starter, text: bytes, words: str) -> None:
    one = starter.run(text, [PYTHON, "-IS", "-c", "print('it ran')"])
    assert words in one.report.error and one.starter == 2
    assert one.report.pid == 0 and one.report.holder == 0 and one.output.read_text() == ""


def test_a_layer_that_is_required_and_off_starts_nothing(starter: Starter) -> None:
    lines = starter.lines("off net of the test", "require net")
    one = starter.run(lines, [PYTHON, "-IS", "-c", "print('it ran')"])
    assert "'net' is required and cannot be made: of the test" in one.report.error
    assert one.output.read_text() == ""


def test_wrong_arguments_are_explained(starter: Starter) -> None:
    for wrong in ([], ["--description", "0", "--status", "1", "--", "/bin/true"]):
        done = subprocess.run(
            [str(starter.program), *wrong], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2 and "usage: gpupool-jail" in done.stderr


# Programs under it ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(home: paths.Home) -> Iterator[PoolServer]:
    """A server for this machine's programs alone: every layer that needs no more is on."""
    server = PoolServer(**{"data-listen": "none", "soft-gpus": "2"})
    try:
        server.start()
        yield server
    finally:
        server.close()


def confinement(server: PoolServer) -> dict[str, str]:
    command = [sys.executable, "-m", "gpupool", "inspect", "--json"]
    command += ["--run-dir", str(server.folder / "run")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)["confinement"]
    return found


def test_all_layers_are_on_for_programs_of_this_machine(local: PoolServer) -> None:
    layers = confinement(local)
    off = {name: layers[name] for name in LAYERS if layers[name] != "on"}
    assert not off, off


@pytest.mark.parametrize("name", ["vector_add", "device_functions", "histogram"])
def test_programs_run_in_it_over_shm(local: PoolServer, toolchain: Toolchain, name: str) -> None:
    result = local.run([str(toolchain.runtime_program(name))], "shm")
    assert result.returncode == 0 and "PASS" in result.stdout, result.explain()


@pytest.mark.parametrize("way", ["tcp", "zmq"])
def test_a_program_runs_in_it_over_a_network(
    server: PoolServer, toolchain: Toolchain, way: str
) -> None:
    assert confinement(server)["root"] == "on"
    result = server.run([str(toolchain.runtime_program("vector_add"))], way)
    assert result.returncode == 0 and "PASS" in result.stdout, result.explain()


def user_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid


def test_sessions_keep_their_jails_over_a_restart(
    make_server: MakeServer, talk: StartTalk, toolchain: Toolchain
) -> None:
    server = make_server(**{"data-listen": "none", "jail-users": "worker"})
    hold = str(toolchain.runtime_program("hold"))
    first = talk([hold], server.environment("shm"))
    assert first.line() == "ready"
    (worker,) = server.worker_pids()
    server.kill()
    server.start()
    second = talk([hold], server.environment("shm"))
    assert second.line() == "ready"
    (other,) = set(server.worker_pids()) - {worker}
    assert 200000 <= user_of(worker) <= 265535 and 200000 <= user_of(other) <= 265535
    assert user_of(worker) != user_of(other)
    # closed to its user: what only the owner may read is root's
    assert {os.stat(f"/proc/{pid}/environ").st_uid for pid in (worker, other)} == {0}
    shared = [os.stat(f"/proc/{pid}/ns/ipc").st_ino for pid in (worker, other, os.getpid())]
    assert shared[0] == shared[1] != shared[2]
    for number, program in enumerate((first, second)):
        program.say("go")
        assert program.line().startswith("step"), number
    for session in server.sessions():
        assert session["confinement"]["start_us"] > 0
        print("cost of a jail:", session["confinement"]["start_us"], "us")
    holder = json.loads(next((server.folder / "run/sessions").glob("*/meta.json")).read_text())
    namespaces = int(holder["confined"]["holder"])
    assert alive(namespaces)
    first.close()
    second.close()
    wait_until(lambda: not server.worker_pids(), "the workers ended", PATIENCE)
    wait_until(lambda: not alive(namespaces), "the lease's namespaces ended with the last worker")


def workers_left(server: PoolServer, number: int) -> None:
    wait_until(lambda: len(server.worker_pids()) == number, f"{number} workers are left", PATIENCE)


def test_workers_of_a_lease_have_one_user(
    make_server: MakeServer, talk: StartTalk, toolchain: Toolchain
) -> None:
    """It is nobody else's until the last of them has ended, also over a restart."""
    server = make_server(**{"data-listen": "none"})
    hold = str(toolchain.runtime_program("hold"))
    programs = [talk([hold], server.environment("shm")) for _ in range(2)]
    assert [program.line() for program in programs] == ["ready"] * 2
    server.kill()
    server.start()
    programs.append(talk([hold], server.environment("shm")))
    assert programs[2].line() == "ready"
    (user,) = {user_of(pid) for pid in server.worker_pids()}
    assert 200000 <= user <= 265535
    claim = Path("/run/gpupool-uids") / str(user)
    for left, program in zip((2, 1, 0), programs, strict=True):
        assert start_time(int(claim.read_text().split()[0])) is not None
        program.close()
        workers_left(server, left)
    wait_until(lambda: not claim.exists(), "the user is free")


def test_a_server_that_must_confine_says_what_is_missing(home: paths.Home) -> None:
    lacks = r"the layer '{}' is off: .*{}.*--confinement=best"
    for settings, layer, why in (
        ({}, "net", r"--no-zmq serves none of them.*\(off, too: .*cgroup"),
        ({"no-tcp": ""}, "net", "--data-listen none"),
        ({"no-zmq": ""}, "cgroup", ""),  # which is all that these tests' machine lacks
    ):
        server = PoolServer(confinement="required", **settings)
        with pytest.raises(AssertionError, match=lacks.format(layer, why)):
            server.start()
        server.close()


def test_without_confinement_a_worker_is_the_servers_user(
    make_server: MakeServer, talk: StartTalk, toolchain: Toolchain
) -> None:
    server = make_server(confinement="off")
    program = talk([str(toolchain.runtime_program("hold"))], server.environment("shm"))
    assert program.line() == "ready"
    assert [user_of(pid) for pid in server.worker_pids()] == [os.geteuid()]
    assert set(confinement(server).values()) == {"off: --confinement=off"}
