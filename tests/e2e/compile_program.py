"""Compile one source twice with the libnvrtc of the argument, and say what came of it."""

from __future__ import annotations

import ctypes
import hashlib
import sys

SOURCE = b'extern "C" __global__ void triple(float *x) { x[threadIdx.x] *= 3; }'


def compiled(nvrtc: ctypes.CDLL) -> str:
    program = ctypes.c_void_p()
    options = (ctypes.c_char_p * 1)(b"-arch=sm_90")
    size = ctypes.c_size_t()
    steps = [nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"k.cu", 0, None, None)]
    steps.append(nvrtc.nvrtcCompileProgram(program, 1, options))
    steps.append(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    steps.append(nvrtc.nvrtcGetCUBIN(program, cubin))
    if any(steps) or size.value == 0:
        sys.exit(f"FAIL NVRTC says {steps}, {size.value} bytes")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return hashlib.sha256(cubin.raw).hexdigest()


def main() -> None:
    nvrtc = ctypes.CDLL(sys.argv[1])
    first, again = compiled(nvrtc), compiled(nvrtc)
    print(first if first == again else "FAIL the second differs")


main()
