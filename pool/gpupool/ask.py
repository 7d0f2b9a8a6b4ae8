"""Ask a server's front door one question from Python (the C library has its own way)."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

import zmq

from gpupool import protocol
from gpupool.errors import ProtocolError, RefusedError, UnreachableError


def split_tcp(url: str) -> tuple[str, int]:
    """Host and port of ``tcp://host:port``; ValueError if it is not that."""
    host, colon, port = url.removeprefix("tcp://").rpartition(":")
    if not url.startswith("tcp://") or not colon or not host or not port.isdecimal():
        raise ValueError(f"{url!r} is not tcp://HOST:PORT")
    if not 0 < int(port) < 65536:
        raise ValueError(f"{url!r}: the port must be 1..65535")
    return host.strip("[]"), int(port)


def check_url(url: str) -> None:
    """ValueError unless ``url`` has a form that a server can be asked at."""
    if url.startswith("tcp://"):
        split_tcp(url)
    elif not url.startswith("ipc:///"):
        raise ValueError(f"{url!r} is no server address; use tcp://HOST:PORT or ipc:///PATH")


def _knock(url: str, timeout: float) -> None:
    """Connect and hang up: ZeroMQ would retry in silence where the system knows why not."""
    try:
        if url.startswith("tcp://"):
            socket.create_connection(split_tcp(url), timeout=timeout).close()
        else:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout)
                sock.connect(url.removeprefix("ipc://"))
    except OSError as error:
        raise UnreachableError(
            f"no gpupool server answers at {url}: {error.strerror or error};"
            " is gpupool-server running there, and is the address right?"
        ) from None


def ask(url: str, word: str, fields: Mapping[str, str], timeout: float = 5.0) -> protocol.Message:
    """One question, one answer ``ok``; every other outcome is an exception of gpupool.errors."""
    try:
        check_url(url)
    except ValueError as error:
        raise UnreachableError(str(error)) from None
    question = protocol.encode(word, fields)
    _knock(url, timeout)
    context = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.IPV6, int("[" in url))
        dealer.setsockopt(zmq.MAXMSGSIZE, 4 * protocol.MAX_BYTES)
        dealer.connect(url)
        dealer.send(question)
        if not dealer.poll(int(timeout * 1000)):
            raise UnreachableError(
                f"what listens at {url} gave no answer within {timeout:g} s;"
                " it may be no gpupool server, or it hangs"
            )
        payload = dealer.recv_multipart()[-1]
    finally:
        context.destroy(linger=0)
    return _judge(protocol.decode(payload), url)


def _judge(answer: protocol.Message, url: str) -> protocol.Message:
    if answer.word == "ok":
        return answer
    if answer.word == "refused":
        raise RefusedError(answer.require("code"), f"{url}: {answer.require('message')}")
    raise ProtocolError(f"{url} answered '{answer.word}', which is neither ok nor refused")


def ask_info(url: str, token: str, timeout: float = 5.0) -> dict[str, Any]:
    """Inventory and sessions of a server, in pages put together again."""
    info: dict[str, Any] = {}
    page = 0
    while True:
        answer = ask(url, "info", {"token": token, "page": str(page)}, timeout)
        try:
            part = json.loads(answer.require("json"))
            pages = int(answer.fields.get("pages", "1"))
        except ValueError:
            raise ProtocolError(f"{url}: the answer to 'info' holds no JSON") from None
        if not isinstance(part, dict):
            raise ProtocolError(f"{url}: the answer to 'info' holds no JSON object")
        for key, value in part.items():
            if isinstance(value, list) and isinstance(info.get(key), list):
                info[key].extend(value)
            else:
                info[key] = value
        page += 1
        if page >= min(pages, 10_000):
            return info
