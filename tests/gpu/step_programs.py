"""What one step of a user's program costs: `step_programs.py NAME [--steps N]`, one line of JSON.

Everything has PyTorch's default settings. Times are milliseconds, medians over the steps:
`step` is the whole, `host.PART` what the program's thread spent in a part, `gpu.PART` what the
GPU spent between the ends of two parts. `losses` must be the same natively and through the pool.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from named_programs import run

Report = dict[str, Any]
BATCH = 32
WARM = 8


class Parts:
    """Times of the parts of one step after the other, on the host and on the GPU."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.host: dict[str, list[float]] = defaultdict(list)
        self.gpu: dict[str, list[float]] = defaultdict(list)
        self.events: list[tuple[str, Any]] = []
        self.at = 0.0

    def begin(self) -> None:
        self.events = [("", self.event())]
        self.at = time.perf_counter()

    def event(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self, name: str) -> None:
        now = time.perf_counter()
        self.host[name].append((now - self.at) * 1e3)
        self.events.append((name, self.event()))
        self.at = time.perf_counter()

    def finish(self) -> None:
        """The GPU has passed the last event when this is called."""
        for (_, before), (name, after) in zip(self.events, self.events[1:], strict=False):
            after.synchronize()
            self.gpu[name].append(before.elapsed_time(after))

    def report(self) -> Report:
        out = {f"host.{name}": median(times) for name, times in self.host.items()}
        out.update({f"gpu.{name}": median(times) for name, times in self.gpu.items()})
        return out


def median(times: list[float]) -> float:
    return round(statistics.median(times[WARM:]), 3)


class Training:
    """ResNet-50 in fp32. The images are resident, or copied anew for each step."""

    def __init__(self, source: str) -> None:
        import torch
        import torchvision

        torch.manual_seed(1234)
        self.torch = torch
        self.model = torchvision.models.resnet50(weights=None).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.batch = [torch.randn(BATCH, 3, 224, 224), torch.randint(0, 1000, (BATCH,))]
        self.pinned = source == "pinned"
        if self.pinned:
            self.batch = [part.pin_memory() for part in self.batch]
        if source == "resident":
            self.batch = [part.cuda() for part in self.batch]

    def bring(self) -> list[Any]:
        """The batch on the GPU: images and labels."""
        return [part.to("cuda", non_blocking=self.pinned) for part in self.batch]

    def loss(self, images: Any, labels: Any) -> Any:
        return self.torch.nn.functional.cross_entropy(self.model(images), labels)


def train(steps: int, source: str, read: bool = True) -> Report:
    """What each part of a step costs."""
    training = Training(source)
    torch, optimizer = training.torch, training.optimizer
    parts, losses, whole = Parts(torch), [], []
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps + WARM):
        parts.begin()
        x, y = training.bring()
        parts.end("copy")
        loss = training.loss(x, y)
        parts.end("forward")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        parts.end("backward")
        optimizer.step()
        parts.end("update")
        losses.append(loss.item() if read else 0.0)
        now = time.perf_counter()
        parts.host["read"].append((now - parts.at) * 1e3)
        whole.append((now - began) * 1e3)
        if read:
            torch.cuda.synchronize()
            parts.finish()
        began = time.perf_counter()
    torch.cuda.synchronize()
    return {"losses": losses[:3], "step": median(whole), **parts.report()}


def plain(steps: int, source: str, read: bool) -> Report:
    """The same without looking at parts: nothing but the step itself."""
    training = Training(source)
    torch, optimizer = training.torch, training.optimizer
    began, losses = 0.0, []
    for step in range(steps + WARM):
        if step == WARM:
            torch.cuda.synchronize()
            began = time.perf_counter()
        x, y = training.bring()
        optimizer.zero_grad(set_to_none=True)
        loss = training.loss(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item() if read else 0.0)
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - began) / steps * 1e3
    return {"losses": losses[:3], "step": round(step_ms, 3)}


def llama(steps: int) -> Report:
    """Decoding of a Llama-shaped model of 1.1 B parameters, bf16, eager: one token a step."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1234)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):  # random weights are made there in no time
        model = LlamaForCausalLM(config).eval()
    prompt = torch.randint(0, 32000, (1, 16)).cuda()

    def generate(tokens: int) -> Any:
        return model.generate(prompt, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False)

    with torch.inference_mode():
        generate(4)
        torch.cuda.synchronize()
        began = time.perf_counter()
        out = generate(steps)
        torch.cuda.synchronize()
    step_ms = (time.perf_counter() - began) / steps * 1e3
    return {"losses": out[0, -8:].tolist(), "step": round(step_ms, 3)}


PROGRAMS: dict[str, Callable[[int], Report]] = {
    "resident": lambda steps: plain(steps, "resident", False),
    "resident_read": lambda steps: plain(steps, "resident", True),
    "pageable": lambda steps: plain(steps, "pageable", True),
    "pinned": lambda steps: plain(steps, "pinned", True),
    "resident_parts": lambda steps: train(steps, "resident"),
    "pageable_parts": lambda steps: train(steps, "pageable"),
    "pinned_parts": lambda steps: train(steps, "pinned"),
    "llama": llama,
}


if __name__ == "__main__":
    sys.exit(run("one step of a program, timed", PROGRAMS, steps=60, least=10))
