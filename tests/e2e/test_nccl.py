"""NCCL through our libnccl.so.2: the soft GPU's small NCCL makes the sums, in the workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import PATIENCE, PoolServer, Result, run_program, wait_until
from toolchain import Toolchain

Servers = tuple[PoolServer, PoolServer]


@pytest.fixture(scope="module")
def server(home: paths.Home) -> Iterator[PoolServer]:
    server = PoolServer(**{"soft-gpus": "2"})
    try:
        server.start()
        yield server
    finally:
        server.close()


def run_ranks(
    toolchain: Toolchain,
    servers: Servers,
    folder: Path,
    mode: str = "",
    transport: str = "shm",
    devices: tuple[str, str] = ("0", "1"),
) -> list[Result]:
    """Two ranks, a process each; how they ended."""
    program = str(toolchain.driver_program("nccl_ranks"))
    started = []
    for rank, server in enumerate(servers):
        stats = folder / f"stats-{rank}.json"
        env = server.environment(transport, GPUPOOL_STATS=str(stats), E2E_DEVICE=devices[rank])
        command = [program, str(rank), str(folder / "id"), *filter(None, [mode])]
        started.append(
            subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    results = []
    for process in started:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += "\nit hangs"
        results.append(Result(process.returncode, out, err))
    return results


def expect_pass(results: list[Result]) -> None:
    said = "\n".join(result.explain() for result in results)
    assert [r.stdout for r in results] == ["PASS nccl_ranks\n"] * len(results), said


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_two_processes(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path, transport: str
) -> None:
    expect_pass(run_ranks(toolchain, (server, server), tmp_path, transport=transport))


def test_two_devices_of_a_process(toolchain: Toolchain, server: PoolServer) -> None:
    result = server.run([str(toolchain.driver_program("nccl_devices"))])
    assert (result.returncode, result.stdout) == (0, "PASS nccl_devices\n"), result.explain()


def test_a_rank_that_dies(toolchain: Toolchain, server: PoolServer, tmp_path: Path) -> None:
    """The other hears of it, and neither it nor its stream waits for ever."""
    alive, dead = run_ranks(toolchain, (server, server), tmp_path, "dies")
    assert dead.returncode == 0, dead.explain()
    assert alive.stdout == "PASS nccl_ranks\n", alive.explain()


def test_a_rank_that_dies_where_nothing_breaks(
    toolchain: Toolchain, home: paths.Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over NVLink: NCCL does not notice, the server does, which knows all of its workers."""
    monkeypatch.setenv("NCCL_SOFT_DEAF", "1")
    deaf = PoolServer(**{"soft-gpus": "2"})
    try:
        deaf.start()
        alive, dead = run_ranks(toolchain, (deaf, deaf), tmp_path, "dies")
        assert dead.returncode == 0, dead.explain()
        assert alive.stdout == "PASS nccl_ranks\n", alive.explain()
        said = b"a process that had a rank of it has ended"
        wait_until(lambda: said in deaf.log.read_bytes(), "the worker's line came to the log")
    finally:
        deaf.close()


def test_what_has_been_before_is_not_waited_for(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path
) -> None:
    """Two hundred collectives, and as many round trips as for a few."""
    results = run_ranks(toolchain, (server, server), tmp_path, "warm")
    expect_pass(results)
    for rank in (0, 1):
        stats = json.loads((tmp_path / f"stats-{rank}.json").read_text())
        assert stats["round_trips"] < 40, stats


def test_two_hosts(toolchain: Toolchain, home: paths.Home, tmp_path: Path) -> None:
    """Servers that have a key in common: ranks meet, and workers speak to each other."""
    settings = {"confinement": "off"}  # without a pool no lease joins the jails of two servers
    servers = (PoolServer(**settings), PoolServer(**settings))
    try:
        for one in servers:
            one.start()
        expect_pass(run_ranks(toolchain, servers, tmp_path, devices=("0", "0")))
    finally:
        for one in servers:
            one.close()


def test_ranks_of_another_lease_cannot_join(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path
) -> None:
    """Without the key that sealed it an id is none."""
    (tmp_path / "key").write_text("ab" * 32)
    (tmp_path / "key").chmod(0o600)
    other = PoolServer(**{"peer-key": str(tmp_path / "key")})
    try:
        other.start()
        program = [str(toolchain.driver_program("nccl_ranks"))]
        (tmp_path / "id").write_bytes(unique_id(server))
        result = other.run([*program, "1", str(tmp_path / "id")])
        assert result.returncode == 1, result.explain()
        assert "not of this lease" in result.stdout, result.explain()
    finally:
        other.close()


def unique_id(server: PoolServer) -> bytes:
    """As a program of that server gets one."""
    code = (
        "import ctypes, sys; n = ctypes.CDLL('libnccl.so.2'); b = ctypes.create_string_buffer(128);"
        " assert n.ncclGetUniqueId(b) == 0; sys.stdout.write(b.raw.hex())"
    )
    result = server.run([sys.executable, "-c", code])
    assert result.returncode == 0, result.explain()
    return bytes.fromhex(result.stdout)


def test_the_launcher_preloads_it(home: paths.Home) -> None:
    """PyTorch names a library of its own by an RPATH."""
    base = [sys.executable, "-m", "gpupool", "run", "--local", "--soft", "--"]
    maps = run_program([*base, "cat", "/proc/self/maps"])
    assert str(home.part(paths.NCCL)) in maps.stdout, maps.explain()


def test_a_host_without_nccl(toolchain: Toolchain, tmp_path: Path) -> None:
    """An error of NCCL's, and a line that says what to do."""
    nothing = tmp_path / "libnccl.so.2"
    nothing.touch()
    other = PoolServer(nccl=str(nothing))
    try:
        other.start()
        program = str(toolchain.driver_program("nccl_ranks"))
        result = other.run([program, "0", str(tmp_path / "id")])
        assert result.returncode == 1
        assert "unhandled system error" in result.stdout, result.explain()
        assert "its server's setting `nccl` names one" in result.stderr, result.explain()
    finally:
        other.close()
