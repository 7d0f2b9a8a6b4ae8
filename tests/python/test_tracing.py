"""Traces where nobody records them: what comes is handed on, and nothing is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpupool_common import tracing
from manager_rest import Rest

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

OFF = """
import sys
from gpupool_common import tracing
tracing.start("test", {env})
assert not tracing.is_on()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_without_a_collector_nothing_is_imported(env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFF.format(env=env)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("text", ["", "x", PARENT + "x", PARENT.replace("-", "_")])
def test_what_is_no_traceparent(text: str) -> None:
    assert not tracing.is_traceparent(text)


def test_nobodys_ids() -> None:
    assert tracing.is_traceparent(PARENT)
    for bad in ("01" + PARENT[2:], PARENT.upper(), f"00-{'0' * 32}-{PARENT[36:]}"):
        assert not tracing.is_traceparent(bad)
    assert not tracing.is_traceparent(f"{PARENT[:36]}{'0' * 16}-01")


def test_what_came_is_handed_on() -> None:
    with tracing.span("outer", PARENT) as outer:
        with tracing.span("inner") as inner:
            inner.set(a__b="c")
            assert inner.traceparent == outer.traceparent == PARENT
        with tracing.span("another", "") as other:
            assert other.traceparent == ""
    with tracing.span("after") as after:
        assert after.traceparent == ""


async def test_a_trace_is_the_id_of_a_request(rest: Rest) -> None:
    for headers, expected in (
        ({"traceparent": PARENT}, PARENT),
        ({"traceparent": PARENT, "x_request_id": "mine"}, "mine"),
    ):
        answer = await rest.ask("GET", "/tenants", **headers)
        assert answer.headers["x-request-id"] == expected
    stranger = await rest.ask("GET", "/tenants", by="gpp_none", traceparent=PARENT)
    assert stranger.status_code == 401 and stranger.headers["x-request-id"] != PARENT
    for wrong in ("x", PARENT + "-more", "00-" + "0" * 52):
        answer = await rest.ask("GET", "/tenants", traceparent=wrong)
        assert answer.headers["x-request-id"] not in (wrong, PARENT)
