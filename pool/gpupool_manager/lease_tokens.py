"""Issues lease tokens (gpupool_common/lease_token.py says what is in them)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from gpupool_common import lease_token
from gpupool_common.lease import LeaseState
from gpupool_common.lease_token import LeaseToken, TokenGrant
from gpupool_manager import key_notes
from gpupool_manager.ledger import Ledger
from gpupool_manager.records import Lease
from gpupool_manager.signing_keys import KeyRing

#: How many bytes the manager's own secret has.
SECRET_BYTES = 32


class Signer:
    """Has what the database must never have: the keys of tokens, and a secret for peers' keys."""

    def __init__(self, secret: bytes, ring: KeyRing, lifetime: float) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError("a secret of another size")
        self._secret = secret
        self.ring = ring
        self.lifetime = lifetime

    def known_by(self, link: str) -> str:
        """By which keys the pool is known, beside that of its link (key_notes.py)."""
        return key_notes.describe(self._secret, self.ring.current.id, link)

    def check_known(self, known: str, link: Sequence[str]) -> None:
        """GpupoolError unless these are ours."""
        key_notes.check(known, self._secret, [key.id for key in self.ring.keys], link)

    def peer_key(self, lease: str) -> str:
        """What servers of a lease know each other's workers by; clients never have it."""
        named = b"gpupool peers\0" + lease.encode()
        return hmac.digest(self._secret, named, hashlib.sha256).hex()

    def public_keys(self) -> list[str]:
        """What nodes check tokens with, in hexadecimal."""
        return [key.public.hex() for key in self.ring.keys]

    def issue(self, ledger: Ledger, lease: Lease, now: float) -> str | None:
        """A fresh token for what the lease has; None if it has nothing."""
        nodes: dict[str, list[TokenGrant]] = {}
        for grant in lease.staying:
            if grant.node in ledger.nodes:
                named = TokenGrant(
                    grant.ordinal, grant.gpu, grant.memory_bytes, grant.share_permille
                )
                nodes.setdefault(grant.node, []).append(named)
        if lease.state != LeaseState.ACTIVE or not nodes:
            return None
        token = LeaseToken(
            lease.id,
            lease.tenant,
            now,
            now + self.lifetime,
            lease.priority,
            lease.request_id,
            {node: tuple(grants) for node, grants in nodes.items()},
            lease.sessions,
        )
        return lease_token.issue(token, self.ring.current.private)
