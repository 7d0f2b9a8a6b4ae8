"""What users run, one after the other in one process: `applications.py [NAME ...] [--steps N]`.

Everything has PyTorch's default settings, random weights, data from the host, and reads its result
in each step. It prints one line of JSON: `figures` are times and rates in the units of their names,
each a median over steps after some that are not counted; `results` are the first answers of each,
which must be the same natively and through the pool; `skipped` says which need what is not here, a
package or a second GPU, and `troubles` which failed. One process for all, because an import of
PyTorch takes longer than most of them; the ranks of `data_parallel` are processes of their own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WARM = 8

#: A batch of images in the default training step.
BATCH = 32

#: The kernels of one round of tiny work.
SMALL = 1000

#: Of a model that is compiled anew each way.
LAYERS = 6

#: Seconds for ranks to start, to find each other and to train.
RANKS_PATIENCE = 120


@dataclass
class Report:
    figures: dict[str, float] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)


def median_ms(steps: int, step: Callable[[], Any]) -> float:
    """Milliseconds of a step that waits for its result."""
    times = []
    for _ in range(WARM + steps):
        began = time.perf_counter()
        step()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times[WARM:])


def train(torch: Any, steps: int, report: Report) -> None:
    """ResNet-50 in fp32 and bf16, the batch from pageable and from pinned memory, the loss read."""
    import torchvision

    for dtype in ("fp32", "bf16"):
        for source in ("pageable", "pinned"):
            torch.manual_seed(1)
            model = torchvision.models.resnet50(weights=None).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            batch = [torch.randn(BATCH, 3, 224, 224), torch.randint(0, 1000, (BATCH,))]
            pinned = source == "pinned"
            if pinned:
                batch = [part.pin_memory() for part in batch]
            losses: list[float] = []

            def step(
                batch: list[Any] = batch,
                pinned: bool = pinned,
                model: Any = model,
                optimizer: Any = optimizer,
                losses: list[float] = losses,
                half: bool = dtype == "bf16",
            ) -> None:
                images, labels = (part.to("cuda", non_blocking=pinned) for part in batch)
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
                    loss = torch.nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

            report.figures[f"train_{dtype}_{source}_ms"] = median_ms(steps, step)
            report.results[f"train_{dtype}_{source}"] = losses[:2]


def infer(torch: Any, steps: int, report: Report) -> None:
    """ResNet-50 in batches of 1, 16 and 64, from and to the host; and one as a graph."""
    import torchvision

    torch.manual_seed(2)
    model = torchvision.models.resnet50(weights=None).cuda().eval()
    with torch.inference_mode():
        for batch in (1, 16, 64):
            images = torch.randn(batch, 3, 224, 224)

            def step(images: Any = images) -> Any:
                return model(images.cuda()).cpu()

            report.figures[f"infer_{batch}_ms"] = median_ms(steps, step)
            report.results[f"infer_{batch}"] = float(step().abs().sum())
        static, host = torch.zeros(1, 3, 224, 224, device="cuda"), torch.randn(1, 3, 224, 224)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = model(static)

        def replay() -> Any:
            static.copy_(host)
            graph.replay()
            return out.cpu()

        report.figures["graph_replay_ms"] = median_ms(4 * steps, replay)
        report.results["graph_replay"] = float(replay().abs().sum())


def bert(torch: Any, steps: int, report: Report) -> None:
    """BERT-base, 8 texts of 128 tokens, from and to the host."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    model = BertModel(BertConfig()).cuda().eval()
    tokens = torch.randint(0, 30000, (8, 128))
    with torch.inference_mode():

        def step() -> Any:
            return model(tokens.cuda()).last_hidden_state.cpu()

        report.figures["bert_8_ms"] = median_ms(steps, step)
        report.results["bert_8"] = float(step().abs().sum())


def llama_model(torch: Any, layers: int) -> Any:
    """Llama's shape at 1.1 B parameters, where it has 22 layers, in bf16."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def decode(torch: Any, model: Any, steps: int, **how: Any) -> tuple[float, list[int]]:
    """Milliseconds of a token behind a prompt of 16, and the first that were said."""
    prompt = torch.randint(0, 32000, (1, 16)).cuda()
    many = {"min_new_tokens": 2 * steps, "max_new_tokens": 2 * steps, "do_sample": False}

    def generate() -> list[int]:
        said: list[int] = model.generate(prompt, **many, **how)[0, -2 * steps :].tolist()
        return said

    generate()  # of this length: each brings kernels of its own
    began = time.perf_counter()
    said = generate()
    return (time.perf_counter() - began) / (2 * steps) * 1e3, said[:8]


def llama(torch: Any, steps: int, report: Report) -> None:
    """Decoding with a Llama-shaped model of 1.1 B parameters, bf16, eager, 16 tokens of prompt."""
    model = llama_model(torch, 22)
    with torch.inference_mode():
        report.figures["llama_token_ms"], report.results["llama"] = decode(torch, model, steps)


def llama_static(torch: Any, steps: int, report: Report) -> None:
    """The same with a static cache, compiled into graphs; of fewer layers, for each is compiled."""
    import transformers

    options = getattr(transformers, "CompileConfig", None)
    if options is None:
        report.skipped["llama_static"] = "needs a newer transformers, with CompileConfig"
        return
    how = {"cache_implementation": "static", "compile_config": options(mode="reduce-overhead")}
    token_ms, said = decode(torch, llama_model(torch, LAYERS), steps, **how)
    report.figures["llama_static_token_ms"], report.results["llama_static"] = token_ms, said


def products(torch: Any, steps: int, report: Report) -> None:
    """A large product in bf16: the GPU is all there is to it."""
    torch.manual_seed(5)
    n, many = 8192, 10
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def step() -> None:
        for _ in range(many):
            torch.matmul(a, b)
        torch.cuda.synchronize()

    report.figures["bf16_8192_tflops"] = 2 * n**3 * many / median_ms(steps, step) / 1e9
    report.results["bf16_8192"] = float((a @ b)[0, 0])


def small(torch: Any, steps: int, report: Report) -> None:
    """Tiny kernels, a number read back, and memory of new sizes again and again."""
    x = torch.zeros(1024, device="cuda")

    def adds() -> None:
        for _ in range(SMALL):
            x.add_(1)
        torch.cuda.synchronize()

    report.figures["small_1000_ms"] = median_ms(steps, adds)
    one = x[0]

    def items() -> None:
        for _ in range(SMALL):
            one.item()

    report.figures["item_us"] = median_ms(steps, items)  # of a thousand

    def churn() -> None:
        kept = [torch.empty((k + 1) << 20, dtype=torch.uint8, device="cuda") for k in range(64)]
        kept.clear()
        torch.cuda.empty_cache()

    report.figures["churn_64_ms"] = median_ms(steps, churn)
    report.results["small"] = float(x.sum())


def copies(torch: Any, steps: int, report: Report) -> None:
    """256 MiB to the GPU and from it, out of pageable and of pinned memory."""
    n = 64 << 20
    here = torch.arange(n, dtype=torch.int32)
    there = torch.empty(n, dtype=torch.int32, device="cuda")
    for kind, memory in (("pageable", here), ("pinned", here.pin_memory())):

        def up(memory: Any = memory) -> None:
            there.copy_(memory, non_blocking=True)
            torch.cuda.synchronize()

        def down(memory: Any = memory) -> None:
            memory.copy_(there, non_blocking=True)
            torch.cuda.synchronize()

        there.zero_()
        report.figures[f"{kind}_up_gb_s"] = 4 * n / median_ms(steps, up) / 1e6
        memory.zero_()
        report.figures[f"{kind}_down_gb_s"] = 4 * n / median_ms(steps, down) / 1e6
        if not torch.equal(memory, torch.arange(n, dtype=torch.int32)):
            raise RuntimeError(f"what came back to {kind} memory is not what went out")
    report.results["copies"] = int(there.sum())


def compiled(torch: Any, steps: int, report: Report) -> None:
    """A small kernel that torch.compile has made, called a hundred times."""

    @torch.compile  # type: ignore[untyped-decorator, unused-ignore]
    def f(x: Any, y: Any) -> Any:
        return torch.sin(x) * y + torch.relu(x - y)

    torch.manual_seed(6)
    x, y = (torch.randn(100_000, device="cuda") for _ in range(2))

    def step() -> None:
        for _ in range(100):
            f(x, y)
        torch.cuda.synchronize()

    report.figures["compiled_100_ms"] = median_ms(steps, step)
    report.results["compiled"] = float(f(x, y).sum())


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """What `gpupool run` gives its programs: PyTorch finds its own NCCL by an RPATH."""
    if "GPUPOOL_SERVER" in environment:
        for folder in environment.get("LD_LIBRARY_PATH", "").split(":"):
            if folder and (library := Path(folder, "libnccl.so.2")).is_file():
                return {"LD_PRELOAD": str(library)}
    return {}


def data_parallel(torch: Any, steps: int, report: Report) -> None:
    """ResNet-50 by DistributedDataParallel on two GPUs, a process and 32 images for each."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(Path(__file__).with_name("data_parallel.py"))]
    done = subprocess.run(
        [*command, "--steps", str(steps)],
        env={**os.environ, **preloaded(os.environ)},
        capture_output=True,
        text=True,
        timeout=RANKS_PATIENCE,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        causes = [line for line in done.stderr.splitlines() if "Error" in line or "gpupool" in line]
        raise RuntimeError("the ranks failed: " + " | ".join(causes[:4] or [done.stderr[-300:]]))
    said = json.loads(lines[-1])
    report.figures["data_parallel_2_ms"] = said["ms"]
    report.results["data_parallel_2"] = said["losses"]


def start(torch: Any, steps: int, report: Report) -> None:
    """Nothing beside what all begin with."""


@dataclass(frozen=True)
class Application:
    """A program, and what it needs beside PyTorch."""

    run: Callable[[Any, int, Report], None]
    packages: tuple[str, ...] = ()
    gpus: int = 1

    def lacks(self, torch: Any) -> str:
        """Empty: it can be run here."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            return f"needs {' '.join(missing)}"
        there = torch.cuda.device_count()
        return f"needs {self.gpus} GPUs, {there} visible" if there < self.gpus else ""


APPLICATIONS = {
    "start": Application(start),
    "small": Application(small),
    "copies": Application(copies),
    "products": Application(products),
    "infer": Application(infer, ("torchvision",)),
    "train": Application(train, ("torchvision",)),
    "bert": Application(bert, ("transformers",)),
    "llama": Application(llama, ("transformers",)),
    "llama_static": Application(llama_static, ("transformers", "triton")),
    "compiled": Application(compiled, ("triton",)),
    "data_parallel": Application(data_parallel, ("torchvision",), gpus=2),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(APPLICATIONS))
    parser.add_argument("--steps", type=int, default=20, help="that are counted")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in APPLICATIONS]
    if unknown or given.steps < 1:
        parser.error(f"unknown: {' '.join(unknown)}" if unknown else "--steps must be at least 1")
    began = time.perf_counter()
    import torch

    imported = time.perf_counter()
    report = Report()
    product = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    report.results["first"] = float(product.sum().cpu())
    done = time.perf_counter()
    report.figures["import_ms"], report.figures["first_result_ms"] = (
        (imported - began) * 1e3,
        (done - imported) * 1e3,
    )
    for name in given.names or APPLICATIONS:
        if why := APPLICATIONS[name].lacks(torch):
            report.skipped[name] = why
            continue
        try:
            APPLICATIONS[name].run(torch, given.steps, report)
        except Exception as error:  # whatever it is: the others have figures
            report.troubles[name] = f"{type(error).__name__}: {error}"[:400]
        print(f"{name} done", file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    print(json.dumps(vars(report)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
