"""Programs that make the driver call the kernel: `syscall_programs.py NAME [--library PATH]`.

They speak to the driver library by ctypes and need no framework. What a driver cannot do is said
on stderr and skipped; a result that is wrong ends the program with status 1.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from ctypes import byref, c_char, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

NOT_SUPPORTED = 801
MIB = 1 << 20

#: Doubles each of the first %1 words at %0.
PTX = b"""
.version 6.4
.target sm_50
.address_size 64
.visible .entry twice(.param .u64 at, .param .u32 count)
{
  .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<4>;
  ld.param.u64 %d1, [at];
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %tid.x;
  setp.ge.u32 %p, %r2, %r1;
  @%p bra DONE;
  mul.wide.u32 %d2, %r2, 4;
  add.s64 %d3, %d1, %d2;
  ld.global.u32 %r3, [%d3];
  add.u32 %r4, %r3, %r3;
  st.global.u32 [%d3], %r4;
DONE:
  ret;
}
"""


class CudaError(Exception):
    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: CUDA error {code}")
        self.code = code


class Driver:
    """`driver.cuName(…)` calls it, and raises CudaError."""

    def __init__(self, library: str) -> None:
        self.path = library
        self._library = ctypes.CDLL(library)

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> None:
            code = function(*arguments)
            if code != 0:
                raise CudaError(name, code)

        return call

    def context(self, device: int = 0) -> None:
        context = c_void_p()
        self.cuDevicePrimaryCtxRetain(byref(context), c_int(device))
        self.cuCtxSetCurrent(context)

    def memory(self, size: int) -> c_uint64:
        at = c_uint64()
        self.cuMemAlloc_v2(byref(at), c_size_t(size))
        return at

    def words(self, at: c_uint64, count: int) -> list[int]:
        out = (c_uint * count)()
        self.cuMemcpyDtoH_v2(out, at, c_size_t(4 * count))
        return list(out)


def check(what: object, wanted: object) -> None:
    if what != wanted:
        raise SystemExit(f"wrong result: {what!r}, not {wanted!r}")


def attempt(what: str, work: Callable[[], None]) -> None:
    """What not every driver can."""
    try:
        work()
    except (CudaError, AttributeError) as error:
        if isinstance(error, CudaError) and error.code != NOT_SUPPORTED:
            raise
        print(f"{what} was left out: {error}", file=sys.stderr)


def start(driver: Driver) -> int:
    driver.cuInit(c_uint(0))
    count = c_int()
    driver.cuDeviceGetCount(byref(count))
    driver.context()
    return count.value


def nothing(_: Driver | None) -> None:
    """What Python itself calls."""
    code = "import ctypes, subprocess"
    subprocess.run([sys.executable, "-c", code], check=True)


def memory(driver: Driver) -> None:
    """Memory of every kind, small, large and returned."""
    start(driver)
    for size in (4096, 64 * MIB, 512 * MIB):
        at = driver.memory(size)
        driver.cuMemsetD32_v2(at, c_uint(7), c_size_t(1024))
        check(driver.words(at, 4), [7] * 4)
        driver.cuMemFree_v2(at)
    host = c_void_p()
    driver.cuMemHostAlloc(byref(host), c_size_t(16 * MIB), c_uint(3))
    driver.cuMemFreeHost(host)
    page = ctypes.create_string_buffer(8 * MIB)
    aligned = (ctypes.addressof(page) + 4095) & ~4095
    attempt("registered memory", lambda: register(driver, aligned, 4 * MIB))
    attempt("managed memory", lambda: managed(driver))
    attempt("pools", lambda: pools(driver))
    attempt("virtual memory", lambda: virtual(driver))


def register(driver: Driver, at: int, size: int) -> None:
    driver.cuMemHostRegister_v2(c_void_p(at), c_size_t(size), c_uint(0))
    driver.cuMemHostUnregister(c_void_p(at))


def managed(driver: Driver) -> None:
    at = c_uint64()
    driver.cuMemAllocManaged(byref(at), c_size_t(MIB), c_uint(1))
    driver.cuMemsetD32_v2(at, c_uint(9), c_size_t(1024))
    driver.cuCtxSynchronize()
    check(c_uint.from_address(at.value).value, 9)
    driver.cuMemFree_v2(at)


def pools(driver: Driver) -> None:
    at = c_uint64()
    driver.cuMemAllocAsync(byref(at), c_size_t(32 * MIB), c_void_p(None))
    driver.cuMemFreeAsync(at, c_void_p(None))
    driver.cuStreamSynchronize(c_void_p(None))


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", c_char * 8),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


def virtual(driver: Driver) -> None:
    """An allocation that has a descriptor, mapped twice."""
    kind = Properties(type=1, handles=1, location=Location(1, 0))
    size = 32 * MIB
    handle = c_uint64()
    driver.cuMemCreate(byref(handle), c_size_t(size), byref(kind), c_uint64(0))
    descriptor = c_int(-1)
    driver.cuMemExportToShareableHandle(byref(descriptor), handle, c_int(1), c_uint64(0))
    again = c_uint64()
    driver.cuMemImportFromShareableHandle(byref(again), c_void_p(descriptor.value), c_int(1))
    os.close(descriptor.value)
    for one in (handle, again):
        at = c_uint64()
        driver.cuMemAddressReserve(byref(at), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
        driver.cuMemMap(at, c_size_t(size), c_size_t(0), one, c_uint64(0))
        access = Access(Location(1, 0), 3)
        driver.cuMemSetAccess(at, c_size_t(size), byref(access), c_size_t(1))
        driver.cuMemsetD32_v2(at, c_uint(3), c_size_t(16))
        driver.cuCtxSynchronize()
        driver.cuMemUnmap(at, c_size_t(size))
        driver.cuMemAddressFree(at, c_size_t(size))
        driver.cuMemRelease(one)


def twice(driver: Driver) -> c_void_p:
    module, function = c_void_p(), c_void_p()
    driver.cuModuleLoadData(byref(module), PTX)
    driver.cuModuleGetFunction(byref(function), module, b"twice")
    return function


def launch(driver: Driver, function: c_void_p, at: c_uint64, stream: c_void_p) -> None:
    count = c_uint(64)
    arguments = (c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(count))
    one = c_uint(1)
    driver.cuLaunchKernel(
        function, one, one, one, c_uint(64), one, one, c_uint(0), stream, arguments, None
    )


def jit(driver: Driver) -> None:
    """A kernel that the driver compiles, with its cache and without."""
    start(driver)
    at = driver.memory(4096)
    driver.cuMemsetD32_v2(at, c_uint(21), c_size_t(64))
    for _ in range(2):
        launch(driver, twice(driver), at, c_void_p(None))
    driver.cuCtxSynchronize()
    check(driver.words(at, 64), [84] * 64)


def streams(driver: Driver) -> None:
    """Streams, events, a host function and a graph."""
    start(driver)
    at, stream = driver.memory(4096), c_void_p()
    function = twice(driver)
    driver.cuMemsetD32_v2(at, c_uint(1), c_size_t(64))
    driver.cuStreamCreate(byref(stream), c_uint(1))
    first, last, time = c_void_p(), c_void_p(), c_float()
    for event in (first, last):
        driver.cuEventCreate(byref(event), c_uint(1))  # waits block
    driver.cuEventRecord(first, stream)
    called: list[int] = []
    note = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: called.append(1))
    driver.cuLaunchHostFunc(stream, note, None)
    driver.cuEventRecord(last, stream)
    driver.cuEventSynchronize(last)
    driver.cuEventElapsedTime(byref(time), first, last)
    check(called, [1])
    graph, ready = c_void_p(), c_void_p()
    driver.cuStreamBeginCapture_v2(stream, c_int(1))
    launch(driver, function, at, stream)
    driver.cuStreamEndCapture(stream, byref(graph))
    driver.cuGraphInstantiateWithFlags(byref(ready), graph, c_uint64(0))
    for _ in range(3):
        driver.cuGraphLaunch(ready, stream)
    driver.cuStreamSynchronize(stream)
    check(driver.words(at, 2), [8, 8])


HANDLE = c_char * 64


class Handle(ctypes.Structure):
    """CUipcMemHandle and CUipcEventHandle, which go by value."""

    _fields_ = [("reserved", HANDLE)]


def ipc(driver: Driver) -> None:
    """Memory and an event that a second process opens."""
    start(driver)
    at, event = driver.memory(4 * MIB), c_void_p()
    driver.cuMemsetD32_v2(at, c_uint(5), c_size_t(64))
    driver.cuEventCreate(byref(event), c_uint(2 | 4))
    driver.cuEventRecord(event, c_void_p(None))
    handles = (Handle(), Handle())
    driver.cuIpcGetMemHandle(byref(handles[0]), at)
    driver.cuIpcGetEventHandle(byref(handles[1]), event)
    command = [sys.executable, __file__, "ipc_opened", "--library", driver.path]
    command += ["--handles", *(bytes(handle).hex() for handle in handles)]
    subprocess.run(command, check=True)
    check(driver.words(at, 2), [10, 10])


def ipc_opened(driver: Driver, texts: list[str]) -> None:
    """The second process."""
    start(driver)
    handles = [Handle.from_buffer_copy(bytes.fromhex(text)) for text in texts]
    at, event = c_uint64(), c_void_p()
    driver.cuIpcOpenMemHandle_v2(byref(at), handles[0], c_uint(1))
    driver.cuIpcOpenEventHandle(byref(event), handles[1])
    driver.cuStreamWaitEvent(c_void_p(None), event, c_uint(0))
    launch(driver, twice(driver), at, c_void_p(None))
    driver.cuCtxSynchronize()
    driver.cuIpcCloseMemHandle(at)


def peer(driver: Driver) -> None:
    """Copies between two GPUs, and a kernel that works on the other's memory."""
    if start(driver) < 2:
        print("peer was left out: there is one GPU", file=sys.stderr)
        return
    here = driver.memory(64 * MIB)
    driver.cuMemsetD32_v2(here, c_uint(6), c_size_t(16 * MIB))
    contexts = (c_void_p(), c_void_p())
    for device, context in enumerate(contexts):
        driver.cuDevicePrimaryCtxRetain(byref(context), c_int(device))
    driver.cuCtxSetCurrent(contexts[1])
    there = driver.memory(64 * MIB)
    attempt("peer access", lambda: driver.cuCtxEnablePeerAccess(contexts[0], c_uint(0)))
    driver.cuMemcpyPeer(there, contexts[1], here, contexts[0], c_size_t(64 * MIB))
    check(driver.words(there, 2), [6, 6])
    launch(driver, twice(driver), there, c_void_p(None))
    driver.cuCtxSynchronize()
    check(driver.words(there, 2), [12, 12])


def checkpoint(driver: Driver) -> None:
    """This process's state of CUDA is taken away and given back."""
    start(driver)
    at = driver.memory(16 * MIB)
    driver.cuMemsetD32_v2(at, c_uint(4), c_size_t(64))
    driver.cuCtxSynchronize()
    own = c_int(os.getpid())
    nothing_said = (c_char * 64)()
    for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
        getattr(driver, f"cuCheckpointProcess{name}")(own, nothing_said)
    check(driver.words(at, 2), [4, 4])


PROGRAMS: dict[str, Callable[[Driver], None]] = {
    "memory": memory,
    "jit": jit,
    "streams": streams,
    "ipc": ipc,
    "peer": peer,
    "checkpoint": lambda driver: attempt("checkpointing", lambda: checkpoint(driver)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=["nothing", "ipc_opened", *PROGRAMS])
    parser.add_argument("--library", default="libcuda.so.1")
    parser.add_argument("--handles", nargs=2, default=[])
    given = parser.parse_args()
    if given.name == "nothing":
        nothing(None)
    elif given.name == "ipc_opened":
        ipc_opened(Driver(given.library), given.handles)
    else:
        attempt(given.name, lambda: PROGRAMS[given.name](Driver(given.library)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
