"""Each PTX case on the soft GPU gives what it gave on a real GPU, bit for bit.

A case with a formula or an error is held against that, too, and needs no recording.

`python tests/gpu/ptx.py --record tests/e2e/ptx_h200.json` makes the recording; without --record
it shows, on a machine with a GPU, the threads that differ.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ptx_table
from gpupool_common import paths
from harness import PoolServer
from ptx_cases import Case
from ptx_file import Outcome, differing, record, recorded, run_cases, show
from toolchain import Toolchain

RECORDING = Path(__file__).resolve().parent / "ptx_h200.json"
CASES = ptx_table.table()
SHOWN = 5

Outcomes = dict[str, Outcome]


def load_recording() -> dict[str, str]:
    assert RECORDING.exists(), f"{RECORDING.name} is not recorded yet: tests/gpu/ptx.py --record"
    loaded: dict[str, str] = json.loads(RECORDING.read_text(encoding="utf-8"))["cases"]
    return loaded


@pytest.fixture(scope="session")
def soft(
    toolchain: Toolchain, home: paths.Home, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    """Every case, once, on the soft GPU itself."""
    folder = tmp_path_factory.mktemp("softgpu")
    (folder / "libcuda.so.1").symlink_to(home.part(paths.SOFT_GPU))
    binary = toolchain.driver_program("ptx_bits")
    return run_cases(binary, CASES, {"LD_LIBRARY_PATH": str(folder)})


@pytest.fixture(scope="session")
def recording() -> dict[str, str]:
    return load_recording()


def test_the_recording_has_these_cases_and_no_others(recording: dict[str, str]) -> None:
    needed = {n for n, case in CASES.items() if case.formula is None and not case.error}
    assert needed - recording.keys() == set()
    assert recording.keys() - CASES.keys() == set()
    refused = [name for name, entry in recording.items() if entry.split()[1] == "error"]
    assert not refused, f"the real GPU refused {refused}: no case then, but a mistake in the table"


def follows(case: Case, got: Outcome, expected: Outcome) -> None:
    assert not got.error, f"CUDA error {got.error}\n{case.ptx}"
    wrong = [
        f"  thread {i}: {show(case.values[i])} -> {show(got.rows[i])},"
        f" expected {show(expected.rows[i])}"
        for i in differing(case, got, expected)
    ]
    assert not wrong, f"{len(wrong)} threads differ\n" + "\n".join(wrong[:SHOWN])


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, soft: Outcomes, recording: dict[str, str]) -> None:
    case, got = CASES[name], soft[name]
    if case.error:
        assert got.error == case.error, f"CUDA error {got.error}\n{case.ptx}"
        return
    if case.formula is not None:
        follows(case, got, Outcome(0, tuple(case.formula(case.values))))
    if name not in recording:
        assert case.formula is not None, "not recorded yet"
        return
    entry = recording[name]
    assert entry.split()[0] == case.digest, "the case has changed since it was recorded"
    assert not got.error, f"CUDA error {got.error}\n{case.ptx}"
    if case.exact:
        rows = zip(case.values[:SHOWN], got.rows[:SHOWN], strict=True)
        begin = "\n".join(f"  {show(values)} -> {show(row)}" for values, row in rows)
        assert record(case, got) == entry, f"other bits than recorded; it begins\n{begin}"
        return
    follows(case, got, recorded(case, entry))


def test_the_pool_changes_no_bit(soft: Outcomes, toolchain: Toolchain, server: PoolServer) -> None:
    binary = toolchain.driver_program("ptx_bits")
    pooled = run_cases(binary, CASES, server.environment("shm"))
    assert [name for name in CASES if pooled[name] != soft[name]] == []
