"""A small collector of OpenTelemetry's: takes traces over HTTP, decodes and keeps them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness import wait_until


@dataclass(frozen=True)
class TracedSpan:
    """One span as it came."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, str]
    failed: bool


class Collector:
    """What came so far, in :attr:`spans`."""

    def __init__(self) -> None:
        self.spans: list[TracedSpan] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces", self.path
                collector.take(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {
                        a.key: a.value.string_value or str(a.value.int_value)
                        for a in span.attributes
                    }
                    self.spans.append(
                        TracedSpan(
                            service["service.name"],
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            values,
                            span.status.code == 2,
                        )
                    )

    def wait_for(self, name: str) -> TracedSpan:
        """The first span with this name, once it has come."""
        wait_until(lambda: any(span.name == name for span in self.spans), f"the span {name!r} came")
        return next(span for span in self.spans if span.name == name)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def running_collector() -> Iterator[Collector]:
    found = Collector()
    try:
        yield found
    finally:
        found.close()
