"""What a session can make its worker take of the host's memory: so much, and then an error.

Raw messages, because our library would not send them; the worker's memory stays small.
"""

from __future__ import annotations

import struct
import urllib.request
from pathlib import Path

import pytest

from harness import PATIENCE, alive, wait_until
from ports import free_port
from raw_client import (
    KIND_EVENT,
    KIND_GRAPH,
    KIND_GRAPH_NODE,
    KIND_STREAM,
    NUMBERS,
    RawClient,
    ask_for_session,
    connected,
    handle,
    with_context,
)
from tenants import BLUE, MIB, RED, MakeServer, Pool, StartTalk, configured, end, most_resident
from toolchain import Toolchain

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_READY = 600
LIMIT = 32 * MIB


@pytest.fixture
def tight(make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path) -> Pool:
    """Sessions that may have little of the host's memory."""
    server = configured(make_server, tmp_path, **{"session-host-memory": "32MiB"})
    return Pool(server, toolchain, talk)


def greeted(pool: Pool) -> tuple[RawClient, int]:
    client = connected(pool.server, token="token-of-blue", group="raw")
    with_context(client)
    (pid,) = (
        s["pid"]
        for s in pool.ask(do="status")["sessions"]
        if s["session"] == client.session["session"]
    )
    return client, int(pid)


def is_ended(pool: Pool, pid: int, why: str) -> None:
    wait_until(lambda: not alive(pid), "the worker of a session that took too much ended")
    wait_until(lambda: why in pool.server.log.read_text(), "the log said why")
    assert pool.run("shm", "driver_vmm", **RED).returncode == 0


def test_calls_that_are_put_off(tight: Pool) -> None:
    """While a stream stands at a host function, waited calls pile up in the worker."""
    client, pid = greeted(tight)
    with client:
        stream = handle(KIND_STREAM, 1)
        assert client.result("cuStreamCreate", struct.pack("<QI", stream, 1)) == 0
        assert client.result("gp_host_function", struct.pack("<QQI", stream, 7, 0)) == 0
        before = most_resident(pid)
        piled = [client.message(NUMBERS["cuMemAlloc_v2"], bytes(MIB)) for _ in range(100)]
        for at, message in enumerate(piled):
            client.send([message])
            if at % 8 == 0:  # no more is under way than our library would have
                assert client.result("cuStreamQuery", struct.pack("<Q", stream)) == NOT_READY
        assert client.result("cuMemAlloc_v2", bytes(MIB)) == OUT_OF_MEMORY
        assert most_resident(pid) < before + LIMIT + 16 * MIB
        (shown,) = tight.told()["sessions"]
        kept = shown["budgets"]["host_memory"]
        assert 16 * MIB < shown["host_bytes_by_kind"]["waits"] <= kept["used"] <= LIMIT
        assert kept["limit"] == LIMIT and kept["refused"] > 60


def test_buffers_for_graphs(tight: Pool) -> None:
    client, pid = greeted(tight)
    with client:
        before = most_resident(pid)
        results = [
            client.result("gp_captured_open", struct.pack("<QQ", (1 << 30) + at * 4 * MIB, 4 * MIB))
            for at in range(20)
        ]
        assert results[0] == 0 and results[-1] == OUT_OF_MEMORY
        assert results.count(0) * 4 * MIB <= LIMIT
        assert most_resident(pid) < before + LIMIT


def opened(client: RawClient, name: int, size: int) -> int:
    return client.result("gp_captured_open", struct.pack("<QQ", name, size))


def test_buffers_for_graphs_are_given_back(tight: Pool) -> None:
    """Under any name and in any size, and nobody reads what is closed."""
    client, pid = greeted(tight)
    name, written = 1 << 30, struct.pack("<QII", 1 << 30, 8, 8) + bytes(8)
    with client:
        before = most_resident(pid)
        for at in range(36):
            size = (1 + at % 4) * MIB - at
            assert opened(client, name, size) == 0
            assert opened(client, name, size) == INVALID_VALUE, "the name is taken"
            assert client.result("gp_captured_write", written) == 0
            for _ in range(2):
                assert client.result("gp_captured_close", struct.pack("<Q", name)) == 0
            assert client.result("gp_captured_write", written) == INVALID_VALUE
        assert client.result("gp_captured_close", struct.pack("<Q", 1 << 63)) == 0
        assert opened(client, name, 27 * MIB) == 0, "spare ones give way"
        assert most_resident(pid) < before + 2 * LIMIT
        (shown,) = tight.told()["sessions"]
        assert shown["budgets"]["host_memory"]["refused"] <= 1


def test_spare_buffers_give_way_to_all_else(tight: Pool) -> None:
    client, _ = greeted(tight)
    with client:
        for at in range(5):
            assert opened(client, (1 + at) << 30, 5 * MIB) == 0
        for at in range(5):
            assert client.result("gp_captured_close", struct.pack("<Q", (1 + at) << 30)) == 0
        fixed = struct.pack("<IIQQII", 32, 0, 24 * MIB, 0, 8, 8)
        assert client.result("gp_image_put", fixed + bytes(32) + bytes(8)) == 0
        (shown,) = tight.told()["sessions"]
        assert shown["host_bytes_by_kind"]["images"] == 24 * MIB
        assert shown["budgets"]["host_memory"]["refused"] == 0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_graphs_that_come_and_go(tight: Pool, transport: str) -> None:
    """Their buffers come to more than the worker may have."""
    result = tight.run(transport, "driver_graph_again", **BLUE)
    assert result.returncode == 0, result.explain()


def test_an_image_that_is_never_finished(tight: Pool) -> None:
    client, _ = greeted(tight)
    with client:
        fixed = struct.pack("<IIQQII", 32, 0, 40 * MIB, 0, 8, 8)
        assert client.result("gp_image_put", fixed + bytes(32) + bytes(8)) == 0
        (shown,) = tight.told()["sessions"]
        assert shown["host_bytes_by_kind"]["images"] == 0, "nothing of it was kept"
        assert shown["budgets"]["host_memory"]["refused"] == 1


def test_a_handle_of_the_highest_number(tight: Pool) -> None:
    """The table of handles would need 100 MB for it."""
    client, pid = greeted(tight)
    with client:
        far = handle(KIND_EVENT, (1 << 22) - 1)
        client.send([client.message(NUMBERS["cuEventCreate"], struct.pack("<QI", far, 0))])
        is_ended(tight, pid, "the new handle is not free")


def flood(client: RawClient, name: str, bodies: list[bytes]) -> None:
    for at in range(0, len(bodies), 500):
        part = bodies[at : at + 500]
        client.send([client.message(NUMBERS[name], body, flags=0) for body in part])


def test_events_without_end(tight: Pool) -> None:
    client, pid = greeted(tight)
    with client:
        many = LIMIT // 1024
        bodies = [struct.pack("<QI", handle(KIND_EVENT, 1 + at), 2) for at in range(many)]
        flood(client, "cuEventCreate", bodies)
        is_ended(tight, pid, "it has made more objects than fit")


def begin_capture(client: RawClient) -> tuple[int, bytes]:
    """A stream that captures, and a memset that becomes a node of its graph."""
    stream = handle(KIND_STREAM, 1)
    answer = client.call("cuMemAlloc_v2", struct.pack("<Q", 512))
    (address,) = struct.unpack_from("<Q", answer, 8)
    assert client.result("cuStreamCreate", struct.pack("<QI", stream, 1)) == 0
    assert client.result("cuStreamBeginCapture_v2", struct.pack("<QI", stream, 0)) == 0
    return stream, struct.pack("<QB7xQQ", address, 1, 512, stream)


def test_a_captured_graph_without_end(tight: Pool) -> None:
    client, pid = greeted(tight)
    with client:
        _, node = begin_capture(client)
        flood(client, "cuMemsetD8Async", [node] * (LIMIT // 1024))
        is_ended(tight, pid, "its graphs need more host memory")


def charged_for_graphs(pool: Pool) -> int:
    (shown,) = pool.told()["sessions"]
    return int(shown["host_bytes_by_kind"]["graphs"])


def test_a_capture_whose_stream_is_destroyed(tight: Pool) -> None:
    """What would have been its graph was charged for good, and asked for at every message."""
    client, _ = greeted(tight)
    with client:
        stream, node = begin_capture(client)
        assert client.result("cuMemsetD8Async", node) == 0

        assert charged_for_graphs(tight) > 0
        assert client.result("cuStreamDestroy_v2", struct.pack("<Q", stream)) == 0
        wait_until(lambda: charged_for_graphs(tight) == 0, "it was given back, behind the answer")


def test_nodes_that_come_and_go(tight: Pool) -> None:
    """They were charged until their graph went: whoever changed one for long was ended."""
    client, _ = greeted(tight)
    graph, node = handle(KIND_GRAPH, 1), handle(KIND_GRAPH_NODE, 1)
    with client:
        assert client.result("cuGraphCreate", struct.pack("<QI", graph, 0)) == 0
        assert client.result("gp_node_empty", struct.pack("<QQ", node, graph)) == 0
        assert charged_for_graphs(tight) > 0
        assert client.result("cuGraphDestroyNode", struct.pack("<Q", node)) == 0
        wait_until(lambda: charged_for_graphs(tight) == 0, "a node's bytes were given back")
        none = struct.pack("<QQQ", node, graph, handle(KIND_GRAPH, 2))
        assert client.result("gp_node_child", none) != 0
        wait_until(lambda: charged_for_graphs(tight) == 0, "one that was refused costs nothing")


def test_it_is_counted_and_shown(
    make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path
) -> None:
    where = f"http://127.0.0.1:{free_port()}"
    server = configured(make_server, tmp_path, **{"metrics-listen": where})
    pool = Pool(server, toolchain, talk)
    program = pool.start("shm", **RED)
    shown = pool.session_of(program)
    kept = shown["budgets"]["host_memory"]
    assert kept["limit"] == 8 << 30, "the default of session-host-memory"
    assert 0 < kept["used"] == sum(shown["host_bytes_by_kind"].values())
    wait_until(lambda: pool.account("red")["host_used_bytes"] > 0, "the board had it")
    with urllib.request.urlopen(f"{where}/metrics", timeout=PATIENCE) as answer:
        (line,) = (
            line
            for line in answer.read().decode().splitlines()
            if line.startswith("gpupool_tenant_host_memory_used_bytes{") and 'tenant="red"' in line
        )
    assert float(line.rpartition(" ")[2]) > 0
    end(program)


def test_a_tenants_sessions_share_its_part(make_server: MakeServer, tmp_path: Path) -> None:
    """Each is given what is left; with next to nothing left a session is not begun."""
    config = tmp_path / "server.toml"
    config.write_text('[tenants.blue]\ntoken = "token-of-blue"\nhost_memory = "56MiB"\n')
    server = make_server(config=str(config), **{"session-host-memory": "32MiB"})
    token = BLUE["GPUPOOL_TOKEN"]
    clients = [connected(server, token=token) for _ in range(2)]
    try:
        refused = ask_for_session(server, token=token)
        assert (refused["word"], refused["code"]) == ("refused", "over-quota"), refused
        assert "56MiB" in refused["message"], refused
    finally:
        for client in clients:
            client.__exit__(None, None, None)
