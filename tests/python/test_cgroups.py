"""Workers' control groups, on a folder that looks like one: no machine of the tests has to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpupool_server.cgroups import CONTROLLERS, OVERHEAD, Cgroups
from gpupool_server.config import load_settings


def groups_in(parent: Path | None) -> Cgroups:
    return Cgroups(load_settings(None, {"cgroup": str(parent)} if parent else {}))


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    return tmp_path


def test_a_worker_has_a_group_with_limits(parent: Path) -> None:
    groups = groups_in(parent)
    assert groups.off == ""
    given = (parent / "cgroup.subtree_control").read_text().split()
    assert given == [f"+{name}" for name in CONTROLLERS]
    folder, why = groups.make("abc", 1 << 30)
    assert folder == parent / "gpupool-abc" and why == ""
    assert int((folder / "memory.max").read_text()) == (1 << 30) + OVERHEAD
    assert int((folder / "pids.max").read_text()) > 0


def test_what_a_crash_left_is_removed_and_what_is_used_stays(parent: Path) -> None:
    (parent / "gpupool-left").mkdir()
    (parent / "gpupool-used").mkdir()
    (parent / "gpupool-used" / "process").write_text("")  # cannot be removed
    (parent / "other").mkdir()
    groups = groups_in(parent)
    groups.sweep()
    assert not (parent / "gpupool-left").exists()
    assert (parent / "gpupool-used").is_dir() and (parent / "other").is_dir()
    groups.remove("nothing")


def test_it_goes_with_its_worker(parent: Path) -> None:
    groups = groups_in(parent)
    (parent / "gpupool-abc").mkdir()
    groups.remove("abc")
    assert not (parent / "gpupool-abc").exists()


def test_it_goes_once_all_that_its_worker_left_has_ended(parent: Path) -> None:
    groups = groups_in(parent)
    left = parent / "gpupool-abc"
    left.mkdir()
    (left / "process").write_text("")  # cannot be removed
    groups.remove("abc")
    groups.tidy()
    assert left.is_dir()
    (left / "process").unlink()
    groups.tidy()
    assert not left.exists()


def test_reasons(tmp_path: Path, parent: Path) -> None:
    assert "--cgroup names" in groups_in(None).off
    (parent / "cgroup.controllers").write_text("cpu\n")
    assert "controllers memory, pids; delegate" in groups_in(parent).off
    (parent / "cgroup.controllers").unlink()
    groups = groups_in(parent)
    assert "is no control group" in groups.off
    assert groups.make("abc", 0) == (None, groups.off)


def test_a_group_that_is_there_already_is_no_workers(parent: Path) -> None:
    groups = groups_in(parent)
    (parent / "gpupool-abc").mkdir()
    (parent / "gpupool-abc" / "x").write_text("")
    folder, why = groups.make("abc", 0)
    assert folder is None and "cannot be made" in why


def mounted() -> Path | None:
    """This machine's own cgroup v2."""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, path, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(path)
    return None


def test_on_this_machines_own() -> None:
    """A folder that was delegated to us, if the kernel's controllers are there to be had."""
    root = mounted()
    if root is None:
        pytest.skip("no cgroup v2 is mounted here")
    folder = root / f"gpupool-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"{root} gives nobody here a folder: {error.strerror}")
    try:
        given = (folder / "cgroup.controllers").read_text(encoding="ascii").split()
        groups = groups_in(folder)
        if missing := [name for name in CONTROLLERS if name not in given]:
            assert groups.off.endswith(f"controllers {', '.join(missing)}; delegate them")
            assert groups.make("abc", 1 << 30) == (None, groups.off)
            return
        assert groups.off == ""
        made, why = groups.make("abc", 1 << 30)
        assert made is not None and why == ""
        assert int((made / "memory.max").read_text()) == (1 << 30) + OVERHEAD
        groups.remove("abc")
        assert not made.exists()
    finally:
        folder.rmdir()
