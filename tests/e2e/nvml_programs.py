"""Programs that test_nvml.py runs with our two libraries; each prints one JSON value."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

MIB = 1 << 20


def look() -> Any:
    """Every device through NVML."""
    pynvml.nvmlInit()
    found = [_device(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(_count())]
    versions = {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "nvml": pynvml.nvmlSystemGetNVMLVersion(),
        "cuda": pynvml.nvmlSystemGetCudaDriverVersion_v2(),
    }
    pynvml.nvmlShutdown()
    return {"devices": found, **versions}


def _count() -> int:
    return int(pynvml.nvmlDeviceGetCount())


def _device(handle: Any) -> dict[str, Any]:
    plain = pynvml.nvmlDeviceGetMemoryInfo(handle)
    newer = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    uuid_text = pynvml.nvmlDeviceGetUUID(handle)
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    again = (
        pynvml.nvmlDeviceGetHandleByUUID(uuid_text),
        pynvml.nvmlDeviceGetHandleByPciBusId(bus),
        pynvml.nvmlDeviceGetHandleByPciBusId(bus[4:].lower()),
    )
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": uuid_text,
        "pci": bus,
        "index": pynvml.nvmlDeviceGetIndex(handle),
        "found": [pynvml.nvmlDeviceGetIndex(other) for other in again],
        "total": plain.total,
        "sums": [plain.free + plain.used, newer.free + newer.used + newer.reserved],
        "utilisation": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "display": pynvml.nvmlDeviceGetDisplayActive(handle),
    }


def cuda() -> Any:
    """Every device through CUDA, in the same terms."""
    driver = _Cuda()
    count = ctypes.c_int()
    driver.call("cuDeviceGetCount", ctypes.byref(count))
    return [driver.describe(index) for index in range(count.value)]


class _Cuda:
    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        result = int(getattr(self._library, name)(*arguments))
        if result != 0:
            raise RuntimeError(f"{name} answered {result}")

    def describe(self, index: int) -> dict[str, Any]:
        name, bus = ctypes.create_string_buffer(96), ctypes.create_string_buffer(32)
        total, ident = ctypes.c_size_t(), (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetName", name, 96, index)
        self.call("cuDeviceGetUuid_v2", ident, index)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), index)
        self.call("cuDeviceGetPCIBusId", bus, 32, index)
        return {
            "name": name.value.decode(),
            "uuid": f"GPU-{uuid.UUID(bytes=bytes(ident))}",
            "pci": bus.value.decode(),
            "total": total.value,
        }

    def allocate(self, size: int) -> None:
        context, address = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))


def use() -> Any:
    """A process that uses a device finds itself on it, and its memory."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    used_before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    _Cuda().allocate(64 * MIB)
    while os.getpid() not in (pids := _pids(handle)):
        pass  # the facts are up to 100 ms old; the test's patience ends this
    while pynvml.nvmlDeviceGetMemoryInfo(handle).used <= used_before:
        pass
    name = pynvml.nvmlSystemGetProcessName(os.getpid())
    grown = pynvml.nvmlDeviceGetMemoryInfo(handle).used - used_before
    graphics = len(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
    return {
        "before": os.getpid() in before,
        "times": pids.count(os.getpid()),
        "name": name,
        "grown": grown,
        "graphics": graphics,
    }


def _pids(handle: Any) -> list[int]:
    return [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]


def errors() -> Any:
    """The name of the error that each wrong or impossible call gives."""
    said = {"before init": _error(pynvml.nvmlDeviceGetCount)}
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    library = ctypes.CDLL("libnvidia-ml.so.1")
    number = ctypes.c_uint(0)
    mem = pynvml.c_nvmlMemory_v2_t()
    mem.version = 7
    event_set = pynvml.nvmlEventSetCreate()
    calls: dict[str, Callable[[], Any]] = {
        "index": lambda: pynvml.nvmlDeviceGetHandleByIndex(99),
        "uuid": lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-nobody"),
        "bus": lambda: pynvml.nvmlDeviceGetHandleByPciBusId("nowhere"),
        "other bus": lambda: pynvml.nvmlDeviceGetHandleByPciBusId("0000:fe:1f.0"),
        "temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, 0),
        "sensor": lambda: pynvml.nvmlDeviceGetTemperature(handle, 9),
        "set": lambda: pynvml.nvmlDeviceSetPersistenceMode(handle, 1),
        "mig": lambda: pynvml.nvmlDeviceGetMigMode(handle),
        "no handle": lambda: _check(library.nvmlDeviceGetMinorNumber(None, ctypes.byref(number))),
        "wild handle": lambda: _check(
            library.nvmlDeviceGetMinorNumber(ctypes.c_void_p(12345), ctypes.byref(number))
        ),
        "no room": lambda: _check(
            library.nvmlDeviceGetName(handle, ctypes.create_string_buffer(3), 3)
        ),
        "null": lambda: _check(library.nvmlDeviceGetMinorNumber(handle, None)),
        "version": lambda: _check(library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(mem))),
        "events": lambda: pynvml.nvmlDeviceRegisterEvents(handle, 8, event_set),
        "wait": lambda: pynvml.nvmlEventSetWait_v2(event_set, 1),
    }
    said |= {what: _error(call) for what, call in calls.items()}
    pynvml.nvmlEventSetFree(event_set)
    pynvml.nvmlInit()  # counted: two shutdowns end it
    pynvml.nvmlShutdown()
    said["still there"] = _error(pynvml.nvmlDeviceGetCount)
    pynvml.nvmlShutdown()
    said["after"] = _error(pynvml.nvmlDeviceGetCount)
    # pynvml keeps a count of its own and calls no further; the library has to know as well
    said["once more"] = _error(lambda: _check(library.nvmlShutdown()))
    return said


def _check(result: int) -> None:
    if result != 0:
        raise pynvml.NVMLError(result)


def _check_call(call: Callable[[], int]) -> None:
    _check(call())


def _error(call: Callable[[], Any]) -> str:
    try:
        call()
    except pynvml.NVMLError as error:
        return type(error).__name__.removeprefix("NVMLError_")
    return "none"


def begin() -> Any:
    """How beginning ends."""
    return _error(pynvml.nvmlInit)


def lose() -> Any:
    """Say when the devices are known, then what is said when the server has gone."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    print("ready", flush=True)
    sys.stdin.readline()
    while (fresh := _error(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))) == "none":
        pass  # what is known is 100 ms old at most
    return {"fresh": fresh, "name": pynvml.nvmlDeviceGetName(handle)}


def older() -> Any:
    """How many bytes older functions write, whose structures are shorter; and the address."""
    pynvml.nvmlInit()
    library = ctypes.CDLL("libnvidia-ml.so.1")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    said: dict[str, Any] = {}
    for name in ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3"):
        room = ctypes.create_string_buffer(b"\xaa" * 96, 96)
        _check(getattr(library, name)(handle, room))
        said[name] = [len(room.raw.rstrip(b"\xaa")), room.raw[:12].decode()]
    return said


def private() -> Any:
    """What nvidia-smi's topo -m, dmon and pmon ask NVML's table without names."""
    pynvml.nvmlInit()
    library = ctypes.CDLL("libnvidia-ml.so.1")
    table = ctypes.POINTER(ctypes.c_void_p)()
    name = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
    _check(library.nvmlInternalGetExportTable(ctypes.byref(table), name))
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
    buses = [pynvml.nvmlDeviceGetPciInfo(handle).busId.encode() for handle in handles]
    value = ctypes.c_uint(77)
    watched = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(table[72] or 0)
    three = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)
    level = ctypes.CFUNCTYPE(ctypes.c_int, *three)(table[23] or 0)
    at = ctypes.addressof(value)
    said: dict[str, Any] = {}
    calls: dict[str, Callable[[], int]] = {
        "watched": lambda: watched(handles[0], at),
        "no device": lambda: watched(None, at),
        "no answer": lambda: watched(handles[0], None),
        "level": lambda: level(buses[0], buses[1], at),
        "itself": lambda: level(buses[0], buses[0], at),
        "no bus": lambda: level(buses[0], None, at),
        "other bus": lambda: level(b"0000:fe:1f.0", buses[1], at),
        "no level": lambda: level(buses[0], buses[1], None),
    }
    for key, call in calls.items():
        value.value = 77
        error = _error(partial(_check_call, call))
        said[key] = value.value if error == "none" else error
    return said


if __name__ == "__main__":
    programs: dict[str, Callable[[], Any]] = {
        f.__name__: f for f in (look, cuda, use, errors, older, private, begin, lose)
    }
    print(json.dumps(programs[sys.argv[1]]()))
