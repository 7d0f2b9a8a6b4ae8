"""A rank of a data-parallel training step, a GPU each, as docs/collectives.md has it.

    torchrun --nproc-per-node 2 bench/data_parallel.py [--steps N]

Rank 0 prints a line of JSON: `ms` of a step, and the first losses. For bench/applications.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

WARM, BATCH = 8, 32


def train(torch: Any, model: Any, rank: int, steps: int) -> tuple[list[float], list[float]]:
    """Milliseconds and losses of all steps; each rank has images of its own."""
    device = f"cuda:{rank}"
    parallel = torch.nn.parallel.DistributedDataParallel(model.to(device), device_ids=[rank])
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(8 + rank)
    images = torch.randn(BATCH, 3, 224, 224).pin_memory()
    labels = torch.randint(0, 1000, (BATCH,)).pin_memory()
    times, losses = [], []
    for _ in range(WARM + steps):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        out = parallel(images.to(device, non_blocking=True))
        loss = torch.nn.functional.cross_entropy(out, labels.to(device, non_blocking=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append((time.perf_counter() - began) * 1e3)
    return times, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="that are counted")
    steps = parser.parse_args().steps
    import torch
    import torchvision

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl")
    torch.manual_seed(7)
    times, losses = train(torch, torchvision.models.resnet50(weights=None), rank, steps)
    if rank == 0:
        said = {"ms": statistics.median(times[WARM:]), "losses": losses[:2]}
        print(json.dumps(said), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
