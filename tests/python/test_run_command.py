"""`gpupool run` as a user runs it: what it starts and asks for, exit codes, signals."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command_harness import Front, StartServer, environment, gpupool, parent_of
from gpupool_common.paths import Home
from server_harness import TOKEN, hello_fields, process_lives
from warm_start import Popen


def test_run_local_gives_the_program_a_server_and_ends_it(home: Home) -> None:
    script = (
        "import json, os; from gpupool_common.ask import ask_info;"
        "info = ask_info(os.environ['GPUPOOL_SERVER'], os.environ['GPUPOOL_TOKEN']);"
        "print(json.dumps([os.environ['LD_LIBRARY_PATH'], os.environ['GPUPOOL_SERVER'], info]))"
    )
    done = gpupool(
        home,
        "run",
        "--local",
        "--soft",
        "--gpus",
        "2",
        "--",
        sys.executable,
        "-c",
        script,
        LD_LIBRARY_PATH="/first:/second",
    )
    assert done.returncode == 0, done.stderr
    path, url, info = json.loads(done.stdout)
    assert path == f"{home.root}/lib:/first:/second"
    assert len(info["devices"]) == 2
    assert info["driver"] == "soft"
    folder = Path(url.removeprefix("ipc://")).parent
    assert not folder.exists()


def test_run_local_ends_the_sessions_with_it(home: Home) -> None:
    script = (
        "import os, json, pathlib; from gpupool_common.ask import ask;"
        f"fields = {hello_fields(token=None)!r} | {{'token': os.environ['GPUPOOL_TOKEN']}};"
        "said = ask(os.environ['GPUPOOL_SERVER'], 'hello', fields).fields;"
        "run = pathlib.Path(said['shm'].removeprefix('shm://')).parent;"
        "meta = run / 'sessions' / said['session'] / 'meta.json';"
        "print(json.loads(meta.read_text())['pid'])"
    )
    done = gpupool(home, "run", "--local", "--soft", "--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert not process_lives(int(done.stdout))


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)],
)
def test_run_gives_back_the_exit_code(home: Home, script: str, code: int) -> None:
    assert gpupool(home, "run", "--local", "--soft", "--", "sh", "-c", script).returncode == code


def test_run_with_a_server_becomes_the_program(home: Home, front: Front) -> None:
    both = f"{front.url},{front.url.replace('127.0.0.1', 'localhost')}"
    done = gpupool(
        home,
        "run",
        "--server",
        both,
        "--gpus",
        "3",
        "--log",
        "info",
        "--",
        "sh",
        "-c",
        "echo $GPUPOOL_SERVER $GPUPOOL_TOKEN $GPUPOOL_GPUS $GPUPOOL_LOG; exit 5",
        GPUPOOL_TOKEN="t",
    )
    assert done.returncode == 5
    assert done.stdout == f"{both} t 3 info\n"
    assert front.asked == ["t", "t"]


REQUEST = (
    "env | grep -E '^(GPUPOOL_|TENCENT|ALIYUN|CGPU)' | grep -vE '_(SERVER|TOKEN|HOME|CONFIG)='"
)

Asked = Callable[..., dict[str, str]]


@pytest.fixture
def request_of(home: Home, front: Front) -> Asked:
    """The variables with which a program's client library asks."""
    remote = {"GPUPOOL_SERVER": front.url, "GPUPOOL_TOKEN": "t"}

    def ask(*args: str, **env: str) -> dict[str, str]:
        done = gpupool(home, "run", *args, "--", "sh", "-c", f"{REQUEST}; true", **remote, **env)
        assert (done.returncode, done.stderr) == (0, "")
        return dict(line.split("=", 1) for line in done.stdout.splitlines())

    return ask


def test_run_asks_for_what_its_options_say(request_of: Asked) -> None:
    asked = request_of(
        "--memory",
        "8GiB",
        "--share",
        "50%",
        "--ceiling",
        "0.8",
        "--weight",
        "3",
        "--priority",
        "high",
        "--gpus",
        "2",
        "--group",
        "mine",
    )
    assert asked == {
        "GPUPOOL_MEMORY": "8GiB",
        "GPUPOOL_SHARE": "50%",
        "GPUPOOL_CEILING": "0.8",
        "GPUPOOL_WEIGHT": "3",
        "GPUPOOL_PRIORITY": "high",
        "GPUPOOL_GPUS": "2",
        "GPUPOOL_GROUP": "mine",
    }


@pytest.mark.parametrize("option", ["--memory=1GiB", "--share=1", "--ceiling=1", "--weight=1"])
def test_run_makes_a_new_group_for_limits(request_of: Asked, option: str) -> None:
    first, second = (request_of(option)["GPUPOOL_GROUP"] for _ in range(2))
    assert len(first) == 12
    assert first != second


def test_run_makes_no_group_without_limits(request_of: Asked) -> None:
    assert request_of() == {}
    assert request_of("--gpus", "2") == {"GPUPOOL_GPUS": "2"}
    assert request_of("--group", "g") == {"GPUPOOL_GROUP": "g"}


def test_run_takes_a_request_from_variables(home: Home, request_of: Asked) -> None:
    asked = request_of("--share", "20%", GPUPOOL_MEMORY="1GiB", GPUPOOL_GROUP="g")
    assert asked == {"GPUPOOL_SHARE": "20%", "GPUPOOL_MEMORY": "1GiB", "GPUPOOL_GROUP": "g"}
    cgpu = {"ALIYUN_COM_GPU_MEM_DEV": "15", "ALIYUN_COM_GPU_MEM_CONTAINER": "6"}
    asked = request_of(**cgpu)
    assert len(asked.pop("GPUPOOL_GROUP")) == 12
    assert asked == cgpu
    done = gpupool(home, "run", "--", "true", GPUPOOL_SHARE="half")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "GPUPOOL_SHARE: 'half' is not a part of a GPU" in done.stderr


def test_run_knows_vcuda(request_of: Asked) -> None:
    asked = request_of(
        "--vcuda-core",
        "50",
        "--vcuda-memory",
        "30",
        "--group",
        "g",
        GPUPOOL_MEMORY="1GiB",
        ALIYUN_COM_GPU_HIGH_PRIO="1",
    )
    # Options come before variables, and the library would look at these first.
    assert asked == {
        "TENCENT_VCUDA_CORE": "50",
        "TENCENT_VCUDA_MEMORY": "30",
        "GPUPOOL_GROUP": "g",
    }


def starts_nothing(home: Home, folder: Path, *args: str, **env: str) -> tuple[int, str]:
    """How `gpupool run` ends where the program must not be started, and its one line."""
    mark = folder / "started"
    done = gpupool(home, "run", *args, "--", "touch", str(mark), **env)
    assert not mark.exists()
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


def test_run_starts_nothing_where_no_server_answers(home: Home, folder: Path, front: Front) -> None:
    """The program ran, and failed at its first call into CUDA."""
    gone = "tcp://127.0.0.1:1"
    code, said = starts_nothing(home, folder, "--server", gone, "--token", "t")
    assert (code, "Connection refused; is gpupool-server running" in said) == (75, True)
    code, said = starts_nothing(home, folder, "--server", f"{front.url},{gone}", "--token", "t")
    assert (code, f"answers at {gone}" in said) == (75, True)
    code, said = starts_nothing(home, folder, "--server", f"ipc://{folder}/no.sock", "--token", "t")
    assert (code, "No such file" in said) == (75, True)
    front.says["draining"] = True
    code, said = starts_nothing(home, folder, "--server", front.url, "--token", "t")
    assert (code, "the server is stopping; try again later" in said) == (75, True)
    del front.says["draining"]
    front.says["refused"] = "only leases open sessions"
    code, said = starts_nothing(home, folder, "--server", front.url, "--token", "t")
    assert (code, f"{front.url}: only leases open sessions" in said) == (77, True)


def test_run_starts_nothing_where_the_token_is_refused(
    home: Home, folder: Path, start_server: StartServer
) -> None:
    server = start_server()
    code, said = starts_nothing(home, folder, "--server", server.url, "--token", "wrong")
    assert (code, "the token is not this server's" in said) == (77, True)
    code, said = starts_nothing(home, folder, "--server", server.url, "--token", f"{TOKEN},x")
    assert (code, "2 tokens for 1 servers" in said) == (2, True)
    done = gpupool(home, "run", "--server", server.url, "--token", TOKEN, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_run_starts_nothing_where_the_request_is_refused(
    home: Home, folder: Path, start_server: StartServer
) -> None:
    """The program would find no device, and say so in its own way."""
    server = start_server()
    at = ("--server", server.url, "--token", TOKEN)
    code, said = starts_nothing(home, folder, *at, "--gpus", "9")
    assert (code, "9 GPUs are requested and the server has" in said) == (1, True)
    code, said = starts_nothing(home, folder, *at, GPUPOOL_DEVICES="7")
    assert (code, "device 7 is not served here" in said) == (1, True)
    done = gpupool(home, "run", *at, "--gpus", "1", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_run_starts_nothing_where_the_address_is_wrong(
    home: Home, folder: Path, front: Front
) -> None:
    """To try again would not help, so the exit code does not say that it may."""
    named = "tcp://no-such-host.invalid:7700"
    code, said = starts_nothing(home, folder, "--server", named, "--token", "t")
    # Where no resolver can be reached, nobody knows whether there is such a host.
    assert code == (75 if "Temporary failure" in said else 1)
    assert f"no gpupool server answers at {named}" in said
    keyed = f"{front.url}?key={'0' * 64}"
    code, said = starts_nothing(home, folder, "--server", keyed, "--token", "t")
    assert (code, "does not encrypt, and the address has a key" in said) == (1, True)


def test_programs_that_cannot_be_run(home: Home, folder: Path, front: Front) -> None:
    done = gpupool(home, "run", "--local", "--soft", "--", "no-such-program-anywhere")
    assert done.returncode == 127
    assert "cannot run no-such-program-anywhere: No such file" in done.stderr
    plain = folder / "plain"
    plain.write_text("x")
    remote = {"GPUPOOL_SERVER": front.url, "GPUPOOL_TOKEN": "t"}
    assert gpupool(home, "run", "--", str(plain), **remote).returncode == 126


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--policy", "fair", "--local"], "--policy is for --pool: a GPU's policy is its"),
        (["--pool", "x"], "--pool: 'x' is not http://HOST"),
        (["--memory", "8GX", "--local"], "--memory: '8GX' is not a size; write e.g. 8GiB"),
        (["--memory", "", "--local"], "--memory: the value is empty"),
        (["--share", "500", "--local"], "--share: '500' is not a part of a GPU"),
        (["--ceiling", "0", "--local"], "--ceiling: '0' is not a part of a GPU"),
        (["--share", "0.5", "--ceiling", "40%"], "--ceiling: '40%' is less than --share"),
        (["--weight", "26"], "--weight: '26' is not a whole number 0..25"),
        (["--priority", "2"], "--priority: '2' is neither high nor normal"),
        (["--group", "a/b"], "--group: 'a/b' is not a name of 1..32 of"),
        (["--gpus", "65"], "--gpus: '65' is not a whole number 1..64"),
        (["--vcuda-core", "150", "--vcuda-memory", "1"], "--vcuda-core: '150' is neither 1..99"),
        (["--vcuda-core", "50"], "--vcuda-core needs --vcuda-memory beside it"),
        (["--vcuda-core", "50", "--gpus", "1"], "--vcuda-core and --gpus exclude each other"),
        (
            [],
            "no server is named; do it with --server, GPUPOOL_SERVER or gpupool login, or use",
        ),
        (["--server", "tcp://h:1"], "no token for the server is given; set GPUPOOL_TOKEN"),
        (["--server", "http://h:1", "--token", "t"], "not a server address"),
        (["--server", "tcp://h:1,", "--token", "t"], "not a server address"),
        (["--server", "tcp://h:1", "--token", "t", "--soft"], "--soft is for --local"),
        (["--local", "--server", "tcp://h:1"], "--local and --server exclude each other"),
        (["--local", "--log", "loud"], "'loud' is not one of"),
    ],
)
def test_run_refuses_what_it_cannot_do(home: Home, args: list[str], says: str) -> None:
    done = gpupool(home, "run", *args, "--", "true")
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_run_local_says_why_its_server_cannot_start(home: Home) -> None:
    (home.root / "lib/driver/libgpupool_softgpu.so").unlink()
    done = gpupool(home, "run", "--local", "--soft", "--", "true")
    assert done.returncode == 1
    assert "libgpupool_softgpu.so is missing" in done.stderr
    assert "the embedded server ended with code 1" in done.stderr


def start_waiting(
    home: Home, script: str, start: type[subprocess.Popen[str]] = Popen
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpupool", "run", "--local", "--soft", "--"]
    running = start(
        [*command, "sh", "-c", script],
        env=environment(home),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "waiting\n"
    return running


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_run_passes_signals_on(home: Home, name: str) -> None:
    trap = f"trap 'echo got; exit 9' {name.removeprefix('SIG')}"
    running = start_waiting(home, f"{trap}; echo waiting; while :; do sleep 0.05; done")
    running.send_signal(getattr(signal, name))
    assert running.communicate(timeout=60)[0] == "got\n"
    assert running.returncode == 9


COUNTING = """
import signal, sys, time
got = 0
def interrupt(*_):
    global got
    got += 1
    print("got", flush=True)
signal.signal(signal.SIGINT, interrupt)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(got))
print("waiting", flush=True)
while True:
    time.sleep(0.05)
"""


def test_ctrl_c_reaches_the_program_once_and_not_the_server(home: Home) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "gpupool", "run", "--local", "--soft", "--"]
    # A controlling terminal, as a shell has it: its Ctrl-C goes to the foreground group.
    bootstrap = "import fcntl, os, sys, termios; os.setsid();"
    bootstrap += "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    running = subprocess.Popen(
        [sys.executable, "-c", bootstrap, *command, sys.executable, "-c", COUNTING],
        env=environment(home),
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    assert running.stdout is not None
    assert running.stdout.readline() == "waiting\n"
    os.write(ours, b"\x03")
    assert running.stdout.readline() == "got\n"
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 1
    os.close(ours)


def test_killing_the_launcher_ends_its_server(home: Home) -> None:
    # A forked server is no child of the command's.
    running = start_waiting(home, "echo waiting; exec sleep 600", subprocess.Popen)
    (server,) = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal()
        and parent_of(int(entry.name)) == running.pid
        and b"gpupool_server" in (entry / "cmdline").read_bytes()
    ]
    (program,) = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal()
        and int(entry.name) != server
        and parent_of(int(entry.name)) == running.pid
    ]
    pidfd = os.pidfd_open(server)
    variables = (Path("/proc") / str(program) / "environ").read_bytes().decode().split("\0")
    (url,) = [v.partition("=")[2] for v in variables if v.startswith("GPUPOOL_SERVER=")]
    left = Path(url.removeprefix("ipc://")).parent
    assert left.is_dir()
    running.kill()
    assert select.select([pidfd], [], [], 60)[0], "the server outlived its launcher"
    os.close(pidfd)
    assert not left.exists()
    os.kill(program, signal.SIGKILL)
    running.communicate()


@pytest.mark.parametrize(
    "words", [("run", "--local", "--soft", "--", "true"), ("doctor", "--json")]
)
def test_nothing_in_the_working_directory_is_taken_for_ours(
    home: Home, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Somebody else may have written what lies there."""
    (tmp_path / "ctypes.py").write_text("raise SystemExit('of a stranger')\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gpupool", *words],
        cwd=tmp_path,
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "of a stranger" not in done.stdout + done.stderr
    assert done.returncode == 0 or words[0] == "doctor", done.stderr
