""".ci/fuzz.py: how time and cores are shared, and what goes to another machine."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "fuzz.py"

#: Stands for a target: it says how it was started, and where libFuzzer says how often it ran.
TARGET = """#!/bin/sh
for i in 0 1; do echo "Done 21 runs in 1 second(s)" > fuzz-$i.log; done
echo "Done 7 runs in 1 second(s)" >&2
case "$*" in *-jobs=2*) ;; *) rm fuzz-*.log;; esac
exit EXIT
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("ci_fuzz", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ci_fuzz", module)  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def put(folder: Path, name: str, status: int = 0) -> None:
    program = folder / "tests" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(TARGET.replace("EXIT", str(status)))
    program.chmod(0o755)


def run(build: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, "--build", build, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("jobs", "count", "seconds", "processes"), [(2, 20, 10, 1), (16, 1, 100, 16), (16, 5, 100, 3)]
)
def test_time_and_cores_are_shared(
    script: Any, jobs: int, count: int, seconds: int, processes: int
) -> None:
    assert script.Share.of(100, jobs, count) == script.Share(seconds, processes)


def test_several_targets_by_name(script: Any, tmp_path: Path) -> None:
    for name in ("fuzz_a", "fuzz_b", "fuzz_c"):
        put(tmp_path, name)
    found = [target.name for target in script.targets(tmp_path, "c,a")]
    assert found == ["fuzz_a", "fuzz_c"]


def test_runs_of_all_processes_count(tmp_path: Path) -> None:
    put(tmp_path, "fuzz_a")
    assert "ok   fuzz_a: 7 runs" in run(tmp_path, "--jobs", "1", "--seconds", "1").stdout
    assert "ok   fuzz_a: 42 runs" in run(tmp_path, "--jobs", "2", "--seconds", "1").stdout
    assert run(tmp_path, "--jobs", "2", "--seconds", "1", "--runs", "43").returncode == 1


def test_a_target_that_fails_is_said(tmp_path: Path) -> None:
    put(tmp_path, "fuzz_a", status=77)
    done = run(tmp_path, "--seconds", "1")
    assert done.returncode == 1 and "FAIL fuzz_a: exit code 77" in done.stdout


def test_a_pack_is_a_build_folder_for_another_machine(tmp_path: Path) -> None:
    program, build = Path("/bin/ls"), tmp_path / "build"
    found = build / "fuzz" / "fuzz_a" / "corpus"
    found.mkdir(parents=True)
    (found / "input").write_bytes(b"x")
    (build / "fuzz_a").write_bytes(program.read_bytes())  # something that ldd can read
    (build / "fuzz_a").chmod(0o755)
    (build / "proto" / "gen").mkdir(parents=True)
    (build / "proto" / "gen" / "fuzz_a.dict").write_text('"a"\n')
    file = tmp_path / "pack.tar.gz"
    done = run(build, "--pack", file)
    assert done.returncode == 0, done.stderr
    with tarfile.open(file) as archive:
        names = archive.getnames()
    wanted = {"fuzz_a", "fuzz/fuzz_a/corpus/input", "proto/gen/fuzz_a.dict"}
    assert wanted <= set(names)
    assert not [name for name in names if "libc.so" in name]
