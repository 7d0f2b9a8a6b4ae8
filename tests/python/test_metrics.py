"""Numbers for Prometheus."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ports import free_port

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gpupool_common.errors import GpupoolError
from gpupool_server.metrics import GpuCollector, MetricsServer
from server_harness import MakeOffice, Office, accepted, hello
from test_tenants import MIB, ask, ended, meta_of, research


def registry(office: Office) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(GpuCollector(office.gpus, office.supervisor.__len__))
    return made


async def test_each_tenant_and_gpu_has_its_own_series(make_office: MakeOffice) -> None:
    office = await make_office(tenants=research(memory="64MiB"))
    session = (await ask(office, group="g", devices="1", memory=str(40 * MIB)))["session"]
    accepted(await office.handler.answer(hello(devices="1")))
    board = office.boards.of(1)
    board.join(meta_of(office, session).pid, "research/g", 7 * MIB)
    board.busy_ns = {"research/g": 2_500_000_000, "default": 500_000_000}
    board.denied = {"research/g": 6}
    gpu = office.gpus.get(1)
    assert gpu is not None
    of_gpu = {"gpu": "1", "uuid": gpu.device.uuid}
    of_group = {**of_gpu, "tenant": "research", "group": "g"}
    metrics = registry(office)
    for name, value in {
        "memory_used_bytes": 7 * MIB,
        "memory_limit_bytes": 40 * MIB,
        "busy_seconds_total": 2.5,
        "wait_seconds_total": 5.0,
        "turns_total": 3,
        "launches_total": 4,
        "copied_bytes_total": 5,
        "allocation_failures_total": 6,
        "sessions": 1,
    }.items():
        assert metrics.get_sample_value(f"gpupool_tenant_{name}", of_group) == value, name
    whole = {**of_gpu, "tenant": "default", "group": ""}
    limit = metrics.get_sample_value("gpupool_tenant_memory_limit_bytes", whole)
    assert limit == gpu.device.memory_bytes
    total = metrics.get_sample_value("gpupool_gpu_memory_total_bytes", of_gpu)
    assert total == gpu.device.memory_bytes
    assert metrics.get_sample_value("gpupool_gpu_busy_seconds_total", of_gpu) == 3.0
    assert metrics.get_sample_value("gpupool_sessions") == 2


async def test_a_gpu_s_time_never_goes_back(make_office: MakeOffice) -> None:
    office = await make_office()
    session = accepted(await office.handler.answer(hello(devices="0")))["session"]
    office.boards.of(0).busy_ns = {"default": 10**9}
    gpu = office.gpus.get(0)
    assert gpu is not None
    labels = {"gpu": "0", "uuid": gpu.device.uuid}
    for _ in range(2):
        value = registry(office).get_sample_value("gpupool_gpu_busy_seconds_total", labels)
        assert value == 1.0
        if len(office.supervisor):
            await ended(office, session)


async def test_http(make_office: MakeOffice) -> None:
    office = await make_office()
    accepted(await office.handler.answer(hello()))
    server = MetricsServer(office.gpus, office.supervisor)
    await server.open(f"http://127.0.0.1:{free_port()}")
    try:
        base = f"http://127.0.0.1:{server.port}"

        def get(path: str) -> str:
            with urllib.request.urlopen(base + path, timeout=30) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                text: str = answer.read().decode()
                return text

        text = await asyncio.to_thread(get, "/metrics")
        names = {family.name for family in text_string_to_metric_families(text)}
        assert {"gpupool_tenant_busy_seconds", "gpupool_gpu_memory_total_bytes"} <= names
        assert 'gpupool_tenant_budget_used{resource="sessions",tenant="default"} 1.0' in text
        assert 'gpupool_tenant_budget_limit{resource="sessions",tenant="default"} 64.0' in text
        (of_session,) = (
            line
            for line in text.splitlines()
            if line.startswith('gpupool_session_budget_limit{resource="log_lines"')
        )
        assert 'tenant="default"' in of_session and of_session.endswith(" 10000.0")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            await asyncio.to_thread(get, "/secret")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"x" * 100_000 + b"\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        assert "gpupool_sessions 1.0" in await asyncio.to_thread(get, "/metrics")
        other = MetricsServer(office.gpus, office.supervisor)
        with pytest.raises(GpupoolError, match="cannot listen at .*--metrics-listen"):
            await other.open(base)
    finally:
        await server.close()


def test_only_the_loopback_is_served(folder: Path) -> None:
    from gpupool_common.errors import ConfigError
    from gpupool_server.config import load_settings

    for good in ("none", "http://127.0.0.1:9117", "http://[::1]:9117", "http://localhost:9117"):
        assert load_settings(None, {"metrics_listen": good}, {}).metrics_listen == good
    for bad in ("http://0.0.0.0:9117", "127.0.0.1:9117", "http://127.0.0.1", "http://:1"):
        with pytest.raises(ConfigError, match="flag --metrics-listen.*loopback"):
            load_settings(None, {"metrics_listen": bad}, {})
