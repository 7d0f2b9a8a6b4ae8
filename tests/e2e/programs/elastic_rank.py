"""A rank of an elastic job, as torchrun starts it: a step on its GPU, a sum over all ranks, and a
checkpoint, until a file says that it is enough. The GPU is used by the driver's own functions.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

COUNT = 1024


class Gpu:
    """The first device that the process sees."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.devices = ctypes.c_int()
        self._context, self._memory = ctypes.c_void_p(), ctypes.c_uint64()
        self._do("cuInit", 0)
        self._do("cuDeviceGetCount", ctypes.byref(self.devices))
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self._do("cuCtxSetCurrent", self._context)
        self._do("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(4 * COUNT))

    def _do(self, name: str, *arguments: object) -> None:
        if error := getattr(self._cuda, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {error}")

    def step(self, value: int) -> int:
        """So many ones as the value says, by way of the GPU's memory."""
        here = (ctypes.c_uint32 * COUNT)()
        count = ctypes.c_size_t(COUNT)
        self._do("cuMemsetD32_v2", self._memory, ctypes.c_uint32(value), count)
        self._do("cuMemcpyDtoH_v2", here, self._memory, ctypes.c_size_t(4 * COUNT))
        return sum(here) // COUNT


def main() -> None:
    folder = Path(os.environ["ELASTIC_FOLDER"])
    gpu = Gpu()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    checkpoint = folder / "step"
    first = step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    while True:
        step += 1
        total = torch.tensor([gpu.step(step), float((folder / "stop").exists())])
        dist.all_reduce(total)
        assert total[0] == world * step, (total, world, step)
        if rank == 0:
            draft = folder / "step.new"
            draft.write_text(str(step))
            draft.rename(checkpoint)
        if step == first + 1:
            with (folder / "rounds").open("a") as rounds:
                line = f"{world} ranks, rank {rank} on device {visible}, from step {first}"
                print(line, file=rounds, flush=True)
        if total[1]:
            break
        time.sleep(0.05)
    dist.destroy_process_group()


main()
