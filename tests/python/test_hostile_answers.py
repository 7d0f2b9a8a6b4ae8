"""What servers and managers may answer to commands, whatever it is: an answer, or an error in words
of ours; and what commands show of it."""

from __future__ import annotations

import io
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console

from answering import answering
from gpupool import inspect, smi, top
from gpupool.pool_address import Where
from gpupool.pool_client import PoolClient
from gpupool.status import Status
from gpupool_common import ask, protocol
from gpupool_common.errors import GpupoolError, ProtocolError

EXAMPLES = settings(max_examples=200, deadline=None)

NUMBERS = (
    st.integers(-(10**400), 10**400) | st.integers() | st.sampled_from([0, -1, 1 << 63, 1e308])
)
SCALARS = st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=20)
NAMES = st.sampled_from(
    [
        *("items", "next", "id", "detail", "type", "gpus", "sessions", "tenants", "processes"),
        *("index", "name", "uuid", "memory_total_bytes", "memory_used_bytes", "session", "created"),
        *("budgets", "used", "limit", "pid", "policy", "utilisation_permille", "devices", "ok"),
    ]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def refused_or(call: Any) -> Any:
    """What it returns; None if it is refused in words of ours."""
    try:
        return call()
    except GpupoolError as error:
        assert str(error)
        assert "\n" not in str(error)
        return None


# A manager ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manager() -> Iterator[tuple[str, list[bytes]]]:
    listener = socket.create_server(("127.0.0.1", 0))
    answer = [b""]
    with answering(listener, answer):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", answer


def http(status: int, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status} x\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@EXAMPLES
@given(
    st.binary(max_size=300)
    | st.builds(http, st.integers(100, 599), st.binary(max_size=300))
    | st.builds(http, st.integers(100, 599), JSON.map(lambda said: json.dumps(said).encode()))
    | st.builds(http, st.just(200), st.binary(max_size=40), st.integers(-5, 1 << 70))
)
def test_a_manager_that_answers_anything(manager: tuple[str, list[bytes]], said: bytes) -> None:
    url, answer = manager
    answer[0] = said
    where = Where(url=url, token="t")
    with PoolClient(where) as client:
        one = refused_or(lambda: client.get("/leases"))
        assert one is None or isinstance(one, dict)
        refused_or(lambda: client.do("POST", "/leases", {}))
        refused_or(lambda: list(client.events(None)))
        some = refused_or(lambda: client.all("/leases", most=10))
        assert some is None or isinstance(some, list)


def test_a_list_that_never_ends(manager: tuple[str, list[bytes]]) -> None:
    """Each page names another one behind it."""
    url, answer = manager

    class Endless(PoolClient):
        def get(self, path: str, params: Any = None, wait: float = 0.0) -> dict[str, Any]:
            self.pages = getattr(self, "pages", 0) + 1
            return {"items": [0] * 500, "next": str(self.pages)}

    with Endless(Where(url=url, token="t")) as client, pytest.raises(ProtocolError):
        client.all("/leases")


# A server's front end -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def front_end() -> Iterator[tuple[str, list[bytes]]]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sock"
        listener.bind(str(path))
        listener.listen()
        answer = [b""]
        with answering(listener, answer):
            yield f"unix://{path}", answer


def info(said: Any, pages: str) -> bytes:
    return protocol.encode("ok", {"json": json.dumps(said), "pages": pages})


@EXAMPLES
@given(
    st.binary(max_size=300)
    | st.text(max_size=100).map(lambda text: f"GPUPOOL/1 {text}".encode())
    | st.builds(info, JSON, st.sampled_from(["1", "0", "-1", "2", "x", "9" * 5000]))
    | st.sampled_from([f"GPUPOOL/1 ok\njson: {'[' * 20_000}\n".encode()])
)
def test_a_front_end_that_answers_anything(front_end: tuple[str, list[bytes]], said: bytes) -> None:
    url, answer = front_end
    answer[0] = said
    if b"pages: 9" in said:
        return  # the next test's
    told = refused_or(lambda: ask.ask_info(url, "t", timeout=20))
    assert told is None or isinstance(told, dict)
    refused_or(lambda: ask.ask(url, "hello", {}, timeout=20))


def test_an_inventory_that_never_ends(front_end: tuple[str, list[bytes]]) -> None:
    """So much as a server may say is kept, and no more is asked for."""
    url, answer = front_end
    answer[0] = info({"gpus": ["x" * 7_000]}, "10000")
    with pytest.raises(ProtocolError):
        ask.ask_info(url, "t", timeout=20)


# What is shown of it ------------------------------------------------------------------------

GPU = {"index": 0, "name": "x", "memory_total_bytes": 1}
BUDGETS = st.dictionaries(
    st.sampled_from(["host_memory", "log_lines", "x"]),
    st.fixed_dictionaries({"used": NUMBERS, "limit": NUMBERS, "refused": NUMBERS}),
    max_size=2,
)
TENANTS = st.fixed_dictionaries(
    {"name": st.text(max_size=9)},
    optional={
        key: NUMBERS
        for key in (
            *("memory_limit_bytes", "memory_used_bytes", "memory_peak_bytes", "memory_denied"),
            *("weight", "share_permille", "entitled_permille", "utilisation_permille"),
        )
    },
)
GPUS = st.fixed_dictionaries(
    {"index": NUMBERS, "name": st.text(max_size=9), "memory_total_bytes": NUMBERS},
    optional={
        **{key: NUMBERS for key in ("utilisation_permille", "default_memory_bytes", "max_inst")},
        "tenants": st.lists(TENANTS, max_size=2),
    },
)
SESSIONS = st.fixed_dictionaries(
    {"session": st.text(max_size=9)},
    optional={
        "created": st.floats() | NUMBERS,
        "memory_bytes": NUMBERS,
        "client_pid": NUMBERS,
        "budgets": BUDGETS,
    },
)
STATUSES = st.fixed_dictionaries(
    {"gpus": st.lists(GPUS, max_size=2), "sessions": st.lists(SESSIONS, max_size=2)},
    optional={"budgets": st.dictionaries(st.text(max_size=5), BUDGETS, max_size=2)},
)


@EXAMPLES
@given(STATUSES | JSON)
def test_a_status_that_says_anything_can_be_shown(said: Any) -> None:
    try:
        status = Status.model_validate(said)
    except ValidationError:
        return
    console = Console(file=io.StringIO(), width=80)
    smi.print_status(console, status)
    console.print(top.frame(status, 80))
    inspect.summary(status)
