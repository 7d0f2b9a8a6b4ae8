"""bench/far.c: a program behind the link reaches this host, not sooner than it says, nor faster."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from far import Far, build  # noqa: E402

from harness import DRIVER  # noqa: E402
from toolchain import Toolchain  # noqa: E402

DELAY_US = 5_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("far"))


def test_a_program_runs_there_and_answers_go_both_ways(program: Path, toolchain: Toolchain) -> None:
    try:
        link = Far(program, DELAY_US, DRIVER)
    except RuntimeError as error:
        pytest.skip(f"no such network here: {error}")
    with link as far:
        result = far.run([str(toolchain.driver_program("driver_memory"))], 60.0)
        assert result.returncode == 0, result.explain()
        assert result.stats["round_trips"] > 0
        assert result.stats["waited_ns"] >= 2 * DELAY_US * 1000


def test_links_are_there_at_the_same_time_and_each_has_its_delay(
    program: Path, toolchain: Toolchain
) -> None:
    try:
        near, far = (Far(program, us, DRIVER, link=n) for n, us in enumerate((0, DELAY_US)))
    except RuntimeError as error:
        pytest.skip(f"no such network here: {error}")
    command = [str(toolchain.driver_program("driver_memory"))]
    with near, far:
        assert near.server.url.startswith("tcp://198.18.0.1:")
        assert far.server.url.startswith("tcp://198.18.1.1:")
        for link, least_ns in ((near, 1), (far, 2 * DELAY_US * 1000)):
            result = link.run(command, 60.0)
            assert result.returncode == 0, result.explain()
            assert result.stats["waited_ns"] >= least_ns


#: What the other end sends, and how fast it may: 10 MB at 0.1 Gbit/s take 0.8 s at least.
SENT, GBIT = 10_000_000, 0.1
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as s:
    s.sendall(bytes(int(sys.argv[3])))
"""


def test_no_more_than_its_bandwidth_goes_through(program: Path) -> None:
    command = [str(program), "0", str(GBIT), "7"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as link:  # type: ignore[call-overload]
        word, _, pid = link.stdout.readline().partition(" ")
        if word != "ready":
            pytest.skip(f"no such network here: {link.stderr.read().strip()}")
        with socket.create_server(("198.18.7.1", 0)) as server:
            port = str(server.getsockname()[1])
            there = ["nsenter", f"--net=/proc/{int(pid)}/ns/net", sys.executable, "-c", SEND]
            began, got = time.monotonic(), 0
            sender = subprocess.Popen([*there, "198.18.7.1", port, str(SENT)])
            server.settimeout(60)
            connection, _ = server.accept()
            connection.settimeout(60)
            with connection:
                while part := connection.recv(1 << 20):
                    got += len(part)
            took = time.monotonic() - began
            assert sender.wait(timeout=60) == 0
        link.stdin.close()
    assert got == SENT
    assert took >= 8e-9 * SENT / GBIT


@pytest.mark.parametrize(
    "said",
    [[], [""], ["-1"], ["2000000"], ["soon"], ["1", "-1"], ["1", "fast"], ["1", "1", "256"]]
    + [["1", "0", "0", "0"]],
)
def test_a_link_that_cannot_be_is_refused(program: Path, said: list[str]) -> None:
    done = subprocess.run([str(program), *said], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "DELAY_US" in done.stderr
