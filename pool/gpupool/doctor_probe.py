"""A program that the doctor starts: ``python -m gpupool.doctor_probe load|session``.

It prints JSON. It imports nothing of ours, so that it is as any other program.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

DRIVER = "libcuda.so.1"
BYTES = 8 << 20
COPIES = 4
ROUND_TRIPS = 50


def load(plugins: list[str]) -> dict[str, Any]:
    """Which driver library the loader takes, and what keeps each plug-in from being loaded."""
    told: dict[str, Any] = {"driver": None, "plugins": {}}
    try:
        ctypes.CDLL(DRIVER)
    except OSError as error:
        told["reason"] = str(error)
    else:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = [line.split(maxsplit=5)[-1].strip() for line in maps]
        told["driver"] = next((path for path in paths if "libcuda.so" in path), None)
    for path in plugins:
        try:
            ctypes.CDLL(path)
        except OSError as error:
            told["plugins"][path] = str(error)
        else:
            told["plugins"][path] = ""
    return told


class Driver:
    """Calls that end the program with the error's name."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL(DRIVER)

    def __call__(self, name: str, *arguments: Any) -> None:
        error = getattr(self._cuda, name)(*arguments)
        if error:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(error, ctypes.byref(text))
            sys.exit(f"{name}: {(text.value or str(error).encode()).decode()}")


def _best(seconds: list[float]) -> float:
    return max(min(seconds), 1e-9)


def _timed(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(driver: Driver, index: int) -> dict[str, Any]:
    """One device: what it is called, and how far away it is."""
    device = ctypes.c_int()
    driver("cuDeviceGet", ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    driver("cuDeviceGetName", name, len(name), device)
    total = ctypes.c_size_t()
    driver("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver("cuCtxSetCurrent", context)
    driver("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES))
    host = ctypes.create_string_buffer(BYTES)

    def from_gpu(size: int) -> None:
        driver("cuMemcpyDtoH_v2", host, memory, ctypes.c_size_t(size))

    def to_gpu() -> None:
        driver("cuMemcpyHtoD_v2", memory, host, ctypes.c_size_t(BYTES))
        from_gpu(4)  # which the copy has to be done for

    from_gpu(BYTES)
    found = {
        "name": name.value.decode(errors="replace"),
        "memory_bytes": total.value,
        "round_trip_seconds": _best([_timed(lambda: from_gpu(4)) for _ in range(ROUND_TRIPS)]),
        "to_gpu_bytes_per_second": BYTES / _best([_timed(to_gpu) for _ in range(COPIES)]),
        "from_gpu_bytes_per_second": BYTES
        / _best([_timed(lambda: from_gpu(BYTES)) for _ in range(COPIES)]),
    }
    driver("cuMemFree_v2", memory)
    driver("cuDevicePrimaryCtxRelease_v2", device)
    return found


def session() -> dict[str, Any]:
    """A session on the servers that the environment names: each device of it."""
    driver = Driver()
    driver("cuInit", 0)
    count, version = ctypes.c_int(), ctypes.c_int()
    driver("cuDeviceGetCount", ctypes.byref(count))
    driver("cuDriverGetVersion", ctypes.byref(version))
    devices = [measure(driver, index) for index in range(count.value)]
    return {"cuda": version.value, "devices": devices}


def main() -> None:
    told = session() if sys.argv[1] == "session" else load(sys.argv[2:])
    sys.stdout.write(json.dumps(told))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
