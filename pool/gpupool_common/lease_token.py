"""Lease tokens: what a tenant shows to servers, which check it without asking anybody.

``gpl_PAYLOAD.MACS``, both in URL-safe base64 without padding. The payload is MessagePack:
version, lease, tenant, when it was issued and when it expires (seconds since 1970 by the
manager's clock), priority, the id of the request, and for every node its name and its grants
(ordinal, GPU, MiB, hundredths of its compute). For each node, in that order, there is one
MAC over the payload under a key that only the manager and that node have: so no server can
forge what another one would take.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import uuid
from dataclasses import dataclass
from typing import Any

import msgpack

from gpupool_common.errors import ProtocolError

PREFIX = "gpl_"
VERSION = 1
MAC_BYTES = 16

#: A question to a front end has 8 KiB; the rest of it needs less than half of that.
MAX_LENGTH = 6000

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """One virtual GPU."""

    ordinal: int
    gpu: str
    memory_mib: int
    share: int


@dataclass(frozen=True, slots=True)
class LeaseToken:
    """What a token says."""

    lease: str
    tenant: str
    issued: float
    expires: float
    priority: int
    request_id: str
    #: By node, in the order of ordinals.
    nodes: dict[str, tuple[TokenGrant, ...]]


def issue(token: LeaseToken, keys: dict[str, bytes]) -> str:
    """The text of a token; ``keys`` has one for each of its nodes."""
    payload = msgpack.packb(
        [
            VERSION,
            token.lease,
            token.tenant,
            token.issued,
            token.expires,
            token.priority,
            token.request_id,
            [
                [node, [[g.ordinal, _pack_gpu(g.gpu), g.memory_mib, g.share] for g in grants]]
                for node, grants in token.nodes.items()
            ],
        ]
    )
    macs = b"".join(_mac(keys[node], node, payload) for node in token.nodes)
    return f"{PREFIX}{_encode(payload)}.{_encode(macs)}"


def looks_like(text: str) -> bool:
    """Whether this is meant to be a lease token."""
    return text.startswith(PREFIX)


def check(text: str, node: str, key: bytes) -> LeaseToken:
    """What a token says, if its MAC for this node is right; ProtocolError if not.

    Nothing of it is read before that: what is not from the manager has no meaning.
    """
    if len(text) > MAX_LENGTH:
        raise ProtocolError(f"it has {len(text)} characters, and none has more than {MAX_LENGTH}")
    body, point, tail = text.removeprefix(PREFIX).partition(".")
    payload, macs = _decode(body), _decode(tail)
    if not point or not macs or len(macs) % MAC_BYTES:
        raise ProtocolError("it is truncated")
    own = _mac(key, node, payload)
    found = False
    for place in range(0, len(macs), MAC_BYTES):
        found |= hmac.compare_digest(own, macs[place : place + MAC_BYTES])
    if not found:
        raise ProtocolError("it was not issued for this server, or was changed")
    return _read(payload)


def _mac(key: bytes, node: str, payload: bytes) -> bytes:
    named = b"gpupool lease token\0" + node.encode() + b"\0" + payload
    return hmac.digest(key, named, hashlib.sha256)[:MAC_BYTES]


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(text: str) -> bytes:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise ProtocolError("it is not a lease token") from None
    if _encode(raw) != text:  # one token has one text
        raise ProtocolError("it is not a lease token")
    return raw


def _read(payload: bytes) -> LeaseToken:
    try:
        raw: Any = msgpack.unpackb(payload, raw=False)
        version, *fields = raw
        if version != VERSION:
            raise ProtocolError(
                f"it is of version {version}, this server knows version {VERSION};"
                " install the same gpupool release as the manager's"
            )
        lease, tenant, issued, expires, priority, request_id, nodes = fields
        token = LeaseToken(
            _name(lease),
            _name(tenant),
            _time(issued),
            _time(expires),
            _number(priority, 0, 100),
            str(request_id)[:256],
            {_name(node): tuple(_grant(grant) for grant in grants) for node, grants in nodes},
        )
    except (ValueError, TypeError, KeyError, msgpack.UnpackException):
        raise ProtocolError("it is malformed") from None
    return token


def _grant(raw: Any) -> TokenGrant:
    ordinal, gpu, memory_mib, share = raw
    return TokenGrant(
        _number(ordinal, 0, 1023),
        _unpack_gpu(gpu),
        _number(memory_mib, 1, 1 << 30),
        _number(share, 1, 100),
    )


def _name(value: Any) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError("no name")
    return value


def _time(value: Any) -> float:
    """No NaN: nothing is later than that, so it would never expire."""
    if type(value) not in (int, float) or not 0 <= value <= 1e11:
        raise ValueError("no such time")
    return float(value)


def _number(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError("no such number")
    return value


def _pack_gpu(name: str) -> str | bytes:
    """A GPU's UUID in 16 bytes, if it is written as NVIDIA writes them."""
    try:
        packed = uuid.UUID(name.removeprefix("GPU-")).bytes
    except ValueError:
        return name
    return packed if _unpack_gpu(packed) == name else name


def _unpack_gpu(value: Any) -> str:
    return f"GPU-{uuid.UUID(bytes=value)}" if isinstance(value, bytes) else _name(value)
