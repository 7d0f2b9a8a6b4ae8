"""``gpupool run --pool``: what a lease's processes learn while they run, and who joins them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupool.lease_files import LeaseFiles
from gpupool.pool_address import Where
from gpupool.renewer import Renewer, notice_of
from gpupool_common.errors import GpupoolError
from gpupool_common.paths import Home
from harness import PATIENCE
from pool_process import STEADY, Manager, environment, gpupool

pytestmark = pytest.mark.timeout(120)

HALF = ("--memory", "4GiB", "--share", "50%")
#: The command, with leases that are renewed every 1.25 s.
QUICK = (
    "import gpupool.pool_request as asked; asked.TTL_SECONDS = 5;"
    "from gpupool.cli import main; main()"
)


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    said, errors = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, said, errors)


class Shell:
    """A tenant ``red`` of a pool of two hosts at its shell."""

    def __init__(self, manager: Manager, servers: dict[str, str], token: str, home: Home) -> None:
        self.manager = manager
        self.servers = servers
        self.token = token
        self.env = environment(
            GPUPOOL_POOL=manager.url,
            GPUPOOL_POOL_TOKEN=token,
            GPUPOOL_HOME=str(home.root),
            GPUPOOL_TOKEN="of another server",
        )

    def start(
        self, *options: str, script: str, checkpoint: Path | None = None, through: str = '"$@"'
    ) -> subprocess.Popen[str]:
        """``gpupool run`` of a script of the shell's, by a script that may do it again."""
        command = [sys.executable, "-c", QUICK, "run", *options, "--", "sh", "-c", script]
        return subprocess.Popen(
            ["sh", "-c", through, "sh", *command, str(checkpoint)],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str, script: str) -> subprocess.CompletedProcess[str]:
        """The same, to its end."""
        return ended(self.start(*options, script=script))

    def lease(self) -> str:
        asked = {"memory_bytes": 1 << 30, "share_permille": 500, "ttl_seconds": 3600}
        return str(self.manager.do("POST", "/leases", asked, self.token)["id"])


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    found = Manager(tmp_path_factory.mktemp("pool"), *STEADY)
    found.start()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def servers(manager: Manager) -> dict[str, str]:
    """The nodes of the pool, and where their servers are."""
    return {name: manager.node(name, gpus=4).url for name in ("one", "two")}


@pytest.fixture(scope="module")
def red(manager: Manager) -> str:
    return manager.tenant("red", gpus=4)


@pytest.fixture
def shell(manager: Manager, servers: dict[str, str], red: str, home: Home) -> Shell:
    return Shell(manager, servers, red, home)


def test_who_is_started_later_finds_a_token_of_its_own_time(shell: Shell) -> None:
    done = shell.run(
        *HALF,
        script='first=$(cat "$GPUPOOL_TOKEN_FILE"); echo "${GPUPOOL_TOKEN-none} $first";'
        ' while [ "$(cat "$GPUPOOL_TOKEN_FILE")" = "$first" ]; do sleep 0.1; done;'
        ' cat "$GPUPOOL_TOKEN_FILE"; echo "$GPUPOOL_TOKEN_FILE"',
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, later, path = done.stdout.splitlines()
    assert first.startswith("none gpl_") and later.startswith("gpl_")
    assert later != first.split()[1]
    assert not Path(path).exists() and not Path(path).parent.exists()


def test_a_drained_host_is_told_in_time(shell: Shell) -> None:
    """A job that saves and ends when it hears of it, by a signal and by a file."""
    script = (
        "trap 'heard=1' USR1; echo $GPUPOOL_LEASE;"
        ' while [ -z "$heard" ]; do sleep 0.1; done; cat "$GPUPOOL_NOTICE"; exit 3'
    )
    job = shell.start("--gpus", "2", "--same-host", "--warn-signal", "USR1", *HALF, script=script)
    assert job.stdout is not None
    lease = job.stdout.readline().strip()
    try:
        shell.manager.do("PATCH", "/nodes/one", {"mode": "draining"})
        done = ended(job)
    finally:
        shell.manager.do("PATCH", "/nodes/one", {"mode": "open"})
    (notice,) = done.stdout.splitlines()
    assert done.returncode == 3, done.stderr
    assert notice == (
        f'{{"reason": "draining", "lease": "{lease}", "nodes": ["one"], "devices": [0, 1]}}'
    )
    assert done.stderr == (
        "gpupool: node one is being drained and opens no sessions: save, end, and start again\n"
    )


#: docs/jobs.md has it: who leaves the file, or had no room, is started again.
AGAIN = (
    'while :; do rm -f "$AGAIN"; "$@"; code=$?;'
    ' [ "$code" -eq 75 ] || [ -e "$AGAIN" ] || exit "$code"; done'
)
#: A job that begins behind its last checkpoint, and saves when it is told to. It ends with 1, as
#: torchrun does whatever its ranks end with.
ELASTIC = (
    'step=$(cat "$0" 2> /dev/null || echo 0); echo "$step $GPUPOOL_SERVER";'
    ' [ "$step" -eq 0 ] || exit 0;'
    ' while [ ! -e "$GPUPOOL_NOTICE" ]; do step=$((step + 1)); sleep 0.05; done;'
    ' echo "$step" > "$0"; : > "$AGAIN"; exit 1'
)


def test_an_elastic_job_goes_on_elsewhere(shell: Shell, tmp_path: Path) -> None:
    """On another host, behind the step that it has saved, when its own is drained."""
    through = f"export AGAIN={tmp_path}/again; {AGAIN}"
    job = shell.start(*HALF, script=ELASTIC, checkpoint=tmp_path / "step", through=through)
    assert job.stdout is not None
    first, where = job.stdout.readline().split()
    node = next(name for name, url in shell.servers.items() if url == where)
    try:
        shell.manager.do("PATCH", f"/nodes/{node}", {"mode": "draining"})
        done = ended(job)
    finally:
        shell.manager.do("PATCH", f"/nodes/{node}", {"mode": "open"})
    (again,) = done.stdout.splitlines()
    later, elsewhere = again.split()
    assert (done.returncode, first) == (0, "0"), done.stderr
    assert int(later) > 0 and elsewhere != where


def test_processes_of_other_machines_join_a_lease(shell: Shell) -> None:
    lease = shell.lease()
    done = shell.run("--lease", lease, script='echo "$GPUPOOL_LEASE $(cat "$GPUPOOL_TOKEN_FILE")"')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{lease} gpl_")
    shown = shell.manager.do("GET", f"/leases/{lease}")
    assert shown["state"] == "active"  # it is for who has taken it to give it back
    shell.manager.do("POST", f"/leases/{lease}/release")
    done = shell.run("--lease", lease, script="echo started")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"gpupool: the lease {lease} is released: nothing can be started on it\n"
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--lease", "lease-1", "--gpus", "2"), "nothing can be asked for beside it"),
        (("--lease", "lease-1", "--priority", "2"), "nothing can be asked for beside it"),
        (("--lease", "lease-1", "--wait", "5"), "nothing can be asked for beside it"),
        (("--lease", "lease-none"), "lease-none"),
        (("--warn-signal", "KILL"), "'KILL' is not one of INT, TERM, HUP, QUIT, USR1, USR2"),
    ],
)
def test_what_cannot_be_is_refused(shell: Shell, options: tuple[str, ...], line: str) -> None:
    done = shell.run(*options, script="echo started")
    assert done.returncode != 0 and done.stdout == ""
    assert line in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_server_of_ones_own_has_no_leases(home: Home) -> None:
    for option in (("--lease", "lease-1"), ("--warn-signal", "TERM")):
        done = gpupool("run", "--local", *option, "--", "true", GPUPOOL_HOME=str(home.root))
        assert done.returncode == 2
        assert done.stderr.startswith(f"gpupool: {option[0]} is for --pool")


def test_a_token_is_this_users_alone() -> None:
    with LeaseFiles() as files:
        files.write_token("gpl_1")
        files.write_token("gpl_2")
        assert files.token.read_text() == "gpl_2\n"
        assert stat.S_IMODE(os.stat(files.token).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(files.token.parent).st_mode) == 0o700
        files.write_notice(None)
        files.write_notice({"nodes": ["one"]})
        files.write_notice(None)
        assert not files.notice.exists()
        folder = files.token.parent
    with pytest.raises(GpupoolError, match="cannot be written"):
        files.write_notice({"nodes": ["one"]})
    assert not folder.exists()


@pytest.mark.parametrize(
    "lease",
    [
        {},
        {"grants": None},
        {"grants": [1, {}, {"draining": "yes"}]},
        {"grants": [{"draining": False, "node": "one", "ordinal": 0}]},
    ],
)
def test_what_says_nothing_of_a_drain_is_no_notice(lease: dict[str, object]) -> None:
    assert notice_of(lease) is None


def test_a_program_is_told_which_of_its_gpus_go(capsys: pytest.CaptureFixture[str]) -> None:
    """While the lease goes on; and again when others go."""
    first, second = "2027-01-15T08:01:00Z", "2027-01-15T08:02:00Z"
    with LeaseFiles() as files:
        renewer = Renewer(Where("http://127.0.0.1:1", "t"), {"id": "lease-1"}, files)
        for times in (
            (None, None, first),
            (None, None, first),
            (None, second, first),
            (None, None, None),
        ):
            grants = [
                {"ordinal": number, "node": "one", "leaves": at} for number, at in enumerate(times)
            ]
            renewer.renewed({"id": "lease-1", "grants": grants})
            if times == (None, second, first):
                assert json.loads(files.notice.read_text()) == {
                    "reason": "shrinking",
                    "at": first,
                    "lease": "lease-1",
                    "nodes": ["one"],
                    "devices": [1, 2],
                }
        assert not files.notice.exists()
    what = "back at 2027-01-15T08:01:00Z, and goes on with the others: save, end, and start again"
    assert capsys.readouterr().err.splitlines() == [
        f"gpupool: the lease gives device 2 {what} on those",
        f"gpupool: the lease gives device 1, 2 {what} on those",
        "gpupool: the lease lease-1: none of its GPUs is to go any more",
    ]


def test_programs_hear_in_time_however_long_a_lease_lasts() -> None:
    where = Where("http://127.0.0.1:1", "t")
    with LeaseFiles() as files:
        pauses = [
            Renewer(where, {"id": "lease-1", "ttl_seconds": ttl}, files).pause
            for ttl in (5, 60, 3600, None)
        ]
    assert pauses == [1.25, 15.0, 15.0, 15.0]


def test_what_a_pool_says_cannot_end_the_renewals(capsys: pytest.CaptureFixture[str]) -> None:
    ending = {"at": "soon", "reason": "it \x1b[2J is over\nnow"}
    lease = {"id": "lease-1", "ending": ending, "grants": [{"ordinal": "x"}, {"ordinal": 1}]}
    with LeaseFiles() as files:
        Renewer(Where("http://127.0.0.1:1", "t"), lease, files)
        assert '"devices": [1]' in files.notice.read_text()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable() and "is over now" in line


def test_a_full_disk_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The lease is kept all the same; who is started now would find an old token."""
    with LeaseFiles() as files:
        renewer = Renewer(Where("http://127.0.0.1:1", "t"), {"id": "lease-1"}, files)
        folder = files.token.parent
        away = folder.rename(folder.with_name(f"{folder.name}-away"))
        for _ in range(3):
            renewer.renewed({"token": "gpl_2"})
        away.rename(folder)
        renewer.renewed({"token": "gpl_3"})
        assert files.token.read_text() == "gpl_3\n"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpupool: the lease lease-1 was renewed, and its programs are not told")


def test_signals_are_those_that_a_launcher_hands_on() -> None:
    from gpupool.run import FORWARDED
    from gpupool.run_command import WARNINGS

    assert set(WARNINGS.values()) <= set(FORWARDED) and signal.SIGCONT not in WARNINGS.values()
