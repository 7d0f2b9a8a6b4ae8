"""Rolls the keys of lease tokens while everything runs.

The next key is told to all nodes first. It signs when every node that is heard of has said that
it has it, or was given long enough; the one before goes when nothing good is signed with it.
"""

from __future__ import annotations

from collections.abc import Callable

from gpupool_manager.fleet import Fleet
from gpupool_manager.lease_tokens import Signer
from gpupool_manager.ledger import Ledger
from gpupool_manager.signing_keys import SigningKey
from gpupool_manager.transaction import Transaction


class KeyRolls:
    """Every change of the signer's keys."""

    def __init__(
        self, ledger: Ledger, fleet: Fleet, signer: Callable[[], Signer], patience: float
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._signer = signer
        #: For how long a node that is heard of may hold a new key up, in seconds.
        self._patience = patience

    def begin(self, transaction: Transaction) -> SigningKey:
        """Make the next key and tell nodes; the one that they are being told of, if there is."""
        key = self._signer().ring.announce(transaction.now)
        transaction.log("key.announced", key.id)
        self._tell()
        return key

    def replace(self, transaction: Transaction) -> SigningKey:
        """Another key signs from now on, and whatever was signed before is refused."""
        signer = self._signer()
        gone = signer.ring.start_anew(transaction.now)
        transaction.log("key.signs", signer.ring.current.id)
        for name in gone:
            transaction.log("key.revoked", name)
        self._tell()
        return signer.ring.current

    def without(self, key: SigningKey) -> list[str]:
        """The nodes in the pool that have not said that they have a key."""
        known = self._fleet.keys
        return sorted(name for name in self._ledger.nodes if key.id not in known.get(name, ()))

    def due(self, now: float) -> bool:
        """Whether :meth:`advance` has something to do."""
        ring = self._signer().ring
        return self._is_told(now) or any(k.until is not None and k.until <= now for k in ring.keys)

    def advance(self, transaction: Transaction) -> None:
        """What is due: a key that is told signs, one that is of no more use goes."""
        if self._is_told(transaction.now):
            self._promote(transaction)
        gone = self._signer().ring.drop(transaction.now)
        for name in gone:
            transaction.log("key.dropped", name)
        if gone:
            self._tell()

    def _is_told(self, now: float) -> bool:
        upcoming = self._signer().ring.upcoming
        if upcoming is None:
            return False
        waiting = [node for node in self.without(upcoming) if not self._ledger.nodes[node].lost]
        return not waiting or now - upcoming.made > self._patience

    def _promote(self, transaction: Transaction) -> None:
        signer = self._signer()
        signer.ring.promote(transaction.now, signer.lifetime)
        transaction.log("key.signs", signer.ring.current.id)

    def _tell(self) -> None:
        for node in self._ledger.nodes:
            self._ledger.touch(node)
