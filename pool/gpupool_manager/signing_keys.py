"""The keys that sign lease tokens: in one file of the state folder, and never in the database.

A key has three ages. An *upcoming* one is told to nodes and signs nothing yet; the *current* one
signs; *old* ones sign nothing any more, and what they have signed is good until it expires.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpupool_common import lease_token
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.secret_file import read_secret, replace_secret

#: A node is told so many; the file has no more.
MOST_KEYS = 8

#: Past the end of the last token that a key has signed: servers' clocks may be off by less.
GRACE_SECONDS = 60.0

Age = Literal["upcoming", "current", "old"]


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One key pair with its history; times by the manager's clock."""

    private: Ed25519PrivateKey = field(repr=False)
    made: float
    #: Since when it signs; None: it is upcoming.
    signs: float | None = None
    #: Until when nodes know it; None: nobody has replaced it.
    until: float | None = None

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    @property
    def id(self) -> str:
        return lease_token.key_id(self.public)

    @property
    def age(self) -> Age:
        if self.signs is None:
            return "upcoming"
        return "current" if self.until is None else "old"


class KeyRing:
    """All keys, in the order in which they were made. Without a path they are in memory alone."""

    def __init__(self, keys: list[SigningKey], path: Path | None = None) -> None:
        self.keys = keys
        self._path = path

    @classmethod
    def make(cls, now: float, path: Path | None = None) -> KeyRing:
        """A ring with one key that signs."""
        ring = cls([SigningKey(Ed25519PrivateKey.generate(), now, now)], path)
        ring._save(ring.keys)
        return ring

    @classmethod
    def load(cls, path: Path, now: float) -> KeyRing:
        """The ring of a file, made at the first start; GpupoolError if the file is damaged."""
        if not path.exists():
            return cls.make(now, path)
        try:
            return cls(_read(read_secret(path, "key file")), path)
        except ConfigError as error:  # no setting is wrong: the file is ours
            raise GpupoolError(str(error)) from None
        except (ValueError, KeyError, TypeError):
            raise GpupoolError(
                f"{path}: holds no keys of ours; restore it, or remove it for a new one, with which"
                " all lease tokens that are out become worthless"
            ) from None

    @property
    def current(self) -> SigningKey:
        return next(key for key in reversed(self.keys) if key.age == "current")

    @property
    def upcoming(self) -> SigningKey | None:
        return next((key for key in self.keys if key.age == "upcoming"), None)

    def announce(self, now: float) -> SigningKey:
        """Make the next key, which is to be told to nodes; the one that is upcoming already."""
        upcoming = self.upcoming
        if upcoming is None:
            if len(self.keys) >= MOST_KEYS:
                raise GpupoolError(
                    f"{len(self.keys)} keys are in use already; the oldest is dropped when the"
                    " tokens that it has signed have expired: wait for that, or revoke old keys"
                )
            upcoming = SigningKey(Ed25519PrivateKey.generate(), now)
            self._put([*self.keys, upcoming])
        return upcoming

    def promote(self, now: float, lifetime: float) -> None:
        """Let the upcoming key sign; the one before is good until its last token has expired."""
        upcoming = self.upcoming
        if upcoming is None:
            return
        current, until = self.current, now + lifetime + GRACE_SECONDS
        self._put(
            [
                replace(key, signs=now)
                if key is upcoming
                else replace(key, until=until)
                if key is current
                else key
                for key in self.keys
            ]
        )

    def drop(self, now: float) -> list[str]:
        """Forget old keys that no good token is signed with any more; their ids."""
        gone = [key for key in self.keys if key.until is not None and key.until <= now]
        if gone:
            self._put([key for key in self.keys if key not in gone])
        return [key.id for key in gone]

    def start_anew(self, now: float) -> list[str]:
        """A new key signs, and all others, upcoming ones too, are forgotten: their ids."""
        gone = [key.id for key in self.keys]
        self._put([SigningKey(Ed25519PrivateKey.generate(), now, now)])
        return gone

    def _put(self, keys: list[SigningKey]) -> None:
        self._save(keys)  # on disk first: what is told to nodes must outlast us
        self.keys = keys

    def _save(self, keys: list[SigningKey]) -> None:
        if self._path is not None:
            replace_secret(self._path, json.dumps({"keys": [_write(key) for key in keys]}))


def _write(key: SigningKey) -> dict[str, Any]:
    seed = key.private.private_bytes_raw().hex()
    return {"seed": seed, "made": key.made, "signs": key.signs, "until": key.until}


def _read(text: str) -> list[SigningKey]:
    found = [
        SigningKey(
            Ed25519PrivateKey.from_private_bytes(bytes.fromhex(each["seed"])),
            float(each["made"]),
            None if each["signs"] is None else float(each["signs"]),
            None if each["until"] is None else float(each["until"]),
        )
        for each in json.loads(text)["keys"]
    ]
    ages = [key.age for key in found]
    if ages.count("current") != 1 or ages.count("upcoming") > 1 or len(found) > MOST_KEYS:
        raise ValueError("not one key that signs")
    return found
