"""The manager's own key on the link to nodes, and the next one while it rolls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpupool_common import keys
from gpupool_common.keys import KeyPairs, Keys, make_keys

NEXT = "curve.next.key"


class LinkKeys:
    """Nodes hear of the next key over the link that the current one protects."""

    def __init__(self, pairs: KeyPairs | None = None) -> None:
        self._pairs = pairs or KeyPairs(make_keys())
        #: Told once the link is to have another key.
        self.on_retired: Callable[[], None] = lambda: None

    @classmethod
    def load(cls, folder: Path) -> LinkKeys:
        """Those of a state folder; ConfigError if one is damaged."""
        return cls(KeyPairs.load(folder, keys.NAME, NEXT))

    @property
    def current(self) -> Keys:
        """What the link is encrypted with."""
        return self._pairs.current

    @property
    def following(self) -> Keys | None:
        """What it will be encrypted with."""
        return self._pairs.following

    @property
    def announced(self) -> str:
        """The public half of the next key; empty: there is none."""
        return "" if self.following is None else self.following.public

    @property
    def public(self) -> list[str]:
        """What a join token that is made now names: it is to be good before and after."""
        return [self.current.public, *filter(None, [self.announced])]

    def announce(self) -> None:
        """Make the next key, unless there is one; GpupoolError if it cannot be kept."""
        self._pairs.begin()

    def retire(self) -> None:
        """The next key takes the place of the one in use; GpupoolError if it cannot be kept."""
        self._pairs.finish()
        self.on_retired()
