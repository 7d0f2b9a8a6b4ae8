"""A CURVE key pair that lasts: made once, kept in a file that only its owner reads."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from gpupool_common.errors import ConfigError, InstallError
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
        public, secret = zmq.curve_keypair()
        write_keys(path, Keys(z85.decode(public).hex(), z85.decode(secret).hex()))
    return _read(path)


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
