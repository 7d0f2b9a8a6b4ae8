"""A driver that makes a system call which no worker makes: what becomes of it, and who says so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import PoolServer, Result, wait_until
from tenants import MakeServer
from toolchain import Toolchain

#: In front of the soft GPU: the same, but that an allocation asks for the personality first.
SHIM = """
#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

int cuMemCreate(unsigned long long *handle, size_t size, const void *what, unsigned long long flags)
{
    int (*next)(unsigned long long *, size_t, const void *, unsigned long long);
    *(void **)&next = dlsym(RTLD_NEXT, "cuMemCreate");
    syscall(SYS_personality, 0xffffffffUL);
    return next(handle, size, what, flags);
}
"""


@pytest.fixture
def shimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation whose driver is that one."""
    home = tmp_path / "home"
    shutil.copytree(paths.find_home().root, home)
    driver = home / paths.SOFT_GPU
    whole = driver.with_name("libwhole.so")
    source = tmp_path / "shim.c"
    source.write_text(SHIM)
    empty = tmp_path / "empty.c"
    empty.write_text("")
    flags = ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-Wall", "-Werror", "-Wl,--no-as-needed"]
    driver.rename(tmp_path / "kept")
    # Linked to one of that name, because the soft GPU says that its own is another.
    subprocess.run([*flags, "-Wl,-soname,libwhole.so", "-o", whole, empty], check=True)
    rpath = f"-Wl,-rpath,{whole.parent}"
    subprocess.run([*flags, rpath, "-o", driver, source, whole, "-ldl"], check=True)
    shutil.move(tmp_path / "kept", whole)
    monkeypatch.setenv("GPUPOOL_HOME", str(home))
    return home


def run(server: PoolServer, toolchain: Toolchain) -> Result:
    return server.run([str(toolchain.runtime_program("vector_add"))], "shm")


def test_enforced_it_ends_the_worker_and_is_named(
    shimmed: Path, make_server: MakeServer, toolchain: Toolchain
) -> None:
    server = make_server(**{"data-listen": "none"})
    result = run(server, toolchain)
    assert result.returncode > 0, result.explain()
    wait_until(lambda: "a system call was refused" in server.log.read_text(), "the log names it")
    (line,) = [x for x in server.log.read_text().splitlines() if "call was refused" in x]
    assert "personality" in line and "workers.list" in line


def test_logged_it_is_let_through(
    shimmed: Path, make_server: MakeServer, toolchain: Toolchain
) -> None:
    server = make_server(**{"data-listen": "none", "seccomp": "log"})
    result = run(server, toolchain)
    assert result.returncode == 0, result.explain()
    assert "was refused" not in server.log.read_text()
    assert re.search(r" off='?[a-z,-]*seccomp", server.log.read_text())  # nothing is refused


def test_learned_it_is_let_through_and_written_down(
    shimmed: Path, make_server: MakeServer, toolchain: Toolchain, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    server = make_server(**{"data-listen": "none", "learn-syscalls": str(calls)})
    result = run(server, toolchain)
    assert result.returncode == 0, result.explain()

    def learned() -> set[str]:
        return {line.split()[0] for line in calls.read_text().splitlines()}

    assert {"execve", "mmap", "personality"} <= learned()  # each before it was made


def kernel_log() -> str | None:
    done = subprocess.run(["dmesg"], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel's log is root's")
def test_logged_the_kernels_log_names_it(
    shimmed: Path, make_server: MakeServer, toolchain: Toolchain
) -> None:
    actions = Path("/proc/sys/kernel/seccomp/actions_logged")
    if kernel_log() is None or not actions.exists() or "log" not in actions.read_text().split():
        pytest.skip("this kernel logs nothing of seccomp's that could be read")
    server = make_server(**{"data-listen": "none", "seccomp": "log"})
    before = (kernel_log() or "").count("type=1326")
    assert run(server, toolchain).returncode == 0
    lines = [x for x in (kernel_log() or "").splitlines() if "type=1326" in x][before:]
    if not lines:
        pytest.skip("this kernel was built without audit")
    assert any("gpupool-worker" in line for line in lines)
