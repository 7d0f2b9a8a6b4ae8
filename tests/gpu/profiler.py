"""PyTorch's profiler of a training step, natively and through the pool, on a real GPU.

    python tests/gpu/profiler.py [--python PYTHON] [--ways native shm tcp] [--steps N]

Names and counts of kernels, copies and memory sets must be the native ones, the median
duration of each kernel within 5 % or 1 us, and each kernel must have the call that launched it: the
runtime's natively, the driver's here. The exit code is 1 if not; each difference is a line.
PYTHON has torch and the server's machine CUPTI (the wheel that torch brings has it).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from gpupool_common import paths  # noqa: E402
from harness import PoolServer, run_program  # noqa: E402

LIMIT = 300.0
WITHIN, AT_LEAST_US = 0.05, 1.0

Durations = dict[str, list[float]]

#: What launches kernels, and graphs of them, begins so.
LAUNCHES = ("cudaLaunch", "cudaGraphLaunch", "cuLaunch", "cuGraphLaunch")


@dataclass
class Profile:
    durations: Durations
    #: By name, the kernels whose launch was not recorded.
    alone: dict[str, int]


def profile(steps: int) -> None:
    """In a process of its own: a line of JSON with the durations of each name, in us, and more."""
    import torch
    from torch.profiler import ProfilerActivity

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(256, 512)
    target = torch.randint(0, 10, (256,))

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data.cuda()), target.cuda())
        loss.backward()
        optimizer.step()
        loss.item()

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = seen.profiler.kineto_results.events()
    of_gpu = [event for event in events if str(event.device_type()).endswith("CUDA")]
    launches = {e.correlation_id() for e in events if e.name().startswith(LAUNCHES)}
    durations: Durations = defaultdict(list)
    alone: Counter[str] = Counter()
    for event in of_gpu:
        durations[event.name()].append(event.duration_ns() / 1000)
        if not event.name().startswith("Mem") and event.correlation_id() not in launches:
            alone[event.name()] += 1
    print(json.dumps(asdict(Profile(dict(durations), dict(alone)))))


def differences(native_profile: Profile, our_profile: Profile) -> list[str]:
    native, ours = native_profile.durations, our_profile.durations
    lines = [
        f"{name}: {times} times without the call that launched it"
        for name, times in sorted(our_profile.alone.items())
    ]
    lines += [
        f"{name}: {len(native.get(name, []))} natively, {len(ours.get(name, []))} here"
        for name in sorted({*native, *ours})
        if len(native.get(name, [])) != len(ours.get(name, []))
    ]
    for name in sorted({*native} & {*ours}):
        if name.startswith("Mem"):  # over another way than the local bus
            continue
        was, now = statistics.median(native[name]), statistics.median(ours[name])
        if abs(now - was) > max(WITHIN * was, AT_LEAST_US):
            lines.append(f"{name}: {was:.1f} us natively, {now:.1f} us here")
    return lines


def once(server: PoolServer, python: str, way: str, steps: int) -> Profile:
    command = [python, str(Path(__file__)), "--child", "--steps", str(steps)]
    if way == "native":
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        result = run_program(command, env, LIMIT)
    else:
        preload = ":".join(str(server.home.part(name)) for name in paths.CUPTI)
        result = server.run(command, way, LIMIT, LD_PRELOAD=preload)
    if result.returncode != 0:
        raise RuntimeError(f"{way}: {result.explain()[-1500:]}")
    found: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return Profile(**found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ways", nargs="+", default=["native", "shm", "tcp"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--child", action="store_true")
    arguments = parser.parse_args()
    if arguments.child:
        profile(arguments.steps)
        return 0
    server = PoolServer("cuda")
    server.start()
    failed = False
    try:
        native = once(server, arguments.python, "native", arguments.steps)
        for way in arguments.ways:
            if way == "native":
                continue
            lines = differences(native, once(server, arguments.python, way, arguments.steps))
            print(f"{way}: {'OK' if not lines else 'differs'} ({len(native.durations)} names)")
            print("".join(f"  {line}\n" for line in lines), end="")
            failed |= bool(lines)
    finally:
        server.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
