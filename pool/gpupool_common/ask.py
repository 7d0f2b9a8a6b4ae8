"""Ask a server's front end one question from Python (the C library has its own way)."""

from __future__ import annotations

import os
import platform
import random
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zmq

from gpupool_common import json_text, protocol
from gpupool_common.errors import (
    ProtocolError,
    RefusedError,
    ServerAwayError,
    ServerClosedError,
    UnreachableError,
)

_KEY = re.compile(r"[0-9a-f]{64}")

#: What a ZMTP listener must hear before it says how it wants to be spoken to, how long
#: that is, and where in it the mechanism is.
_GREETING = bytes((0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 0))
_GREETING_BYTES = 64
_MECHANISM = slice(12, 32)

_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass(frozen=True)
class Address:
    """Where a server is asked, and the public key it must have; None: in clear."""

    endpoint: str
    key: bytes | None

    @classmethod
    def parse(cls, url: str) -> Address:
        """ValueError unless ``url`` has a form that a server can be asked at."""
        endpoint, query, key = url.partition("?")
        if endpoint.startswith("tcp://"):
            split_tcp(endpoint)
        elif not endpoint.startswith(("unix:///", "ipc:///")):
            raise ValueError(
                f"{url!r} is not a server address; use tcp://HOST:PORT or unix:///PATH"
            )
        if not query:
            return cls(endpoint, None)
        if not endpoint.startswith("tcp://"):
            raise ValueError(f"{url!r}: only tcp:// is encrypted, so it has no key")
        if not key.startswith("key=") or _KEY.fullmatch(key.removeprefix("key=")) is None:
            raise ValueError(f"{url!r}: '?' must be followed by key= and 64 digits 0-9 a-f")
        return cls(endpoint, bytes.fromhex(key.removeprefix("key=")))


def with_key(url: str, key: str | None) -> str:
    """The address of who listens at ``url`` and has the public key, if it has one."""
    return f"{url}?key={key}" if key else url


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
    Address.parse(url)


def _knock(url: str, timeout: float) -> None:
    """Connect and close: ZeroMQ would retry in silence where the system knows why not."""
    try:
        if url.startswith("tcp://"):
            socket.create_connection(split_tcp(url), timeout=timeout).close()
        else:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout)
                sock.connect(url.removeprefix("ipc://"))
    except OSError as error:
        raise _not_there(url, error) from None


#: The name is wrong; EAI_AGAIN is not of them, which says that nobody could be asked.
_NO_SUCH_HOST = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


def is_unknown_host(error: BaseException | None) -> bool:
    """Whether a name was asked for and there is none like it."""
    return isinstance(error, socket.gaierror) and error.errno in _NO_SUCH_HOST


def _not_there(url: str, error: OSError) -> UnreachableError:
    reason = error.strerror or str(error)
    if is_unknown_host(error):
        return UnreachableError(
            f"no gpupool server answers at {url}: {reason}; is the host's name right?"
        )
    if isinstance(error, PermissionError):
        return ServerClosedError(
            f"the gpupool server at {url} is not open to this user: {reason};"
            " its socket belongs to the user that it runs as"
        )
    return ServerAwayError(
        f"no gpupool server answers at {url}: {reason};"
        " is gpupool-server running there, and is the address right?"
    )


#: Pauses between questions to a server that is busy: they double.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


def ask(url: str, word: str, fields: Mapping[str, str], timeout: float = 5.0) -> protocol.Message:
    """One question, one answer ``ok``; every other outcome is an exception of errors.py.

    A server that is busy is asked again, until ``timeout`` is over.
    """
    try:
        address = Address.parse(url)
    except ValueError as error:
        raise UnreachableError(str(error)) from None
    question = protocol.encode(word, fields)
    deadline = time.monotonic() + timeout
    busy: RefusedError | None = None
    pause = FIRST_PAUSE
    while True:
        try:
            answer = _ask_once(address, question, max(deadline - time.monotonic(), 0.001))
            return _judge(answer, address.endpoint)
        except ServerAwayError:
            if busy is not None:
                raise busy from None  # it was there, and has too much to do even to say so
            raise
        except RefusedError as error:
            if error.code != "busy" or deadline - time.monotonic() <= pause:
                raise
            busy = error
        time.sleep(pause * random.uniform(0.5, 1))  # who was refused together comes apart
        pause = min(2 * pause, LONGEST_PAUSE)


def _ask_at_socket(url: str, question: bytes, timeout: float) -> bytes:
    """At the socket where a server gives shared memory: a datagram each way."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(timeout)
            sock.connect(url.removeprefix("unix://"))
            sock.send(question)
            answer = sock.recv(4 * protocol.MAX_BYTES)
    except TimeoutError:
        raise ServerAwayError(f"the gpupool server at {url} says nothing; is it stopped?") from None
    except ConnectionResetError:
        answer = b""
    except OSError as error:
        raise _not_there(url, error) from None
    if not answer:
        raise ServerClosedError(f"the gpupool server at {url} does not admit this user (shm_allow)")
    return answer


def _ask_once(address: Address, question: bytes, timeout: float) -> protocol.Message:
    if address.endpoint.startswith("unix://"):
        return protocol.decode(_ask_at_socket(address.endpoint, question, timeout))
    _knock(address.endpoint, timeout)
    context = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.IPV6, int("[" in address.endpoint))
        dealer.setsockopt(zmq.MAXMSGSIZE, 4 * protocol.MAX_BYTES)
        _encrypt(dealer, address)
        monitor = dealer.get_monitor_socket(_HANDSHAKE_FAILED)
        dealer.connect(address.endpoint)
        dealer.send(question)
        payload = _await(dealer, monitor, address, timeout)
    finally:
        context.destroy(linger=0)
    return protocol.decode(payload)


def _encrypt(dealer: zmq.Socket[bytes], address: Address) -> None:
    if address.key is None:
        return
    if not zmq.has("curve"):
        raise UnreachableError(
            f"{address.endpoint} has a key, and this libzmq cannot encrypt; install pyzmq's wheel"
        )
    public, secret = zmq.curve_keypair()  # the token says who we are
    dealer.setsockopt(zmq.CURVE_SERVERKEY, address.key)
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, public)
    dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)


def _await(
    dealer: zmq.Socket[bytes], monitor: zmq.Socket[bytes], address: Address, timeout: float
) -> bytes:
    """The answer; UnreachableError says why there is none."""
    deadline = time.monotonic() + timeout
    poller = zmq.Poller()
    poller.register(dealer, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    failures = 0
    while (left := deadline - time.monotonic()) > 0:
        there = dict(poller.poll(int(left * 1000) + 1))
        if dealer in there:
            return dealer.recv_multipart()[-1]
        if monitor in there:
            monitor.recv_multipart()
            failures += 1
            # A server that stops looks as one with another key: ZeroMQ tries again.
            _explain_handshake(address, deadline - time.monotonic(), again=failures > 1)
    raise ServerAwayError(
        f"what listens at {address.endpoint} gave no answer within {round(timeout, 1):g} s;"
        " it may not be a gpupool server, or it hangs"
    )


def _explain_handshake(address: Address, timeout: float, again: bool) -> None:
    """A handshake failed: UnreachableError if the keys do not agree."""
    mechanism = ask_mechanism(address.endpoint, max(timeout, 0.1))
    at = f"the server at {address.endpoint}"
    if mechanism == b"CURVE" and address.key is None:
        raise UnreachableError(
            f"{at} encrypts, and the address has no key: write tcp://HOST:PORT?key=KEY;"
            " `gpupool-server --show-key` prints it there"
        )
    if mechanism == b"NULL" and address.key is not None:
        raise UnreachableError(
            f"{at} does not encrypt, and the address has a key: start the server with --curve,"
            " or take ?key=… away"
        )
    if mechanism == b"CURVE" and again:
        raise UnreachableError(
            f"{at} does not have this key; `gpupool-server --show-key` prints the right one there"
        )


def ask_mechanism(endpoint: str, timeout: float) -> bytes:
    """How whoever listens there wants to be spoken to; empty if it is not ZeroMQ."""
    if not endpoint.startswith("tcp://"):
        return b""
    greeting = b""
    try:
        with socket.create_connection(split_tcp(endpoint), timeout=timeout) as sock:
            sock.sendall(_GREETING)
            while len(greeting) < _GREETING_BYTES:
                more = sock.recv(_GREETING_BYTES - len(greeting))
                if not more:
                    return b""
                greeting += more
    except OSError:
        return b""
    if greeting[0] != 0xFF or not greeting[9] & 1 or greeting[10] < 3:
        return b""
    return greeting[_MECHANISM].rstrip(b"\0")


def _judge(answer: protocol.Message, url: str) -> protocol.Message:
    if answer.word == "ok":
        return answer
    if answer.word == "refused":
        raise RefusedError(answer.require("code"), f"{url}: {answer.require('message')}")
    raise ProtocolError(f"{url} answered '{answer.word}', which is neither ok nor refused")


def check(url: str, token: str, asked: Mapping[str, str], timeout: float = 5.0) -> None:
    """Whether a program could be served there now; else an exception that says why not.

    ``asked`` has the variables by which it will ask for GPUs, as fields of a question.
    """
    fields = {"token": token, "page": "0", "check": "1", **asked}
    fields |= {"pid": str(os.getpid()), "program": "gpupool run", "host": platform.node() or "?"}
    answer = ask(url, "info", fields, timeout)
    try:
        info = json_text.parse(answer.require("json"))
    except ValueError:
        info = None
    if not isinstance(info, dict):
        raise ProtocolError(f"{url}: the answer to 'info' holds no JSON object")
    if info.get("draining"):
        raise RefusedError("draining", f"{url}: the server is stopping; try again later")
    if refused := info.get("refused"):
        raise RefusedError("bad-token", f"{url}: {protocol.one_line(str(refused))}")


#: Of an inventory, put together: more than a server of 64 GPUs and its sessions ever say.
MAX_INFO = 16 << 20


def ask_info(url: str, token: str, timeout: float = 5.0) -> dict[str, Any]:
    """Inventory and sessions of a server, in pages put together again."""
    info: dict[str, Any] = {}
    page = size = 0
    while True:
        answer = ask(url, "info", {"token": token, "page": str(page)}, timeout)
        size += len(answer.fields.get("json", ""))
        if size > MAX_INFO:
            raise ProtocolError(f"{url}: the answer to 'info' is longer than {MAX_INFO} bytes")
        try:
            part = json_text.parse(answer.require("json"))
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
