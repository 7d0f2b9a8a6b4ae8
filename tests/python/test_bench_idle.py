"""bench/idle.py: what it reads of processes, of the GPU, and when it refuses to say anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import idle

from harness import Talk

SOURCE = (
    "print('ready', flush=True)\nfor line in __import__('sys').stdin: print('worked', flush=True)"
)


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An nvidia-smi that counts its calls, and says a MiB more each time."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\necho x >> {tmp_path}/calls\nwc -l < {tmp_path}/calls | tr -d " "\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    yield program


def start() -> Talk:
    return Talk([sys.executable, "-u", "-c", SOURCE], os.environ)


def test_memory_of_processes_that_have_ended_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([900.0, 500.0, 100.0, 100.0, 50.0])
    monkeypatch.setattr(idle, "gpu_mib", lambda: next(said))
    monkeypatch.setattr(idle, "SETTLE_S", 0.0)
    assert idle.settled_gpu_mib() == 100.0


def test_memory_of_the_gpu_is_what_was_used_more(
    smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "PROGRAMS", 2)
    monkeypatch.setattr(idle, "SETTLE_S", 0.0)
    figures = idle.measure(start, None, 0.05, gpu=True)
    assert figures["idle_gpu_mib"] == 1 / 2
    assert 0.1 < figures["idle_program_mib"] < 1024
    assert set(figures) == {"idle_gpu_mib", "idle_program_mib", "idle_2_core_percent"}


def test_processes_that_have_ended_hold_nothing_and_burn_nothing() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert idle.mib([process.pid]) == 0 and idle.processor_ns([process.pid]) == {}
    assert idle.mib([os.getpid()]) > idle.mib([os.getpid()], "Private_Dirty") > 0
    assert sum(idle.processor_ns([os.getpid()]).values()) > 0


def test_sessions_without_a_worker_have_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program that went native took would be told as a session's."""
    monkeypatch.setattr(idle, "PROGRAMS", 2)
    server: Any = SimpleNamespace(pid=None, worker_pids=list)
    with pytest.raises(RuntimeError, match="0 workers of 2"):
        idle.measure(start, server, 0.05, gpu=False)
