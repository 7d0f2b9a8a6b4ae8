"""Numbers for Prometheus: what each tenant has of each GPU. Served on the loopback only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gpupool_common.ask import split_tcp
from gpupool_common.browser import FROM_A_PAGE, is_from_a_page, is_rebound, of_rebound, own_names
from gpupool_common.errors import GpupoolError
from gpupool_server.board import Account
from gpupool_server.budget_metrics import BudgetCollector
from gpupool_server.gpu import Gpu, tenant_of
from gpupool_server.gpus import Gpus
from gpupool_server.sessions import SessionSupervisor

ASK_SECONDS = 5.0
MAX_HEAD = 16384

_GPU = ["gpu", "uuid"]
_TENANT = [*_GPU, "tenant", "group"]

#: Name, help, whether it only grows, and its place in an account.
_OF_TENANTS: tuple[tuple[str, str, bool, Callable[[Account], float]], ...] = (
    ("memory_used_bytes", "Device memory in use", False, lambda a: a.memory_used),
    ("memory_peak_bytes", "The most device memory it had in use", False, lambda a: a.memory_peak),
    ("busy_seconds", "GPU time used", True, lambda a: a.busy_ns / 1e9),
    ("wait_seconds", "Time with work in hand and not on turn", True, lambda a: a.waited_ns / 1e9),
    ("turns", "Turns on the GPU", True, lambda a: a.turns),
    ("launches", "Kernels and graphs launched", True, lambda a: a.launches),
    ("copied_bytes", "Bytes copied to, from and on the GPU", True, lambda a: a.bytes_copied),
    ("copy_seconds", "Time of copy engines used", True, lambda a: a.copy_ns / 1e9),
    ("host_memory_used_bytes", "Memory of the host in use", False, lambda a: a.host_used),
    ("allocation_failures", "Allocations over the limit", True, lambda a: a.memory_denied),
)


class GpuCollector(Collector):
    """Reads the boards when Prometheus asks."""

    def __init__(self, gpus: Gpus, sessions: Callable[[], int]) -> None:
        self._gpus = gpus
        self._sessions = sessions

    def collect(self) -> Iterator[Metric]:
        tenants = [
            (gpu, account)
            for gpu in self._gpus
            if (snapshot := gpu.snapshot()) is not None
            for account in snapshot.tenants
        ]
        yield from self._of_gpus(tenants)
        yield from self._of_tenants(tenants)
        yield GaugeMetricFamily("gpupool_sessions", "Sessions that run", value=self._sessions())

    def _of_gpus(self, tenants: Iterable[tuple[Gpu, Account]]) -> Iterator[Metric]:
        busy = {gpu.index: gpu.retired_busy_ns for gpu in self._gpus}
        for gpu, account in tenants:
            busy[gpu.index] += account.busy_ns
        memory = GaugeMetricFamily(
            "gpupool_gpu_memory_total_bytes", "Memory of the GPU", labels=_GPU
        )
        time = CounterMetricFamily(
            "gpupool_gpu_busy_seconds", "GPU time used by all tenants", labels=_GPU
        )
        for gpu in self._gpus:
            labels = [str(gpu.index), gpu.device.uuid]
            memory.add_metric(labels, gpu.device.memory_bytes)
            time.add_metric(labels, busy[gpu.index] / 1e9)
        yield from (memory, time)

    def _of_tenants(self, tenants: list[tuple[Gpu, Account]]) -> Iterator[Metric]:
        for name, text, grows, value in _OF_TENANTS:
            kind = CounterMetricFamily if grows else GaugeMetricFamily
            family = kind(f"gpupool_tenant_{name}", text, labels=_TENANT)
            for gpu, account in tenants:
                family.add_metric(_labels(gpu, account.name), value(account))
            yield family
        limit = GaugeMetricFamily(
            "gpupool_tenant_memory_limit_bytes", "Device memory it may use", labels=_TENANT
        )
        sessions = GaugeMetricFamily(
            "gpupool_tenant_sessions", "Sessions that run on the GPU", labels=_TENANT
        )
        for gpu, account in tenants:
            labels = _labels(gpu, account.name)
            limit.add_metric(labels, account.memory_limit or gpu.device.memory_bytes)
            sessions.add_metric(labels, account.members)
        yield from (limit, sessions)


def _labels(gpu: Gpu, name: str) -> list[str]:
    return [str(gpu.index), gpu.device.uuid, tenant_of(name), name.partition("/")[2]]


class MetricsServer:
    """A small HTTP server for GET /metrics, in the event loop, where the boards are."""

    def __init__(
        self, gpus: Gpus, supervisor: SessionSupervisor, names: Iterable[str] = ()
    ) -> None:
        """``names``: further ones by which scrapers may ask."""
        self._names = frozenset(names)
        self._registry = CollectorRegistry()
        self._registry.register(GpuCollector(gpus, supervisor.__len__))
        self._supervisor = supervisor
        self._budgets = BudgetCollector()
        self._registry.register(self._budgets)
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self, listen: str) -> None:
        """Listen at ``http://ADDRESS:PORT``; GpupoolError if that cannot be."""
        host, port = split_tcp(listen.replace("http://", "tcp://", 1).removesuffix("/"))
        self._names |= await asyncio.to_thread(own_names)
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=MAX_HEAD)
        except OSError as error:
            raise GpupoolError(
                f"cannot listen at {listen}: {error.strerror}; choose another address:"
                " --metrics-listen"
            ) from None
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Whatever a scraper does wrong, it is the one that gets no answer.
        bad = (asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        with contextlib.suppress(OSError, TimeoutError, *bad):
            async with asyncio.timeout(ASK_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._respond(head))
                await writer.drain()
        writer.close()

    async def _respond(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"only GET\n")
        headers = _headers(head)
        if is_from_a_page(headers):
            return _response("403 Forbidden", f"{FROM_A_PAGE}\n".encode())
        if is_rebound(headers, self._names):
            return _response("403 Forbidden", f"{of_rebound(headers)}\n".encode())
        if words[1].partition(b"?")[0] != b"/metrics":
            return _response("404 Not Found", b"what there is: /metrics\n")
        sessions = await self._supervisor.describe()
        self._budgets.take(sessions, self._supervisor.budgets(sessions))
        body = generate_latest(self._registry)
        whole = _response("200 OK", body, CONTENT_TYPE_LATEST)
        return whole if words[0] == b"GET" else whole.removesuffix(body)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _headers(head: bytes) -> dict[str, str]:
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _response(status: str, body: bytes, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
