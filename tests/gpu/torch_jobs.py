"""What people do with PyTorch around the GPU's work: `torch_jobs.py NAME [--steps N]`.

Loaders in processes of their own, memory that runs out, compilation in each mode, checkpoints,
text from a language model. As torch_programs.py, each prints one line of JSON, whose `results`
must be the same natively and through the pool.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from named_programs import run
from torch_programs import Report, digest, report, start_torch

PROGRAMS: dict[str, Callable[[int], Report]] = {}

#: Blocks of this many bytes are taken until there is no more.
BLOCK = 1 << 30

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def job(function: Callable[[int], Report]) -> Callable[[int], Report]:
    PROGRAMS[function.__name__] = function
    return function


class Rows:
    """A data set, made by the loaders' processes: none of them may touch the GPU."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.full((256,), float(index)) + torch.arange(256) / 256


def load(context: str) -> Report:
    """Two epochs of a loader while the GPU is in use: what it pins goes over as it comes."""
    torch = start_torch()
    weights = torch.randn(256, 8, device="cuda")
    loader = torch.utils.data.DataLoader(
        Rows(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context=context
    )
    outs = []
    for _ in range(2):
        for rows in loader:
            if not rows.is_pinned():
                raise AssertionError("the loader's memory is not pinned")
            outs.append(rows.to("cuda", non_blocking=True) @ weights)
    return report({"out": digest(torch.stack(outs)), "batches": len(outs)})


@job
def loaders_fork(steps: int) -> Report:
    return load("fork")


@job
def loaders_spawn(steps: int) -> Report:
    return load("spawn")


@job
def out_of_memory(steps: int) -> Report:
    """The GPU's memory runs out twice, and each time all of it can be used again."""
    torch = start_torch()
    x = torch.randn(1024, 1024, device="cuda")
    products, counts = [digest(x @ x)], []
    for _ in range(2):
        counts.append(len(fill(torch)))
        torch.cuda.empty_cache()
        products.append(digest(x @ x))
    if len(set(products)) != 1 or min(counts) < 1 or abs(counts[0] - counts[1]) > 1:
        raise AssertionError(f"{products}, {counts} blocks")
    return report({"product": products[0]}, blocks=float(counts[0]))


def fill(torch: Any) -> list[Any]:
    """As many blocks as there are."""
    blocks: list[Any] = []
    try:
        while True:
            blocks.append(torch.empty(BLOCK, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        return blocks


@job
def compile_modes(steps: int) -> Report:
    """Each mode may choose other kernels: the result is near that of none, and stays the same."""
    torch = start_torch()
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 64)
    ).cuda()
    x = torch.randn(128, 256, device="cuda")
    with torch.no_grad():
        expected = model(x)
        near = {mode: compiled_is_near(torch, model, x, expected, mode) for mode in MODES}
    if not all(near.values()):
        raise AssertionError(str(near))
    return report({"modes": near, "expected": digest(expected)})


def compiled_is_near(torch: Any, model: Any, x: Any, expected: Any, mode: str) -> bool:
    torch.compiler.reset()
    compiled = torch.compile(model, mode=mode)
    outs = [compiled(x).clone() for _ in range(4)]
    same = all(torch.equal(out, outs[0]) for out in outs)
    return bool(same and torch.allclose(outs[0], expected, atol=1e-4))


@job
def checkpoint(steps: int) -> Report:
    """Training that goes on from a file ends with the same bits as training that never stopped."""
    torch = start_torch()
    model, optimizer = trained(torch, 3)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        told = torch.load(file, map_location="cuda", weights_only=True)
    again, other = trained(torch, 0)
    again.load_state_dict(told["model"])
    other.load_state_dict(told["optimizer"])
    digests = []
    for each, its in ((model, optimizer), (again, other)):
        train(torch, each, its, 3)
        digests.append([digest(value) for value in each.state_dict().values()])
    if digests[0] != digests[1]:
        raise AssertionError(f"{digests[0]} is not {digests[1]}")
    return report({"weights": digests[0]})


def trained(torch: Any, steps: int) -> tuple[Any, Any]:
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 4)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(torch, model, optimizer, steps)
    return model, optimizer


def train(torch: Any, model: Any, optimizer: Any, steps: int) -> None:
    torch.manual_seed(11)
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = torch.randn(32, 64).cuda(), torch.randn(32, 4).cuda()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


@job
def generate(steps: int) -> Report:
    """A small language model of random weights says the same, the likeliest way and by chance."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch = start_torch()
    torch.use_deterministic_algorithms(True, warn_only=True)
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).cuda().eval()
    prompt = torch.tensor([[1, 17, 300, 42], [1, 5, 9, 511]], device="cuda")
    words: dict[str, Any] = {"max_new_tokens": 40, "attention_mask": torch.ones_like(prompt)}
    likeliest = model.generate(prompt, do_sample=False, **words)
    torch.manual_seed(5)
    chance = model.generate(prompt, do_sample=True, top_k=50, **words)
    return report({"likeliest": likeliest.tolist(), "chance": chance.tolist()})


if __name__ == "__main__":
    sys.exit(run("one job for a real GPU", PROGRAMS, steps=5, least=2))
