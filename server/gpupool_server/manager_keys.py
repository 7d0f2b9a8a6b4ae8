"""By what this node knows its manager: the key that its join token names, and those that followed.

The manager tells of its next key over the link; the operator retires the one before later on.
Until then the link has the old key, and who stole that is no manager for a node that knows the
next one: it wants a proof of that (link_proof.py). Once the link has had the next key, the old one
is forgotten. What the node has learned is in a file with the token's own keys beside it, so
that another token, with which an operator lets a node in that has missed a roll, counts for more.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpupool_common.errors import ConfigError
from gpupool_common.secret_file import read_secret, replace_secret
from gpupool_server.join_token import JoinToken
from gpupool_server.two_keys import TwoKeys

NAME = "manager.key"

#: The token's keys, then what has become of them: each line one key, or two.
_LINES = re.compile(r"([0-9a-f]{64}(?:\.[0-9a-f]{64})?)\n([0-9a-f]{64})(?:\.([0-9a-f]{64}))?\n")


class ManagerKeys:
    """The manager's public keys, in hexadecimal. Without a folder: in memory."""

    def __init__(self, token: JoinToken, folder: Path | None = None) -> None:
        """ConfigError if the file is damaged."""
        self.token = token
        self._path = None if folder is None else folder / NAME
        current, following = self._load() or (token.key, token.next_key)
        self._keys = TwoKeys(current, following or None, try_next=False)

    @property
    def in_use(self) -> str:
        """What the manager must have for the next connection."""
        return self._keys.in_use

    @property
    def newest(self) -> str:
        """The last that was heard of."""
        return self._keys.following or self._keys.current

    @property
    def to_prove(self) -> str:
        """What the manager must show to have besides; empty: nothing."""
        return "" if self._keys.uses_next else self._keys.following or ""

    def announced(self, key: str) -> None:
        """The manager will have this one (empty: none); GpupoolError if it cannot be kept."""
        if not key or key in (self._keys.in_use, self._keys.following):
            return
        self._save(self._keys.in_use, key)
        self._keys.settle_used()
        self._keys.offer(key)

    def refused(self) -> None:
        """Who is there has not the one in use: the other one is tried, if there is one."""
        self._keys.turn()

    def joined(self) -> None:
        """The manager has the one in use; if it is the next one, the one before goes."""
        if self._keys.uses_next:
            self._save(self._keys.in_use, "")
            self._keys.settle_used()

    def _given(self) -> str:
        return ".".join(filter(None, [self.token.key, self.token.next_key]))

    def _load(self) -> tuple[str, str] | None:
        """What was learned since the token was given, if anything."""
        if self._path is None or not self._path.exists():
            return None
        match = _LINES.fullmatch(read_secret(self._path, "key file"))
        if match is None:
            raise ConfigError(
                f"the key file {self._path} does not hold a manager's keys; remove it, and give"
                " this node a new join token: gpupool node join --name NAME"
            )
        return (match[2], match[3] or "") if match[1] == self._given() else None

    def _save(self, current: str, following: str) -> None:
        if self._path is not None:
            keys = ".".join(filter(None, [current, following]))
            replace_secret(self._path, f"{self._given()}\n{keys}")
