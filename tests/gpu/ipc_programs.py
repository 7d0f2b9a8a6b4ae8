"""What several processes do with memory that they have in common.

    python ipc_programs.py NAME

Prints one line of JSON, which must be the same natively and through the pool, but for the keys
that begin with ``_``. A name that ends in ``_two`` needs two GPUs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Report = dict[str, Any]

ROUNDS, ELEMENTS = 20, 1 << 20
COPIES, COPY_BYTES = 20, 1 << 28


def consume(inbox: Any, outbox: Any) -> None:
    """Adds up what comes, and writes into it: whose memory it is sees that."""
    import torch

    while (item := inbox.get()) is not None:
        number, tensor, part = item
        told = [number, float(tensor.sum()), float(part.sum()), tensor.device.index]
        part.add_(1)
        torch.cuda.synchronize(tensor.device)
        outbox.put(told)
        del item, tensor, part


def passed_on(device: str) -> Report:
    """Tensors of a caching allocator, one of them at an offset, through torch's own queues."""
    import torch
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=consume, args=(inbox, outbox))
    child.start()
    told, after = [], []
    for number in range(ROUNDS):
        tensor = torch.full((ELEMENTS,), float(number), device=device)
        part = tensor[ELEMENTS // 2 :]
        inbox.put((number, tensor, part))
        told.append(outbox.get(timeout=120))
        after.append([float(tensor[0]), float(part[0])])
    inbox.put(None)
    child.join(120)
    return {"told": told, "after": after, "exit": child.exitcode}


def queue() -> Report:
    return passed_on("cuda:0")


def queue_two() -> Report:
    return passed_on("cuda:1")


def hold(inbox: Any, outbox: Any) -> None:
    tensor = inbox.get()
    outbox.put([os.getpid(), float(tensor[0])])
    inbox.get()


def charged() -> Report:
    """What NVML says each process has, while two have the same GiB (natively: of the driver)."""
    import pynvml as nv
    import torch
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=hold, args=(inbox, outbox))
    child.start()
    tensor = torch.ones(1 << 28, device="cuda:0")
    inbox.put(tensor)
    _, first = outbox.get(timeout=120)
    nv.nvmlInit()
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    found = nv.nvmlDeviceGetComputeRunningProcesses(handle)
    free, total = torch.cuda.mem_get_info(0)
    inbox.put(None)
    child.join(120)
    used = sorted((process.usedGpuMemory or 0) >> 20 for process in found)
    return {"first": first, "exit": child.exitcode, "_mib": used, "_free": free, "_total": total}


def copies_two() -> Report:
    """How fast one GPU reads the other, which NVLink shows: in GB/s."""
    import torch

    one = torch.ones(COPY_BYTES // 4, device="cuda:0")
    other = torch.zeros_like(one, device="cuda:1")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    other.copy_(one)
    torch.cuda.synchronize(0)
    begin.record()
    for _ in range(COPIES):
        other.copy_(one)
    end.record()
    torch.cuda.synchronize(0)
    speed = COPIES * COPY_BYTES / begin.elapsed_time(end) / 1e6
    return {
        "access": [
            torch.cuda.can_device_access_peer(0, 1),
            torch.cuda.can_device_access_peer(1, 0),
        ],
        "sum": float(other.sum(dtype=torch.float64)),
        "_gb_s": round(speed, 1),
    }


PROGRAMS: dict[str, Callable[[], Report]] = {
    "queue": queue,
    "charged": charged,
    "queue_two": queue_two,
    "copies_two": copies_two,
}


if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
