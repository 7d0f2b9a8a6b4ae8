"""What one process does with GPUs of two hosts; natively, with two GPUs of one.

    python two_hosts_programs.py devices|copies|ordering|training|split

Prints one line of JSON, which must be the same wherever the GPUs are, but for the keys that
begin with ``_``: figures of speed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Report = dict[str, Any]
MIB = 1 << 20


def devices() -> Report:
    """As many devices, different ones, each with its own memory and kernels."""
    import torch

    count = torch.cuda.device_count()
    uuids = {str(torch.cuda.get_device_properties(i).uuid) for i in range(count)}
    sums = []
    for i in range(count):
        with torch.cuda.device(i):
            held = torch.arange(1 << 20, device=f"cuda:{i}", dtype=torch.float64)
            sums.append([held.device.index, held.sum().item(), torch.cuda.current_device()])
    return {"count": count, "distinct": len(uuids) == count, "sums": sums}


def checksum(tensor: Any) -> int:
    import torch

    return int(
        tensor.to(torch.int64)
        .mul(torch.arange(1, tensor.numel() + 1, device=tensor.device).remainder(65521))
        .sum()
        .item()
    )


def copies() -> Report:
    """Tensors of many sizes from each device to the other, and how fast large ones go."""
    import torch

    report: Report = {"sums": []}
    for size in (1, 7, 4096, MIB, 3 * MIB + 17, 64 * MIB):
        there = torch.arange(size, device="cuda:0").to(torch.uint8)
        back = there.to("cuda:1").add(1).to("cuda:0")
        report["sums"].append([checksum(there), checksum(back)])
    strided = torch.arange(1 << 20, device="cuda:1").reshape(1024, 1024)[::3, ::5]
    report["strided"] = int(strided.to("cuda:0").sum().item())
    large = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda:0")
    other = torch.empty_like(large, device="cuda:1")
    for source, target, key in ((large, other, "_0_to_1"), (other, large, "_1_to_0")):
        target.copy_(source)
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
        began = time.perf_counter()
        for _ in range(4):
            target.copy_(source)
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
        report[f"{key}_gib_s"] = round(4 * 0.5 / (time.perf_counter() - began), 2)
    return report


def ordering() -> Report:
    """Streams of one device wait for events of the other."""
    import torch

    first, second = torch.cuda.Stream(0), torch.cuda.Stream(1)
    total = torch.zeros(1 << 18, device="cuda:0", dtype=torch.float64)
    there = torch.zeros(1 << 18, device="cuda:1", dtype=torch.float64)
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    for step in range(50):
        with torch.cuda.stream(first):
            for _ in range(20):
                total += 1.0 / (1 + step)
            event = torch.cuda.Event()
            event.record(first)
        with torch.cuda.stream(second):
            second.wait_event(event)
            there.copy_(total, non_blocking=True)
            there *= 1.5
            back = torch.cuda.Event()
            back.record(second)
        with torch.cuda.stream(first):
            first.wait_event(back)
            total.copy_(there, non_blocking=True)
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    return {"total": total[[0, 1000, -1]].tolist(), "same": bool((total == total[0]).all())}


def training() -> Report:
    """Data-parallel training in one process: half of each batch on each device."""
    import torch

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)

    def network() -> Any:
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(4),
            torch.nn.Flatten(),
            torch.nn.Linear(32 * 64, 256),
            torch.nn.ReLU(),
            torch.nn.Linear(256, 10),
        )

    main = network().to("cuda:0")
    mirror = network().to("cuda:1")
    optimizer = torch.optim.SGD(main.parameters(), lr=0.05, momentum=0.9)
    images = torch.randn(20, 128, 3, 32, 32)
    labels = torch.randint(0, 10, (20, 128))
    losses = []
    began = time.perf_counter()
    for batch, target in zip(images, labels, strict=True):
        mirror.load_state_dict(main.state_dict())
        halves = []
        for place, model in enumerate((main, mirror)):
            part = slice(place * 64, place * 64 + 64)
            x, y = batch[part].to(f"cuda:{place}"), target[part].to(f"cuda:{place}")
            model.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            halves.append(loss)
        for mine, other in zip(main.parameters(), mirror.parameters(), strict=True):
            mine.grad = (mine.grad + other.grad.to("cuda:0")) / 2
        optimizer.step()
        losses.append((halves[0] + halves[1].to("cuda:0")).item() / 2)
    return {"losses": losses, "_seconds": round(time.perf_counter() - began, 3)}


def split() -> Report:
    """A model of which each device has one half: activations go over, gradients come back."""
    import torch

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)

    def half(*widths: int) -> Any:
        layers = []
        for before, behind in zip(widths, widths[1:], strict=False):
            layers += [torch.nn.Linear(before, behind), torch.nn.GELU()]
        return torch.nn.Sequential(*layers)

    first = half(512, 2048, 2048, 1024).to("cuda:0")
    second = half(1024, 2048, 2048, 10).to("cuda:1")
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (first, second)]
    images = torch.randn(8, 64, 512)
    labels = torch.randint(0, 10, (8, 64))

    def step(number: int) -> float:
        x, y = images[number % 8].to("cuda:0"), labels[number % 8].to("cuda:1")
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(second(first(x).to("cuda:1")), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return float(loss.item())

    losses = [step(number) for number in range(20)]
    times = []
    for number in range(200):
        began = time.perf_counter()
        losses.append(step(number))
        times.append(time.perf_counter() - began)
    return {"losses": losses, "_step_ms": round(1e3 * sorted(times)[100], 3)}


PROGRAMS: dict[str, Callable[[], Report]] = {
    "devices": devices,
    "copies": copies,
    "ordering": ordering,
    "training": training,
    "split": split,
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
