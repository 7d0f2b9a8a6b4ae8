"""What a card's driver answers where the soft GPU follows it: both are asked, side by side.

    python tests/gpu/edges.py [--soft PATH]

Attributes of kernels, pinned memory, arguments that fit nothing, which calls a host function holds
up, and what is left of a process after a fault. It takes up to half a minute and compares nothing:
a line that differs is marked.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOFT = ROOT / "build" / "stage" / "lib" / "driver" / "libgpupool_softgpu.so"

PTX = b"""
.version 7.5
.target sm_75
.address_size 64
.const .align 2 .b8 word[2];
.const .align 16 .b8 many[20];
.visible .entry plain() { ret; }
.visible .entry reads(.param .u64 out, .param .u64 at) {
  .reg .b64 %d<4>; .reg .b32 %r;
  ld.param.u64 %d1, [out]; ld.param.u64 %d2, [at];
  mov.u64 %d3, many; add.u64 %d3, %d3, %d2; ld.const.u8 %r, [%d3];
  st.global.u8 [%d1], %r; ret;
}
.visible .entry few() .maxntid 96, 1, 1 { ret; }
.visible .entry fault() {
  .reg .b64 %d; .reg .b32 %r;
  mov.u64 %d, 16; mov.u32 %r, 1; st.global.u32 [%d], %r; ret;
}
"""

ATTRIBUTES = {"threads": 0, "shared": 1, "const": 2, "local": 3, "ptx": 5, "binary": 6}


def answers(library: str) -> Iterator[tuple[str, Any]]:
    cuda = ctypes.CDLL(library)
    context, other, module, function = (ctypes.c_void_p() for _ in range(4))
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    yield "module", cuda.cuModuleLoadData(ctypes.byref(module), PTX)
    for name in (b"plain", b"reads", b"few", b"fault"):
        cuda.cuModuleGetFunction(ctypes.byref(function), module, name)
        for what, number in ATTRIBUTES.items():
            value = ctypes.c_int(-1)
            cuda.cuFuncGetAttribute(ctypes.byref(value), number, function)
            yield f"{name.decode()}: {what}", value.value
    yield from pinned(cuda)
    yield from shapes(cuda, function)
    yield from refused(cuda, context)
    yield from registered(cuda)
    yield from beside_a_function(cuda, context)
    at = ctypes.c_uint64()
    cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0)
    cuda.cuCtxSetCurrent(context)
    cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    yield "fault: synchronize", cuda.cuCtxSynchronize()
    cuda.cuCtxSetCurrent(other)
    yield "fault: synchronize another context", cuda.cuCtxSynchronize()
    yield "fault: retain again", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    yield "fault: destroy the other", cuda.cuCtxDestroy_v2(other)
    yield "fault: reset", cuda.cuDevicePrimaryCtxReset_v2(0)
    yield "reset: retain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    yield "reset: set current", cuda.cuCtxSetCurrent(context)
    yield "reset: allocate", cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(64))


def pinned(cuda: ctypes.CDLL) -> Iterator[tuple[str, Any]]:
    memory, at, base = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
    size = ctypes.c_size_t()
    cuda.cuMemHostAlloc(ctypes.byref(memory), ctypes.c_size_t(1000), 0)
    cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(at), memory, 0)
    inside = ctypes.c_uint64(at.value + 100)
    yield (
        "pinned: range",
        cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), inside),
    )
    yield "pinned: its begin", base.value == at.value
    yield "pinned: its size", size.value
    assert memory.value is not None
    seen = ctypes.c_ubyte.from_address(memory.value + 999)
    late = 0
    for value in range(1, 200):
        cuda.cuMemsetD8_v2(at, ctypes.c_ubyte(value), ctypes.c_size_t(1000))
        late += seen.value != value
    yield "pinned: sets not seen", late


def shapes(cuda: ctypes.CDLL, function: ctypes.c_void_p) -> Iterator[tuple[str, Any]]:
    """What CUDA 13's runtime hands on as it is, where CUDA 12's says that the shape is wrong."""
    for what, shape in {
        "no block": (0, 1, 1, 1, 1, 1),
        "no thread": (1, 1, 1, 0, 1, 1),
        "1025 threads": (1, 1, 1, 1025, 1, 1),
        "65 threads deep": (1, 1, 1, 1, 1, 65),
        "70000 blocks high": (1, 70000, 1, 1, 1, 1),
    }.items():
        yield f"launch: {what}", cuda.cuLaunchKernel(function, *shape, 0, None, None, None)


def refused(cuda: ctypes.CDLL, context: ctypes.c_void_p) -> Iterator[tuple[str, Any]]:
    """Arguments that fit nothing."""
    stream, event, other, pool = (ctypes.c_void_p() for _ in range(4))
    at = ctypes.c_uint64()
    cuda.cuStreamCreate(ctypes.byref(stream), 0)
    cuda.cuEventCreate(ctypes.byref(event), 0)
    yield "wait for an event: flags 2", cuda.cuStreamWaitEvent(stream, event, 2)
    yield "wait for an event: external", cuda.cuStreamWaitEvent(stream, event, 1)
    cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0)
    yield "pool: destroy the device's own", cuda.cuMemPoolDestroy(pool)
    no_bytes = cuda.cuMemAllocAsync(ctypes.byref(at), ctypes.c_size_t(0), stream)
    yield "allocate nothing in a stream", no_bytes
    yield "peer access to itself", cuda.cuCtxEnablePeerAccess(context, 0)
    cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0)
    cuda.cuEventCreate(ctypes.byref(event), 0)
    yield "record an event of another context", cuda.cuEventRecord(event, stream)
    cuda.cuCtxDestroy_v2(other)
    cuda.cuCtxSetCurrent(context)


def registered(cuda: ctypes.CDLL) -> Iterator[tuple[str, Any]]:
    """Memory of the program that the driver may find no pages for."""
    for what, length, protection, flags in (
        ("a flag of nobody's", 8192, mmap.PROT_READ | mmap.PROT_WRITE, 0x100),
        ("read only", 8192, mmap.PROT_READ, 0),
        ("read only, and said so", 8192, mmap.PROT_READ, 8),
        ("protected", 8192, 0, 0),
        ("a page that is mapped, and one that is not", 4096, mmap.PROT_READ | mmap.PROT_WRITE, 0),
    ):
        at = hole(length, protection)
        yield f"register: {what}", cuda.cuMemHostRegister_v2(at, ctypes.c_size_t(8192), flags)
        cuda.cuMemHostUnregister(at)


def hole(length: int, protection: int) -> ctypes.c_void_p:
    """Two pages at an address, of which `length` bytes are mapped."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    at = libc.mmap(None, ctypes.c_size_t(8192), protection, private, -1, ctypes.c_size_t(0))
    if length < 8192:
        libc.munmap(ctypes.c_void_p(at + length), ctypes.c_size_t(8192 - length))
    return ctypes.c_void_p(at)


def beside_a_function(cuda: ctypes.CDLL, context: ctypes.c_void_p) -> Iterator[tuple[str, Any]]:
    """Which calls come back while a stream is held up by a host function."""
    stream, event, module = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    at, reserved, handle = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    memory, size = ctypes.c_void_p(), ctypes.c_size_t(2 << 20)
    pinned_here = (ctypes.c_int * 8)(1, 0, 1, 0)  # CUmemAllocationProp: pinned, on device 0
    both_ways = (ctypes.c_int * 3)(1, 0, 3)  # CUmemAccessDesc: device 0 reads and writes
    none, zero = ctypes.c_uint64(0), ctypes.c_size_t(0)
    for what, call in {
        "allocate": lambda: cuda.cuMemAlloc_v2(ctypes.byref(at), size),
        "free": lambda: cuda.cuMemFree_v2(at),
        "reserve": lambda: cuda.cuMemAddressReserve(ctypes.byref(reserved), size, zero, none, none),
        "create": lambda: cuda.cuMemCreate(ctypes.byref(handle), size, pinned_here, none),
        "map": lambda: cuda.cuMemMap(reserved, size, zero, handle, none),
        "open": lambda: cuda.cuMemSetAccess(reserved, size, both_ways, ctypes.c_size_t(1)),
        "unmap": lambda: cuda.cuMemUnmap(reserved, size),
        "release": lambda: cuda.cuMemRelease(handle),
        "pin": lambda: cuda.cuMemHostAlloc(ctypes.byref(memory), size, 0),
        "make a stream": lambda: cuda.cuStreamCreate(ctypes.byref(stream), 1),
        "make an event": lambda: cuda.cuEventCreate(ctypes.byref(event), 2),
        "load": lambda: cuda.cuModuleLoadData(ctypes.byref(module), PTX),
        "unload": lambda: cuda.cuModuleUnload(module),
    }.items():
        yield f"beside a function: {what}", comes_back(cuda, context, call)


def comes_back(cuda: ctypes.CDLL, context: ctypes.c_void_p, call: Callable[[], int]) -> str:
    go_on, held = threading.Event(), ctypes.c_void_p()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: go_on.wait(10) and None)
    results: list[int] = []

    def ask_it() -> None:
        cuda.cuCtxSetCurrent(context)
        results.append(call())

    cuda.cuStreamCreate(ctypes.byref(held), 1)
    cuda.cuLaunchHostFunc(held, function, None)
    asks = threading.Thread(target=ask_it)
    asks.start()
    asks.join(1)
    how = "waits" if asks.is_alive() else "comes back"
    go_on.set()
    asks.join()
    cuda.cuStreamSynchronize(held)
    cuda.cuStreamDestroy_v2(held)
    return f"{how}, {results[0]}"


def ask(library: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--answer", library]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=40)
    told: dict[str, Any] = dict(json.loads(line) for line in done.stdout.splitlines())
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--soft", default=str(SOFT), help="the soft GPU's library")
    parser.add_argument("--card", default="libcuda.so.1", help="the card's")
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        for answer in answers(given.answer):
            print(json.dumps(answer), flush=True)
        return 0
    card, soft = ask(given.card), ask(given.soft)
    for name in card | soft:
        here, there = card.get(name, "-"), soft.get(name, "-")
        mark = "" if here == there else "  <-- differs"
        print(f"{name:40} card {here!s:6} soft {there!s:6}{mark}")
    return 0 if card else 1


if __name__ == "__main__":
    sys.exit(main())
