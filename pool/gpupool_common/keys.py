"""A CURVE key pair that lasts: made once, kept in a file that only its owner reads.

While it is replaced there are two, each in a file of its own: the next one is on disk before
anybody is told of it, and taking it into use is one rename. So whoever is killed in between has
both, or the next one, and never none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from gpupool_common.errors import ConfigError, GpupoolError, InstallError
from gpupool_common.secret_file import read_secret, replace_secret

NAME = "curve.key"

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Keys:
    """Both as 64 hexadecimal digits."""

    public: str
    secret: str = field(repr=False)


def load_keys(folder: Path, name: str = NAME) -> Keys:
    """The key pair of a folder, made there at the first start; ConfigError says what is wrong."""
    path = folder / name
    if not zmq.has("curve"):
        raise InstallError("this libzmq cannot encrypt; install pyzmq's wheel, whose libzmq can")
    if not path.exists():
        write_keys(path, make_keys())
    return _read(path)


def make_keys() -> Keys:
    """A pair that nobody has had before."""
    public, secret = (z85.decode(half).hex() for half in zmq.curve_keypair())
    return Keys(public, secret)


def write_keys(path: Path, keys: Keys) -> None:
    """The file of a key pair, as a whole or not at all."""
    replace_secret(path, f"{keys.public}\n{keys.secret}")


def _read(path: Path) -> Keys:
    lines = read_secret(path, "key file").split("\n")
    if len(lines) != 3 or not all(map(_HEX.fullmatch, lines[:2])) or lines[2] or not _fit(*lines):
        raise ConfigError(
            f"the key file {path} holds no key pair; restore it, or remove it for a new one,"
            " which others must be told"
        )
    return Keys(lines[0], lines[1])


def _fit(public: str, secret: str, _: str) -> bool:
    """Whether they are a pair."""
    found = zmq.curve_public(z85.encode(bytes.fromhex(secret)))
    return bool(z85.decode(found).hex() == public)


class KeyPairs:
    """The key pair in use, and the next one while there is one. Without a folder: in memory."""

    def __init__(
        self,
        current: Keys,
        following: Keys | None = None,
        folder: Path | None = None,
        names: tuple[str, str] = (NAME, ""),
    ) -> None:
        self.current = current
        self.following = following
        self._folder = folder
        self._names = names

    @classmethod
    def load(cls, folder: Path, current: str, following: str) -> KeyPairs:
        """Those of a folder; the first is made there at the first start. ConfigError."""
        path = folder / following
        pending = load_keys(folder, following) if path.exists() else None
        return cls(load_keys(folder, current), pending, folder, (current, following))

    def begin(self) -> Keys:
        """Make the next pair; the one that was made before, if there is. GpupoolError."""
        if self.following is None:
            made = make_keys()
            if self._folder is not None:
                write_keys(self._folder / self._names[1], made)
            self.following = made
        return self.following

    def finish(self) -> None:
        """The next pair takes the place of the one in use; GpupoolError if it cannot be kept."""
        if self.following is None:
            return
        if self._folder is not None:
            path = self._folder / self._names[0]
            try:
                (self._folder / self._names[1]).replace(path)
            except OSError as error:
                raise GpupoolError(f"{path}: {error.strerror}") from None
        self.current, self.following = self.following, None
