"""The small HTTP server of a server's metrics: open on the loopback, else by TLS and a token."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from gpupool_common import __version__
from gpupool_common.browser import FROM_A_PAGE, is_from_a_page, is_rebound, of_rebound, own_names
from gpupool_common.errors import GpupoolError
from gpupool_common.exposition import render
from gpupool_server.budget_metrics import BudgetCollector
from gpupool_server.card_metrics import CardCollector
from gpupool_server.gpu_metrics import GpuCollector
from gpupool_server.gpus import Gpus
from gpupool_server.health import GpuHealth
from gpupool_server.health_metrics import HealthCollector
from gpupool_server.metrics_access import MetricsAccess
from gpupool_server.metrics_listener import MetricsListener
from gpupool_server.metrics_settings import MetricsSettings, split_listen
from gpupool_server.nvml_cards import Cards
from gpupool_server.sessions import SessionSupervisor

#: The paths by which others ask whether the server is well; no token is needed.
READY = b"/readyz"
HEALTH = (b"/healthz", b"/livez", READY)


class ServerCollector(Collector):
    """The server itself."""

    def __init__(self, supervisor: SessionSupervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        build = InfoMetricFamily("gpupool_server_build", "The release that runs")
        build.add_metric([], {"version": __version__, "python": platform.python_version()})
        yield build
        yield GaugeMetricFamily(
            "gpupool_sessions", "Sessions that run", value=len(self._supervisor)
        )
        yield GaugeMetricFamily(
            "gpupool_sessions_start",
            "1 if sessions start on this host, as far as is known",
            value=0 if self._supervisor.health.trouble else 1,
        )
        images = self._supervisor.launcher.images
        yield GaugeMetricFamily(
            "gpupool_image_cache_bytes", "Kept images on the disk", value=images.bytes
        )
        yield GaugeMetricFamily(
            "gpupool_image_cache_limit_bytes", "What they may take", value=images.limit
        )


class MetricsServer:
    """Answers GET /metrics, in the event loop, where the boards are."""

    def __init__(
        self,
        settings: MetricsSettings,
        gpus: Gpus,
        supervisor: SessionSupervisor,
        cards: Cards,
        health: GpuHealth,
        access: MetricsAccess | None = None,
    ) -> None:
        self._listen = settings.metrics_listen
        self._names = frozenset(settings.metrics_hosts)
        self._access = access or MetricsAccess(settings)
        self._supervisor = supervisor
        self._budgets = BudgetCollector()
        self._cards = CardCollector(cards, (gpu.device for gpu in gpus))
        self._registry = CollectorRegistry()
        own: tuple[Collector, ...] = (ServerCollector(supervisor), GpuCollector(gpus))
        for part in (*own, HealthCollector(gpus, health), self._budgets, self._cards):
            self._registry.register(part)
        ProcessCollector(registry=self._registry)
        self._listener: MetricsListener | None = None
        self.port = 0

    async def open(self) -> None:
        """Listen where the settings say; GpupoolError if that cannot be."""
        host, port = split_listen(self._listen)
        self._names |= await asyncio.to_thread(own_names)
        listener = MetricsListener(self._respond, self._access.context)
        try:
            await listener.open(host, port)
        except OSError as error:
            raise GpupoolError(
                f"cannot listen at {self._listen}: {error.strerror}; choose another address:"
                " --metrics-listen"
            ) from None
        self._listener, self.port = listener, listener.port

    async def _respond(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"only GET\n")
        headers = _headers(head)
        if is_from_a_page(headers):
            return _response("403 Forbidden", f"{FROM_A_PAGE}\n".encode())
        path = words[1].partition(b"?")[0]
        if path in HEALTH:
            answer = self._health(path)
            return answer if words[0] == b"GET" else answer[: answer.index(b"\r\n\r\n") + 4]
        if not self._access.allows(headers):
            return _response(
                "401 Unauthorized", b"send 'Authorization: Bearer TOKEN' with the metrics' token\n"
            )
        # Beyond the loopback, names are the network's, and TLS proves them.
        if self._access.context is None and is_rebound(headers, self._names):
            return _response("403 Forbidden", f"{of_rebound(headers)}\n".encode())
        if path != b"/metrics":
            return _response("404 Not Found", b"what there is: /metrics, /healthz\n")
        await self.ask()
        body, kind = render(self._registry, headers.get("accept", ""))
        whole = _response("200 OK", body, kind)
        return whole if words[0] == b"GET" else whole.removesuffix(body)

    def _health(self, path: bytes) -> bytes:
        """Open to all: whether the server answers, and whether it could begin a session."""
        if path == READY and self._supervisor.health.trouble:
            return _response("503 Service Unavailable", b"sessions do not start; see its log\n")
        return _response("200 OK", b"ok\n")

    async def ask(self) -> None:
        """Ask workers and cards what they answer when they can."""
        sessions = await self._supervisor.describe()
        self._budgets.take(sessions, self._supervisor.budgets(sessions))
        await self._cards.ask()

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
            self._listener = None


def _headers(head: bytes) -> dict[str, str]:
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _response(status: str, body: bytes, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n"
    )
    if status.startswith("401"):
        head += "WWW-Authenticate: Bearer\r\n"
    return f"{head}\r\n".encode() + body
