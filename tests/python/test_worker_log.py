"""What a worker writes, however much it is, costs the server little and fills no disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from gpupool_common import logs
from gpupool_server import worker_log
from gpupool_server.budget_settings import BudgetSettings
from gpupool_server.worker import FIFO_BYTES, open_fifo
from gpupool_server.worker_log import WINDOW_BYTES, LineReader, WorkerLogs
from server_harness import eventually


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    end = open_fifo(path)
    yield path, end
    os.close(end)


@pytest.fixture
def entries() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


def flood(end: int, text: bytes, most: int = 1 << 22) -> int:
    """Write as a worker does, without waiting: what the FIFO took."""
    taken = 0
    while taken < most:
        try:
            taken += os.write(end, text)
        except BlockingIOError:
            break
    return taken


def settings(**changes: object) -> BudgetSettings:
    return BudgetSettings.model_validate(changes)


async def test_lines_come_whole_and_in_order(fifo: tuple[Path, int]) -> None:
    path, end = fifo
    got: list[str] = []
    reader = LineReader(path, got.append, lambda count: count)
    for text in (b"one\ntw", b"o\n\nthree\r\n", b"x" * 9000 + b"\nlast"):
        os.write(end, text)
    await eventually(lambda: len(got) == 4)
    reader.close()
    assert got[:3] == ["one", "two", "three"] and len(got[3]) == 8192 and got[4] == "last"


async def test_a_flood_is_read_in_windows(fifo: tuple[Path, int]) -> None:
    """Between two windows the FIFO is full, and refuses what comes."""
    path, end = fifo
    looked_at: list[int] = []

    def admit(count: int) -> int:
        looked_at.append(count)
        return 0

    reader = LineReader(path, lambda _: None, admit)
    full = flood(end, b"x\n" * 2048)
    await eventually(lambda: bool(looked_at))
    for _ in range(50):  # it is asked to read as often as it likes
        await asyncio.sleep(0)
    assert sum(looked_at) * 2 <= WINDOW_BYTES < full
    reader.close()


async def test_a_worker_that_writes_on_does_not_keep_the_server(fifo: tuple[Path, int]) -> None:
    path, end = fifo
    got: list[str] = []
    reader = LineReader(path, got.append, lambda count: count)
    flood(end, b"y\n" * 2048)
    admitted = len(got)
    reader._admit = lambda count: flood(end, b"z\n" * 2048) and count  # writes while it is read
    reader.close()
    assert len(got) - admitted <= FIFO_BYTES


async def test_a_flood_hides_no_last_word(fifo: tuple[Path, int], entries: list[Any]) -> None:
    path, end = fifo
    log = WorkerLogs(settings()).of("red", "abc", "")
    reader = LineReader(path, log.pass_on, log.admit, log.note_last)
    os.write(end, b"error: noise\n" * (logs.Meter.BURST + 100) + b"error: ptrace was refused\n")
    await eventually(lambda: log.dropped > 0)
    reader.close()
    assert "ptrace was refused" not in {entry["event"] for entry in entries}
    assert log.last == "ptrace was refused"


def test_a_session_has_so_many_lines(entries: list[Any]) -> None:
    log = WorkerLogs(settings(session_log_lines=150)).of("red", "abc", "")
    passed = sum(log.admit(1) for _ in range(1000))
    assert (passed, log.lines, log.dropped) == (150, 150, 850)
    (said,) = entries
    assert said["limit"] == 150 and said["setting"] == "session_log_lines"
    log.over()
    assert entries[1]["count"] == 850
    log.over()
    assert len(entries) == 2, "once"


def test_a_batch_is_cut_where_the_room_ends() -> None:
    log = WorkerLogs(settings()).of("red", "abc", "")
    assert log.admit(10_000_000) == logs.Meter.BURST
    assert log.dropped == 10_000_000 - logs.Meter.BURST


def test_the_sessions_of_a_tenant_share() -> None:
    made = WorkerLogs(settings(session_log_rate=0.1))
    assert [made.of("red", str(n), "").admit(1000) for n in range(6)] == [200] * 4 + [0] * 2
    assert made.of("blue", "b", "").admit(1000) == 200, "another tenant has its own"


def test_tenants_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_log, "MOST_TENANTS", 3)
    made = WorkerLogs(settings())
    for n in range(100):
        made.of(f"tenant-{n}", "abc", "")
    assert len(made._tenants) == 3


def test_output_where_there_is_none_is_metered_too(entries: list[Any]) -> None:
    log = WorkerLogs(settings()).of("red", "abc", "")
    for _ in range(10_000):
        log.unexpected("boo")
    # It lets a few more in while this runs: ten a second.
    assert logs.Meter.BURST <= len(entries) < 2 * logs.Meter.BURST
