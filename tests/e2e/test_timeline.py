"""GPUPOOL_TIMELINE: events that Perfetto reads, of all processes and however they end."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import PoolServer, Talk, run_program
from toolchain import Toolchain

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "client-guide.md"

Event = dict[str, Any]

#: How far two clocks may be apart, told by round trips on a machine with other work: a bound
#: for what must not be wrong by seconds, no figure of merit.
CLOCKS_US = 1e6


def read_timeline(path: Path) -> list[Event]:
    """Its events: an array that lacks its closing bracket, and nothing else."""
    events: list[Event] = json.loads(path.read_text(encoding="utf-8") + "]")
    for event in events:
        assert event["ph"] in ("M", "X"), event
        assert event["ph"] == "M" or event["dur"] >= 0, event
    return events


def of(events: list[Event], category: str) -> list[Event]:
    return [event for event in events if event.get("cat") == category]


def within(inner: Event, outer: Event) -> bool:
    """Times have three digits behind the point: half of the last is rounding."""
    return (
        (inner["pid"], inner["tid"]) == (outer["pid"], outer["tid"])
        and inner["ts"] >= outer["ts"] - 0.002
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 0.002
    )


def test_calls_messages_and_waits(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path, transport: str
) -> None:
    path = tmp_path / "timeline.json"
    binary = toolchain.driver_program("driver_module")
    result = server.run([str(binary)], transport, GPUPOOL_TIMELINE=str(path))
    assert result.returncode == 0, result.explain()
    events = read_timeline(path)
    names = Counter(event["name"] for event in of(events, "call"))
    for name, entry in result.stats["calls"].items():
        if name.startswith("cu"):
            assert names[name] == entry["count"], name
    waits = result.stats["round_trips"] + result.stats["gpu_waits"]
    assert len(of(events, "wait")) == waits
    assert not result.stats["not_on_server"]
    # hello goes by another way, and goodbye is behind the last event of a call
    sent = of(events, "message")
    assert 0 <= result.stats["messages_sent"] - len(sent) <= 1
    launches = [event for event in of(events, "call") if event["name"] == "cuLaunchKernel"]
    for launch in launches:
        assert [m["name"] for m in sent if within(m, launch)], "a launch sends a message"
    failed = [e["args"]["result"] for e in of(events, "call") if "args" in e]
    assert failed == [500, 500, 1, 1]  # as test_trace has them by name


def test_what_the_gpu_did(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path, transport: str
) -> None:
    """Kernels and copies, each within the time from its call to the end of the program."""
    path = tmp_path / "timeline.json"
    binary = toolchain.driver_program("driver_module")
    result = server.run([str(binary)], transport, GPUPOOL_TIMELINE=str(path))
    assert result.returncode == 0, result.explain()
    events = read_timeline(path)
    kernels = of(events, "kernel")
    assert len(kernels) == result.stats["calls"]["cuLaunchKernel"]["count"]
    assert kernels[0]["name"] == "use_globals"
    assert [k["args"]["block"] for k in kernels] == [[32, 1, 1]] * 3
    assert [k["args"]["grid"] for k in kernels] == [[1, 1, 1], [2, 1, 1], [2, 1, 1]]
    sent = {m["args"]["seq"]: m for m in of(events, "message")}
    for kernel in kernels:
        message = sent[kernel["args"]["seq"]]
        assert "aunch" in message["name"]
        assert kernel["ts"] + kernel["dur"] >= message["ts"] - CLOCKS_US
    assert any(c["args"]["bytes"] == 128 for c in of(events, "copy"))
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {k["tid"] for k in kernels} <= set(tracks)
    assert all(re.fullmatch(r"GPU 0, stream \d+", name) for name in tracks.values())


def test_threads_have_tracks_of_their_own(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path
) -> None:
    path = tmp_path / "timeline.json"
    result = server.run([str(toolchain.runtime_program("threads"))], GPUPOOL_TIMELINE=str(path))
    assert result.returncode == 0, result.explain()
    events = read_timeline(path)
    assert len({event["tid"] for event in of(events, "call")}) > 2
    waits = of(events, "wait")
    assert len({wait["tid"] for wait in waits}) > 1
    calls = of(events, "call")
    last = max(call["ts"] + call["dur"] for call in calls)
    for wait in waits:  # but for the one at the end, for what the GPU did
        assert wait["ts"] > last or any(within(wait, call) for call in calls), wait


def test_a_child_writes_to_the_same_file(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path
) -> None:
    path = tmp_path / "timeline.json"
    binary = toolchain.driver_program("driver_fork")
    result = server.run([str(binary)], GPUPOOL_TIMELINE=str(path))
    assert result.returncode == 0, result.explain()
    events = read_timeline(path)
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(named) == 2 and len(set(named.values())) == 1
    by_process = Counter(event["pid"] for event in of(events, "call"))
    assert set(by_process) == set(named)
    youngest = min(by_process, key=by_process.__getitem__)
    child = [event for event in of(events, "call") if event["pid"] == youngest]
    assert [e["args"]["result"] for e in child] == [3, 3, 3, 3]  # NOT_INITIALIZED


def test_a_second_program_goes_on_behind_the_first(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path
) -> None:
    path = tmp_path / "timeline.json"
    binary = toolchain.driver_program("driver_module")
    for _ in range(2):
        assert server.run([str(binary)], GPUPOOL_TIMELINE=str(path)).returncode == 0
    events = read_timeline(path)
    assert len({e["pid"] for e in events if e["name"] == "process_name"}) == 2


def test_a_killed_program_has_left_its_events(
    toolchain: Toolchain,
    server: PoolServer,
    tmp_path: Path,
    talk: Callable[[list[str], dict[str, str]], Talk],
) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        path = tmp_path / how.name
        program = talk(
            [str(toolchain.runtime_program("hold"))],
            server.environment("shm", GPUPOOL_TIMELINE=str(path)),
        )
        assert program.line() == "ready"
        program.say("go")
        assert program.line() == "step 1"
        program.process.send_signal(how)
        assert program.process.wait(60) == -how
        names = [event["name"] for event in of(read_timeline(path), "call")]
        assert "cuLaunchKernel" in names and "cuMemcpyDtoH_v2" in names


def test_the_file_has_a_bound(toolchain: Toolchain, server: PoolServer, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    binary = toolchain.runtime_program("threads")
    result = server.run(
        [str(binary)], GPUPOOL_TIMELINE=str(path), GPUPOOL_TIMELINE_BYTES=str(1 << 17)
    )
    assert result.returncode == 0, result.explain()
    read_timeline(path)
    assert path.stat().st_size == 1 << 17
    said = [line for line in result.own_lines() if "GPUPOOL_TIMELINE_BYTES" in line]
    assert len(said) == 1


def test_a_file_that_cannot_be_written(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path
) -> None:
    path = tmp_path / "none" / "timeline.json"
    binary = toolchain.driver_program("driver_module")
    result = server.run([str(binary)], GPUPOOL_TIMELINE=str(path))
    assert result.returncode == 0, result.explain()
    said = [line for line in result.own_lines() if "GPUPOOL_TIMELINE" in line]
    assert len(said) == 1 and "No such file or directory" in said[0]


def test_the_example_of_the_guide(toolchain: Toolchain, tmp_path: Path) -> None:
    """`gpupool run --timeline FILE`, as docs/client-guide.md has it, with another program."""
    guide = GUIDE.read_text(encoding="utf-8")
    example = re.search(r"^gpupool run (--timeline \S+) -- ", guide, re.M)
    assert example
    words = example[1].replace("step.json", str(tmp_path / "step.json")).split()
    (tmp_path / "step.json").write_text("of another program")
    command = [sys.executable, "-m", "gpupool", "run", "--local", "--soft", *words, "--"]
    binary = toolchain.driver_program("driver_module")
    result = run_program([*command, str(binary)])
    assert result.returncode == 0, result.explain()
    events = read_timeline(tmp_path / "step.json")
    told = set(re.findall(r"^\| `(\w+)` \| (?:within|a call|what)", guide, re.M))
    assert {event["cat"] for event in events if event["ph"] == "X"} == told


def test_the_launcher_says_that_it_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "none" / "step.json"
    command = [sys.executable, "-m", "gpupool", "run", "--local", "--soft", "--timeline", str(path)]
    result = run_program([*command, "--", "true"])
    assert result.returncode == 2, result.explain()
    assert "--timeline: cannot write" in result.stderr
