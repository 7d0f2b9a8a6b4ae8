"""What the driver itself says of the processes on a GPU: their memory, and their time.

Through NVML for real GPUs; a soft GPU's are in the file in which its processes take turns. Every
reader blocks, and is asked on a thread. What cannot be seen has a reason, and is never 0.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpupool_common import json_text
from gpupool_server.inventory import Device, Inventory
from gpupool_server.watch import Own
from gpupool_server.watch_settings import WatchSettings

#: Of so many samples the least time between two of one process is taken for what each is about:
#: drivers take them at intervals of their own, and leave out processes that do nothing.
RECENT = 64

#: What is further apart is not one stretch of work, and no interval of any driver.
GAP_US = 1_500_000

#: NVML's answer that there are no samples; 0 is what its Python module makes of an empty list.
_NO_SAMPLES = (0, 6)

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

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._samples: dict[str, _Samples] = {}

    def own(self, settings: WatchSettings) -> Own:
        return Own(settings.context_memory, settings.driver_memory)

    def read(self, device: Device) -> Usage:
        memory, memory_off = self._memory(device)
        times, time_off = self._times(device)
        return Usage(memory, times, memory_off, time_off)

    def _memory(self, device: Device) -> tuple[dict[int, int], str]:
        found: dict[int, int] = {}
        try:
            card = self._nvml.nvmlDeviceGetHandleByUUID(device.uuid)
            listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(card)
            for process in listed:  # one for each instance that it has of a GPU that is divided
                if isinstance(process.usedGpuMemory, int):
                    found[process.pid] = found.get(process.pid, 0) + process.usedGpuMemory
        except Exception as error:  # whatever is wrong with it
            return {}, f"NVML does not say what processes have: {error}"
        if listed and not found:
            return {}, "NVML lists processes without their memory"
        return found, ""

    def _times(self, device: Device) -> tuple[Mapping[int, int], str]:
        samples = self._samples.setdefault(device.uuid, _Samples())
        try:
            card = self._nvml.nvmlDeviceGetHandleByUUID(device.uuid)
            listed = self._nvml.nvmlDeviceGetProcessUtilization(card, samples.last_us)
            samples.add([(int(s.pid), int(s.timeStamp), int(s.smUtil)) for s in listed])
        except Exception as error:
            if getattr(error, "value", None) not in _NO_SAMPLES:
                return {}, f"NVML does not say how long processes work: {error}"
        return samples.total_ns(), ""


class _Samples:
    """Utilisation by process, in samples of up to a second, added up."""

    def __init__(self) -> None:
        self.last_us = 0
        self._seen: dict[int, int] = {}
        self._busy: dict[int, int] = {}
        self._gaps: deque[int] = deque(maxlen=RECENT)

    def add(self, samples: list[tuple[int, int, int]]) -> None:
        """Of each: pid, the end of its time in microseconds, and how busy it was in percent."""
        for pid, at, percent in sorted(samples, key=lambda sample: sample[1]):
            if not 0 < pid <= _MOST_PID or not 0 <= percent <= 100 or at <= self._seen.get(pid, 0):
                continue  # drivers leave places empty, or fill them with anything
            if pid in self._seen and at - self._seen[pid] <= GAP_US:
                self._gaps.append(at - self._seen[pid])
            if pid in self._seen and self._gaps:  # else nobody knows for how long it worked
                self._busy[pid] = self._busy.get(pid, 0) + min(self._gaps) * percent * 10
            self._seen[pid] = at
            self.last_us = max(self.last_us, at)

    def total_ns(self) -> Mapping[int, int]:
        return {pid: self._busy.get(pid, 0) for pid in self._seen}


class SoftReader:
    """Soft GPUs: their driver reads the accounts, without the lock that processes share."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._folder = folder
        self._describe: Any = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL).sgTimeDescribe
        self._describe.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)

    def own(self, settings: WatchSettings) -> Own:
        return Own(0, 0)

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
