"""Bodies of requests to a manager, byte by byte: none is a failure of its, and it answers as
before."""

from __future__ import annotations

import json
import socket

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filled_manager import FilledManager

pytestmark = pytest.mark.timeout(300)

EXAMPLES = settings(max_examples=80, deadline=None)
PATHS = ("/v1/leases", "/v1/tenants", "/v1/tokens", "/v1/tenants/a/quota", "/v1/nodes/n1")

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**300), 10**300)
    | st.floats()
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = ("name", "gpus", "memory_bytes", "tenant", "scope", "quota", "labels", "ttl_seconds")
#: The same key twice is one of the things that dictionaries cannot say.
PAIRS = st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=4).map(
    lambda pairs: "{" + ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in pairs) + "}"
)
BODIES = (
    st.binary(max_size=200)
    | PAIRS.map(str.encode)
    | st.sampled_from(
        [
            *(b"\xff\xfe{}", b"\xef\xbb\xbf{}", b'{"name":"\xc3"}', b'{"gpus":1e999}'),
            *(b"[" * 50_000, b'{"a":' * 50_000, b'{"gpus":' + b"9" * 20_000 + b"}", b"{}" * 9),
        ]
    )
)


def send(url: str, head: str, body: bytes) -> bytes:
    """What is answered until the other side hangs up."""
    host = httpx.URL(url)
    with socket.create_connection((host.host, host.port or 80), timeout=60) as peer:
        peer.sendall(head.encode("latin-1") + body)
        heard = b""
        while piece := peer.recv(65536):
            heard += piece
            assert len(heard) < 1 << 20
        return heard


def status_of(answer: bytes) -> int:
    """0: the connection was closed without a word."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


def head_of(manager: FilledManager, method: str, path: str, *lines: str) -> str:
    fixed = (
        *(f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"),
        *(f"Authorization: Bearer {manager.admin}", "Content-Type: application/json"),
    )
    return "\r\n".join((*fixed, *lines, "", ""))


def still_answers(manager: FilledManager) -> bool:
    return httpx.get(f"{manager.url}/ready", trust_env=False, timeout=60).is_success


@EXAMPLES
@given(st.sampled_from(("POST", "PUT", "PATCH", "DELETE")), st.sampled_from(PATHS), BODIES)
def test_any_body(manager: FilledManager, method: str, path: str, body: bytes) -> None:
    head = head_of(manager, method, path, f"Content-Length: {len(body)}")
    assert status_of(send(manager.url, head, body)) < 500


def test_it_answers_as_before(manager: FilledManager) -> None:
    assert still_answers(manager)
