"""A request is one trace: from `gpupool run` through the manager and a server to the worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk.trace")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")

from gpupool_common import paths
from harness import PATIENCE, wait_until
from otlp_collector import Collector, TracedSpan, running_collector
from pool_harness import PoolManager

PROGRAM = "import ctypes; raise SystemExit(ctypes.CDLL('libcuda.so.1').cuInit(0))"

#: The caller's own trace.
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield found


@pytest.fixture(scope="module")
def pool(collector: Collector, home: paths.Home) -> Iterator[PoolManager]:
    manager = PoolManager()
    server = None
    try:
        manager.start()
        server = manager.server("one")
        server.start()
        manager.wait_for("one")
        yield manager
    finally:
        if server is not None:
            server.close()
        manager.close()


def run(pool: PoolManager, token: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpupool", "run", "--pool", pool.url, "--memory", "64MiB"]
    return subprocess.run(
        [*command, "--share", "10%", "--", sys.executable, "-c", PROGRAM],
        env={**pool.env, "GPUPOOL_POOL_TOKEN": token, **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_one_trace_from_the_launcher_to_the_worker(pool: PoolManager, collector: Collector) -> None:
    red = pool.tenant("red")
    done = run(pool, red, TRACEPARENT=f"00-{TRACE}-{CALLER}-01")
    assert (done.returncode, done.stderr) == (0, "")
    chain = [
        ("gpupool", "gpupool run"),
        ("gpupool", "ask for a lease"),
        ("gpupool-manager", "POST /v1/leases"),
        ("gpupool-server", "open a session"),
        ("gpupool-server", "start a worker"),
    ]
    parent = CALLER
    found: dict[str, TracedSpan] = {}
    for service, name in chain:
        span = found[name] = collector.wait_for(name)
        assert (span.service, span.trace, span.parent) == (service, TRACE, parent), name
        assert not span.failed
        parent = span.id
    lease = found["ask for a lease"].attributes["gpupool.lease"]
    session = found["open a session"].attributes
    assert (session["gpupool.lease"], session["gpupool.tenant"]) == (lease, "red")
    worker = found["start a worker"].attributes
    assert worker["gpupool.session"] == session["gpupool.session"]
    assert int(worker["process.pid"]) > 1
    # The id of the request is the trace, so logs can be found by it.
    (entry,) = pool.do("GET", f"/audit?action=lease.granted&object={lease}")["items"]
    assert entry["request_id"] == f"00-{TRACE}-{found['POST /v1/leases'].id}-01"


def test_what_fails_is_a_span_that_failed(pool: PoolManager, collector: Collector) -> None:
    none = pool.tenant("none", gpus=0)
    assert run(pool, none).returncode == 77
    wait_until(lambda: any(s.failed for s in collector.spans), "a span that failed came")
    assert {s.name for s in collector.spans if s.failed} == {"gpupool run", "ask for a lease"}


def test_a_collector_that_is_away_holds_nobody_up(pool: PoolManager) -> None:
    blue = pool.tenant("blue")
    done = run(pool, blue, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert (done.returncode, done.stderr) == (0, "")
