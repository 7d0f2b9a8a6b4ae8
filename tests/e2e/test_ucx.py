"""Programs over UCX: its own tcp, by the loopback. RDMA devices take the same way."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import (
    TOKEN,
    PoolServer,
    Result,
    Talk,
    alive,
    client_environment,
    run_program,
    wait_until,
)
from test_curve import assert_passes
from test_failures import assert_refused, step
from toolchain import Toolchain

VARIABLE = "GPUPOOL_UCX_LIBRARY"
StartTalk = Callable[[list[str], dict[str, str]], Talk]

#: What a channel can do wrong in a program's process, beside copies and graphs.
PROGRAMS = (
    "driver_both_ways",
    "driver_copies",
    "driver_exit",
    "driver_fork",
    "driver_graph",
    "driver_pinned",
    "driver_streams",
)


def library() -> str:
    """Where UCX is; skips where it is not."""
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    spec = importlib.util.find_spec("libucx")
    if spec is None or spec.origin is None:
        pytest.skip("no UCX here: pip install libucx-cu12")
    return str(Path(spec.origin).parent / "lib")


@pytest.fixture(scope="module")
def serving(home: paths.Home) -> Iterator[PoolServer]:
    server = PoolServer(ucx="", **{"ucx-library": f"{library()}/libucp.so.0"})
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(serving: PoolServer, toolchain: Toolchain, name: str) -> None:
    result = serving.run(
        [str(toolchain.driver_program(name))], "ucx", GPUPOOL_UCX_LIBRARY=library()
    )
    assert_passes(result, name)
    assert result.stats["transport"] == "ucx"


def test_a_program_of_the_runtime(serving: PoolServer, toolchain: Toolchain) -> None:
    program = str(toolchain.runtime_program("vector_add"))
    assert_passes(serving.run([program], "ucx", GPUPOOL_UCX_LIBRARY=library()), "vector_add")


def test_several_servers(
    serving: PoolServer, make_server: Callable[..., PoolServer], toolchain: Toolchain
) -> None:
    """Each session has a channel of its own; their workers speak ZeroMQ to each other."""
    other = make_server(ucx="", **{"ucx-library": f"{library()}/libucp.so.0"})
    program = str(toolchain.driver_program("driver_hosts"))
    both = f"{serving.address},{other.address}"
    result = serving.run([program, "1"], "ucx", GPUPOOL_SERVER=both, GPUPOOL_UCX_LIBRARY=library())
    assert_passes(result, "driver_hosts")


def held(server: PoolServer, talk: StartTalk, toolchain: Toolchain) -> tuple[Talk, int]:
    """A program with a session, and its worker."""
    before = set(server.worker_pids())
    hold = str(toolchain.runtime_program("hold"))
    program = talk([hold], server.environment("ucx", GPUPOOL_UCX_LIBRARY=library()))
    assert program.line() == "ready"
    (worker,) = set(server.worker_pids()) - before
    return program, worker


def test_a_killed_worker(serving: PoolServer, talk: StartTalk, toolchain: Toolchain) -> None:
    program, worker = held(serving, talk, toolchain)
    step(program, 1)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not alive(worker), "the worker ended")
    program.say("go")
    result = program.finish()
    assert result.stdout.startswith("gone "), result.explain()
    (line,) = result.own_lines()
    assert "the connection to the worker was lost" in line


def test_a_killed_client(serving: PoolServer, talk: StartTalk, toolchain: Toolchain) -> None:
    program, worker = held(serving, talk, toolchain)
    step(program, 1)
    program.process.kill()
    wait_until(lambda: not alive(worker), "the worker of a killed client ended")


def test_descriptors_are_closed(serving: PoolServer, toolchain: Toolchain) -> None:
    """As a daemon does: UCX's are among them, and it is not called any more."""
    program = str(toolchain.driver_program("driver_process"))
    result = serving.run([program, "close"], "ucx", GPUPOOL_UCX_LIBRARY=library())
    assert result.returncode == 0, result.explain()
    (line,) = result.own_lines()
    assert "the program has closed descriptors that were gpupool's" in line


def test_a_server_that_does_not_offer_it(server: PoolServer, toolchain: Toolchain) -> None:
    program = str(toolchain.runtime_program("vector_add"))
    result = server.run([program], "ucx", GPUPOOL_UCX_LIBRARY=library())
    assert_refused(result, "GPUPOOL_TRANSPORT=ucx", "does not offer it")


def test_a_client_without_ucx(server: PoolServer, toolchain: Toolchain, tmp_path: Path) -> None:
    """It says what to install, before it asks for a session."""
    program = str(toolchain.runtime_program("vector_add"))
    result = server.run([program], "ucx", GPUPOOL_UCX_LIBRARY=str(tmp_path / "libucp.so.0"))
    assert_refused(result, "pip install libucx-cu12", str(tmp_path))


#: A program that has UCX of its own, with all its settings: a context of it, then CUDA, or the
#: other way round.
BESIDE = """
import ctypes, sys

def load_ucx():
    ucp = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    config, context = ctypes.c_void_p(), ctypes.c_void_p()
    assert ucp.ucp_config_read(None, None, ctypes.byref(config)) == 0
    params = (ctypes.c_uint64 * 32)(1, 64)
    assert ucp.ucp_init_version(1, 20, params, config, ctypes.byref(context)) == 0

def use_cuda():
    cuda = ctypes.CDLL("libcuda.so.1")
    if (error := cuda.cuInit(0)) != 0:
        print("cuInit", error)
        return
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), 1 << 20) == 0
    assert cuda.cuCtxSynchronize() == 0

steps = [load_ucx, use_cuda]
for step in steps if sys.argv[2] == "before" else reversed(steps):
    step()
print("PASS beside")
"""


def beside(serving: PoolServer, when: str) -> Result:
    env = client_environment(serving.home, serving.address, TOKEN, "ucx")
    ucp = f"{library()}/libucp.so.0"
    return run_program([sys.executable, "-c", BESIDE, ucp, when], {**env, VARIABLE: library()}, 60)


def test_a_program_that_uses_ucx_later(serving: PoolServer) -> None:
    result = beside(serving, "behind")
    assert result.returncode == 0, result.explain()
    assert result.stdout == "PASS beside\n"


def test_a_program_that_uses_ucx_before(serving: PoolServer) -> None:
    """It may be in UCX's own start that CUDA is asked for: a line, and no hang."""
    result = beside(serving, "before")
    assert result.returncode == 0, result.explain()
    assert result.stdout == "cuInit 100\nPASS beside\n"
    assert all("this program has loaded UCX itself" in line for line in result.own_lines())
    assert result.own_lines()
