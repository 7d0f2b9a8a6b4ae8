"""Who is at the other end of a Unix socket, and whether an operator lets them in."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from gpupool_common.errors import ConfigError

_CREDENTIALS = struct.Struct("=iII")

#: getsockopt's name for the supplementary groups, which Python's module lacks, and as many of
#: them as Python lets be asked for.
_SO_PEERGROUPS = 59
_GROUPS_BYTES = 1024


@dataclass(frozen=True)
class LocalUser:
    """The process that connected, as the kernel names it in this process's namespaces."""

    #: 0: it is in no namespace that is seen from here.
    pid: int
    uid: int
    groups: frozenset[int]

    @classmethod
    def of(cls, connection: socket.socket) -> LocalUser:
        """OSError if the connection has no such end any more."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(raw)
        return cls(pid, uid, frozenset((gid, *_supplementary(connection))))

    def __str__(self) -> str:
        return f"uid {self.uid}"


def _supplementary(connection: socket.socket) -> Sequence[int]:
    """None where there are more than can be asked for: the group of its own counts then."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"={len(raw) // 4}I", raw)


class Admitted:
    """Users and groups that may connect; without any, everybody may."""

    def __init__(self, names: Sequence[str]) -> None:
        """Names or numbers, groups with ``@``; ConfigError if this machine lacks one."""
        self._everybody = not names
        self._groups = frozenset(_gid(name[1:]) for name in names if name.startswith("@"))
        self._users = frozenset(_uid(name) for name in names if not name.startswith("@"))

    def __contains__(self, user: LocalUser) -> bool:
        if self._everybody or user.uid == os.geteuid() or user.uid in self._users:
            return True
        return not self._groups.isdisjoint(user.groups)


def _uid(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(f"key 'shm_allow': this machine has no user '{name}'") from None


def _gid(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"key 'shm_allow': this machine has no group '{name}'") from None
