"""What a lease over several hosts gets in its jails here, so that its workers run collectives.

For each interface that the operator has chosen the lease has an address of its own in that
interface's network. Every server of the lease works it out for itself, and for the others, from
the lease's key and the names of its hosts, which the manager has signed: nobody hands out
addresses, and nobody without the key knows whose an address is.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path

from gpupool_server.collectives_settings import CollectivesSettings
from gpupool_server.jail_files import Loader
from gpupool_server.jail_status import NOT_CHOSEN
from gpupool_server.tenants import LeasePart

Line = tuple[str, object]

#: The starter takes no more (server/jail/peer_filter.h).
MOST_PEERS = 64

SYS = Path("/sys/class")
DEV = Path("/dev/infiniband")
#: Where libibverbs finds out which library drives a device.
_DRIVERS = Path("/etc/libibverbs.d")


def address(key: str, network: IPv6Network, host: str) -> IPv6Address:
    """Of a lease, known by its key, on one of its hosts."""
    named = b"gpupool address\0" + network.network_address.packed + host.encode()
    return network[int.from_bytes(hmac.digest(bytes.fromhex(key), named, "sha256")[:8])]


@dataclass(frozen=True)
class Part:
    """What the workers of a lease get here; ``part`` is None without a pool.

    ``in_host``: its worker is in the host's network, and finds devices there itself, as UCX does.
    """

    settings: CollectivesSettings
    part: LeasePart | None
    in_host: bool = False

    @cached_property
    def off(self) -> str:
        """Why it is nothing; empty: it is something."""
        if not self.settings.chosen:
            return NOT_CHOSEN
        if self.part is None or len(self.part.nodes) < 2:
            return "the lease is of this host alone"
        if len(self.part.nodes) - 1 > MOST_PEERS:
            return f"the lease is of more than {MOST_PEERS + 1} hosts"
        if not self.part.peer_key:
            return "the pool's manager has not told the lease's key yet"
        return missing(self.settings)

    @property
    def locked_memory(self) -> int | None:
        """How much memory each of them may lock; None: as much as any other worker."""
        chosen = not self.off or (self.in_host and self.settings.rdma)
        return self.settings.locked_memory if chosen else None

    def lines(self, libraries: Iterable[str]) -> list[Line]:
        """For the starter (server/jail/description.h), with the libraries of RDMA devices."""
        found: list[Line] = [("read", SYS / "net")] if self.in_host else []
        if self.in_host or not self.off:
            found += _rdma(self.settings, libraries)
        if not self.off and self.part is not None:
            found += _links(self.settings, self.part)
        return found


def missing(settings: CollectivesSettings) -> str:
    """Which RDMA device is not there; empty: all are."""
    for device in settings.rdma:
        if not nodes(device):
            return f"there is no RDMA device {device} with a node in {DEV}"
    return ""


def nodes(device: str) -> list[str]:
    """The node by which programs use an RDMA device, which is not called like it."""
    found = []
    for folder in sorted((SYS / "infiniband_verbs").glob("uverbs*")):
        try:
            named = (folder / "ibdev").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if named == device and (DEV / folder.name).exists():
            found.append(str(DEV / folder.name))
    return found


def _links(settings: CollectivesSettings, part: LeasePart) -> Iterator[Line]:
    for name, network in settings.interfaces.items():
        own = address(part.peer_key, network, part.node)
        yield "link", f"{name} {settings.kind} {own}"
        for host in part.nodes:
            if host != part.node:
                yield "peer", f"{name} {address(part.peer_key, network, host)}"


def _rdma(settings: CollectivesSettings, libraries: Iterable[str]) -> Iterator[Line]:
    """The nodes of the chosen devices, and what a program needs to find them."""
    if not settings.rdma:
        return
    for device in settings.rdma:
        yield from (("device", node) for node in nodes(device))
    for path in (SYS / "infiniband", SYS / "infiniband_verbs", _DRIVERS):
        if path.exists():
            yield "read", path
    yield from (("library", path) for path in libraries)


def verbs_libraries() -> list[str]:
    """libibverbs and its drivers, which are opened by name, with what they need."""
    found: set[str] = set()
    for base in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"):
        folder = Path(base)
        drivers = sorted((folder / "libibverbs").glob("*.so"))
        for library in (folder / "libibverbs.so.1", folder / "libmlx5.so.1", *drivers):
            if library.exists():
                loader = Loader(Path("/bin/sh"))
                loader.add(library)
                found.update(loader.files)
    return sorted(found)
