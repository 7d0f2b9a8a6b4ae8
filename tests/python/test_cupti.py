"""Which CUPTI a worker opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupool_common.errors import InstallError
from gpupool_server import cupti


def library(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_what_the_operator_named_must_be_there(tmp_path: Path) -> None:
    named = library(tmp_path / "libcupti.so")
    assert cupti.find(named, "soft") == named
    with pytest.raises(InstallError, match=r"other\.so does not exist \(setting cupti\)"):
        cupti.find(tmp_path / "other.so", "cuda")


def test_the_soft_gpu_has_its_own() -> None:
    assert cupti.find(None, "soft") is None


def test_the_newest_of_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti, "_TOOLKIT", ())
    monkeypatch.setattr("sys.path", [str(tmp_path / "a"), str(tmp_path / "b")])
    assert cupti.find(None, "cuda") is None
    older = library(tmp_path / "a/nvidia/cuda_cupti/lib/libcupti.so.12")
    assert cupti.find(None, "cuda") == older
    newer = library(tmp_path / "b/nvidia/cu13/lib/libcupti.so.13")
    assert cupti.find(None, "cuda") == newer
