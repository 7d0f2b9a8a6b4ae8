"""A CUDA program in Python's standard library alone: it fills memory on every device it sees."""

from __future__ import annotations

import ctypes
import sys

BYTES = 1 << 20

cuda = ctypes.CDLL("libcuda.so.1")


def check(what: str, code: int) -> None:
    if code != 0:
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(text))
        sys.exit(f"{what}: {text.value.decode() if text.value else code}")


def fill(number: int) -> str:
    """Write a pattern into a device's memory and read it back; the device's name."""
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    name = ctypes.create_string_buffer(100)
    check("cuDeviceGetName", cuda.cuDeviceGetName(name, len(name), number))
    check("retain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
    check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    check("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(BYTES)))
    check("cuMemsetD8", cuda.cuMemsetD8_v2(memory, 65 + number, ctypes.c_size_t(BYTES)))
    back = ctypes.create_string_buffer(BYTES)
    check("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(back, memory, ctypes.c_size_t(BYTES)))
    check("cuMemFree", cuda.cuMemFree_v2(memory))
    if back.raw != bytes([65 + number]) * BYTES:
        sys.exit(f"device {number}: other bytes came back")
    return name.value.decode()


def main() -> None:
    count = ctypes.c_int()
    check("cuInit", cuda.cuInit(0))
    check("cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count)))
    for number in range(count.value):
        print(f"device {number}: {fill(number)}: {BYTES} bytes written and read")
    print(f"example: {count.value} devices: OK")


if __name__ == "__main__":
    main()
