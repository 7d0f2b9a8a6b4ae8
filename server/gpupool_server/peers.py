"""What a worker needs to be joined to workers of other hosts.

A client of several servers has their workers copy from GPU to GPU by themselves. It carries
their addresses from one to the other, so a worker goes only where another one has sealed the
address with a key that the client does not have: that of the lease, from the pool's manager, or
one that the operator gave to all servers.
"""

from __future__ import annotations

import re
import secrets
import socket
from pathlib import Path

from gpupool_common.ask import split_tcp
from gpupool_common.errors import ConfigError
from gpupool_common.secret_file import read_secret, write_secret
from gpupool_server.config import Settings
from gpupool_server.data_ports import data_place
from gpupool_server.tenants import Tenant

#: The key of a server that was given none: its own workers may be joined to each other.
NAME = "peer.key"
_KEY = re.compile(r"[0-9a-f]{64}\n?")
_ANY = ("*", "0.0.0.0", "::")


class Peers:
    """The keys and the address of this host."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._key = _read(settings.peer_key) if settings.peer_key else _own(folder / NAME)
        #: At which other hosts reach this one; None: not known.
        self.host = _find_host(settings)

    def key_for(self, tenant: Tenant) -> str:
        """64 hexadecimal digits; empty for a lease whose key has not come."""
        return self._key if tenant.lease is None else tenant.lease.peer_key


def _read(path: Path) -> str:
    text = read_secret(path, "key file")
    if not _KEY.fullmatch(text):
        raise ConfigError(
            f"the key file {path} must hold 64 hexadecimal digits; make one with:"
            " openssl rand -hex 32"
        )
    return text.strip()


def _own(path: Path) -> str:
    if not path.exists():
        write_secret(path, secrets.token_hex(32))
    return _read(path)


def _find_host(settings: Settings) -> str | None:
    urls = [settings.advertise, settings.data_listen, settings.listen]
    for url in urls:
        if url is None or not url.startswith("tcp://"):
            continue
        host = data_place(url)[0] if url == settings.data_listen else split_tcp(url)[0]
        if host not in _ANY:
            return f"[{host}]" if ":" in host else host
    return _default_route()


def _default_route() -> str | None:
    """The address from which this host would speak to others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])
