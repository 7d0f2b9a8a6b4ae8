"""The server's log: what becomes of a worker's lines."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import structlog

from gpupool_common import logs


@pytest.mark.parametrize(
    ("line", "level", "event"),
    [
        ("error: the driver does not start", "error", "the driver does not start"),
        ("warn: no client came: within 10 s", "warning", "no client came: within 10 s"),
        ("info: told to stop", "info", "told to stop"),
        ("debug: x", "debug", "x"),
        ("warning: of a library, which is not ours", "info", None),
        ("Error: of a library, too", "info", None),
        ("error:", "info", None),
        ("a line without any", "info", None),
        ("", "info", None),
        (json.dumps({"level": "error", "event": "of JSON"}), "error", "of JSON"),
        (json.dumps({"level": "absurd", "event": "of JSON"}), "info", "of JSON"),
        (json.dumps(["error"]), "info", None),
    ],
)
def test_a_worker_s_lines_keep_their_level(line: str, level: str, event: str | None) -> None:
    """Errors of workers were written down as information."""
    with structlog.testing.capture_logs() as captured:
        said = logs.forward_line(logs.get("worker"), line)
    assert said == (line if event is None else event)
    (entry,) = captured
    assert (entry["log_level"], entry["event"]) == (level, said)


def test_a_log_that_nobody_takes_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose log went to a pipe opened no session once the reader had gone."""
    before = structlog.get_config()
    try:
        with Path("/dev/full").open("w") as full:
            monkeypatch.setattr(sys, "stderr", full)
            logs.configure("info", as_json=False)
            logs.get("server").info("ready")
            with suppress(OSError):  # what is still to be written
                full.close()
            logs.get("server").error("after the end")
    finally:
        structlog.configure(**before)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_worker_that_says_too_much_is_cut_short() -> None:
    clock = Clock()
    meter = logs.Meter(clock)
    written = sum(meter.admit() for _ in range(100_000))
    assert written == meter.BURST
    assert meter.left_out() == 0, "there is no room to say so yet"
    clock.now += 1.0
    assert meter.left_out() == 100_000 - meter.BURST
    assert meter.left_out() == 0
    assert sum(meter.admit() for _ in range(100)) == meter.A_SECOND - 1
    clock.now += 1e6
    assert sum(meter.admit() for _ in range(1000)) == meter.BURST, "not more for having waited"


def test_lines_that_try_the_parser() -> None:
    """Whatever a worker writes, the server goes on."""
    with structlog.testing.capture_logs() as entries:
        for line in (
            "[" * 8000,
            '{"level": "x"}',
            '{"level": 7}',
            "null",
            '{"event": {}}',
            "\x1b[2J",
        ):
            assert isinstance(logs.forward_line(logs.get("worker"), line), str)
    assert len(entries) == 6
