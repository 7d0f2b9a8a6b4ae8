"""What the driver itself says of the processes on a GPU: their memory, and their time.

Through NVML for real GPUs; a soft GPU's are in the file in which its processes take turns. Every
reader blocks, and is asked on a thread. What cannot be seen has a reason, and is never 0.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpupool_common import json_text
from gpupool_server.device import Device
from gpupool_server.inventory import Inventory
from gpupool_server.nvml_handles import NvmlHandles
from gpupool_server.process_tree import Look, look_up
from gpupool_server.watch import ASKED_SECONDS, Own
from gpupool_server.watch_settings import WatchSettings
from gpupool_server.watch_time import LATE_NS
from gpupool_server.watch_turns import Moment

#: Of so many samples the least time between two of one process is taken for what each is about:
#: drivers take them at intervals of their own, and leave out processes that do nothing.
RECENT = 64

#: Samples are a sixth of a second apart or more; where a driver begins anew two come at once.
LEAST_GAP_US = 50_000

#: What is further apart is not one stretch of work, and no interval of any driver.
GAP_US = 1_500_000

#: Processes that only copy are found with a percent or two.
BUSY_PERCENT = 5

#: Where drivers say what part of some time each process had, samples of one time are of several
#: processes. So many of the last ones were: they may be that, and are no moments; and of so many
#: they are that for certain. In between nobody knows what they are.
SOME_TOGETHER, MANY_TOGETHER = 3, 32

#: At a moment a process has all of the GPU: two such samples of one time are two moments.
ALL_PERCENT = 90

#: The clock of samples was set, if it is so much further from ours than at the last look.
STEP_NS = 1_000_000

#: Samples of so much later than now were taken before the clock was set back.
FUTURE_US = 100_000

#: For so long a process that the driver does not list any more is remembered.
FORGET_US = 60_000_000

#: NVML's answer that there are no samples; 0 is what its Python module makes of an empty list.
_NO_SAMPLES = (0, 6)

#: A soft GPU's driver takes nothing, so what is there for a moment counts from the first byte;
#: and machines without a GPU are often slow ones.
SOFT = Own(0, 0, looks=19, asked_seconds=ASKED_SECONDS)

_MOST_PID = 1 << 22
_MOST = 1 << 62

#: For the accounts of as many processes as one soft GPU has places for.
_ROOM = 1 << 18


@dataclass(frozen=True)
class Usage:
    """By pid: bytes, and nanoseconds of GPU time that only grow. Empty reasons: it can be seen."""

    memory: Mapping[int, int] = field(default_factory=dict)
    time_ns: Mapping[int, int] = field(default_factory=dict)
    memory_off: str = ""
    time_off: str = ""
    #: What the times say is of longer ago than usual, or it is not clear what they say: they cannot
    #: be compared with what was said before.
    late: bool = False
    #: They are of moments, which are so far apart; 0: of all that was done.
    sample_ns: int = 0
    #: The new ones of these (watch_turns.py).
    moments: tuple[Moment, ...] = ()


#: By how many nanoseconds samples' clock is ahead of CLOCK_MONOTONIC.
Ahead = Callable[[], int]


def wall_ahead() -> int:
    """Of several tries, the one in whose midst this process stood still least."""
    tries = []
    for _ in range(5):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        tries.append((after - before, wall - (before + after) // 2))
    return min(tries)[1]


class UsageReader(Protocol):
    """Asks one kind of driver."""

    def own(self, settings: WatchSettings) -> Own:
        """What this driver takes for a process by itself."""

    def read(self, device: Device) -> Usage:
        """What there is now. Blocks; never raises."""


class BlindReader:
    """Where nobody can be asked."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def own(self, settings: WatchSettings) -> Own:
        return Own(settings.context_memory, settings.driver_memory)

    def read(self, device: Device) -> Usage:
        return Usage(memory_off=self._reason, time_off=self._reason)


class NvmlReader:
    """Real GPUs, by pids as this process sees them."""

    def __init__(self, nvml: Any, look: Look = look_up, ahead: Ahead = wall_ahead) -> None:
        self._nvml = nvml
        self._ahead = ahead
        self._handles = NvmlHandles(nvml)
        self._look = look
        self._samples: dict[str, _Samples] = {}

    def own(self, settings: WatchSettings) -> Own:
        return Own(settings.context_memory, settings.driver_memory)

    def read(self, device: Device) -> Usage:
        listed, memory_off = self._listed(device)
        memory = {pid: used for pid, used in listed.items() if used is not None}
        if listed and not memory:
            memory_off = "NVML lists processes without their memory"
        times, time_off = self._times(device, None if memory_off and not listed else listed)
        samples = self._samples.get(device.uuid) or _Samples()
        apart, moments = samples.apart_ns, samples.take()
        if samples.together >= SOME_TOGETHER:
            apart, moments = 0, ()
        unclear = SOME_TOGETHER <= samples.together < MANY_TOGETHER
        late = samples.late or unclear
        return Usage(memory, times, memory_off, time_off, late, apart, moments)

    def _listed(self, device: Device) -> tuple[dict[int, int | None], str]:
        """The processes on a GPU, and what each has; None: that is not said."""
        found: dict[int, int | None] = {}
        try:
            card = self._handles.of(device.uuid)
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(card):
                used = getattr(process, "usedGpuMemory", None)
                before = found.setdefault(process.pid, None)
                if isinstance(used, int):  # one for each instance of a GPU that is divided
                    found[process.pid] = (before or 0) + used
        except Exception as error:  # whatever is wrong with it
            return {}, f"NVML does not say what processes have: {error}"
        return found, ""

    def _times(
        self, device: Device, listed: Mapping[int, object] | None
    ) -> tuple[Mapping[int, int], str]:
        samples = self._samples.setdefault(device.uuid, _Samples())
        samples.late = False
        samples.keep({pid: kin.started if (kin := self._look(pid)) else 0 for pid in listed or ()})
        samples.set_clock(self._ahead())
        try:
            card = self._handles.of(device.uuid)
            sampled = self._nvml.nvmlDeviceGetProcessUtilization(card, samples.last_us)
            found = [(int(s.pid), int(s.timeStamp), int(s.smUtil)) for s in sampled]
            samples.add(found)
        except Exception as error:
            if getattr(error, "value", None) not in _NO_SAMPLES:
                return {}, f"NVML does not say how long processes work: {error}"
        return samples.total_ns(listed), ""


@dataclass(frozen=True)
class _Sample:
    pid: int
    at_us: int
    percent: int


class _Samples:
    """Utilisation by process, in samples of up to a second, added up."""

    def __init__(self) -> None:
        self.last_us = 0
        self._ahead_ns = 0
        self._moments: list[Moment] = []
        #: Of the times of the last samples: whether there were two that may be parts of it.
        self._together: deque[bool] = deque(maxlen=RECENT)
        self._before = _Sample(0, 0, 0)
        #: The last ones reached further back than is allowed for.
        self.late = False
        self._seen: dict[int, int] = {}
        self._busy: dict[int, int] = {}
        self._started: dict[int, int] = {}
        self._gaps: deque[int] = deque(maxlen=RECENT)

    def set_clock(self, ahead_ns: int) -> None:
        """Samples' clock is so much ahead of CLOCK_MONOTONIC now."""
        if self._ahead_ns and abs(ahead_ns - self._ahead_ns) > STEP_NS:
            self.late = True
            self.last_us = 0  # it may have been set back
            self._seen.clear()
            self._before = _Sample(0, 0, 0)
        self._ahead_ns = ahead_ns

    def add(self, samples: list[tuple[int, int, int]]) -> None:
        """Of each: pid, the end of its time in microseconds, and how busy it was in percent."""
        to_come_us = (time.monotonic_ns() + self._ahead_ns) // 1000 + FUTURE_US
        samples = [sample for sample in samples if sample[1] < to_come_us]
        newest = max((at for _, at, _ in samples), default=0)
        for pid, at, percent in sorted(samples, key=lambda sample: sample[1]):
            if not 0 < pid <= _MOST_PID or not 0 <= percent <= 100 or at <= self._seen.get(pid, 0):
                continue  # drivers leave places empty, or fill them with anything
            self.late = self.late or newest - at > LATE_NS // 1000
            gap = at - self._seen.get(pid, at)
            if LEAST_GAP_US <= gap <= GAP_US:
                self._gaps.append(gap)
            if gap and self._gaps:  # else nobody knows for how long it worked
                took = min(gap, *self._gaps)
                self._busy[pid] = self._busy.get(pid, 0) + took * percent * 10
            if self._gaps and percent >= BUSY_PERCENT:
                took = min(self._gaps) * percent * 10
                self._moments.append(Moment(pid, at * 1000 - self._ahead_ns, took))
            if percent:
                self._compare(pid, at, percent)
            self._seen[pid] = at
            self.last_us = max(self.last_us, at)

    def _compare(self, pid: int, at: int, percent: int) -> None:
        if at - self._before.at_us >= LEAST_GAP_US:
            self._before = _Sample(pid, at, percent)
            self._together.append(False)
        elif pid != self._before.pid and min(percent, self._before.percent) < ALL_PERCENT:
            self._together[-1] = True

    @property
    def together(self) -> int:
        """How many of the last samples may be parts of one time."""
        return sum(self._together)

    def take(self) -> tuple[Moment, ...]:
        """Those that nobody has taken."""
        taken, self._moments = tuple(self._moments), []
        return taken

    def keep(self, started: Mapping[int, int]) -> None:
        """These are there, and began then; forget who is not, and who had a pid before them."""
        for pid, at in started.items():
            if self._started.get(pid) != at:
                self._forget(pid)
                self._started[pid] = at
        for pid in self._seen.keys() - started.keys():
            if self.last_us - self._seen[pid] > FORGET_US:
                self._forget(pid)
        for pid in self._started.keys() - started.keys() - self._seen.keys():
            del self._started[pid]

    def total_ns(self, listed: Iterable[int] | None) -> Mapping[int, int]:
        """Of those that are listed; None: of all that were sampled in the last minute."""
        known = self._seen if listed is None else self._seen.keys() & set(listed)
        return {pid: self._busy.get(pid, 0) for pid in known}

    @property
    def apart_ns(self) -> int:
        """From one to the next; a second while nobody knows."""
        return min(self._gaps, default=1_000_000) * 1000

    def _forget(self, pid: int) -> None:
        for known in (self._seen, self._busy, self._started):
            known.pop(pid, None)


class SoftReader:
    """Soft GPUs: their driver reads the accounts, without the lock that processes share."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._folder = folder
        self._describe: Any = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL).sgTimeDescribe
        self._describe.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)

    def own(self, settings: WatchSettings) -> Own:
        return SOFT

    def read(self, device: Device) -> Usage:
        try:
            entries = self._entries(device)
            memory = {_number(e["pid"]): _number(e["memory"]) for e in entries}
            times = {_number(e["pid"]): _number(e["held_ns"]) for e in entries}
        except (OSError, ValueError, LookupError, TypeError) as error:
            why = f"the soft GPU's accounts cannot be read: {error}"
            return Usage(memory_off=why, time_off=why)
        return Usage(memory, times)

    def _entries(self, device: Device) -> list[dict[str, Any]]:
        paths = sorted(self._folder.glob(f"{device.index}.v*.runlist"))
        if not paths:
            return []  # nobody has been there yet
        room = ctypes.create_string_buffer(_ROOM)
        n = self._describe(os.fsencode(paths[-1]), room, len(room))
        if not 0 < n < len(room):
            raise OSError(os.strerror(-n) if n < 0 else f"{n} bytes")
        found: list[dict[str, Any]] = json_text.parse(room.value)["entries"]
        return found


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
        raise ValueError(f"{json.dumps(value)[:40]} cannot be")
    return value


def open_usage(inventory: Inventory, environment: Mapping[str, str]) -> UsageReader:
    """How the processes of these GPUs can be seen; ``environment`` is that of the driver."""
    if inventory.kind == "soft":
        try:
            return SoftReader(inventory.driver, Path(environment["GPUPOOL_SOFT_TIME"]))
        except (OSError, AttributeError) as error:
            return BlindReader(f"the soft GPU's library cannot be asked: {error}")
    if inventory.kind != "cuda":
        return BlindReader("the driver was given by its path, and is not NVIDIA's as installed")
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        return BlindReader(f"NVML does not work: {error}")
    return NvmlReader(pynvml)
