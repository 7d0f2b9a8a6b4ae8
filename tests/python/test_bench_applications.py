"""bench/applications.py without PyTorch: what is skipped, what fails, and the ranks of two GPUs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import applications
import data_parallel
from applications import APPLICATIONS, Application, Report


class Product:
    """The one product that all begin with."""

    def __matmul__(self, other: Product) -> Product:
        return self

    def sum(self) -> Product:
        return self

    def cpu(self) -> float:
        return 262144.0


def fake_torch(gpus: int) -> Any:
    torch = ModuleType("torch")
    cuda = SimpleNamespace(device_count=lambda: gpus, empty_cache=lambda: None)
    vars(torch).update(cuda=cuda, ones=lambda *_, **__: Product())
    return torch


def run_main(monkeypatch: pytest.MonkeyPatch, torch: Any, *arguments: str) -> int:
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(sys, "argv", ["applications.py", *arguments])
    return applications.main()


def test_what_needs_two_gpus_is_skipped_on_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert run_main(monkeypatch, fake_torch(1), "data_parallel", "start") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["skipped"] == {"data_parallel": "needs 2 GPUs, 1 visible"}
    assert set(said["figures"]) == {"import_ms", "first_result_ms"} and not said["troubles"]


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "triton" or None)
    assert APPLICATIONS["llama_static"].lacks(fake_torch(2)) == "needs transformers"
    assert APPLICATIONS["compiled"].lacks(fake_torch(1)) == ""
    assert APPLICATIONS["data_parallel"].lacks(fake_torch(2)) == "needs torchvision"


def test_one_that_fails_leaves_the_others_their_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(torch: Any, steps: int, report: Report) -> None:
        raise RuntimeError("out of luck")

    def works(torch: Any, steps: int, report: Report) -> None:
        report.figures["works_ms"] = float(steps)

    programs = {"fails": Application(fails), "works": Application(works)}
    monkeypatch.setattr(applications, "APPLICATIONS", programs)
    assert run_main(monkeypatch, fake_torch(1), "--steps", "3") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["troubles"] == {"fails": "RuntimeError: out of luck"}
    assert said["figures"]["works_ms"] == 3.0


# Ranks ----------------------------------------------------------------------------------------

#: What stands for torchrun: it says what it was given, as rank 0 does with its figures.
LAUNCHER = """
import json, os, sys
print("a line of a library", flush=True)
if "77" in sys.argv:
    sys.exit("RuntimeError: rank 1 is lost")
print(json.dumps({"ms": 12.5, "losses": [sys.argv[1:], os.environ.get("LD_PRELOAD")]}))
"""


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "run.py").write_text(LAUNCHER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_two_ranks_are_started_and_the_first_says_its_figures(
    launcher: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUPOOL_SERVER", raising=False)
    report = Report()
    applications.data_parallel(None, 5, report)
    assert report.figures == {"data_parallel_2_ms": 12.5}
    (arguments, preload) = report.results["data_parallel_2"]
    assert arguments[:3] == ["--standalone", "--nproc-per-node", "2"]
    assert Path(arguments[3]).is_file() and arguments[4:] == ["--steps", "5"]
    assert preload is None


def test_ranks_that_fail_say_why(launcher: None) -> None:
    with pytest.raises(RuntimeError, match="rank 1 is lost"):
        applications.data_parallel(None, 77, Report())


def test_ranks_on_a_pool_have_our_nccl(tmp_path: Path) -> None:
    """PyTorch's RPATH goes before LD_LIBRARY_PATH; natively its own is the one to use."""
    library = tmp_path / "lib" / "libnccl.so.2"
    library.parent.mkdir()
    library.touch()
    found = f"/nowhere::{library.parent}:/usr/lib"
    pool = {"GPUPOOL_SERVER": "tcp://host:1", "LD_LIBRARY_PATH": found}
    assert applications.preloaded(pool) == {"LD_PRELOAD": str(library)}
    assert applications.preloaded({"LD_LIBRARY_PATH": found}) == {}
    assert applications.preloaded({"GPUPOOL_SERVER": "tcp://host:1"}) == {}


def test_a_rank_trains_on_its_own_gpu() -> None:
    torch, model = MagicMock(), MagicMock()
    torch.nn.functional.cross_entropy.return_value.item.return_value = 0.5
    times, losses = data_parallel.train(torch, model, 1, 4)
    assert len(times) == data_parallel.WARM + 4 and losses == [0.5] * len(times)
    model.to.assert_called_once_with("cuda:1")
    parallel = torch.nn.parallel.DistributedDataParallel
    parallel.assert_called_once_with(model.to.return_value, device_ids=[1])


# Llama ----------------------------------------------------------------------------------------


def test_llama_is_compiled_with_a_static_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older transformers, which has no options for that, is not run eagerly instead."""
    model, transformers = MagicMock(), SimpleNamespace(CompileConfig=dict)
    monkeypatch.setattr(applications, "llama_model", lambda torch, layers: model)
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    report = Report()
    applications.llama_static(MagicMock(), 5, report)
    assert report.figures["llama_static_token_ms"] > 0
    assert model.generate.call_count == 2
    asked = model.generate.call_args.kwargs
    assert asked["cache_implementation"] == "static"
    assert asked["compile_config"] == {"mode": "reduce-overhead"}
    assert asked["max_new_tokens"] == asked["min_new_tokens"] == 10
    del transformers.CompileConfig
    applications.llama_static(MagicMock(), 5, report)
    assert "CompileConfig" in report.skipped["llama_static"]
    assert model.generate.call_count == 2
