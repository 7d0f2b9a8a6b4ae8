"""By what the manager knows this node: a CURVE key pair, proved at every connect.

While a key is replaced there are two. The new one is on disk before the manager is told of it, and
the old one goes once the manager has taken the new one; so a stop between leaves us with the right
one, whichever that is.
"""

from __future__ import annotations

from pathlib import Path

import zmq
from zmq.utils import z85

from gpupool_common import keys
from gpupool_common.errors import GpupoolError
from gpupool_common.keys import Keys, load_keys

CURRENT, NEXT = "node.key", "node.next.key"


class NodeKeys:
    """The key pair in use, and the next one while there is one. Without a folder: in memory."""

    def __init__(self, current: Keys, folder: Path | None = None, following: Keys | None = None):
        self._current = current
        self._next = following
        self._folder = folder
        self._try_next = following is not None

    @classmethod
    def load(cls, folder: Path) -> NodeKeys:
        """Those of a state folder, made there before the first join.

        A node that has joined with the key of its front end goes on with a copy of that.
        """
        path = folder / CURRENT
        if not path.exists() and (folder / keys.NAME).exists():
            keys.write_keys(path, load_keys(folder))
        following = load_keys(folder, NEXT) if (folder / NEXT).exists() else None
        return cls(load_keys(folder, CURRENT), folder, following)

    @property
    def in_use(self) -> Keys:
        """With which to connect now."""
        return self._next if self._next is not None and self._try_next else self._current

    def begin(self) -> Keys:
        """Make the next key; the one that was made before, if the manager never took it."""
        if self._next is None:
            public, secret = (z85.decode(half).hex() for half in zmq.curve_keypair())
            following = Keys(public, secret)
            if self._folder is not None:
                keys.write_keys(self._folder / NEXT, following)
            self._next = following
            self._try_next = False
        return self._next

    def taken(self) -> None:
        """The manager knows the next key from now on."""
        self._try_next = self._next is not None

    def refused(self) -> None:
        """The manager does not know the key in use: the other one is tried, if there is one."""
        self._try_next = self._next is not None and not self._try_next

    def joined(self) -> None:
        """The manager has let us in with the key in use; a next one that it knows replaces it."""
        if self._next is None or not self._try_next:
            return
        if self._folder is not None:
            try:
                (self._folder / NEXT).replace(self._folder / CURRENT)
            except OSError as error:
                raise GpupoolError(f"{self._folder / CURRENT}: {error.strerror}") from None
        self._current, self._next, self._try_next = self._next, None, False
