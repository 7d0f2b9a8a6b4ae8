"""How often a client waits for its server: counted, so no machine is too slow for it."""

from __future__ import annotations

from typing import Any

import pytest

from harness import PoolServer
from toolchain import Toolchain

pytestmark = pytest.mark.real_gpu


def counted(server: PoolServer, transport: str, command: list[str]) -> dict[str, Any]:
    result = server.run(command, transport)
    assert result.returncode == 0, result.explain()
    return result.stats


def waits(stats: dict[str, Any]) -> int:
    """For the server, or for what the GPU writes where memory is shared."""
    return int(stats["round_trips"] + stats["gpu_waits"])


def count_waits(server: PoolServer, transport: str, command: list[str]) -> int:
    return waits(counted(server, transport, command))


def test_vector_add_waits_at_most_ten_times(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    binary = toolchain.runtime_program("vector_add", "static13")
    stats = counted(server, transport, [str(binary)])
    assert 1 <= waits(stats) <= 10, stats


def test_one_more_iteration_costs_one_wait(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """2 asynchronous copies, 10 launches, 1 synchronize."""
    binary = toolchain.runtime_program("round_trips", "static13")
    few = counted(server, transport, [str(binary), "iterations", "5"])
    more = counted(server, transport, [str(binary), "iterations", "15"])
    assert waits(more) - waits(few) == 10, more
    round_trips = 0 if transport == "shm" else 10
    assert more["round_trips"] - few["round_trips"] == round_trips, more


def test_a_thousand_launches_cost_one_wait(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    binary = toolchain.runtime_program("round_trips", "static13")
    one = count_waits(server, transport, [str(binary), "launches", "1"])
    many = count_waits(server, transport, [str(binary), "launches", "1000"])
    # Both look the kernel up once and end in one synchronize and one copy back.
    assert many == one


def test_statistics_name_every_call_with_its_mode(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    binary = toolchain.runtime_program("round_trips", "static13")
    stats = counted(server, transport, [str(binary), "launches", "100"])
    launches = sum(
        call["count"] for name, call in stats["calls"].items() if name.startswith("cuLaunchKernel")
    )
    assert launches == 100, stats
    modes = {"local", "cached", "async", "async-create", "sync", "bulk", "custom", "alias"}
    assert {call["mode"] for call in stats["calls"].values()} <= modes | {"refuse"}
    assert stats["bytes_sent"] > 0
    assert stats["bytes_received"] > 0
    assert stats["waited_ns"] > 0


@pytest.mark.parametrize("memory", ["pageable", "pinned"])
def test_a_training_step_waits_for_its_loss_alone(
    toolchain: Toolchain, server: PoolServer, transport: str, memory: str
) -> None:
    """Attributes that are set before every launch emptied all that was known of kernels."""
    binary = toolchain.driver_program("training_step")
    few = counted(server, transport, [str(binary), "4", memory])
    more = counted(server, transport, [str(binary), "14", memory])
    calls = more["calls"]
    assert calls["cuKernelSetAttribute"]["count"] >= 14 * 30, calls
    assert waits(more) - waits(few) <= 10, more


@pytest.mark.parametrize("stream", ["default", "stream"])
def test_a_copy_from_the_host_that_is_waited_for_costs_no_wait(
    toolchain: Toolchain, server: PoolServer, transport: str, stream: str
) -> None:
    """Two of them a step, as of images and labels; two results are read. What is sent behind
    the wait finds the bytes, also on another stream."""
    binary = toolchain.driver_program("uploads")
    few = counted(server, transport, [str(binary), "4", stream])
    more = counted(server, transport, [str(binary), "14", stream])
    assert more["calls"]["cuStreamSynchronize"]["count"] >= 4 * 14
    assert waits(more) - waits(few) == 2 * 10, more


def test_what_other_processes_see_is_waited_for(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """They are told that it is there by the program itself, and read it over another worker."""
    binary = toolchain.driver_program("uploads")
    few = count_waits(server, transport, [str(binary), "4", "shared"])
    more = count_waits(server, transport, [str(binary), "14", "shared"])
    assert more - few == 4 * 10


def test_a_copy_of_many_rows_is_waited_for_once(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    binary = toolchain.driver_program("downloads")
    few = count_waits(server, transport, [str(binary), "rows", "2"])
    many = count_waits(server, transport, [str(binary), "rows", "100"])
    assert many == few


def test_a_graph_built_by_hand_costs_no_wait_a_node(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """Nor do questions for its nodes and edges."""
    binary = toolchain.driver_program("driver_graph_nodes")
    few = counted(server, transport, [str(binary), "2"])
    many = counted(server, transport, [str(binary), "200"])
    assert many["calls"]["cuGraphAddKernelNode_v2"]["count"] == 200, many
    assert waits(many) == waits(few), many


def test_events_that_are_asked_for_once_cost_no_wait(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """A program that asks for each of its new events is told of the next ones over a network:
    one wait for ten of them is its own."""
    if transport == "shm":
        pytest.skip("the GPU would write for each; the question is cheaper")
    binary = toolchain.driver_program("driver_polled")
    few = counted(server, transport, [str(binary), "fresh", "10"])
    many = counted(server, transport, [str(binary), "fresh", "210"])
    assert waits(many) - waits(few) == 20, many


def test_waiting_for_what_is_known_to_be_over_costs_no_wait(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """An event that has been asked for before: the copy behind it is waited for, and it is not."""
    binary = toolchain.driver_program("driver_polled")
    few = counted(server, transport, [str(binary), "awaited", "10"])
    many = counted(server, transport, [str(binary), "awaited", "110"])
    assert waits(many) - waits(few) == 100, many


def test_an_event_in_an_idle_stream_costs_no_wait(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """It is over when it is recorded, and the stream as idle as it was."""
    binary = toolchain.driver_program("driver_polled")
    few = counted(server, transport, [str(binary), "idle", "10"])
    many = counted(server, transport, [str(binary), "idle", "310"])
    assert many["calls"]["cuEventRecord"]["count"] - few["calls"]["cuEventRecord"]["count"] == 300
    assert waits(many) == waits(few), many
    # To the driver it is over. A wait sends twice where the GPU's word does not come in time.
    twice = waits(many) if transport == "shm" else 0
    assert many["messages_sent"] - few["messages_sent"] <= twice < 100, many


def test_a_query_of_a_stream_that_was_waited_for_costs_no_wait(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """Nor is anything asked that the worker's own records could answer otherwise."""
    binary = toolchain.driver_program("driver_polled")
    few = counted(server, transport, [str(binary), "streams", "4"])
    many = counted(server, transport, [str(binary), "streams", "204"])
    assert many["calls"]["cuStreamQuery"]["count"] - few["calls"]["cuStreamQuery"]["count"] == 400
    assert many["round_trips"] == few["round_trips"], many


def test_a_query_of_an_event_that_is_over_costs_no_wait(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """Where memory is shared the GPU says so; over a network the worker, unasked."""
    binary = toolchain.driver_program("driver_polled")
    few = counted(server, transport, [str(binary), "count", "10"])
    many = counted(server, transport, [str(binary), "count", "1010"])
    assert many["calls"]["cuEventQuery"]["count"] - few["calls"]["cuEventQuery"]["count"] == 1000
    assert waits(many) == waits(few), many


def test_what_the_gpu_ends_is_no_round_trip(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """Two synchronizes and four bytes back; a program whose threads are to sleep asks for all."""
    binary = toolchain.driver_program("driver_waits")
    for how in ("count", "sleep"):
        few = counted(server, transport, [str(binary), how, "10"])
        many = counted(server, transport, [str(binary), how, "110"])
        assert waits(many) - waits(few) == 3 * 100, many
        round_trips = 0 if transport == "shm" and how == "count" else 3 * 100
        assert many["round_trips"] - few["round_trips"] == round_trips, many


def test_what_kernels_print_comes_before_the_end_of_a_wait(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """Of that the GPU says nothing, so the server is waited for."""
    binary = toolchain.driver_program("driver_waits")
    few = server.run([str(binary), "print", "10"], transport)
    many = server.run([str(binary), "print", "60"], transport)
    assert many.stdout.splitlines()[:-1] == ["GPU", "host"] * 60, many.explain()
    assert many.stats["round_trips"] - few.stats["round_trips"] == 50, many.stats
    told = server.run([str(binary), "says", "60"], transport)
    assert told.stdout.splitlines()[:-1] == ["GPU", "host"] * 60, told.explain()


def test_an_image_that_may_print_is_silent_until_then(
    toolchain: Toolchain, server: PoolServer, transport: str
) -> None:
    """Another image's kernels do not wait for its text."""
    if transport != "shm":
        pytest.skip("there the server ends every wait")
    binary = toolchain.driver_program("driver_waits")
    few = counted(server, transport, [str(binary), "silent", "10"])
    many = counted(server, transport, [str(binary), "silent", "60"])
    assert many["round_trips"] == few["round_trips"], many
    assert many["gpu_waits"] - few["gpu_waits"] == 3 * 50, many
