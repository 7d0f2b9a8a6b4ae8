"""By what the manager knows this node: a CURVE key pair, proved at every connect.

While a key is replaced there are two. The new one is on disk before the manager is told of it, and
the old one goes once the manager has taken the new one; so a stop between leaves us with the right
one, whichever that is.
"""

from __future__ import annotations

from pathlib import Path

from gpupool_common import keys
from gpupool_common.keys import KeyPairs, Keys, load_keys
from gpupool_server.two_keys import TwoKeys

CURRENT, NEXT = "node.key", "node.next.key"


class NodeKeys:
    """The key pair in use, and the next one while there is one. Without a folder: in memory."""

    def __init__(self, pairs: KeyPairs) -> None:
        self._pairs = pairs
        self._keys = TwoKeys(pairs.current, pairs.following, try_next=True)

    @classmethod
    def load(cls, folder: Path) -> NodeKeys:
        """Those of a state folder, made there before the first join.

        A node that has joined with the key of its front end goes on with a copy of that.
        """
        path = folder / CURRENT
        if not path.exists() and (folder / keys.NAME).exists():
            keys.write_keys(path, load_keys(folder))
        return cls(KeyPairs.load(folder, CURRENT, NEXT))

    @property
    def in_use(self) -> Keys:
        """With which to connect now."""
        return self._keys.in_use

    def begin(self) -> Keys:
        """Make the next key; the one that was made before, if the manager never took it."""
        following = self._pairs.begin()
        if self._keys.following is None:
            self._keys.offer(following)
        return following

    def taken(self) -> None:
        """The manager knows the next key from now on."""
        if not self._keys.uses_next:
            self._keys.turn()

    def refused(self) -> None:
        """The manager does not know the key in use: the other one is tried, if there is one."""
        self._keys.turn()

    def joined(self) -> None:
        """The manager has let us in with the key in use; a next one that it knows replaces it."""
        if self._keys.uses_next:
            self._pairs.finish()
            self._keys.settle()
