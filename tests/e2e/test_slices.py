"""Sessions that take turns on one soft GPU, inside their kernels, by time slices.

Only the runlist's accounts are asserted here: a turn is granted for a slice, whatever the
machine makes of it. That a slice is as long as it should be is a matter of
tests/c/test_softgpu_slices.c, where time is made.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpupool_common import paths
from harness import Talk, wait_until
from tenants import BLUE, RED, MakeServer, Pool, StartTalk, configured, end, tell
from toolchain import Toolchain

#: What is compared is who was let on to the soft GPU, which others' programs would hold up.
pytestmark = pytest.mark.alone


class Device:
    """GPU 0 of a server, its sessions and its runlist."""

    def __init__(self, pool: Pool, talk: StartTalk, home: paths.Home) -> None:
        self.pool = pool
        self._talk = talk
        self._library = ctypes.CDLL(str(home.part(paths.SOFT_GPU)))

    def hold(self, transport: str = "shm", /, **request: str) -> Talk:
        """A program whose kernel runs until it is told to stop."""
        environment = self.pool.server.environment(transport, **request)
        program = self._talk(self.pool.program("driver_slices"), environment)
        assert program.line() == "ready"
        assert tell(program, "hold") == "holds"
        pid = self.pool.worker_of(program)
        wait_until(lambda: bool(self.entry(pid).get("turns")), "the kernel had its first turn")
        return program

    def free(self, *programs: Talk) -> None:
        for program in programs:
            assert tell(program, "free") == "freed"
            end(program)

    def policy(self, name: str) -> None:
        changed = self.pool.cli("gpu", "set", "0", "--policy", name)
        assert changed.returncode == 0, changed.explain()

    def look(self) -> dict[str, Any]:
        (path,) = (self.pool.run_dir / "gpus" / "soft").glob("0.*.runlist")
        room = ctypes.create_string_buffer(1 << 16)
        n = self._library.sgTimeDescribe(os.fsencode(path), room, len(room))
        assert 0 < n < len(room), n
        found: dict[str, Any] = json.loads(room.value)
        return found

    def entry(self, pid: int) -> dict[str, Any]:
        """A worker's; empty if it has none."""
        if not list((self.pool.run_dir / "gpus" / "soft").glob("0.*.runlist")):
            return {}
        found: list[dict[str, Any]] = [e for e in self.look()["entries"] if e["pid"] == pid]
        return found[0] if found else {}

    def workers(self, *programs: Talk) -> list[int]:
        return [self.pool.worker_of(program) for program in programs]

    def sliced(self, *expected: tuple[int, int]) -> None:
        """Wait until these workers have these slices, which they set now and then."""

        def slices() -> list[tuple[int, int]]:
            return [(pid, self.entry(pid).get("slice_us", 0)) for pid, _ in expected]

        wait_until(lambda: slices() == list(expected), f"the slices were {expected}")

    def gained(self, pids: list[int], turns: int) -> list[dict[str, int]]:
        """What the accounts of some workers, all at work, gain until each had so many turns."""

        def now() -> dict[int, dict[str, Any]]:
            return {e["pid"]: e for e in self.look()["entries"] if e["pid"] in pids}

        before = now()
        after = before

        def enough() -> bool:
            nonlocal after
            after = now()
            return all(after[pid]["turns"] - before[pid]["turns"] >= turns for pid in pids)

        wait_until(enough, f"each of {pids} had {turns} turns")
        names = ("turns", "granted_us", "held_ns", "preempted", "revoked")
        return [{n: after[pid][n] - before[pid][n] for n in names} for pid in pids]


@pytest.fixture
def device(
    make_server: MakeServer,
    toolchain: Toolchain,
    talk: StartTalk,
    tmp_path: Path,
    home: paths.Home,
) -> Device:
    return Device(Pool(configured(make_server, tmp_path), toolchain, talk), talk, home)


def in_turn(gains: list[dict[str, int]]) -> None:
    """Nobody has had a turn more than another, but for turns that were taken away from who
    was not run by this machine for long."""
    most = max(gain["turns"] for gain in gains)
    least = min(gain["turns"] for gain in gains)
    assert most - least <= 1 + sum(gain["revoked"] for gain in gains), gains


def test_tenants_take_turns_inside_their_kernels(device: Device, transport: str) -> None:
    device.policy("weak")
    red, blue = device.hold(transport, **RED), device.hold(transport, **BLUE)
    workers = device.workers(red, blue)
    device.sliced(*((pid, 10000) for pid in workers))
    gains = device.gained(workers, 10)
    in_turn(gains)
    for gain in gains:
        assert gain["granted_us"] == gain["turns"] * 10000
        assert gain["held_ns"] > 0
        assert gain["turns"] - 1 <= gain["preempted"] + gain["revoked"] <= gain["turns"] + 1
    device.free(red, blue)


def test_slices_are_those_of_the_policy_at_once(device: Device) -> None:
    """Red has weight 4, blue has weight 1; both kernels run all the while."""
    device.policy("weak")
    red, blue = device.hold(**RED), device.hold(**BLUE)
    workers = device.workers(red, blue)
    for policy, of_red, of_blue in [
        ("weighted", 40000, 10000),
        ("native", 2000, 2000),
        ("preemptive", 10000, 10000),
        ("share", 16666, 10000),  # 50 % and 30 %
        ("weak", 10000, 10000),
    ]:
        device.policy(policy)
        device.sliced((workers[0], of_red), (workers[1], of_blue))
        gains = device.gained(workers, 5)
        in_turn(gains)
        for gain, slice_us in zip(gains, (of_red, of_blue), strict=True):
            assert gain["granted_us"] == gain["turns"] * slice_us, policy
    device.free(red, blue)


def test_processes_share_their_tenants_slice(device: Device) -> None:
    device.policy("weak")
    one, two, blue = device.hold(**RED), device.hold(**RED), device.hold(**BLUE)
    workers = device.workers(one, two, blue)
    device.sliced((workers[0], 5000), (workers[1], 5000), (workers[2], 10000))
    gains = device.gained(workers, 8)
    in_turn(gains)
    spare = (1 + sum(gain["revoked"] for gain in gains)) * 10000
    of_red = gains[0]["granted_us"] + gains[1]["granted_us"]
    assert abs(of_red - gains[2]["granted_us"]) <= spare, gains
    device.free(one, two, blue)


def test_one_that_comes_late_works_beside_a_kernel_without_end(device: Device) -> None:
    device.policy("native")
    red = device.hold(**RED)
    blue = device.pool.start("shm", **BLUE)
    assert tell(blue, "work 20") == "worked 20"
    worker = device.workers(red)[0]
    entry = device.entry(worker)
    assert entry["working"] and entry["preempted"] > 0
    end(blue)
    wait_until(lambda: device.look()["contended"] == 0, "red was alone again")
    device.free(red)


def test_high_priority_gets_into_a_kernel_of_another(device: Device) -> None:
    assert device.pool.ask(do="status")["gpus"][0]["policy"] == "share"
    blue = device.hold(**BLUE)
    high = device.pool.start("shm", GPUPOOL_PRIORITY="high", GPUPOOL_GROUP="high")
    assert tell(high, "work 20") == "worked 20"
    workers = device.workers(blue, high)
    device.sliced((workers[0], 300), (workers[1], 20000))
    before = device.entry(workers[0])
    assert tell(high, "work 20") == "worked 40"
    after = device.entry(workers[0])
    assert after["working"] and after["preempted"] > before["preempted"]
    end(high)
    device.sliced((workers[0], 10000))
    device.free(blue)


def test_a_killed_workers_place_is_taken_over(device: Device) -> None:
    device.policy("weak")
    red, blue = device.hold(**RED), device.hold(**BLUE)
    killed, left = device.workers(red, blue)
    device.gained([killed, left], 2)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: device.entry(killed) == {}, "the killed worker was off the runlist")
    look = device.look()
    assert (look["holder"], look["contended"]) == (left, 0)
    again = device.hold(**RED)
    in_turn(device.gained([left, *device.workers(again)], 3))
    device.free(blue, again)


def test_a_stopped_worker_does_not_keep_the_device(device: Device) -> None:
    device.policy("weak")
    red, blue = device.hold(**RED), device.hold(**BLUE)
    stopped, left = device.workers(red, blue)
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_until(lambda: device.entry(stopped)["revoked"] > 0, "its turn was taken away")
        assert device.look()["holder"] == left
    finally:
        os.kill(stopped, signal.SIGCONT)
    device.gained([stopped, left], 3)
    device.free(red, blue)


def test_who_is_alone_is_never_interrupted(device: Device, transport: str) -> None:
    program = device.pool.start(transport, **RED)
    assert tell(program, "work 100") == "worked 100"
    (worker,) = device.workers(program)
    entry = device.entry(worker)
    assert entry["turns"] > 0
    assert (entry["preempted"], entry["revoked"], entry["working"]) == (0, 0, False)
    end(program)
