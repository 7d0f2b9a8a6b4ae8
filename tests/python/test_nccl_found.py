"""Which NCCL workers are given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpupool_common.errors import InstallError
from gpupool_server import nccl


def test_what_is_named_must_be_there(tmp_path: Path) -> None:
    named = tmp_path / "mine.so"
    named.touch()
    assert nccl.find(named, "soft") == named
    with pytest.raises(InstallError, match=r"other\.so does not exist \(setting nccl\)"):
        nccl.find(tmp_path / "other.so", "cuda")


def test_a_soft_gpu_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path))
    assert nccl.find(None, "soft") is None
    own = tmp_path / "lib" / "driver" / "libsoftnccl.so.2"
    own.parent.mkdir(parents=True)
    own.touch()
    assert nccl.find(None, "soft") == own


def test_the_wheel_comes_before_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "system"
    monkeypatch.setattr(nccl, "_SYSTEM", (str(system),))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert nccl.find(None, "cuda") is None
    system.mkdir()
    (system / "libnccl.so.2").touch()
    assert nccl.find(None, "cuda") == system / "libnccl.so.2"
    wheel = tmp_path / "nvidia" / "nccl" / "lib"
    wheel.mkdir(parents=True)
    (wheel / "libnccl.so.2").touch()
    assert nccl.find(None, "cuda") == wheel / "libnccl.so.2"
