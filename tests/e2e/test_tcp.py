"""What only TCP of our own has: TLS under a program that takes its descriptors away, and hosts
that lack OpenSSL."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpupool_common import paths
from gpupool_server.worker import ask_transports
from harness import PoolServer
from test_curve import assert_passes
from toolchain import Toolchain

ZMQ_PLUGIN = "libgpupool_zmq.so"


@pytest.fixture(scope="module")
def encrypting(home: paths.Home) -> Iterator[PoolServer]:
    server = PoolServer(curve="")
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("turn", range(5))
@pytest.mark.parametrize("case", ["close", "close-waiting"])
def test_descriptors_are_closed_under_tls(
    encrypting: PoolServer, toolchain: Toolchain, case: str, turn: int
) -> None:
    """Inside a call of another thread or not: one line, and neither a hang nor an abort."""
    program = str(toolchain.driver_program("driver_process"))
    result = encrypting.run([program, case], "tcp", GPUPOOL_SERVER=encrypting.address)
    assert result.returncode == 0, result.explain()
    (line,) = result.own_lines()
    assert "the program has closed descriptors that were gpupool's" in line


def test_a_client_takes_it_unasked(
    make_server: Callable[..., PoolServer], toolchain: Toolchain
) -> None:
    """Where there is no shared memory, and nobody has said anything about it."""
    server = make_server(**{"shm-listen": "none"})
    result = server.run([str(toolchain.runtime_program("vector_add"))], "")
    assert_passes(result, "vector_add")
    assert result.stats["transport"] == "tcp"


def test_a_client_without_openssl_takes_zmq(
    encrypting: PoolServer, toolchain: Toolchain, tmp_path: Path
) -> None:
    """As one of an earlier release does, which has no such plug-in either."""
    shutil.copy(encrypting.home.root / paths.PLUGINS / ZMQ_PLUGIN, tmp_path / ZMQ_PLUGIN)
    program = str(toolchain.runtime_program("vector_add"))
    where = encrypting.address
    result = encrypting.run([program], "tcp", GPUPOOL_PLUGINS=str(tmp_path), GPUPOOL_SERVER=where)
    assert_passes(result, "vector_add")
    assert result.stats["transport"] == "zmq"
    assert result.own_lines() == []


def test_a_worker_without_openssl_says_so(home: paths.Home, tmp_path: Path) -> None:
    """Its server asks before it starts one, and offers ZeroMQ."""
    program = home.part(paths.WORKER)
    assert ask_transports(program, home.root / paths.PLUGINS) == (["shm", "tcp", "zmq"], "")
    shutil.copy(home.root / paths.PLUGINS / ZMQ_PLUGIN, tmp_path)
    found, why = ask_transports(program, tmp_path)
    assert found == ["shm", "zmq"] and "libgpupool_tcp.so" in why


#: Copies there and back until other connections than the first have carried some, or time is up.
BULK = """
import ctypes, os, time
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *values):
    result = getattr(cuda, name)(*values)
    assert result == 0, (name, result)
def sockets():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.exists(at) and "socket:" in os.readlink(at) for at in links)
size, context, at = 5_000_003, ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
end = time.monotonic() + 20
for turn in range(10_000):
    there, back = os.urandom(size), ctypes.create_string_buffer(size)
    call("cuMemcpyHtoD_v2", at, there, ctypes.c_size_t(size))
    call("cuMemcpyDtoH_v2", back, at, ctypes.c_size_t(size))
    assert back.raw == there, turn
    wanted = int(os.environ.get("WANTED"))
    if turn > 3 and (sockets() == wanted or time.monotonic() > end):
        break
print(sockets())
"""


@pytest.mark.parametrize(("ours", "theirs", "sockets"), [("", 4, 5), ("8", 2, 3)])
def test_bulk_over_lanes(
    make_server: Callable[..., PoolServer], ours: str, theirs: int, sockets: int
) -> None:
    """As many as the less of both sides' settings, of a worker in its jail, encrypted."""
    server = make_server(curve="", **{"tcp-lanes": str(theirs)})
    result = server.run(
        [sys.executable, "-c", BULK],
        "tcp",
        GPUPOOL_SERVER=server.address,
        GPUPOOL_LANES=ours,
        WANTED=str(sockets),
    )
    assert result.returncode == 0, result.explain()
    assert result.stdout.strip() == str(sockets)
