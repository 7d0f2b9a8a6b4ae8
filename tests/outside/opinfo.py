"""PyTorch's operator table: every operator in every dtype, forward and gradient.

The table (`op_db`) and its samples are the package's. An operator runs twice on the GPU from the
same seed: where both runs have the same bits, these name the result, and must be the same through
the pool. Where they have not, the result must be near that of the CPU.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from telling import Order, Skipped, Teller, run_all

# cuBLAS is deterministic only with a workspace of fixed size; it reads this at its start.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

#: A few operators each.
PARTS = 176
SEED = 1234

#: How near to the CPU, by the bytes of a real number.
NEAR = {1: (0.25, 0.25), 2: (2e-2, 2e-2), 4: (1e-3, 1e-3), 8: (1e-5, 1e-5)}

#: What these give is whatever was in memory: of them, shape and type count.
UNDEFINED = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
)

Body = Callable[[], str]


def groups(settings: dict[str, Any]) -> list[str]:
    return [f"part-{number:03}" for number in range(PARTS)]


def run(order: Order, teller: Teller) -> None:
    device = str(order.settings.get("device", "cuda"))
    prepare(device, float(order.settings.get("memory_gib", 0)))
    tests = dict(tests_of(int(order.group.rpartition("-")[2]), device))
    run_all(teller, order, tests, partial(healthy, device))
    if device == "cuda":
        release()


@functools.cache
def prepare(device: str, memory_gib: float) -> None:
    """Of a process, before it imports the table: behind that, PyTorch lets nobody set flags."""
    import torch

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if device == "cuda" and memory_gib:
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(memory_gib * (1 << 30) / whole, 1.0))


def release() -> None:
    """Other processes may have the memory of this one's tests now."""
    import torch

    if healthy("cuda"):
        torch.cuda.empty_cache()


def healthy(device: str) -> bool:
    import torch

    if device == "cpu":
        return True
    try:
        torch.cuda.synchronize()
        return int(torch.ones(1, device=device).sum()) == 1
    except RuntimeError:
        return False


def tests_of(part: int, device: str) -> Iterator[tuple[str, Body]]:
    """The tests of every PARTS-th operator."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db[part::PARTS]:
        backward = op.supported_backward_dtypes(device) if op.supports_autograd else set()
        for dtype in sorted(op.supported_dtypes(device), key=str):
            kind = str(dtype).removeprefix("torch.")
            yield f"{op.formatted_name}[{kind}]", partial(check, op, dtype, device, False)
            if dtype in backward:
                yield f"{op.formatted_name}[{kind}-grad]", partial(check, op, dtype, device, True)


def seed() -> None:
    import numpy
    import torch

    torch.manual_seed(SEED)
    random.seed(SEED)
    numpy.random.seed(SEED)


def check(op: Any, dtype: Any, device: str, gradient: bool) -> str:
    """The digest of all samples' results; none where the GPU does not repeat itself."""
    seed()
    samples = list(op.sample_inputs(device, dtype, requires_grad=gradient))
    if not samples:
        raise Skipped("the table has no sample")
    hashed, repeats = hashlib.sha256(), True
    for sample in samples:
        first, second = (outputs(op, sample, gradient) for _ in range(2))
        if op.name in UNDEFINED:
            first, second = zeros(first), zeros(second)
        bits = bits_of(first)
        hashed.update(bits)
        if bits != bits_of(second):
            repeats = False
            near_the_cpu(op, sample, gradient, first)
    return hashed.hexdigest()[:16] if repeats else ""


def outputs(op: Any, sample: Any, gradient: bool) -> list[Any]:
    """The tensors that an operator gives for a sample, or its gradients."""
    import torch

    seed()
    arguments = (sample.input, sample.args, sample.kwargs)
    out = op(sample.input, *sample.args, **sample.kwargs)
    if not gradient:
        return tensors(out)
    if sample.output_process_fn_grad is not None:
        out = sample.output_process_fn_grad(out)
    ends = [tensor for tensor in tensors(out) if tensor.requires_grad]
    inputs = [tensor for tensor in tensors(arguments) if tensor.requires_grad]
    if not ends or not inputs:
        return []
    begin = [torch.ones_like(tensor) for tensor in ends]
    found = torch.autograd.grad(ends, inputs, begin, allow_unused=True)
    return [tensor for tensor in found if tensor is not None]


def tensors(value: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def zeros(found: list[Any]) -> list[Any]:
    import torch

    return [torch.zeros_like(tensor) for tensor in found]


def bits_of(found: list[Any]) -> bytes:
    return b"".join(tensor_bits(tensor) for tensor in found)


def tensor_bits(tensor: Any) -> bytes:
    """Shape, type and bytes of a tensor."""
    import torch

    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    dense = torch.empty(plain.shape, dtype=plain.dtype).copy_(plain)
    head = f"{tuple(dense.shape)}{dense.dtype}".encode()
    if not dense.numel():
        return head
    return head + bytes(dense.reshape(-1).view(torch.uint8).numpy().tobytes())


def near_the_cpu(op: Any, sample: Any, gradient: bool, found: list[Any]) -> None:
    import torch

    expected = outputs(op, sample.transform(on_the_cpu), gradient)
    for got, wanted in zip(found, expected, strict=True):
        real = wanted.dtype.to_real() if wanted.is_complex() else wanted.dtype
        relative, absolute = NEAR[real.itemsize]
        torch.testing.assert_close(
            got.detach().cpu(), wanted.detach(), rtol=relative, atol=absolute, equal_nan=True
        )


def on_the_cpu(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu().requires_grad_(value.requires_grad)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value
