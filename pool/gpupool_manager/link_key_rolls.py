"""Rolls the manager's own key of the link, in two steps of an operator's.

The first makes the next key and tells nodes; the link keeps the one that it has, so that nodes
and join tokens which know no other go on. The second retires that one: it is one rename of a file,
and nothing in the database, so a manager that is killed goes on from wherever it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from gpupool_common.errors import GpupoolError
from gpupool_manager.fleet import Fleet
from gpupool_manager.ledger import Ledger
from gpupool_manager.link_keys import LinkKeys
from gpupool_manager.problems import Problem
from gpupool_manager.transaction import Transaction

#: So many of the nodes that hold a roll up are named.
MOST_NAMED = 8


class LinkKeyRolls:
    """Every change of the link's keys."""

    def __init__(self, ledger: Ledger, fleet: Fleet, keys: Callable[[], LinkKeys]) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._keys = keys

    def begin(self, transaction: Transaction) -> None:
        """Make the next key and tell nodes; they are told again of one that there is."""
        keys = self._keys()
        with _kept():
            keys.announce()
        transaction.log("link-key.announced", keys.announced)
        for node in self._ledger.nodes:
            self._ledger.touch(node)

    def without(self) -> list[str]:
        """The nodes in the pool that have not said that they have the next key."""
        new, known = self._keys().announced, self._fleet.keys
        return sorted(name for name in self._ledger.nodes if new and new not in known.get(name, ()))

    def retire(self, transaction: Transaction, force: bool) -> None:
        """The link has the next key from now on, and the one before is nobody's."""
        keys, without = self._keys(), self.without()
        if not keys.announced:
            raise Problem(
                409, "in-use", "the link has no other key yet; run: gpupool key roll --link"
            )
        if without and not force:
            raise Problem(
                409,
                "in-use",
                f"{len(without)} nodes do not have the next key yet, such as"
                f" {', '.join(without[:MOST_NAMED])}; wait until they are back, or leave them out"
                " with --force (force=true) and give each a new join token",
            )
        with _kept():
            keys.retire()
        transaction.log("link-key.retired", keys.current.public, without=without)


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Problem if what is done within cannot be written down; then nothing has changed."""
    try:
        yield
    except GpupoolError as error:
        raise Problem(503, "unavailable", str(error)) from None
