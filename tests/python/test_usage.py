"""What drivers say of processes, read by us: NVML's samples, a soft GPU's file, and /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_nvml import GIB, UUIDS, NvmlError, TwoCards
from gpupool_common import paths
from gpupool_server import process_tree, usage
from gpupool_server.device import Device
from gpupool_server.inventory import Inventory
from gpupool_server.process_tree import Kin, attributed, owner_of, owners_of
from gpupool_server.usage import (
    MANY_TOGETHER,
    SOFT,
    SOME_TOGETHER,
    BlindReader,
    NvmlReader,
    SoftReader,
    open_usage,
)
from gpupool_server.watch import Own
from gpupool_server.watch_settings import WatchSettings
from gpupool_server.watch_turns import Moment

#: The environment before the tests clear it of GPUPOOL_HOME.
SOFT_GPU = paths.find_home().root / paths.SOFT_GPU
CARD = Device(0, "NVIDIA H200", UUIDS[0], 141 * GIB, "0")
S = 1_000_000


class Samples(TwoCards):
    """A card whose processes were sampled: (pid, microseconds, percent), and run unless ended."""

    def __init__(self, *samples: tuple[int, int, int]) -> None:
        super().__init__()
        self.samples = list(samples)
        self.asked_since: list[int] = []
        self.ended: set[int] = set()

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[Any]:
        sampled = {pid for pid, _, _ in self.samples} - self.ended
        found = [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in sorted(sampled)]
        return super().nvmlDeviceGetComputeRunningProcesses(card) + found

    def nvmlDeviceGetProcessUtilization(self, card: int, since: int) -> list[Any]:
        self.asked_since.append(since)
        found = [SimpleNamespace(pid=p, timeStamp=t, smUtil=u) for p, t, u in self.samples]
        found = [sample for sample in found if sample.timeStamp > since]
        if not found:
            raise not_found()
        return found


def not_found() -> NvmlError:
    error = NvmlError("Not Found")
    error.value = 6  # type: ignore[attr-defined]
    return error


def test_memory_by_process() -> None:
    found = NvmlReader(Samples()).read(CARD)
    assert found.memory == {120: 7 * GIB}  # of the other one NVML says nothing
    assert (found.memory_off, found.time_off) == ("", "")
    assert found.time_ns == {}


def test_a_process_in_parts_of_a_card_is_one() -> None:
    cards = Samples()
    part = SimpleNamespace(pid=5, usedGpuMemory=GIB)
    cards.nvmlDeviceGetComputeRunningProcesses = lambda card: [part, part]  # type: ignore[method-assign]
    assert NvmlReader(cards).read(CARD).memory == {5: 2 * GIB}


@pytest.mark.parametrize(
    "answer",
    [
        lambda card: (_ for _ in ()).throw(NvmlError("Not Supported")),
        lambda card: [SimpleNamespace(pid=5, usedGpuMemory=None)],  # NOT_AVAILABLE
        lambda card: [SimpleNamespace(pid=5)],
    ],
)
def test_memory_that_nvml_does_not_tell(answer: Any) -> None:
    cards = Samples()
    cards.nvmlDeviceGetComputeRunningProcesses = answer  # type: ignore[method-assign]
    found = NvmlReader(cards).read(CARD)
    assert found.memory == {} and found.memory_off.startswith("NVML ")
    assert found.time_off == ""  # the one does not depend on the other


def test_time_is_added_up_over_samples() -> None:
    cards = Samples((7, 10 * S, 100))
    reader = NvmlReader(cards)
    assert reader.read(CARD).time_ns == {7: 0}  # since when it works is not known yet
    cards.samples += [(7, 10 * S + S // 2, 50), (7, 11 * S, 100), (8, 11 * S, 30)]
    assert reader.read(CARD).time_ns == {7: 750_000_000, 8: 0}
    assert reader.read(CARD).time_ns == {7: 750_000_000, 8: 0}  # nothing twice
    assert cards.asked_since == [0, 10 * S, 11 * S]
    assert reader.read(CARD).sample_ns == 500_000_000
    cards.samples += [(7, 60 * S, 100)]  # it was away: it has worked for one interval of these
    assert reader.read(CARD).time_ns[7] == 1_250_000_000
    cards.samples += [(7, 60 * S + 600, 100)]  # at once, as an H100's driver said now and then
    found = reader.read(CARD)
    assert (found.time_ns[7], found.sample_ns) == (1_250_600_000, 500_000_000)


def test_a_process_that_works_now_and_then() -> None:
    """Its samples are far apart, and each is about a sixth of a second alone."""
    cards = Samples(*((8, S + i * S // 6, 1) for i in range(100)))
    reader = NvmlReader(cards)
    reader.read(CARD)
    cards.samples += [(7, 20 * S + i * S, 60) for i in range(11)]
    cards.samples += [(8, 18 * S + i * S // 6, 1) for i in range(100)]
    found = reader.read(CARD).time_ns[7]
    assert 0.9e9 < found <= 1e9  # and not six seconds


def test_samples_that_come_late() -> None:
    """What is added up is of longer ago than between two looks: it is said, once."""
    cards = Samples((7, 10 * S, 100))
    reader = NvmlReader(cards)
    assert not reader.read(CARD).late
    cards.samples += [(7, 11 * S, 100), (7, 13 * S, 100)]
    assert not reader.read(CARD).late
    cards.samples += [(7, 14 * S, 100), (8, 16 * S + 1, 100)]
    assert reader.read(CARD).late
    assert not reader.read(CARD).late


# Moments -------------------------------------------------------------------------------------


class Clock:
    """By how much samples' clock is ahead of ours."""

    def __init__(self) -> None:
        self.ahead_ns = 3 * S * 1000

    def __call__(self) -> int:
        return self.ahead_ns


def test_moments_are_told_once_by_our_clock() -> None:
    clock = Clock()
    cards = Samples((7, 10 * S, 98), (7, 10 * S + S // 5, 98))
    reader = NvmlReader(cards, ahead=clock)
    # how far they are apart is not known before the second
    assert reader.read(CARD).moments == (Moment(7, 7_200_000_000, 196_000_000),)
    assert reader.read(CARD).moments == ()
    cards.samples += [(8, 10 * S + 2 * S // 5, 98), (7, 10 * S + 3 * S // 5, 1)]
    found = reader.read(CARD)  # a percent: it has copied
    assert found.moments == (Moment(8, 7_400_000_000, 196_000_000),)
    assert (found.sample_ns, found.late) == (200_000_000, False)


def test_a_clock_that_is_set() -> None:
    """Until then samples cannot be compared with anything."""
    clock = Clock()
    cards = Samples((7, 10 * S, 98))
    reader = NvmlReader(cards, ahead=clock)
    assert not reader.read(CARD).late
    for moved, late in ((900_000, False), (2_000_000, True), (0, False), (-60 * 10**9, True)):
        clock.ahead_ns += moved
        cards.samples.append((7, cards.samples[-1][1] + S // 5, 98))
        assert reader.read(CARD).late == late


def test_a_clock_that_is_set_back() -> None:
    """What comes then is of earlier than what came last; the driver still has samples that are of
    times to come."""
    clock = Clock()
    clock.ahead_ns = 10**15
    start = (time.monotonic_ns() + clock.ahead_ns) // 1000 - 60 * S
    cards = Samples(*((7, start + i * S // 5, 98) for i in range(5)))
    reader = NvmlReader(cards, ahead=clock)
    assert reader.read(CARD).moments
    hour = 3600 * S
    clock.ahead_ns -= hour * 1000
    assert reader.read(CARD).late
    cards.samples += [(7, start + 10 * S + i * S // 5 - hour, 80) for i in range(5)]
    cards.samples += [(8, start + 11 * S - hour, 80)]
    found = reader.read(CARD)
    assert (len(found.moments), found.late) == (6, False)
    assert reader._samples[CARD.uuid].together == 0
    assert reader.read(CARD).moments == ()


def read_pairs(reader: NvmlReader, cards: Samples, count: int, *percents: int) -> list[Any]:
    """So many times, at each of which the driver says so of as many processes."""
    begin = max((at for _, at, _ in cards.samples), default=0)
    found = []
    for i in range(1, count + 1):
        cards.samples += [
            (7 + n, begin + i * S // 6 + 100 * n, percent) for n, percent in enumerate(percents)
        ]
        found.append(reader.read(CARD))
    return found


@pytest.mark.parametrize("percents", [(60, 40), (97, 3), (50, 1)])
def test_samples_of_some_time_are_no_moments(percents: tuple[int, int]) -> None:
    """As drivers take them that say what part of it each process had. While few are so it is not
    clear: a driver that looks at moments may say two now and then."""
    cards = Samples()
    reader = NvmlReader(cards, ahead=Clock())
    found = read_pairs(reader, cards, 40, *percents)
    assert all(each.sample_ns and not each.late for each in found[: SOME_TOGETHER - 1])
    unclear = found[SOME_TOGETHER - 1 : MANY_TOGETHER - 1]
    assert all(each.late and not each.moments and not each.sample_ns for each in unclear)
    known = found[MANY_TOGETHER:]
    assert not any(each.late or each.moments or each.sample_ns for each in known)
    again = read_pairs(reader, cards, 70, 98)
    assert again[-1].sample_ns and again[-1].moments  # it is another driver's now


def test_two_moments_at_once() -> None:
    """As an H100's driver says now and then: each process had all of the GPU."""
    cards = Samples()
    found = read_pairs(NvmlReader(cards, ahead=Clock()), cards, 40, 98, 97)
    assert all(each.sample_ns and not each.late for each in found)


def test_how_far_the_clock_is_ahead() -> None:
    before = time.time_ns() - time.monotonic_ns()
    found = usage.wall_ahead()
    after = time.time_ns() - time.monotonic_ns()
    assert min(before, after) - S * 1000 <= found <= max(before, after) + S * 1000


class Starts:
    """When processes were started; counts the look-ups."""

    def __init__(self) -> None:
        self.ticks: dict[int, int] = {}
        self.asked = 0

    def __call__(self, pid: int) -> Kin | None:
        self.asked += 1
        return Kin(1, pid, self.ticks.get(pid, 0))


def test_processes_that_have_ended_are_forgotten() -> None:
    starts = Starts()
    cards = Samples((7, S, 50))
    reader = NvmlReader(cards, starts)
    ended = range(1000, 101_000)
    cards.samples += [(pid, 2 * S + i, 50) for i, pid in enumerate(ended)]
    cards.ended = set(ended)
    first = reader.read(CARD)
    assert first.time_ns.keys() == {7}
    assert owners_of(first.time_ns, [20], starts) == {}
    cards.samples = [(7, 70 * S, 50)]
    reader.read(CARD)
    assert len(reader._samples[CARD.uuid]._seen) > len(ended)  # none is a minute old
    reader.read(CARD)
    assert reader._samples[CARD.uuid]._seen.keys() == {7}
    assert starts.asked < 30  # and not one of each


def test_the_next_process_of_a_pid_begins_anew() -> None:
    starts = Starts()
    cards = Samples((7, S, 100), (7, 2 * S, 100))
    reader = NvmlReader(cards, starts)
    assert reader.read(CARD).time_ns == {7: 1_000_000_000}
    cards.samples += [(7, 3 * S, 100)]
    assert reader.read(CARD).time_ns == {7: 2_000_000_000}
    starts.ticks[7] = 99
    assert reader.read(CARD).time_ns == {}
    cards.samples += [(7, 4 * S, 100)]
    assert reader.read(CARD).time_ns == {7: 0}


def test_time_is_known_where_nothing_is_listed() -> None:
    cards = Samples((7, S, 100), (7, 2 * S, 100))
    cards.nvmlDeviceGetComputeRunningProcesses = not_found().with_traceback  # type: ignore[method-assign,assignment]
    assert NvmlReader(cards).read(CARD).time_ns == {7: 1_000_000_000}


def test_samples_that_cannot_be() -> None:
    cards = Samples((7, S, 10))
    reader = NvmlReader(cards)
    reader.read(CARD)
    cards.samples += [(0, 2 * S, 100), (7, 2 * S, 4_000_000), (1 << 30, 2 * S, 5), (7, 2 * S, 0)]
    assert reader.read(CARD).time_ns == {7: 0}


@pytest.mark.parametrize("value", [3, 4, None])
def test_time_that_nvml_does_not_tell(value: int | None) -> None:
    cards = Samples()

    def refuse(card: int, since: int) -> list[Any]:
        error = NvmlError("Not Supported")
        error.value = value  # type: ignore[attr-defined]
        raise error

    cards.nvmlDeviceGetProcessUtilization = refuse  # type: ignore[method-assign]
    found = NvmlReader(cards).read(CARD)
    assert "Not Supported" in found.time_off
    assert found.memory and not found.memory_off


def test_nvml_without_the_function() -> None:
    found = NvmlReader(TwoCards()).read(CARD)
    assert found.time_off and not found.memory_off


def test_what_the_drivers_take_by_themselves() -> None:
    settings = WatchSettings.model_construct()
    assert NvmlReader(TwoCards()).own(settings) == Own(640 << 20, 128 << 20)
    assert BlindReader("no").own(settings) == Own(640 << 20, 128 << 20)
    assert BlindReader("no").read(CARD).memory_off == "no"


def test_a_driver_that_is_only_a_path() -> None:
    inventory = Inventory("library", Path("/opt/libcuda.so.1"), (CARD,))
    assert isinstance(open_usage(inventory, {}), BlindReader)
    missing = Inventory("soft", Path("/no/such/file"), (CARD,))
    assert "cannot be asked" in open_usage(missing, {"GPUPOOL_SOFT_TIME": "/"}).read(CARD).time_off


def test_nvml_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = Samples()
    cards.nvmlInit = not_found().with_traceback  # type: ignore[method-assign,assignment]
    monkeypatch.setitem(sys.modules, "pynvml", cards)
    reader = open_usage(Inventory("cuda", Path("/x"), (CARD,)), {})
    assert "NVML does not work" in reader.read(CARD).memory_off


# Soft GPUs ------------------------------------------------------------------------------------


@pytest.mark.skipif(not SOFT_GPU.is_file(), reason="the soft GPU is not installed")
def test_a_soft_gpu_and_its_file(tmp_path: Path) -> None:
    reader = SoftReader(SOFT_GPU, tmp_path)
    assert reader.own(WatchSettings.model_construct()) == SOFT
    nobody = reader.read(CARD)
    assert (nobody.memory, nobody.memory_off) == ({}, "")
    code = (
        "import ctypes, os, sys\n"
        "d = ctypes.CDLL(sys.argv[1])\n"
        "c, p = ctypes.c_void_p(), ctypes.c_uint64()\n"
        "r = d.cuInit(0) or d.cuCtxCreate_v2(ctypes.byref(c), 0, 0)\n"
        "r = r or d.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(6 << 20))\n"
        "print(r, flush=True); sys.stdin.read()\n"
    )
    environment = {**os.environ, "GPUPOOL_SOFT_TIME": str(tmp_path)}
    command = [sys.executable, "-c", code, str(SOFT_GPU)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"0\n"
        assert reader.read(CARD).memory == {process.pid: 6 << 20}
        process.stdin.close()


@pytest.mark.skipif(not SOFT_GPU.is_file(), reason="the soft GPU is not installed")
@pytest.mark.parametrize("content", [b"", b"hello", bytes(50000)])
def test_a_soft_gpus_file_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "0.v3.runlist").write_bytes(content)
    found = SoftReader(SOFT_GPU, tmp_path).read(CARD)
    assert found.memory == {} and "cannot be read" in found.memory_off


@pytest.mark.parametrize(
    "entry",
    [{"pid": 1}, {"pid": -1, "memory": 0, "held_ns": 0}, {"pid": 1, "memory": True, "held_ns": 0}],
)
def test_entries_that_cannot_be(monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any]) -> None:
    reader = SoftReader.__new__(SoftReader)
    monkeypatch.setattr(reader, "_entries", lambda device: [entry], raising=False)
    assert "cannot be read" in usage.SoftReader.read(reader, CARD).time_off


# Whose a process is ---------------------------------------------------------------------------

TREE = {
    1: Kin(0, 1),
    10: Kin(1, 10),  # a server
    os.getpid(): Kin(10, 10),
    20: Kin(10, 20),  # its workers
    21: Kin(10, 21),
    30: Kin(20, 20),  # a child of one
    31: Kin(30, 31),  # whose child has a process session of its own
    32: Kin(1, 21),  # an orphan
    40: Kin(10, 10),  # the server's own
    50: Kin(1, 50),  # somebody else's
}


@pytest.mark.parametrize(
    ("pid", "owner"),
    [(20, 20), (30, 20), (31, 20), (32, 21), (40, None), (50, None), (10, None), (77, None)],
)
def test_whose_a_process_is(pid: int, owner: int | None) -> None:
    assert owner_of(pid, [20, 21], TREE.get) == owner


def test_values_go_to_the_worker_that_started_it_all() -> None:
    values = {20: 1, 30: 2, 31: 4, 32: 8, 50: 16}
    owners = owners_of(values, [20, 21], TREE.get)
    assert owners == {20: 20, 30: 20, 31: 20, 32: 21}
    assert attributed(values, owners) == {20: 7, 21: 8}


def test_a_ring_of_parents_has_an_end() -> None:
    assert owner_of(5, [20], {5: Kin(6, 5), 6: Kin(5, 6), 20: Kin(1, 20)}.get) is None


def test_what_a_worker_has_started_is_held_and_ended() -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True)"
    )
    command = [sys.executable, "-c", f"{code}; p.wait()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        held = process_tree.hold_started([child, worker.pid, os.getpid(), 1 << 21], worker.pid)
        assert len(held) == 1
        worker.send_signal(signal.SIGKILL)
        process_tree.kill_held(held)
    deadline = time.monotonic() + 60.0
    while not _ended(child):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)


def _ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"  # nobody is left who would wait for it
