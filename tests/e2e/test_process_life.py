"""What a process may do beside CUDA, without a hang and without being ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import PoolServer, Result, Talk, wait_until
from test_programs import passed
from toolchain import Toolchain

pytestmark = pytest.mark.real_gpu


@pytest.fixture
def program(toolchain: Toolchain) -> str:
    return str(toolchain.driver_program("driver_process"))


def run(server: PoolServer, program: str, transport: str, *words: str) -> Result:
    result = server.run([program, *words], transport)
    assert passed(result), f"{result.explain()}\nserver:\n{server.log.read_text()[-2000:]}"
    return result


@pytest.mark.parametrize("microseconds", [0, 300, 1000, 3000, 10000, 30000])
def test_fork_while_another_thread_is_in_cuinit(
    server: PoolServer, program: str, transport: str, microseconds: int
) -> None:
    """The child waited for ever for a lock that the other thread had held."""
    run(server, program, transport, "fork", str(microseconds))


def test_a_thread_is_cancelled_inside_a_call(
    server: PoolServer, program: str, transport: str
) -> None:
    """It took locks and the right to read with it; calls are no cancellation points."""
    assert run(server, program, transport, "cancel").own_lines() == []


# While another thread is inside ZeroMQ, nothing can keep it from noticing (docs/limits.md).
CLOSING = [(how, t) for how in ("close", "close-waiting") for t in ("shm", "tcp")]
CLOSING += [("close", "zmq")]


@pytest.mark.parametrize(("case", "way"), CLOSING)
def test_the_program_closes_our_descriptors(
    server: PoolServer, program: str, case: str, way: str
) -> None:
    """libzmq aborted; shared memory used descriptors that had become the program's."""
    result = run(server, program, way, case)
    lines = result.own_lines()
    assert len(lines) == 1, result.explain()
    assert "the program has closed descriptors that were gpupool's" in lines[0], lines


def test_a_limit_of_the_size_of_files(server: PoolServer, program: str) -> None:
    """Memory files have it, too: the program was ended by SIGXFSZ. Now it goes over the network."""
    result = run(server, program, "", "file-limit")
    assert result.stats["transport"] == "tcp"
    assert "no managed memory: File too large" in result.own_lines()[0], result.explain()


def test_few_descriptors(server: PoolServer, program: str) -> None:
    """libzmq ended the program where it lacked one, or waited for ever."""
    run(server, program, "", "few-descriptors")


def test_few_threads(server: PoolServer, program: str) -> None:
    """libzmq ended the program where it could not start one."""
    lines = run(server, program, "", "few-threads").own_lines()
    assert len(lines) == 1 and "may start no further thread" in lines[0], lines


def test_a_small_stack(server: PoolServer, program: str, transport: str) -> None:
    """A launch had room on it for the most parameters that there can be: 32 KiB."""
    run(server, program, transport, "small-stack")


def test_a_handler_of_a_signal_interrupts_a_wait(
    server: PoolServer, program: str, transport: str
) -> None:
    """What it called, exit() too, waited for ever for the answer that its own thread reads."""
    run(server, program, transport, "interrupted")


def stands(pid: int) -> bool:
    """Whether a process has used no processor for a while."""

    def ticks() -> list[str]:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]

    before = ticks()
    time.sleep(0.1)
    return ticks() == before


def test_exit_in_a_handler_that_interrupts_an_upload(
    server: PoolServer, program: str, transport: str
) -> None:
    """Its farewell waited for a lock of the channel's that its own thread had."""
    before = server.worker_pids()  # which may end meanwhile
    with closing(Talk([program, "uploading"], server.environment(transport))) as talk:
        assert talk.line() == "copying"
        (worker,) = set(server.worker_pids()) - set(before)
        os.kill(worker, signal.SIGSTOP)
        try:
            wait_until(lambda: stands(talk.process.pid), "the upload stood")
            talk.process.send_signal(signal.SIGUSR1)
            assert passed(talk.finish())
        finally:
            os.kill(worker, signal.SIGCONT)


def test_nobody_has_the_standard_descriptors(
    server: PoolServer, program: str, transport: str
) -> None:
    """A daemon has closed them and prints all the same: that went into the session's connection."""
    run(server, program, transport, "close-standard")


#: As FFmpeg opens and closes the library. Managed memory has a handler for SIGSEGV, and addresses.
REOPEN = """
import _ctypes, ctypes

def call(name, *arguments):
    error = getattr(cuda, name)(*arguments)
    assert error == 0, (name, error)

context, memory = ctypes.c_void_p(), ctypes.c_uint64()
for _ in range(3):
    cuda = ctypes.CDLL("libcuda.so.1")
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAllocManaged", ctypes.byref(memory), ctypes.c_size_t(4096), 1)
    ctypes.memset(memory.value, 7, 4096)
    _ctypes.dlclose(cuda._handle)
ctypes.memset(memory.value, 8, 4096)
"""


def test_the_library_is_closed_and_opened_again(server: PoolServer, transport: str) -> None:
    result = server.run([sys.executable, "-c", REOPEN], transport)
    assert result.returncode == 0, result.explain()
    assert result.own_lines() == []


#: How large the largest part of this process's address space is.
LARGEST = """
import ctypes
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
spans = [line.split()[0].split("-") for line in open("/proc/self/maps")]
print(max(int(end, 16) - int(begin, 16) for begin, end in spans))
"""


def test_valgrind_is_spared_the_windows(server: PoolServer, tmp_path: Path) -> None:
    """Memcheck took minutes for what is only kept free; it preloads a library of such a name."""
    preloaded = tmp_path / "vgpreload_none.so"
    preloaded.symlink_to(server.home.part(paths.NVML_LIBRARY))
    for before, least, most in (("", 1 << 36, 1 << 47), (str(preloaded), 0, 1 << 36)):
        command = ["env", f"LD_PRELOAD={before}", sys.executable, "-c", LARGEST]
        result = server.run(command)
        assert least < int(result.stdout) < most, result.explain()
