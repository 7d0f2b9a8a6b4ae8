"""The list of a worker's system calls: what is understood, and what is refused with its line."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from gpupool_common import paths

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "server" / "syscalls" / "workers.list"

LEADS_OUT = {
    *("io_uring_setup", "bpf", "userfaultfd", "ptrace", "process_vm_readv", "process_vm_writev"),
    *("keyctl", "mount", "unshare", "setns", "kexec_load", "init_module", "finit_module"),
    *("perf_event_open", "open_by_handle_at", "pidfd_getfd", "setuid", "chroot", "pivot_root"),
    *("execveat", "fork", "vfork", "clone3"),
}


def _load() -> ModuleType:
    path = ROOT / "server" / "syscalls" / "gen_filter.py"
    spec = importlib.util.spec_from_file_location("gen_filter", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gen_filter"] = module
    spec.loader.exec_module(module)
    return module


gen_filter = _load()


def test_the_list_is_understood_and_allows_nothing_that_leads_out() -> None:
    rules = gen_filter.parse(LIST.read_text(encoding="utf-8"), "workers.list")
    allowed = {rule.call for rule in rules if not rule.errno}
    assert {"read", "ioctl", "futex"} <= allowed
    assert not allowed & LEADS_OUT


def test_conditions() -> None:
    text = "clone if 0 without CLONE_NEWNS 0x10 # a\nsocket if 0 in 1 2 and 1 & 0xf in 3 # b\n"
    thread, socket = gen_filter.parse(text, "x")
    assert thread.conditions == (gen_filter.Condition(0, "CLONE_NEWNS|0x10", ("0",)),)
    first, second = socket.conditions
    assert (first.mask, first.values) == ("0xffffffff", ("1", "2"))
    assert (second.argument, second.mask, second.values) == (1, "0xf", ("3",))
    # each pair of values is a rule of its own
    assert gen_filter.emit([socket], "x").count('"socket", 2, ') == 2 * len(gen_filter.DRIVERS)


def test_a_section_is_for_one_driver() -> None:
    rules = gen_filter.parse("read # a\n[cuda]\nmkdir # b\n", "x")
    assert [rule.driver for rule in rules] == ["", "cuda"]
    assert gen_filter.emit(rules, "x").count('"mkdir"') == 1


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "there is nothing in it"),
        ("read\n", "x:1: the line does not say why"),
        ("read #\n", "x:1: the line does not say why"),
        ("# of\n\nRead # a\n", "x:3: 'Read' is no name"),
        ("rm -rf # a\n", "x:1: after rm comes"),
        ("read # a\nread # b\n", "x:2: read is in line 1 already"),
        ("read if 0 in 1 # a\nread # b\n", "x:2: read is in line 1 already"),
        ("read # a\n[cuda]\nread = EPERM # b\n", "x:3: read is in line 1 already"),
        ("[rocm]\n", "x:1: no driver 'rocm'"),
        ("read = 5 # a\n", "x:1: '5' is no name of an error"),
        ("read = # a\n", "x:1: '' is no name of an error"),
        ("read if # a\n", "x:1: after read comes"),
        ("read if 6 in 1 # a\n", "x:1: a condition begins with the number"),
        ("read if x in 1 # a\n", "x:1: a condition begins with the number"),
        ("read if 0 in # a\n", "x:1: a condition has no values"),
        ("read if 0 is 1 # a\n", "x:1: a condition is"),
        ("read if 0 & in 1 # a\n", "x:1: 'in' is neither"),
        ("read if 0 & 1 # a\n", "x:1: a condition is"),
        ("read if 0 in 1;exit(1) # a\n", "x:1: '1;exit(1)' is neither"),
        ("read if 0 in 01 # a\n", "x:1: '01' is neither"),
        ("read if 0 in 1 and 0 in 2 # a\n", "x:1: two conditions on one argument"),
        ("read if 0 in 1 and 1 in 2 and 2 in 3 and 3 in 4 # a\n", "x:1: too many conditions"),
    ],
)
def test_bad_lines(text: str, what: str) -> None:
    with pytest.raises(gen_filter.ListError) as error:
        gen_filter.parse(text, "x")
    assert what in str(error.value)


def _learned(counts: Path) -> Counter[tuple[str, str]]:
    with counts.open(encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the last that is watched has ended
        lines = [line.split() for line in file]
    found: Counter[tuple[str, str]] = Counter()
    for call, key, count in lines:
        found[call, key] += int(count)
    return found


def test_learning_counts_what_a_program_and_its_children_call(tmp_path: Path) -> None:
    learn = paths.find_home().part("libexec/gpupool-learn")
    counts = tmp_path / "counts"
    code = (
        "import os, socket, subprocess\n"
        "for _ in range(7): os.getppid()\n"
        "socket.socketpair()\n"
        "subprocess.run(['true'], check=True)\n"
    )
    done = subprocess.run([str(learn), str(counts), "--", sys.executable, "-c", code], check=False)
    assert done.returncode == 0
    found = _learned(counts)
    assert found["getppid", "-"] == 7
    assert found["socketpair", "0x1"] == 1
    assert found["exit_group", "-"] == 2  # its own and the child's


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a pid namespace like that")
def test_what_was_learned_is_kept_where_all_ends_with_the_program(tmp_path: Path) -> None:
    """As with the last worker of a lease: whoever is in its pid namespace is killed."""
    learn = paths.find_home().part("libexec/gpupool-learn")
    counts = tmp_path / "counts"
    command = ["unshare", "--pid", "--fork", str(learn), str(counts), "--", "true"]
    assert subprocess.run(command, check=False).returncode == 0
    assert _learned(counts)["exit_group", "-"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a pid namespace like that")
def test_what_was_learned_of_a_program_that_is_killed_is_kept(tmp_path: Path) -> None:
    """As a worker is that does not end in time, and with it all in its pid namespace."""
    learn = paths.find_home().part("libexec/gpupool-learn")
    counts = tmp_path / "counts"
    counts.touch()
    command = ["unshare", "--pid", "--fork", "--kill-child", str(learn), str(counts)]
    with subprocess.Popen([*command, "--", "sleep", "600"]) as running:
        try:
            while "clock_nanosleep" not in counts.read_text():  # it sleeps now
                time.sleep(0.01)
        finally:
            running.kill()
    assert _learned(counts)["clock_nanosleep", "-"] == 1


@pytest.mark.parametrize("arguments", [[], ["f"], ["f", "true"], ["f", "--"]])
def test_learning_says_how_it_is_called(arguments: list[str], tmp_path: Path) -> None:
    learn = paths.find_home().part("libexec/gpupool-learn")
    done = subprocess.run(
        [str(learn), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: gpupool-learn FILE -- PROGRAM")
