"""What tenants of one GPU run side by side: ResNet-50, counted between two moments.

    python share_programs.py train|infer|upload|download BATCH START SECONDS

START is in seconds of CLOCK_MONOTONIC. ``train`` trains in bf16, ``infer`` replays a CUDA graph
and waits after every step; ``upload`` and ``download`` copy BATCH MiB of pinned memory to or
from the GPU, four at a time (their "images" are MiB). The program is ready before START and works
until the end; it prints one line of JSON: images per second and steps between the two moments.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def clock() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def training(batch: int) -> Callable[[], None]:
    import torch
    import torchvision

    model = torchvision.models.resnet50(weights=None).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    passed: list[Any] = []

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # At most two steps ahead of the GPU, as a loop that reads its loss now and then.
        event = torch.cuda.Event()
        event.record()
        passed.append(event)
        if len(passed) > 2:
            passed.pop(0).synchronize()

    return step


def inference(batch: int) -> Callable[[], None]:
    import torch
    import torchvision

    model = torchvision.models.resnet50(weights=None).cuda().eval().bfloat16()
    images = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                model(images)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(images)

    def step() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return step


def copying(batch: int, *, up: bool) -> Callable[[], None]:
    import torch

    host = [torch.empty(batch << 18, dtype=torch.float32, pin_memory=True) for _ in range(4)]
    there = [torch.empty_like(one, device="cuda") for one in host]

    def step() -> None:
        for mine, other in zip(host, there, strict=True):
            if up:
                other.copy_(mine, non_blocking=True)
            else:
                mine.copy_(other, non_blocking=True)
        torch.cuda.synchronize()

    return step


def upload(batch: int) -> Callable[[], None]:
    return copying(batch, up=True)


def download(batch: int) -> Callable[[], None]:
    return copying(batch, up=False)


def main() -> int:
    kind, batch, start, seconds = sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:5])
    kinds = {"train": training, "infer": inference, "upload": upload, "download": download}
    step = kinds[kind](batch)
    for _ in range(5):
        step()
    late = clock() > start
    steps = 0
    while (now := clock()) < start + seconds:
        step()
        steps += now >= start
    batch *= 4 if kind in ("upload", "download") else 1
    print(json.dumps({"images": steps * batch / seconds, "steps": steps, "late": late}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
