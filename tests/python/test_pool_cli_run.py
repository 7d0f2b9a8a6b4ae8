"""``gpupool run --pool`` against a manager's process: granted, queued, refused, interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from gpupool_common import protocol
from gpupool_common.paths import Home
from gpupool_common.quantities import MEBIBYTE as MIB
from harness import PATIENCE
from manager_node import FakeServer
from pool_process import STEADY, Manager, gpupool, start_gpupool

pytestmark = pytest.mark.timeout(120)

SHOW = 'echo "$GPUPOOL_SERVER|$(cat "$GPUPOOL_TOKEN_FILE")|$GPUPOOL_MEMORY|$GPUPOOL_POOL"'
HALF = ("--memory", "4GiB", "--share", "50%")
WHOLE = ("--gpus", "2")
#: The front ends of the nodes of the test that runs.
SERVERS: dict[str, FakeServer] = {}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path, *STEADY)
    found.start()
    try:
        yield found
    finally:
        found.close()


class User:
    """A tenant ``red`` at its shell."""

    def __init__(self, manager: Manager, token: str, home: Home) -> None:
        self.token = token
        self.env = {
            "GPUPOOL_POOL": manager.url,
            "GPUPOOL_POOL_TOKEN": self.token,
            "GPUPOOL_HOME": str(home.root),
        }

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return gpupool("run", *args, **{**self.env, **env})

    def start(self, *args: str) -> subprocess.Popen[str]:
        return start_gpupool("run", *args, **self.env)


@pytest.fixture
def red(manager: Manager, home: Home) -> User:
    SERVERS["one"] = manager.node("one")
    SERVERS["two"] = manager.node("two", curve=True)
    return User(manager, tenant_red(manager), home)


def tenant_red(manager: Manager) -> str:
    """A new tenant with a quota; its token."""
    return manager.tenant("red", gpus=4, memory_bytes=40_000 * MIB)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Manager, str]]:
    """A manager for what is refused, which leaves nothing behind in it, and its tenant's token."""
    found = Manager(tmp_path_factory.mktemp("pool"), *STEADY)
    try:
        found.start()
        found.node("one")
        found.node("two", curve=True)
        yield found, tenant_red(found)
    finally:
        found.close()


@pytest.fixture
def refused(standing: tuple[Manager, str], home: Home) -> User:
    return User(*standing, home)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.05)


def read_line(stream: IO[str] | None) -> str:
    assert stream is not None
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(PATIENCE)
    assert found, "no line came"
    return found[0]


# Granted ------------------------------------------------------------------------------------


def test_a_program_gets_its_servers_and_no_pool_token(red: User, manager: Manager) -> None:
    done = red.run("--gpus", "2", "--spread", *HALF, "--", "sh", "-c", f"{SHOW}; exit 7")
    assert (done.returncode, done.stderr) == (7, "")
    servers, token, memory, pool = done.stdout.strip().split("|")
    assert servers == f"{SERVERS['one'].url},{SERVERS['two'].url}?key={SERVERS['two'].key}"
    assert token.startswith("gpl_") and red.token not in done.stdout
    assert (memory, pool) == ("", "")
    (lease,) = manager.leases("released")
    assert lease["label"] == "sh"
    assert (lease["request"]["memory_bytes"], lease["request"]["share_permille"]) == (4 << 30, 500)


def test_a_server_that_does_not_answer_is_left_for_another(red: User, manager: Manager) -> None:
    """The manager thought it was there, and the program failed on it."""
    SERVERS["one"].close()
    done = red.run(*HALF, "--", "sh", "-c", SHOW)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{SERVERS['two'].url}?key=")
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpupool: node one: no gpupool server answers at")
    assert line.endswith("asking the pool for another")
    first, second = manager.leases("released")
    assert (first["request"]["avoid"], second["request"]["avoid"]) == ([], ["one"])


def test_a_server_that_refuses_for_now_is_left_for_another(red: User, manager: Manager) -> None:
    SERVERS["one"].answer = protocol.refusal("draining", "the server is stopping")
    done = red.run(*HALF, "--", "sh", "-c", SHOW)
    assert done.returncode == 0 and done.stdout.startswith(SERVERS["two"].url)
    assert "node one: " in done.stderr and "the server is stopping" in done.stderr


def test_nothing_is_started_where_no_server_answers(red: User, manager: Manager) -> None:
    for server in SERVERS.values():
        server.close()
    done = red.run(*HALF, "--", "echo", "started")
    assert (done.returncode, done.stdout) == (75, "")
    last = done.stderr.splitlines()[-1]
    assert "no server of the pool that has room answers here, not one, two" in last
    assert manager.leases("active", "queued") == []


def test_options_become_the_request(red: User, manager: Manager) -> None:
    manager.do("PATCH", "/nodes/two", {"labels": {"rack": "b"}})
    manager.do("PUT", "/tenants/red/quota", {"priority": 5})
    args: tuple[str, ...] = (
        "--policy",
        "spread",
        "--model",
        "nvidia h*",
        "--capability",
        "8.0",
        "--min-driver",
        "12.4",
        "--same-host",
    )
    args += ("--label", "rack=b", "--priority", "5", "--name", "night run", "--wait", "0")
    done = red.run(*args, *WHOLE, "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    (lease,) = manager.leases("released")
    want = lease["request"]
    assert (want["policy"], want["model"], want["hosts"]) == ("spread", "nvidia h*", "same")
    assert (want["capability"], want["labels"]) == ("8.0", {"rack": "b"})
    assert want["min_driver"] == "12.4"
    assert (lease["priority"], lease["label"]) == (5, "night run")
    assert [grant["node"] for grant in lease["grants"]] == ["two", "two"]


def test_variables_ask_as_they_do_of_a_server(red: User, manager: Manager) -> None:
    env = {"GPUPOOL_MEMORY": "1000MiB", "GPUPOOL_SHARE": "20%", "GPUPOOL_GROUP": "mine"}
    assert red.run("--", "true", **env).returncode == 0
    assert red.run("--vcuda-core", "30", "--vcuda-memory", "4", "--", "true", **env).returncode == 0
    first, second = manager.leases("released")
    assert (first["request"]["memory_bytes"], first["request"]["share_permille"]) == (
        1000 * MIB,
        200,
    )
    assert (second["request"]["memory_bytes"], second["request"]["share_permille"]) == (
        1024 * MIB,
        300,
    )
    # vCUDA's limit is hard.
    assert (first["ceiling_permille"], second["ceiling_permille"]) == (1000, 300)


def test_an_admin_runs_for_a_tenant(red: User, manager: Manager, home: Home) -> None:
    done = User(manager, manager.admin, home).run("--tenant", "red", *HALF, "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    (lease,) = manager.leases("released")
    assert lease["tenant"] == "red"
    done = red.run("--server", "tcp://h:1", "--token", "t", "--tenant", "red", "--", "true")
    assert (done.returncode, "--tenant is for --pool" in done.stderr) == (2, True)


def test_a_token_file_is_read(red: User, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(red.token + "\n")
    assert red.run("--token-file", str(path), "--", "true", GPUPOOL_POOL_TOKEN="").returncode == 0


def test_the_lease_is_renewed_while_the_program_runs(red: User, manager: Manager) -> None:
    """Also over a manager that was away: the program never notices."""
    program = red.start(*HALF, "--", "sh", "-c", "echo on; read line; echo $line")
    assert read_line(program.stdout) == "on\n"
    (lease,) = manager.leases("active")
    before = lease["expires"]
    manager.kill()
    manager.start()
    wait_until(
        lambda: manager.do("GET", f"/leases/{lease['id']}")["expires"] > before, "it was renewed"
    )
    out, err = program.communicate("done\n", timeout=PATIENCE)
    assert (out, err, program.returncode) == ("done\n", "", 0)
    assert len(manager.leases("released")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_go_to_the_program(red: User, manager: Manager, number: signal.Signals) -> None:
    script = f"trap 'echo caught; exit 9' {number.name.removeprefix('SIG')}; echo on"
    program = red.start(*HALF, "--", "sh", "-c", f"{script}; while :; do sleep 0.1; done")
    assert read_line(program.stdout) == "on\n"
    program.send_signal(number)
    out, err = program.communicate(timeout=PATIENCE)
    assert (out, err, program.returncode) == ("caught\n", "", 9)
    assert len(manager.leases("released")) == 1


def test_a_program_that_is_not_there_leaves_nothing(red: User, manager: Manager) -> None:
    done = red.run("--", "no-such-program-anywhere")
    assert done.returncode == 127
    assert (
        done.stderr == "gpupool: cannot run no-such-program-anywhere: No such file or directory\n"
    )
    assert not manager.leases("active", "queued")


# Queued -------------------------------------------------------------------------------------


def fill(manager: Manager) -> str:
    """A lease on all GPUs; its id."""
    manager.tenant("blue")
    return str(manager.do("POST", "/leases", {"tenant": "blue", "gpus": 4})["id"])


def test_it_waits_with_its_place_and_its_reason(red: User, manager: Manager) -> None:
    lease = fill(manager)
    program = red.start(*WHOLE, "--", "sh", "-c", "echo on")
    line = read_line(program.stderr)
    assert line.startswith("gpupool: waiting at position 1 in the queue: "), line
    manager.do("POST", f"/leases/{lease}/release")
    out, err = program.communicate(timeout=PATIENCE)
    assert (out, program.returncode) == ("on\n", 0)
    assert not manager.leases("active", "queued")


def test_a_manager_that_restarts_keeps_the_place(red: User, manager: Manager) -> None:
    lease = fill(manager)
    program = red.start(*WHOLE, "--", "sh", "-c", "echo on")
    assert "position 1" in read_line(program.stderr)
    manager.kill()
    assert "does not answer" in read_line(program.stderr)
    manager.start()
    manager.do("POST", f"/leases/{lease}/release")
    out, _ = program.communicate(timeout=PATIENCE)
    assert (out, program.returncode) == ("on\n", 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_waiting_leaves_the_queue(
    red: User, manager: Manager, number: signal.Signals
) -> None:
    fill(manager)
    program = red.start("--", "echo", "never")
    assert "position 1" in read_line(program.stderr)
    program.send_signal(number)
    out, _ = program.communicate(timeout=PATIENCE)
    assert (out, program.returncode) == ("", 128 + number)
    assert not manager.leases("queued")
    assert len(manager.leases("cancelled")) == 1


def test_no_wait_and_a_full_pool(red: User, manager: Manager) -> None:
    fill(manager)
    done = red.run("--wait", "0", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith(f"gpupool: the pool at {manager.url} said no: ")
    assert done.stderr.count("\n") == 1


def test_a_wait_that_was_too_short(red: User, manager: Manager) -> None:
    fill(manager)
    done = red.run("--wait", "1", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (75, "")
    last = done.stderr.splitlines()[-1]
    assert "was not granted: no GPUs within the time to wait: " in last
    assert not manager.leases("queued")


# Refused ------------------------------------------------------------------------------------


def test_over_the_quota_with_the_numbers(red: User, manager: Manager) -> None:
    done = red.run("--gpus", "5", "--memory", "1GiB", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (77, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpupool: over the quota: tenant 'red': virtual GPUs: 5 ")
    assert "0 in use" in line and line.endswith("quota 4")
    assert not manager.leases("active", "queued", "released")


def test_an_unknown_token(refused: User) -> None:
    done = refused.run("--", "true", GPUPOOL_POOL_TOKEN="gpp_unknown")
    assert done.returncode == 77
    assert "refused the token: the token is unknown; set GPUPOOL_POOL_TOKEN" in done.stderr


def test_no_such_gpus(refused: User) -> None:
    done = refused.run("--model", "NVIDIA A1", "--", "true")
    assert done.returncode == 1
    assert "said no: no GPU of model 'NVIDIA A1'; the pool has " in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--share", "50%"], "--share: a part of a GPU needs --memory"),
        (["--share", "0.3333", "--memory", "1GiB"], "--share: '0.3333' is not a part of a GPU"),
        (["--ceiling", "50%"], "cannot take this: body.ceiling_permille"),
        (["--weight", "3"], "--weight is not for a pool"),
        (["--group", "x"], "--group is not for a pool"),
        (["--same-host", "--spread"], "--same-host and --spread exclude each other"),
        (["--time", "long"], "--time: 'long' is not a time; write seconds, or e.g. 15m, 12h, 30d"),
        (["--beyond-quota", "x"], "--beyond-quota: 'x' is not one of refuse, wait, borrow"),
        (["--policy", "fair"], "--policy: 'fair' is not one of binpack, spread, fragmentation"),
        (["--capability", "nine"], "--capability: 'nine' is not of the form 8.0"),
        (["--min-driver", "13"], "--min-driver: '13' is not of the form 12.4"),
        (["--priority", "high"], "--priority: 'high' is not a whole number 0..100"),
        (["--label", "rack"], "--label: 'rack' is not KEY=VALUE"),
        (["--wait", "soon"], "--wait: 'soon' is neither forever nor seconds"),
        (["--pool", "tcp://x:1"], "--pool: 'tcp://x:1' is not http://HOST"),
        (["--pool", "http://x:1/v2"], "--pool: 'http://x:1/v2' is not http://HOST"),
        (["--pool", "http://x:99999"], "--pool: 'http://x:99999' is not http://HOST"),
        (["--local", "--pool", "http://x"], "--local and --pool exclude each other"),
        (["--ca", "/nowhere.pem", "--pool", "https://x"], "--ca /nowhere.pem: holds no cert"),
        (["--ca", "/nowhere.pem", "--pool", "http://127.0.0.1:1"], "goes with a pool at https://"),
        (["--token-file", "/nowhere"], "--token-file /nowhere: cannot be read: No such file"),
        (["--memory", ""], "--memory: the value is empty"),
        (["--vcuda-core", "50", "--memory", "1GiB"], "exclude each other"),
        (["--model", "x" * 200], "cannot take this: body.model"),
    ],
)
def test_wrong_options(refused: User, args: list[str], message: str) -> None:
    done = refused.run(*args, "--", "echo", "never")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "variable",
    ["GPUPOOL_WEIGHT", "GPUPOOL_DEVICES", "ALIYUN_COM_GPU_SCHD_WEIGHT"],
)
def test_a_variable_that_a_pool_has_no_place_for_is_named(refused: User, variable: str) -> None:
    done = refused.run("--", "true", **{variable: "1"})
    assert done.returncode == 2
    assert f"gpupool: {variable} is not for a pool: " in done.stderr


def test_a_pools_options_are_for_a_pool(home: Home) -> None:
    env = {"GPUPOOL_SERVER": "tcp://x:1", "GPUPOOL_TOKEN": "t", "GPUPOOL_HOME": str(home.root)}
    done = gpupool("run", "--wait", "5", "--", "true", **env)
    assert done.returncode == 2
    assert done.stderr == "gpupool: --wait is for --pool; a server has its own GPUs only\n"


def test_a_server_on_the_command_line_comes_before_a_pool_in_a_variable(red: User) -> None:
    command = ("--server", "ipc:///nowhere/x.sock", "--", "sh", "-c", SHOW)
    done = red.run(*command)
    assert (done.returncode, done.stderr) == (
        2,
        "gpupool: no token for the server is given; set GPUPOOL_TOKEN, or use --token\n",
    )
    done = red.run(*command, GPUPOOL_TOKEN="t")
    assert (done.returncode, done.stdout) == (75, "")
    assert "no gpupool server answers at ipc:///nowhere/x.sock" in done.stderr


def test_the_doctor_says_what_would_come_of_a_request(
    red: User, manager: Manager, tmp_path: Path
) -> None:
    def request(**env: str) -> tuple[bool, str]:
        # Without its library, which it need not look at here.
        done = gpupool("doctor", "--json", **{**red.env, "GPUPOOL_HOME": str(tmp_path), **env})
        found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        assert found["pool"]["good"], found
        return found["request"]["good"], found["request"]["text"]

    good, text = request(GPUPOOL_GPUS="2")
    assert good and text.startswith("it would be granted; ")
    good, text = request(GPUPOOL_GPUS="5")
    assert not good and "5 asked, 0 in use, quota 4" in text
    for name in ("one", "two"):
        manager.do("PATCH", f"/nodes/{name}", {"mode": "cordoned"})
    good, text = request()
    assert not good and "all 2 nodes with such GPUs take no new leases (2 cordoned)" in text
