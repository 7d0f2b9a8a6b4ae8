"""Numbers for Prometheus."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from ports import free_port

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from fake_nvml import UUIDS, NvmlError, TwoCards
from gpupool_common.certificate import Certificate, own_certificate
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.secret_file import replace_secret, write_secret
from gpupool_server.card_metrics import CardCollector
from gpupool_server.config import load_settings
from gpupool_server.device import Device
from gpupool_server.nvml_cards import NvmlCards
from metrics_harness import metrics_server, registry, scrape
from server_harness import TOKEN, MakeOffice, accepted, hello
from test_tenants import MIB, ask, ended, meta_of, research


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
    of_group = {**of_gpu, "tenant": "research", "group": "g", "lease": ""}
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
    whole = {**of_gpu, "tenant": "default", "group": "", "lease": ""}
    limit = metrics.get_sample_value("gpupool_tenant_memory_limit_bytes", whole)
    assert limit == gpu.device.memory_bytes
    total = metrics.get_sample_value("gpupool_gpu_memory_total_bytes", of_gpu)
    assert total == gpu.device.memory_bytes
    assert metrics.get_sample_value("gpupool_gpu_busy_seconds_total", of_gpu) == 3.0


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
    listen = f"http://127.0.0.1:{free_port()}"
    server = metrics_server(office, metrics_listen=listen)
    await server.open()
    try:
        base = f"http://127.0.0.1:{server.port}"

        def get(path: str) -> str:
            text, kind = scrape(base + path)
            assert kind.startswith("text/plain")
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
        for path in ("/healthz", "/livez", "/readyz"):
            assert await asyncio.to_thread(get, path) == "ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            await asyncio.to_thread(get, "/secret")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"x" * 100_000 + b"\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        assert "gpupool_sessions 1.0" in await asyncio.to_thread(get, "/metrics")
        assert "gpupool_image_cache_limit_bytes 8" in await asyncio.to_thread(get, "/metrics")
        other = metrics_server(office, metrics_listen=base)
        with pytest.raises(GpupoolError, match="cannot listen at .*--metrics-listen"):
            await other.open()
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        ({"metrics_listen": "http://0.0.0.0:9117"}, "flag --metrics-listen.*loopback"),
        ({"metrics_listen": "127.0.0.1:9117"}, "flag --metrics-listen.*loopback"),
        ({"metrics_listen": "http://127.0.0.1"}, "flag --metrics-listen.*loopback"),
        ({"metrics_listen": "https://:1"}, "flag --metrics-listen.*loopback"),
        ({"metrics_token_file": "/t"}, "--metrics-token-file: is only used with"),
        (
            {"metrics_listen": "http://[::1]:1", "metrics_key": "/k"},
            "--metrics-key: is only used with https",
        ),
        ({"metrics_listen": "https://*:1", "metrics_key": "/k"}, "--metrics-key: .*go together"),
    ],
)
def test_settings_that_cannot_be(flags: dict[str, str], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        load_settings(None, flags, {})


def test_settings_that_can() -> None:
    for good in (
        "none",
        "http://127.0.0.1:9117",
        "http://[::1]:9117",
        "http://localhost:9117",
        "https://0.0.0.0:9117",
    ):
        assert load_settings(None, {"metrics_listen": good}, {}).metrics_listen == good


# TLS and the token -------------------------------------------------------------------------


def authority(path: Path) -> ssl.SSLContext:
    """Whoever trusts this certificate alone."""
    return ssl.create_default_context(cafile=str(path))


async def test_over_a_network_by_tls_and_a_token_alone(
    make_office: MakeOffice, folder: Path
) -> None:
    office = await make_office()
    server = metrics_server(office, folder, metrics_listen=f"https://127.0.0.1:{free_port()}")
    await server.open()
    try:
        url = f"https://127.0.0.1:{server.port}/metrics"
        tls = authority(folder / "metrics" / "tls.crt")
        token = (folder / "metrics.token").read_text().strip()
        good = {"Authorization": f"Bearer {token}"}
        text, _ = await asyncio.to_thread(scrape, url, good, tls)
        assert "gpupool_sessions 0.0" in text
        for bad in ({}, {"Authorization": token}, {"Authorization": f"Bearer {TOKEN}"}):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                await asyncio.to_thread(scrape, url, bad, tls)
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(scrape, url, good, ssl.create_default_context())
        # A token for metrics is worth nothing else.
        refused = await office.handler.answer(hello(token=token))
        assert b"bad-token" in refused
        # Who never ends a handshake has no more places than an address may, and loses them.
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        ends = await asyncio.gather(*(reader.read() for reader, _ in silent))
        assert ends == [b""] * 20
        for _, writer in silent:
            writer.close()
        await asyncio.to_thread(scrape, url, good, tls)
    finally:
        await server.close()


async def test_a_token_and_a_certificate_are_read_again(
    make_office: MakeOffice, folder: Path
) -> None:
    office = await make_office()
    own: dict[str, Any] = {"metrics_token_file": folder / "token"}
    write_secret(folder / "token", "first")
    pair = [own_certificate(made(folder / name), "127.0.0.1", "test") for name in ("a", "b")]
    own |= {"metrics_certificate": folder / "tls.crt", "metrics_key": folder / "tls.key"}
    for path, name in ((pair[0].path, "tls.crt"), (pair[0].key, "tls.key")):
        shutil.copy(path, folder / name)
    listen = f"https://127.0.0.1:{free_port()}"
    server = metrics_server(office, folder, metrics_listen=listen, **own)
    await server.open()

    async def status(token: str, certificate: Certificate) -> str:
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{listen}/metrics"
        try:
            await asyncio.to_thread(scrape, url, headers, authority(certificate.path))
        except (urllib.error.HTTPError, urllib.error.URLError) as error:
            return str(error)
        return "200"

    try:
        assert await status("first", pair[0]) == "200"
        replace_secret(folder / "token", "second")
        shutil.copy(pair[1].path, folder / "tls.crt")
        shutil.copy(pair[1].key, folder / "tls.key")
        assert "401" in await status("first", pair[0])  # which also reads them again
        assert await status("second", pair[1]) == "200"
        assert "CERTIFICATE_VERIFY_FAILED" in await status("second", pair[0])
        (folder / "token").write_text("two words")
        assert await status("second", pair[1]) == "200", "what is damaged replaces nothing"
    finally:
        await server.close()


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def test_openmetrics_for_who_accepts_it(make_office: MakeOffice) -> None:
    office = await make_office()
    server = metrics_server(office, metrics_listen=f"http://127.0.0.1:{free_port()}")
    await server.open()
    try:
        url = f"http://127.0.0.1:{server.port}/metrics"
        accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
        text, kind = await asyncio.to_thread(scrape, url, accept)
        assert kind.startswith("application/openmetrics-text") and text.endswith("# EOF\n")
        long = {"Accept": "x" * 9000}
        assert (await asyncio.to_thread(scrape, url, long))[1].startswith("text/plain")
    finally:
        await server.close()


# Cards -------------------------------------------------------------------------------------


def card(index: int) -> Device:
    return Device(index, "NVIDIA H200", UUIDS[index], 1 << 37, "0:0", "9.0")


async def test_sensors_in_base_units() -> None:
    nvml = TwoCards()
    devices = [
        Device(i, "NVIDIA H200", uuid, 1 << 37, "0:0", "9.0") for i, uuid in enumerate(UUIDS)
    ]
    collector = CardCollector(NvmlCards(nvml), devices)
    made = CollectorRegistry()
    made.register(collector)
    await collector.ask()
    labels = {"gpu": "1", "uuid": UUIDS[1]}
    for name, value in {
        "temperature_celsius": 40,
        "power_watts": nvml.nvmlDeviceGetPowerUsage(1) / 1000,
        "energy_joules_total": nvml.nvmlDeviceGetTotalEnergyConsumption(1) / 1000,
        "utilization_ratio": 0.51,
        "memory_used_bytes": 1 << 30,
        "sm_clock_hertz": 1501e6,
    }.items():
        assert made.get_sample_value(f"gpupool_gpu_{name}", labels) == value, name
    errors = {**labels, "kind": "uncorrected"}
    assert made.get_sample_value("gpupool_gpu_ecc_errors_total", errors) == 2
    told = {"model": "NVIDIA H200", "pci": "0:0", "driver_version": "580.159.03"}
    assert made.get_sample_value("gpupool_gpu_info", {**labels, **told}) == 1


async def test_what_a_card_cannot_say_has_no_series() -> None:
    def fail(*_: object) -> None:
        raise NvmlError("Not Supported")

    collector = CardCollector(
        NvmlCards(TwoCards("nvmlDeviceGetTemperature", fail)),
        [card(0)],
    )
    made = CollectorRegistry()
    made.register(collector)
    await collector.ask()
    labels = {"gpu": "0", "uuid": UUIDS[0]}
    assert made.get_sample_value("gpupool_gpu_temperature_celsius", labels) is None
    assert made.get_sample_value("gpupool_gpu_power_watts", labels) is not None
