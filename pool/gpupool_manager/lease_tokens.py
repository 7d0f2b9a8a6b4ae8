"""Issues lease tokens (gpupool/lease_token.py says what is in them)."""

from __future__ import annotations

import hashlib
import hmac

from gpupool_common import lease_token
from gpupool_common.lease import LeaseState
from gpupool_common.lease_token import LeaseToken, TokenGrant
from gpupool_manager.ledger import Ledger
from gpupool_manager.records import Lease, Node

#: How many bytes the manager's own secret has.
SECRET_BYTES = 32


class Signer:
    """Has the secret from which every node's key is derived; so none has to be kept."""

    def __init__(self, secret: bytes, lifetime: float) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError("a secret of another size")
        self._secret = secret
        self._lifetime = lifetime

    def key_of(self, node: Node) -> bytes:
        """What a node's tokens are signed with. A node that joins again has another."""
        named = b"gpupool node\0" + node.name.encode() + b"\0" + node.key.encode()
        return hmac.digest(self._secret, named, hashlib.sha256)

    def peer_key(self, lease: str) -> str:
        """What servers of a lease know each other's workers by; clients never have it."""
        named = b"gpupool peers\0" + lease.encode()
        return hmac.digest(self._secret, named, hashlib.sha256).hex()

    def issue(self, ledger: Ledger, lease: Lease, now: float) -> str | None:
        """A fresh token for what the lease has; None if it has nothing."""
        nodes: dict[str, list[TokenGrant]] = {}
        for grant in lease.grants:
            if not grant.lost and grant.node in ledger.nodes:
                named = TokenGrant(grant.ordinal, grant.gpu, grant.memory_mib, grant.share)
                nodes.setdefault(grant.node, []).append(named)
        if lease.state != LeaseState.ACTIVE or not nodes:
            return None
        token = LeaseToken(
            lease.id,
            lease.tenant,
            now,
            now + self._lifetime,
            lease.priority,
            lease.request_id,
            {node: tuple(grants) for node, grants in nodes.items()},
        )
        return lease_token.issue(token, {node: self.key_of(ledger.nodes[node]) for node in nodes})
