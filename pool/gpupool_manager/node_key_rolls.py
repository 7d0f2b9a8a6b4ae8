"""Rolls the keys by which nodes are known: each makes another one itself, and says so.

Which nodes are to is kept in memory alone: after a restart of the manager an operator asks again.
"""

from __future__ import annotations

from gpupool_common.node_protocol import RollKey
from gpupool_manager.ledger import Ledger
from gpupool_manager.problems import Problem, bad_field, not_found
from gpupool_manager.records import Node
from gpupool_manager.transaction import Transaction


def check_key(node: Node, key: str) -> None:
    """Who joined with a key of its own is spoken for by nobody without it."""
    if node.key and node.key != key:
        raise Problem(
            403,
            "forbidden",
            f"the node '{node.name}' joined with another key; if its host was set"
            " up anew, remove the node from the pool first, or name the new one otherwise",
        )


class NodeKeyRolls:
    """Every change of a node's own key."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rolling: set[str] = set()

    def begin(self, transaction: Transaction, name: str) -> Node:
        """A node is to replace its key; it is told until it has."""
        node = self._ledger.nodes.get(name)
        if node is None:
            raise not_found("node", name)
        self._rolling.add(name)
        transaction.log("node.rolls", name)
        self._ledger.touch(name)
        return node

    def orders(self, node: Node) -> list[RollKey]:
        """What it is told of that. It names the key, so that an old order does nothing."""
        return [RollKey(key=node.key)] if node.name in self._rolling and node.key else []

    def take(self, transaction: Transaction, name: str, key: str, new: str) -> None:
        """A node has another key: with the one before nobody speaks for it any more."""
        node = self._ledger.nodes.get(name)
        if node is None:
            raise not_found("node", name)
        check_key(node, key)
        if any(other.key == new for other in self._ledger.nodes.values()):
            raise bad_field("key", "a node has it already")
        node.key = new
        node.version += 1
        self._rolling.discard(name)
        transaction.put(node)
        transaction.log("node.rekeyed", name)

    def forget(self, name: str) -> None:
        self._rolling.discard(name)
