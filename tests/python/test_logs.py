"""The server's log: what becomes of a worker's lines."""

from __future__ import annotations

import json

import pytest
import structlog

from gpupool_server import logs


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
