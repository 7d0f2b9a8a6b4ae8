"""Every program, in every build, through the pool: it checks its own result."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from catalog import CARD_PROGRAMS, DRIVER_PROGRAMS, ONCE_PROGRAMS, RUNTIME_PROGRAMS, Program
from gpupool_common import paths
from harness import PoolServer, Result, run_program, wait_until
from tenants import MakeServer
from test_call_profile import names
from toolchain import VARIANTS, Toolchain

REAL = ("driver_contextless",)

# One variant goes over both transports: the runtime inside does not know which it is.
RUNS = [(p, v, "shm") for v in VARIANTS for p in RUNTIME_PROGRAMS]
RUNS += [(p, "static13", t) for t in ("tcp", "zmq") for p in RUNTIME_PROGRAMS]
RUNS += [(p, "static13", t) for t in ("shm", "tcp", "zmq") for p in ONCE_PROGRAMS]
RUNS += [(p, "driver", t) for t in ("shm", "tcp", "zmq") for p in DRIVER_PROGRAMS]
#: Those whose answers are a real driver's are asked of one, too.
MARKED = [
    pytest.param(*run, marks=[pytest.mark.real_gpu] if run[0].source in REAL else [])
    for run in RUNS
]


#: How often each driver program has called each function, by the library's own count.
CALLED: dict[str, Counter[str]] = {}


def passed(result: Result) -> bool:
    lines = result.stdout.splitlines()
    return result.returncode == 0 and bool(lines) and lines[-1].startswith("PASS ")


@pytest.mark.parametrize(
    ("program", "variant", "transport"), MARKED, ids=[f"{p.name}-{v}-{t}" for p, v, t in RUNS]
)
def test_program(
    program: Program, variant: str, transport: str, toolchain: Toolchain, server: PoolServer
) -> None:
    binary = program.build(toolchain, variant)
    result = server.run(program.command(binary), transport)
    assert passed(result), f"{result.explain()}\nserver:\n{server.log.read_text()[-2000:]}"
    if "_exit" not in program.arguments:  # which runs no exit handlers: no statistics either
        assert result.stats["transport"] == transport
    if variant == "driver":
        note_calls(program, result)


def note_calls(program: Program, result: Result) -> None:
    counts = {name: entry["count"] for name, entry in result.stats.get("calls", {}).items()}
    CALLED[program.name] = Counter(counts)


@pytest.fixture(scope="module")
def calls(toolchain: Toolchain, server: PoolServer) -> Counter[str]:
    """Of all driver programs; those that have not run in this process run now."""
    for program in DRIVER_PROGRAMS:
        if program.name not in CALLED:
            result = server.run(program.command(program.build(toolchain, "driver")))
            assert passed(result), f"{program.name}: {result.explain()}"
            note_calls(program, result)
    return sum(CALLED.values(), Counter[str]())


@pytest.mark.parametrize("name", names())
def test_a_program_calls_what_frameworks_do(name: str, calls: Counter[str]) -> None:
    assert calls[name] > 0, "no driver program calls it: add it to driver_profile.c"


def test_code_that_a_gpu_does_not_take_is_told(toolchain: Toolchain, server: PoolServer) -> None:
    """Once, with the driver's words: a program that looks at no error says nothing itself."""
    result = server.run([str(toolchain.driver_program("driver_jit"))])
    (line,) = result.own_lines()
    assert "cuModuleLoadData: CUDA_ERROR_INVALID_PTX: line 6" in line, result.explain()


@pytest.mark.parametrize("program", CARD_PROGRAMS, ids=lambda p: str(p.name))
def test_what_the_soft_gpu_refuses(
    program: Program, toolchain: Toolchain, make_server: MakeServer
) -> None:
    """The program ends with an error, and the server's log names what is missing."""
    server = make_server(**{"soft-gpus": "1"})  # whose log no other program has filled
    result = server.run(program.command(program.build(toolchain, "static13")))
    assert result.returncode == 1, result.explain()
    assert "): cudaError" in result.stdout
    missing = "Undefined reference to 'cudaGraph"
    wait_until(lambda: missing in server.log.read_text(), "the log named what is missing")


@pytest.mark.parametrize("program", DRIVER_PROGRAMS, ids=lambda p: str(p.name))
def test_with_every_call_waited_for(
    program: Program, toolchain: Toolchain, server: PoolServer
) -> None:
    result = server.run(program.command(program.build(toolchain, "driver")), GPUPOOL_SYNC="1")
    assert passed(result), result.explain()


def test_errors_in_a_log_file(toolchain: Toolchain, server: PoolServer, tmp_path: Path) -> None:
    """CUDA_LOG_FILE: a line for each call that fails, and why it is not supported."""
    log = tmp_path / "cuda.log"
    program = next(p for p in DRIVER_PROGRAMS if p.name == "driver_logs")
    result = server.run(program.command(program.build(toolchain, "driver")), CUDA_LOG_FILE=str(log))
    assert passed(result), result.explain()
    lines = log.read_text().splitlines()
    said = "Returning 1 (CUDA_ERROR_INVALID_VALUE) from "
    assert all("][CUDA][" in line for line in lines)
    assert sum(line.endswith(said + "cuMemAlloc_v2") for line in lines) == 605
    assert any(line.endswith(said + "cuLogsCurrent") for line in lines)


def test_printf_reaches_the_clients_output(toolchain: Toolchain, server: PoolServer) -> None:
    binary = toolchain.runtime_program("device_functions")
    result = server.run([str(binary)])
    expected = [f"thread {i}: {1.5 * i:5.2f} text c 0x123456789abc %" for i in range(3)]
    said = [line for line in result.stdout.splitlines() if line.startswith("thread ")]
    assert said == expected, result.explain()


@pytest.mark.parametrize(
    "program", [p for p in DRIVER_PROGRAMS if not p.ours], ids=lambda p: str(p.name)
)
def test_on_the_soft_gpu_itself(
    program: Program, toolchain: Toolchain, home: paths.Home, tmp_path: Path
) -> None:
    """The same program without the pool, so that a fault shows on which side it is."""
    (tmp_path / "libcuda.so.1").symlink_to(home.part(paths.SOFT_GPU))
    binary = program.build(toolchain, "driver")
    env = {"LD_LIBRARY_PATH": str(tmp_path), "GPUPOOL_SOFT_TIME": str(tmp_path)}
    result = run_program(program.command(binary), env)
    assert passed(result), result.explain()
