"""The files between the table of PTX cases, the program that runs them, and the recording."""

from __future__ import annotations

import hashlib
import math
import struct
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness import Result, run_program
from ptx_cases import Case

WORD = 8


@dataclass(frozen=True)
class Outcome:
    """What one case gave: a CUresult and, where that is 0, words by thread and output."""

    error: int
    rows: tuple[tuple[int, ...], ...] = ()

    @property
    def words(self) -> list[int]:
        return [word for row in self.rows for word in row]

    @property
    def digest(self) -> str:
        words = self.words
        return hashlib.sha256(struct.pack(f"<{len(words)}Q", *words)).hexdigest()


class BadOutput(Exception):
    """The program did not write what was asked of it."""


def write_input(path: Path, cases: Iterable[Case]) -> None:
    parts = []
    for case in cases:
        text = case.ptx.encode()
        shape = (len(text), case.threads, case.block, len(case.inputs), len(case.outputs))
        parts += [struct.pack("<5I", *shape) + text + case.data]
    path.write_bytes(b"PTXBITS1" + struct.pack("<I", len(parts)) + b"".join(parts))


def read_output(path: Path, cases: Iterable[Case]) -> dict[str, Outcome]:
    """The outcomes of the first of the cases, at least of one."""
    listed = list(cases)
    data = path.read_bytes()
    done = struct.unpack_from("<I", data, 8)[0] if data[:8] == b"PTXBOUT1" else 0
    if not 1 <= done <= len(listed):
        raise BadOutput(f"{path} does not hold the output of {len(listed)} cases")
    outcomes, at = {}, 12
    try:
        for case in listed[:done]:
            (error,) = struct.unpack_from("<I", data, at)
            at += 4
            rows: tuple[tuple[int, ...], ...] = ()
            if error == 0:
                width = len(case.outputs)
                flat = struct.unpack_from(f"<{case.threads * width}Q", data, at)
                at += WORD * len(flat)
                rows = tuple(flat[i : i + width] for i in range(0, len(flat), width))
            outcomes[case.name] = Outcome(error, rows)
    except struct.error as wrong:
        raise BadOutput(f"{path} ends too early") from wrong
    if at != len(data):
        raise BadOutput(f"{path} holds more than {done} cases")
    return outcomes


def run_cases(
    binary: Path, cases: Mapping[str, Case], env: Mapping[str, str], timeout: float = 300.0
) -> dict[str, Outcome]:
    """Run the program over all cases, and again over those behind one that lost its context."""
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch) / "cases", Path(scratch) / "output"
        while rest := [case for case in cases.values() if case.name not in outcomes]:
            write_input(source, rest)
            target.unlink(missing_ok=True)
            result: Result = run_program([str(binary), str(source), str(target)], env, timeout)
            if result.returncode != 0 or not target.exists():
                raise BadOutput(f"ptx_bits failed: {result.explain()}")
            outcomes |= read_output(target, rest)
    return outcomes


FORMATS = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "f64": (64, 52)}


def _number(bits: int, width: int, fraction: int) -> float:
    if width == 64:
        return float(struct.unpack("<d", struct.pack("<Q", bits))[0])
    if fraction == 10:
        return float(struct.unpack("<e", struct.pack("<H", bits))[0])
    return float(struct.unpack("<f", struct.pack("<I", bits << (32 - width)))[0])


def _near(case: Case, output: str, got: int, expected: int) -> bool:
    if got == expected:
        return True
    if output.endswith("x2"):
        half = output[:-2]
        return _near(case, half, got & 0xFFFF, expected & 0xFFFF) and _near(
            case, half, got >> 16, expected >> 16
        )
    if output not in FORMATS:
        return False
    width, fraction = FORMATS[output]
    a, b = _number(got, width, fraction), _number(expected, width, fraction)
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    sign = 1 << (width - 1)
    steps = [-(v & (sign - 1)) if v & sign else v for v in (got, expected)]
    if abs(steps[0] - steps[1]) <= case.ulp:
        return True
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= case.absolute


def agree(case: Case, got: Iterable[int], expected: Iterable[int]) -> bool:
    """Whether the words of one thread agree, as far as the case demands."""
    return all(
        _near(case, output, g, e) for output, g, e in zip(case.outputs, got, expected, strict=True)
    )


def differing(case: Case, got: Outcome, expected: Outcome) -> list[int]:
    """The threads whose outputs differ."""
    pairs = enumerate(zip(got.rows, expected.rows, strict=True))
    return [i for i, (g, e) in pairs if not agree(case, g, e)]


def show(words: Iterable[int]) -> str:
    return " ".join(f"{word:x}" for word in words)


def record(case: Case, outcome: Outcome) -> str:
    """An entry of the recording: what is needed to judge another outcome, and no more."""
    if outcome.error:
        return f"{case.digest} error {outcome.error}"
    if case.exact:
        return f"{case.digest} sha256 {outcome.digest}"
    return f"{case.digest} words {show(outcome.words)}"


def recorded(case: Case, entry: str) -> Outcome:
    """The outcome of an approximate case, out of its entry."""
    words = [int(word, 16) for word in entry.split()[2:]]
    width = len(case.outputs)
    return Outcome(0, tuple(tuple(words[i : i + width]) for i in range(0, len(words), width)))
