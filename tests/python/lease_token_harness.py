"""Lease tokens as a manager signs them, and a server's handler that takes them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpupool_common import lease_token
from gpupool_common.lease_token import LeaseToken, TokenGrant
from gpupool_common.node_protocol import Apply, OrderedGrant, Orders, SendReport, Told
from gpupool_server.pool_member import PoolMember
from server_harness import Office, hello, refused

MIB = 1 << 20
NOW = 1_800_000_000.0
KEY, OTHER_KEY = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
KEYS = {lease_token.key_id(KEY.public_key().public_bytes_raw()): KEY.public_key()}
GPUS = [f"GPU-{uuid.UUID(bytes=bytes([index + 1]) * 16)}" for index in range(2)]


def token_of(*grants: TokenGrant, **changes: Any) -> LeaseToken:
    values: dict[str, Any] = {
        "lease": "lease-1",
        "tenant": "red",
        "issued": NOW,
        "expires": NOW + 600,
        "priority": 0,
        "request_id": "r-1",
        "nodes": {"here": grants or (TokenGrant(0, GPUS[0], 64 * MIB, 500),)},
        **changes,
    }
    return LeaseToken(**values)


def issued(token: LeaseToken | None = None, **changes: Any) -> str:
    token = replace(token or token_of(), **changes)
    return lease_token.issue(token, KEY)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Node:
    """A server's handler that belongs to a pool, without a link."""

    def __init__(self, office: Office, clock: Callable[[], float] | None = None) -> None:
        self.office = office
        self.clock = Clock()
        self.member = PoolMember(
            "here", office.run_dir.path, office.gpus, office.supervisor, clock or self.clock
        )
        office.handler.join(self.member)

    def told(self, *commands: Apply | SendReport) -> bool:
        orders = Orders(next_heartbeat=10, commands=list(commands))
        return self.member.apply(Told(number=1, now=NOW, orders=orders))

    def apply(self, *grants: OrderedGrant, at: float = NOW, **more: Any) -> None:
        values: dict[str, Any] = {
            "generation": "g-1",
            "mode": "open",
            "gpus": [],
            "keys": [KEY.public_key().public_bytes_raw().hex()],
            "offline_seconds": 900.0,
            **more,
        }
        self.told(Apply(at=at, grants=list(grants), **values))

    async def hello(self, token: str, **changes: str | None) -> bytes:
        return await self.office.handler.answer(hello(token=token, **changes))

    async def refused(self, token: str, **changes: str | None) -> tuple[str, str]:
        return refused(await self.hello(token, **changes))


def grant(lease: str = "lease-1", ordinal: int = 0, index: int = 0, **more: Any) -> OrderedGrant:
    values: dict[str, Any] = {
        "tenant": "red",
        "memory_bytes": 64 * MIB,
        "share_permille": 500,
        "priority": 0,
        **more,
    }
    return OrderedGrant(lease=lease, ordinal=ordinal, gpu=GPUS[index], **values)
