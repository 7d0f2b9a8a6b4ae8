"""Lease tokens: what a tenant shows to servers, which check it without asking anybody.

``gpl_`` and a compact JWS (RFC 7515): HEADER.PAYLOAD.SIGNATURE, signed by the manager with
Ed25519 (RFC 8037). The header names nothing but the algorithm and the key's id. The payload is
MessagePack: version, lease, tenant, when it was issued and when it expires (seconds since 1970
by the manager's clock), priority, the id of the request, for every node its name and its grants
(ordinal, GPU, bytes, thousandths of its compute), which are the limits of sessions there, and how
many of these each server serves at once (version 2 has no such field: any number).

Servers have public keys alone, so nothing of theirs forges a token, for others or themselves.
A JWS and no PASETO: PyJWT is kept by many, and brings nothing but ``cryptography``. What JOSE is
known to get wrong is shut: one algorithm is taken, and the key is never the token's to choose.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import msgpack

from gpupool_common.errors import ProtocolError
from gpupool_common.quantities import LEAST_MEMORY, MOST_MEMORY, MOST_SESSIONS
from gpupool_common.sizes import WHOLE_GPU

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from jwt import PyJWS

PREFIX = "gpl_"
#: Without a limit of sessions a token is as the releases before that had it: an upgrade begins
#: with the manager, and its servers go on opening sessions.
UNLIMITED, VERSION = 2, 3
ALGORITHM = "EdDSA"

#: A question to a front end has 8 KiB; the rest of it needs less than half of that.
MAX_LENGTH = 6000

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: A signature has 64 bytes. Of its last character two bits count, the other four are zero.
_TEXT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{85}[AQgw]", re.ASCII)

_NOT_OURS = "it was not issued by this pool's manager, or was changed"


class UnknownKeyError(ProtocolError):
    """The token names a key that is not known (yet, or any more)."""


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """One virtual GPU."""

    ordinal: int
    gpu: str
    memory_bytes: int
    share_permille: int


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
    #: How many sessions each server serves at once; None: any number.
    sessions: int | None = None


@cache
def _jws() -> PyJWS:
    """Imported with the first token: a server without a pool never has one."""
    import jwt

    return jwt.PyJWS(algorithms=[ALGORITHM])


def key_id(public: bytes) -> str:
    """The name of a key, which follows from it: no two keys can have one."""
    return hashlib.sha256(b"gpupool lease key\0" + public).hexdigest()[:16]


def issue(token: LeaseToken, key: Ed25519PrivateKey) -> str:
    """The text of a token."""
    limit = [] if token.sessions is None else [token.sessions]
    payload = msgpack.packb(
        [
            VERSION if limit else UNLIMITED,
            token.lease,
            token.tenant,
            token.issued,
            token.expires,
            token.priority,
            token.request_id,
            [
                [
                    node,
                    [
                        [g.ordinal, _pack_gpu(g.gpu), g.memory_bytes, g.share_permille]
                        for g in grants
                    ],
                ]
                for node, grants in token.nodes.items()
            ],
            *limit,
        ]
    )
    return sign(payload, key)


def sign(payload: bytes, key: Ed25519PrivateKey) -> str:
    """The text of a token with this payload, whatever it is."""
    header = {"typ": None, "kid": key_id(key.public_key().public_bytes_raw())}
    return PREFIX + _jws().encode(payload, key, ALGORITHM, headers=header)


def looks_like(text: str) -> bool:
    """Whether this is meant to be a lease token."""
    return text.startswith(PREFIX)


def check(text: str, keys: Mapping[str, Ed25519PublicKey]) -> LeaseToken:
    """What a token says, if one of these keys has signed it; ProtocolError if none has.

    Nothing of it is believed before that: what is not from the manager has no meaning.
    """
    if len(text) > MAX_LENGTH:
        raise ProtocolError(f"it has {len(text)} characters, and none has more than {MAX_LENGTH}")
    body = text.removeprefix(PREFIX)
    if text == body or _TEXT.fullmatch(body) is None:
        raise ProtocolError("it is not a lease token, or is truncated, or of an earlier release")
    from jwt import InvalidTokenError

    try:
        named = _jws().get_unverified_header(body)
        key = _find_key(named, keys)
        payload = _jws().decode(body, key, algorithms=[ALGORITHM])
    except InvalidTokenError:
        raise ProtocolError(_NOT_OURS) from None
    return _read(payload)


def _find_key(header: Mapping[str, Any], keys: Mapping[str, Ed25519PublicKey]) -> Ed25519PublicKey:
    """The key that a header names; one with anything else in it is not the manager's."""
    name = header.get("kid")
    if header.keys() != {"alg", "kid"} or header["alg"] != ALGORITHM or not isinstance(name, str):
        raise ProtocolError(_NOT_OURS)
    found = keys.get(name)
    if found is None:
        raise UnknownKeyError("it is signed with a key that this server does not know")
    return found


def _read(payload: Any) -> LeaseToken:
    try:
        raw: Any = msgpack.unpackb(payload, raw=False)
        version, *fields = raw
        if type(version) is not int:
            raise ValueError
        if version not in (UNLIMITED, VERSION):
            raise ProtocolError(
                f"it is of version {version}, this server knows versions {UNLIMITED} and {VERSION};"
                " install the same gpupool release as the manager's"
            )
        if version == UNLIMITED:
            fields.append(None)
        lease, tenant, issued, expires, priority, request_id, nodes, sessions = fields
        token = LeaseToken(
            _name(lease),
            _name(tenant),
            _time(issued),
            _time(expires),
            _number(priority, 0, 100),
            str(request_id)[:256],
            {_name(node): tuple(_grant(grant) for grant in grants) for node, grants in nodes},
            None if sessions is None else _number(sessions, 1, MOST_SESSIONS),
        )
    except (ValueError, TypeError, KeyError, msgpack.UnpackException):
        raise ProtocolError("it is malformed") from None
    return token


def _grant(raw: Any) -> TokenGrant:
    ordinal, gpu, memory_bytes, share = raw
    return TokenGrant(
        _number(ordinal, 0, 1023),
        _unpack_gpu(gpu),
        _number(memory_bytes, LEAST_MEMORY, MOST_MEMORY),
        _number(share, 1, WHOLE_GPU),
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
