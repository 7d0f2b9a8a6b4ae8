"""Traces by OpenTelemetry, where a collector is set; else nothing of it is even imported.

A trace crosses our processes as W3C's ``traceparent``: in the header of a request to the manager,
there as the id of that request, and so with its lease to the servers. Who makes no spans hands on
what came.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from gpupool_common import __version__, logs

#: With either there is a collector; the exporter reads these, and its other variables, itself.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

#: The header, and the variable of a process that continues a trace.
HEADER, VARIABLE = "traceparent", "TRACEPARENT"

#: What has not been sent then is lost: nobody waits for a collector.
FLUSH_SECONDS = 2.0

_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")

#: What a span within this one has for its parent; empty: nothing.
_current: ContextVar[str] = ContextVar("traceparent", default="")


def is_traceparent(text: str) -> bool:
    """Whether it is one of the version that there is."""
    return _PARENT.fullmatch(text) is not None


class Span:
    """A span that nobody records: it hands on its parent."""

    def __init__(self, parent: str) -> None:
        #: What comes after it has this for its parent; empty: there is no trace.
        self.traceparent = parent

    def set(self, **attributes: str | int) -> None:
        """Attributes; of their names, ``__`` is a point."""

    def end(self, failure: str = "") -> None:
        """It is over; ``failure`` says what went wrong."""


class _Recorded(Span):
    def __init__(self, span: Any, api: Any) -> None:
        context = span.get_span_context()
        flags = int(context.trace_flags)
        super().__init__(f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}")
        self._span = span
        self._api = api

    def set(self, **attributes: str | int) -> None:
        self._span.set_attributes({k.replace("__", "."): v for k, v in attributes.items()})

    def end(self, failure: str = "") -> None:
        if failure:
            self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, failure))
        self._span.end()


class Tracer:
    """Makes spans that nobody records."""

    on = False

    def begin(self, name: str, parent: str, is_server: bool) -> Span:
        return Span(parent)

    def close(self) -> None:
        """Send what is left, if that is soon done."""


class _OtlpTracer(Tracer):
    on = True

    def __init__(self, service: str) -> None:
        """ImportError where the packages are not installed."""
        module = importlib.import_module
        self._api = module("opentelemetry.trace")
        sdk = module("opentelemetry.sdk.trace")
        export = module("opentelemetry.sdk.trace.export")
        otlp = module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resources = module("opentelemetry.sdk.resources")
        named = {"service.name": service, "service.version": __version__}
        self._provider = sdk.TracerProvider(
            resource=resources.Resource.create(named), shutdown_on_exit=False
        )
        self._provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("gpupool", __version__)

    def begin(self, name: str, parent: str, is_server: bool) -> Span:
        api = self._api
        kind = api.SpanKind.SERVER if is_server else api.SpanKind.INTERNAL
        span = self._tracer.start_span(name, context=self._context(parent), kind=kind)
        return _Recorded(span, api)

    def _context(self, parent: str) -> Any:
        api, found = self._api, _PARENT.fullmatch(parent)
        remote = api.INVALID_SPAN
        if found is not None:
            trace, span, flags = (int(part, 16) for part in found.groups())
            remote = api.NonRecordingSpan(
                api.SpanContext(trace, span, is_remote=True, trace_flags=api.TraceFlags(flags))
            )
        return api.set_span_in_context(remote)

    def close(self) -> None:
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(FLUSH_SECONDS)


_tracer: Tracer = Tracer()


def wanted(env: Mapping[str, str]) -> bool:
    """Whether there is a collector, and nobody has switched traces off."""
    off = env.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and any(env.get(name) for name in ENDPOINTS)


def start(service: str, env: Mapping[str, str] | None = None, quiet: bool = False) -> None:
    """Record spans of this process from now on, if there is a collector.

    ``quiet``: the variables may be meant for somebody else, so nothing is said of what lacks.
    """
    global _tracer
    if not wanted(os.environ if env is None else env):
        return
    if quiet:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    try:
        _tracer = _OtlpTracer(service)
    except ImportError as error:
        if not quiet:
            logs.get("traces").warning(
                "there are no traces; install their packages: pip install 'gpupool[traces]'",
                reason=str(error),
            )


def stop() -> None:
    """Record no more."""
    global _tracer
    _tracer.close()
    _tracer = Tracer()


def is_on() -> bool:
    return _tracer.on


@contextlib.contextmanager
def span(
    name: str, parent: str | None = None, is_server: bool = False, **attributes: str | int
) -> Iterator[Span]:
    """A span around something. Without a ``parent`` it belongs to the one that it is in."""
    begun = _tracer.begin(name, _current.get() if parent is None else parent, is_server)
    begun.set(**attributes)
    token = _current.set(begun.traceparent)
    failure = "it was interrupted"
    try:
        yield begun
        failure = ""
    except Exception as error:
        failure = str(error) or type(error).__name__
        raise
    finally:
        _current.reset(token)
        begun.end(failure)
