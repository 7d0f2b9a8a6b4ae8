"""Client library and worker of a release that was never made: built from another spec.

Against today's it lacks functions, has one in another form, and knows messages of today's by
other numbers. Only what the two sides say to each other differs, which is what is tested.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: What it has not.
LACKING = ("cuStreamWriteValue32_v2", "cuGraphClone")
#: What it waits for and today's does not, or the reverse: the form differs.
OTHER_FORM = "cuCtxSetCacheConfig"
#: Messages of ours under numbers that today's does not have.
RENUMBERED = {
    "gp_fence": 65001,
    "gp_output": 65002,
    "gp_captured_close": 65003,
    "gp_host_gone": 65004,
    "gp_memory_free": 65005,
    "gp_topology": 65006,  # nor images' names of now
}


@dataclass(frozen=True)
class Release:
    """Where it lies."""

    library: Path
    worker: Path


def _entry(text: str, name: str) -> re.Match[str]:
    found = re.search(rf"^\[{name}\]\n(?:(?!\[).*\n)*", text, re.MULTILINE)
    assert found, f"the spec has no {name}"
    return found


def _change(folder: Path, name: str, pattern: str, by: str) -> None:
    """Change something of an entry, which must be there."""
    for path in folder.rglob("*.toml"):
        text = path.read_text(encoding="utf-8")
        if f"[{name}]\n" not in text:
            continue
        entry = _entry(text, name)
        changed, count = re.subn(pattern, by, entry[0], count=1, flags=re.MULTILINE)
        assert count == 1, f"{name} has no {pattern}"
        path.write_text(text[: entry.start()] + changed + text[entry.end() :], encoding="utf-8")
        return
    raise AssertionError(f"the spec has no {name}")


def write_spec(folder: Path) -> None:
    """Today's spec with these changes; without the ledger, which would not have them."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "proto/spec", folder, ignore=shutil.ignore_patterns("ids.lock"))
    for name in LACKING:
        _change(folder, name, r'^mode = "\w+"$', 'mode = "refuse"\nreason = "not yet"')
    _change(folder, OTHER_FORM, r'^mode = "async"$', 'mode = "sync"')
    for name, number in RENUMBERED.items():
        _change(folder, name, r"^id = \d+$", f"id = {number}")


def build(folder: Path) -> Release:
    """Configure once, compile what changed. Not optimized: it is run a few times."""
    spec, built = folder / "spec", folder / "build"
    kept = folder / "fresh"
    write_spec(kept)
    _update(kept, spec)
    if not (built / "build.ninja").is_file():
        _run(
            ["cmake", "-S", str(ROOT), "-B", str(built), "-G", "Ninja", f"-DGPUPOOL_SPEC={spec}"]
            + ["-DGPUPOOL_TESTS=OFF", "-DGPUPOOL_SOFTGPU=OFF", "-DCMAKE_BUILD_TYPE=Debug"]
            + ["-DCMAKE_C_FLAGS_DEBUG=-O0"]  # nobody debugs it
            + [f"-DPython3_EXECUTABLE={sys.executable}"]
        )
    _run(["cmake", "--build", str(built), "--target", "gpupool_cuda", "gpupool_worker"])
    return Release(built / "lib", built / "libexec/gpupool-worker")


def _update(fresh: Path, spec: Path) -> None:
    """Leave files alone that have not changed, so that nothing is compiled for them."""
    spec.mkdir(parents=True, exist_ok=True)
    for path in spec.rglob("*.*"):
        if not (fresh / path.relative_to(spec)).exists():
            path.unlink()
    for path in fresh.rglob("*.*"):
        there = spec / path.relative_to(fresh)
        there.parent.mkdir(exist_ok=True)
        if not there.is_file() or there.read_bytes() != path.read_bytes():
            shutil.copyfile(path, there)


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, env={**os.environ}, capture_output=True, text=True, errors="replace", check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
