"""One rank of what `nccl.py` compares: `nccl_programs.py NAME`, with torchrun's variables (or, for
those of ALONE, the one process).

Rank 0 prints a line of JSON: losses, which must be the same natively and through the pool, and
figures, whose names begin with "_".
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Report = dict[str, Any]

STEPS = 8
BYTES = 256 << 20


def model(torch: Any) -> Any:
    torch.manual_seed(7)
    layers = [torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)]
    return torch.nn.Sequential(*layers).cuda()


def train(torch: Any, net: Any, rank: int) -> Report:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator(device="cuda").manual_seed(100 + rank)
    losses = []
    for _ in range(STEPS):
        rows = torch.randn(64, 1024, device="cuda", generator=generator)
        loss = (net(rows) - rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        losses.append(total.item())
    return {"losses": losses}


def ddp(torch: Any, rank: int) -> Report:
    net = torch.nn.parallel.DistributedDataParallel(model(torch), device_ids=[device(torch)])
    return train(torch, net, rank)


def fsdp(torch: Any, rank: int) -> Report:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return train(torch, FullyShardedDataParallel(model(torch)), rank)


def bandwidth(torch: Any, rank: int) -> Report:
    """Of an all-reduce: its buffer's bytes a second, which between two ranks is the bus's, too."""
    data = torch.ones(BYTES // 4, device="cuda")
    for _ in range(5):
        torch.distributed.all_reduce(data)
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(50):
        torch.distributed.all_reduce(data)
    torch.cuda.synchronize()
    took = time.monotonic() - begin
    small = torch.ones(1024, device="cuda")
    torch.distributed.all_reduce(small)
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(500):
        torch.distributed.all_reduce(small)
    torch.cuda.synchronize()
    each = (time.monotonic() - begin) / 500
    return {"sum": small[0].item(), "_gb_s": 50 * BYTES / took / 1e9, "_small_us": each * 1e6}


def wide(torch: Any) -> Any:
    """100 million parameters: 400 MB of gradients, and a step of some milliseconds."""
    layers = [torch.nn.Linear(4096, 4096) for _ in range(6)]
    return torch.nn.Sequential(*layers).cuda()


def steps_a_second(torch: Any, net: Any) -> float:
    rows = torch.randn(2048, 4096, device="cuda")
    begin = 0.0
    for step in range(10 + 50):
        if step == 10:
            torch.cuda.synchronize()
            begin = time.monotonic()
        net(rows).square().mean().backward()
        net.zero_grad()
    torch.cuda.synchronize()
    return 50 / (time.monotonic() - begin)


def scaling(torch: Any, rank: int) -> Report:
    """A rank's steps by itself, and with the others': each has the same work."""
    net = wide(torch)
    alone = steps_a_second(torch, net)
    together = steps_a_second(
        torch, torch.nn.parallel.DistributedDataParallel(net, device_ids=[device(torch)])
    )
    return {
        "_alone_steps_s": alone,
        "_steps_s": together,
        "_efficiency": together / alone,
    }


PROGRAMS: dict[str, Callable[[Any, int], Report]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "bandwidth": bandwidth,
    "scaling": scaling,
}


def jax_training() -> Report:
    """One process with all GPUs, as JAX has it: XLA puts the all-reduces in."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")  # the same kernels each time
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(jax.devices(), ("ranks",))
    split, whole = NamedSharding(mesh, PartitionSpec("ranks")), NamedSharding(mesh, PartitionSpec())
    keys = jax.random.split(jax.random.key(7), STEPS + 1)
    weights = jax.device_put(0.02 * jax.random.normal(keys[0], (1024, 1024)), whole)

    def train(weights: Any, rows: Any) -> Any:
        def loss_of(weights: Any) -> Any:
            return jnp.square(jnp.tanh(rows @ weights) - rows).mean()

        loss, gradient = jax.value_and_grad(loss_of)(weights)
        return weights - 5.0 * gradient, loss

    step = jax.jit(train)
    losses = []
    for key in keys[1:]:
        rows = jax.device_put(jax.random.normal(key, (128, 1024)), split)
        weights, loss = step(weights, rows)
        losses.append(float(loss))
    return {"devices": len(jax.devices()), "losses": losses}


def device(torch: Any) -> int:
    """One of its own for each rank of a host; a rank that has a host of its own has the first."""
    return int(os.environ["LOCAL_RANK"]) % int(torch.cuda.device_count())


#: Of one process with all GPUs, by names that say what they import.
ALONE: dict[str, Callable[[], Report]] = {"jax": jax_training}


def main() -> None:
    if sys.argv[1] in ALONE:
        print(json.dumps(ALONE[sys.argv[1]]()), flush=True)
        return
    import torch

    torch.cuda.set_device(device(torch))
    torch.distributed.init_process_group("nccl")
    rank = int(torch.distributed.get_rank())
    report = PROGRAMS[sys.argv[1]](torch, rank)
    torch.cuda.synchronize()
    version = ".".join(map(str, torch.cuda.nccl.version()))
    if rank == 0:
        print(json.dumps({**report, "_nccl": version}), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
