"""Call the CUDA runtime of the argument: memory, copies, a stream, an event, and a kernel."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

HALF = 512
TO_DEVICE, TO_HOST = 1, 2

PTX = b"""
.version 6.5
.target sm_75
.address_size 64
.visible .entry add_one(.param .u64 bytes) {
  .reg .b64 %a<4>; .reg .b32 %r<4>;
  ld.param.u64 %a1, [bytes];
  mov.u32 %r1, %tid.x;
  cvt.u64.u32 %a2, %r1;
  add.s64 %a3, %a1, %a2;
  ld.global.u8 %r2, [%a3];
  add.u32 %r3, %r2, 1;
  st.global.u8 [%a3], %r3;
  ret;
}
"""


def must(result: int, what: str) -> None:
    if result != 0:
        sys.exit(f"FAIL {what}: {result}")


def launch(memory: c_void_p, stream: c_void_p) -> None:
    """By the driver, on a stream and in the context of the runtime's."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = c_void_p(), c_void_p()
    must(driver.cuModuleLoadData(byref(module), PTX), "cuModuleLoadData")
    must(driver.cuModuleGetFunction(byref(kernel), module, b"add_one"), "cuModuleGetFunction")
    arguments = (c_void_p * 1)(ctypes.addressof(memory))
    shape = [c_uint(each) for each in (1, 1, 1, HALF, 1, 1, 0)]
    must(driver.cuLaunchKernel(kernel, *shape, stream, arguments, None), "cuLaunchKernel")


def main() -> None:
    runtime = ctypes.CDLL(sys.argv[1])
    version, count = c_int(), c_int()
    memory, stream, event = c_void_p(), c_void_p(), c_void_p()
    sent, got = (ctypes.c_ubyte * HALF)(*[7] * HALF), (ctypes.c_ubyte * (2 * HALF))()
    must(runtime.cudaRuntimeGetVersion(byref(version)), "cudaRuntimeGetVersion")
    must(runtime.cudaGetDeviceCount(byref(count)), "cudaGetDeviceCount")
    must(runtime.cudaMalloc(byref(memory), c_size_t(2 * HALF)), "cudaMalloc")
    must(runtime.cudaStreamCreate(byref(stream)), "cudaStreamCreate")
    must(runtime.cudaEventCreate(byref(event)), "cudaEventCreate")
    must(runtime.cudaMemset(memory, 3, c_size_t(HALF)), "cudaMemset")
    upper = c_void_p((memory.value or 0) + HALF)
    must(runtime.cudaMemcpy(upper, sent, c_size_t(HALF), TO_DEVICE), "cudaMemcpy")
    launch(memory, stream)
    must(runtime.cudaEventRecord(event, stream), "cudaEventRecord")
    must(runtime.cudaEventSynchronize(event), "cudaEventSynchronize")
    must(runtime.cudaMemcpy(got, memory, c_size_t(2 * HALF), TO_HOST), "cudaMemcpy")
    must(runtime.cudaFree(memory), "cudaFree")
    must(runtime.cudaDeviceReset(), "cudaDeviceReset")
    right = bytes(got) == b"\4" * HALF + b"\7" * HALF
    print(f"{'PASS' if right else 'FAIL'} {version.value} on {count.value}")


main()
