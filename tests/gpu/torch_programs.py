"""PyTorch, JAX and Numba programs for a real GPU: `torch_programs.py NAME [--steps N]`.

Each prints one line of JSON: `results` must be the same natively and through the pool, to the
last bit (seeds are fixed, algorithms deterministic); `figures` are times and such, in the units
of their names, and may differ. An exception ends it with status 1.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from named_programs import run

# cuBLAS is deterministic only with a workspace of fixed size; it reads this at its start.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

Report = dict[str, dict[str, Any]]
PROGRAMS: dict[str, Callable[[int], Report]] = {}


def program(function: Callable[[int], Report]) -> Callable[[int], Report]:
    PROGRAMS[function.__name__] = function
    return function


def report(results: dict[str, Any], **figures: float) -> Report:
    return {"results": results, "figures": figures}


def start_torch() -> Any:
    import torch

    torch.manual_seed(1234)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU")
    return torch


def digest(tensor: Any) -> str:
    """Names a tensor's bits."""
    import torch

    data = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def timed(torch: Any, steps: int, work: Callable[[], Any]) -> float:
    """Milliseconds for one `work`, after one that is not counted."""
    work()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps * 1e3


@program
def tensors(steps: int) -> Report:
    torch = start_torch()
    host = torch.randn(1000, 1000)
    x = host.cuda()
    results = {
        "add": digest(x + 1),
        "sum": float(x.sum()),
        "softmax": digest(torch.softmax(x, dim=1)),
        "sorted": digest(x.sort(dim=1).values),
        "topk": digest(x.topk(5, dim=0).values),
        "where": digest(torch.where(x > 0, x, x * 2)),
        "gathered": digest(x[torch.arange(0, 1000, 7, device="cuda")]),
        "half": digest(x.half() * 3),
        "bfloat16": digest(x.bfloat16() + 1),
        "unique": int(torch.unique((x * 10).int()).numel()),
        "random_on_the_gpu": digest(torch.rand(1000, device="cuda")),
    }
    if not torch.equal((x + 1).cpu(), host + 1):
        raise AssertionError("the sum on the GPU is not the sum on the CPU")
    return report(results)


@program
def autograd(steps: int) -> Report:
    torch = start_torch()
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(256, 64).cuda(), torch.randint(0, 10, (256,)).cuda()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if losses[-1] >= losses[0]:
        raise AssertionError(f"the loss does not fall: {losses[0]} to {losses[-1]}")
    return report({"losses": losses, "weights": digest(model[0].weight)})


@program
def resnet_train(steps: int) -> Report:
    """ResNet-50, batch 32, random weights and images; losses are read at the end only."""
    torch = start_torch()
    import torchvision

    model = torchvision.models.resnet50(weights=None).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(32, 3, 224, 224).cuda(), torch.randint(0, 1000, (32,)).cuda()
    losses = []

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    step_ms = timed(torch, steps, step)
    return report({"losses": [float(loss) for loss in losses]}, step_ms=step_ms)


@program
def resnet_infer(steps: int) -> Report:
    """Batches of 1, 16 and 64, input from the CPU and result to it."""
    torch = start_torch()
    import torchvision

    model = torchvision.models.resnet50(weights=None).cuda().eval()
    results: dict[str, Any] = {}
    figures: dict[str, float] = {}
    with torch.inference_mode():
        for batch in (1, 16, 64):
            images = torch.randn(batch, 3, 224, 224)
            results[f"batch_{batch}"] = digest(model(images.cuda()).cpu())

            def infer(images: Any = images) -> Any:
                return model(images.cuda()).cpu()

            figures[f"batch_{batch}_ms"] = timed(torch, steps, infer)
    return report(results, **figures)


@program
def resnet_infer_1(steps: int) -> Report:
    """Batch 1 only: its waits are counted from outside."""
    torch = start_torch()
    import torchvision

    model = torchvision.models.resnet50(weights=None).cuda().eval()
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        step_ms = timed(torch, steps, lambda: model(images.cuda()).cpu())
        return report({"out": digest(model(images.cuda()))}, step_ms=step_ms)


@program
def matmul(steps: int) -> Report:
    torch = start_torch()
    results: dict[str, Any] = {}
    figures: dict[str, float] = {}
    for name, dtype, n in (("fp32", torch.float32, 4096), ("bf16", torch.bfloat16, 8192)):
        a = torch.randn(n, n, device="cuda", dtype=dtype)
        b = torch.randn(n, n, device="cuda", dtype=dtype)
        c = a @ b
        row = (a[:1].double() @ b.double())[0]
        error = float((c[0].double() - row).abs().max() / row.abs().max())
        if not error < (1e-4 if dtype == torch.float32 else 2e-2):
            raise AssertionError(f"{name}: the product is off by {error:g}")
        results[name] = digest(c)
        ms = timed(torch, 4 * steps, partial(torch.matmul, a, b))
        figures[f"{name}_ms"] = ms
        figures[f"{name}_tflops"] = 2 * n**3 / ms / 1e9
    return report(results, **figures)


@program
def graph(steps: int) -> Report:
    """A captured and replayed model."""
    torch = start_torch()
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
    ).cuda()
    static = torch.zeros(32, 256, device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(static)
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = model(static)
        digests = []
        for k in range(3):
            torch.manual_seed(k)
            batch = torch.randn(32, 256)
            static.copy_(batch)
            captured.replay()
            if not torch.allclose(out, model(batch.cuda()), atol=1e-5):
                raise AssertionError(f"replay {k} is not the model's answer")
            digests.append(digest(out))
        replay_ms = timed(torch, 20 * steps, captured.replay)
    return report({"outs": digests}, replay_ms=replay_ms)


@program
def memory_info(steps: int) -> Report:
    torch = start_torch()
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    after, _ = torch.cuda.mem_get_info()
    if not (0 < after <= free <= total and free - after >= 1 << 30):
        raise AssertionError(f"free {free}, after 1 GiB {after}, total {total}")
    del block
    torch.cuda.empty_cache()
    again, _ = torch.cuda.mem_get_info()
    if again < free - (64 << 20):
        raise AssertionError(f"free {free}, and after giving back {again}")
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        refused = True
    else:
        refused = False
    return report({"total": total, "too_much_is_refused": refused}, free_bytes=float(free))


@program
def footprint(steps: int) -> Report:
    """One product; then it waits, so that its GPU memory can be looked at."""
    import torch

    x = torch.ones(1024, 1024, device="cuda")
    results = {"product": float((x @ x)[0, 0])}
    print("ready", flush=True)
    sys.stdin.readline()
    return report(results)


@program
def properties(steps: int) -> Report:
    torch = start_torch()
    p = torch.cuda.get_device_properties(0)
    names = ["name", "major", "minor", "total_memory", "multi_processor_count", "warp_size"]
    names += ["max_threads_per_multi_processor", "regs_per_multiprocessor", "L2_cache_size"]
    return report(
        {
            **{name: getattr(p, name, None) for name in names},
            "count": torch.cuda.device_count(),
            "capability": list(torch.cuda.get_device_capability()),
            "architectures": torch.cuda.get_arch_list(),
            "bf16": torch.cuda.is_bf16_supported(),
        }
    )


@program
def pinned(steps: int) -> Report:
    torch = start_torch()
    n = 16 << 20
    host = torch.arange(n, dtype=torch.int32).pin_memory()
    back = torch.empty(n, dtype=torch.int32).pin_memory()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = host.to("cuda", non_blocking=True)
        x += 1
        back.copy_(x, non_blocking=True)
    stream.synchronize()
    if not torch.equal(back, torch.arange(1, n + 1, dtype=torch.int32)):
        raise AssertionError("what came back is not what went out plus one")
    up = timed(torch, steps, lambda: x.copy_(host, non_blocking=True))
    down = timed(torch, steps, lambda: back.copy_(x, non_blocking=True))
    results = {"is_pinned": host.is_pinned()}
    return report(results, up_gb_s=4 * n / up / 1e6, down_gb_s=4 * n / down / 1e6)


@program
def streams(steps: int) -> Report:
    torch = start_torch()
    many = [torch.cuda.Stream(priority=-(k % 2)) for k in range(4)]
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    x = torch.randn(512, 512, device="cuda")
    torch.cuda.synchronize()
    begin.record()
    outs = []
    for k, stream in enumerate(many):
        stream.wait_event(begin)
        with torch.cuda.stream(stream):
            out = x
            for _ in range(10):
                out = out @ x * 0.05 + k
            outs.append(out)
    for stream in many:
        torch.cuda.current_stream().wait_stream(stream)
    end.record()
    end.synchronize()
    if not (end.query() and begin.elapsed_time(end) > 0):
        raise AssertionError("the events hold no time")
    return report({"outs": [digest(out) for out in outs]}, elapsed_ms=begin.elapsed_time(end))


@program
def small_calls(steps: int) -> Report:
    """What a call costs the program: an in-place add, and a number read back."""
    torch = start_torch()
    x = torch.zeros(1024, device="cuda")
    n = 500 * steps
    x.add_(1)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(n):
        x.add_(1)
    submit = time.perf_counter() - begin
    torch.cuda.synchronize()
    whole = time.perf_counter() - begin
    one = x[0]
    begin = time.perf_counter()
    for _ in range(n):
        one.item()
    item = time.perf_counter() - begin
    return report(
        {"sum": float(x.sum()), "n": n},
        add_submit_us=submit / n * 1e6,
        add_us=whole / n * 1e6,
        item_us=item / n * 1e6,
    )


@program
def compiled(steps: int) -> Report:
    torch = start_torch()

    @torch.compile  # type: ignore[untyped-decorator, unused-ignore]
    def f(x: Any, y: Any) -> Any:
        return torch.sin(x) * y + torch.relu(x - y)

    x, y = torch.randn(100_000, device="cuda"), torch.randn(100_000, device="cuda")
    expected = torch.sin(x) * y + torch.relu(x - y)
    if not torch.allclose(f(x, y), expected, atol=1e-5):
        raise AssertionError("the compiled function gives something else")
    call_us = timed(torch, 100 * steps, partial(f, x, y)) * 1e3
    return report({"out": digest(f(x, y))}, call_us=call_us)


@program
def fft(steps: int) -> Report:
    torch = start_torch()
    x = torch.randn(64, 4096, device="cuda")
    spectrum = torch.fft.rfft(x)
    back = torch.fft.irfft(spectrum, n=4096)
    if not torch.allclose(back, x, atol=1e-4):
        raise AssertionError("the inverse transform gives something else")
    return report({"spectrum": digest(torch.view_as_real(spectrum))})


@program
def solver(steps: int) -> Report:
    torch = start_torch()
    a = torch.randn(128, 128, dtype=torch.float64, device="cuda")
    spd = a @ a.T + 128 * torch.eye(128, dtype=torch.float64, device="cuda")
    b = torch.randn(128, 4, dtype=torch.float64, device="cuda")
    if not torch.allclose(spd @ torch.linalg.solve(spd, b), b, atol=1e-8):
        raise AssertionError("the solution solves something else")
    factor = torch.linalg.cholesky(spd)
    if not torch.allclose(factor @ factor.T, spd, atol=1e-8):
        raise AssertionError("the Cholesky factor is of something else")
    values = torch.linalg.eigvalsh(spd).cpu()
    singular = torch.linalg.svdvals(spd).cpu().flip(0)
    if not torch.allclose(values, singular, atol=1e-8):
        raise AssertionError("eigenvalues and singular values differ")
    sparse = torch.eye(128, dtype=torch.float64).to_sparse_csr().cuda()
    if not torch.equal(sparse @ b, b):
        raise AssertionError("the sparse product gives something else")
    return report({"factor": digest(factor)})


@program
def jax_smoke(steps: int) -> Report:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp
    import numpy as np

    if jax.devices()[0].platform not in ("gpu", "cuda"):
        raise RuntimeError(f"JAX finds no GPU, only {jax.devices()}")
    x = np.random.default_rng(1).normal(size=(256, 256)).astype(np.float32)
    f = jax.jit(lambda v: jnp.tanh(v) + 2 * v)
    got = np.asarray(f(x))
    np.testing.assert_allclose(got, np.tanh(x) + 2 * x, rtol=1e-4, atol=1e-5)
    gradient = np.asarray(jax.grad(lambda v: (v**2).sum())(x))
    np.testing.assert_allclose(gradient, 2 * x, rtol=1e-6)
    product = np.asarray(jnp.asarray(x) @ jnp.asarray(x))
    np.testing.assert_allclose(product, x @ x, rtol=2e-2, atol=2e-1)
    return report({"sum": repr(float(got.sum()))})


@program
def numba_smoke(steps: int) -> Report:
    import numpy as np
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator, unused-ignore]
    def scale(out: Any, values: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            cuda.atomic.add(out, i, values[i] * 2)

    values = np.arange(10_000, dtype=np.float32)
    out = cuda.to_device(np.ones_like(values))
    scale[40, 256](out, cuda.to_device(values))
    cuda.synchronize()
    got = out.copy_to_host()
    np.testing.assert_array_equal(got, values * 2 + 1)
    return report({"sum": float(got.sum())})


if __name__ == "__main__":
    sys.exit(run("one program for a real GPU", PROGRAMS, steps=5, least=2))
