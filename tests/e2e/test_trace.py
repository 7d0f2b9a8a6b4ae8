"""GPUPOOL_TRACE: what a program called, with the values it passed and what it got."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from catalog import PER_THREAD
from harness import PoolServer, Result
from toolchain import Toolchain

LINE = re.compile(
    r"(?P<at>\d+) (?P<thread>\d+) "
    r"(?:(?P<name>\w+)\((?P<passed>.*?)\)|<\.\.\. (?P<resumed>\w+) resumed>)"
    r"(?: (?P<unfinished><unfinished \.\.\.>)"
    r"| = (?P<result>\w+)(?P<filled>(?:, \*.*)?) \((?P<took>\d+) us\))"
)
# A value is a structure, a list, a quoted text or one word, perhaps with its size behind.
VALUE = re.compile(r'(\*?\w+)=(\{.*?\}|\[.*?\]|"(?:\\.|[^"\\])*"(?:\.\.\.)?|[^,]*)(?:, |$)')


@dataclass
class Call:
    """One call: its two halves put together."""

    name: str
    thread: int
    at: int
    values: dict[str, str]
    result: str = ""


def read_trace(path: Path) -> list[Call]:
    """Every call that returned, in the order in which they began."""
    calls: list[Call] = []
    begun: dict[int, list[Call]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        m = LINE.fullmatch(line)
        assert m, f"no line of a trace: {line}"
        thread = int(m["thread"])
        if m["name"]:
            call = Call(m["name"], thread, int(m["at"]), dict(VALUE.findall(m["passed"])))
            calls.append(call)
        else:
            call = begun[thread].pop()
            assert call.name == m["resumed"]
        if m["unfinished"]:
            begun.setdefault(thread, []).append(call)
        else:
            call.values.update(VALUE.findall(m["filled"].removeprefix(", ")))
            call.result = m["result"]
    return calls


def traced(
    toolchain: Toolchain, server: PoolServer, path: Path, program: str
) -> tuple[list[Call], Result]:
    binary = toolchain.driver_program(program)
    result = server.run([str(binary)], GPUPOOL_TRACE=str(path))
    assert result.returncode == 0, result.explain()
    return read_trace(path), result


def named(calls: list[Call], name: str) -> list[Call]:
    return [call for call in calls if call.name == name]


def test_values_go_in_and_come_back(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path
) -> None:
    calls, _ = traced(toolchain, server, tmp_path / "trace", "driver_module")
    assert {call.result for call in calls} >= {"CUDA_SUCCESS", "CUDA_ERROR_NOT_FOUND"}
    first = named(calls, "cuMemAlloc_v2")[0]
    assert first.values["bytesize"] == "128"  # 32 int, in use_globals
    address = first.values["*dptr"]
    assert int(address, 16) > 0
    assert named(calls, "cuMemFree_v2")[0].values == {"dptr": address}
    copy = next(c for c in named(calls, "cuMemcpyDtoH_v2") if c.values["ByteCount"] == "128")
    assert copy.values["srcDevice"] == address

    launches = named(calls, "cuLaunchKernel")
    shapes = [
        [int(c.values[f"{of}Dim{axis}"]) for of in ("grid", "block") for axis in "XYZ"]
        for c in launches
    ]
    assert shapes == [[1, 1, 1, 32, 1, 1], [2, 1, 1, 32, 1, 1], [2, 1, 1, 32, 1, 1]]
    found = named(calls, "cuModuleGetFunction")[0]
    assert found.values["name"] == '"use_globals"'
    assert launches[0].values["f"] == found.values["*hfunc"]
    assert launches[0].values["hStream"] == "NULL"

    counter = named(calls, "cuModuleGetGlobal_v2")[0]
    assert (counter.values["name"], counter.values["*bytes"]) == ('"counter"', "4")
    assert named(calls, "cuDeviceGet")[0].values["*device"] == "0"  # answered by the client
    assert named(calls, "cuInit")[0].values == {"Flags": "0"}


def test_a_failed_call_names_its_error(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path
) -> None:
    calls, _ = traced(toolchain, server, tmp_path / "trace", "driver_module")
    failed = [c for c in calls if c.result != "CUDA_SUCCESS"]
    assert [(c.name, c.result) for c in failed] == [
        ("cuModuleGetGlobal_v2", "CUDA_ERROR_NOT_FOUND"),
        ("cuLibraryGetKernel", "CUDA_ERROR_NOT_FOUND"),
        ("cuFuncGetAttribute", "CUDA_ERROR_INVALID_VALUE"),
        ("cuFuncGetAttribute", "CUDA_ERROR_INVALID_VALUE"),
    ]
    assert failed[0].values["name"] == '"no_such_variable"'
    assert failed[2].values["attrib"] == "999"
    for call in failed:
        assert not [name for name in call.values if name.startswith("*")], "nothing was filled"


def test_structures_and_sizes(toolchain: Toolchain, server: PoolServer, tmp_path: Path) -> None:
    calls, _ = traced(toolchain, server, tmp_path / "trace", "driver_vmm")
    created = named(calls, "cuMemCreate")[0]
    assert created.values["prop"] == (
        "{type=1, requestedHandleTypes=0, location.type=1, location.id=0}"
    )
    access = named(calls, "cuMemSetAccess")[0]
    assert re.fullmatch(r"0x[0-9a-f]+ \(12 bytes\)", access.values["desc"])
    assert named(calls, "cuMemMap")[0].values["handle"] == created.values["*handle"]


def test_texts_and_lists_are_cut(toolchain: Toolchain, server: PoolServer, tmp_path: Path) -> None:
    calls, _ = traced(toolchain, server, tmp_path / "trace", "driver_profile")
    long = named(calls, "cuModuleGetFunction")[-1]
    assert long.values["name"] == '"' + 64 * "n" + '"...'
    encoded = named(calls, "cuTensorMapEncodeTiled")[0]
    assert encoded.values["globalDim"] == "[64, 32]"
    asked = named(calls, "cuPointerGetAttributes")[0]
    assert asked.values["numAttributes"] == "5"
    uuid = named(calls, "cuDeviceGetUuid_v2")[0].values["*uuid"]
    assert re.fullmatch("[0-9a-f]{32}", uuid)


def test_calls_of_several_threads(toolchain: Toolchain, server: PoolServer, tmp_path: Path) -> None:
    """Halves of overlapping calls are put together, and every call returned."""
    path = tmp_path / "trace"
    binary = toolchain.runtime_program("threads")
    result = server.run([str(binary)], GPUPOOL_TRACE=str(path))
    assert result.returncode == 0, result.explain()
    calls = read_trace(path)
    assert all(call.result for call in calls)
    assert len({call.thread for call in calls}) > 1
    per_thread: dict[int, int] = {}
    for call in calls:
        assert call.at >= per_thread.get(call.thread, 0)
        per_thread[call.thread] = call.at
    counts = {name: entry["count"] for name, entry in result.stats["calls"].items()}
    for name in ("cuLaunchKernel", "cuMemAlloc_v2", "cuCtxSetCurrent", "cuStreamSynchronize"):
        assert len(named(calls, name)) == counts.get(name, 0), name


def test_a_file_that_cannot_be_written(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path
) -> None:
    binary = toolchain.driver_program("driver_module")
    path = tmp_path / "none" / "trace"
    result = server.run([str(binary)], GPUPOOL_TRACE=str(path))
    assert result.returncode == 0, result.explain()
    said = [line for line in result.own_lines() if "GPUPOOL_TRACE" in line]
    assert len(said) == 1 and "No such file or directory" in said[0]


def test_per_thread_streams_keep_their_names(
    toolchain: Toolchain, server: PoolServer, tmp_path: Path
) -> None:
    binary = PER_THREAD.build(toolchain, "static13")
    result = server.run([str(binary)], GPUPOOL_TRACE=str(tmp_path / "trace"))
    assert result.returncode == 0, result.explain()
    calls = read_trace(tmp_path / "trace")
    assert named(calls, "cuLaunchKernel_ptsz")
    assert not named(calls, "cuLaunchKernel")
