"""Which hosts an address can be reached from."""

from __future__ import annotations

import ipaddress
import socket

#: Nobody's (RFC 5737): where a packet to anywhere would leave this host.
_ANYWHERE = ("192.0.2.1", 9)


def is_loopback(host: str) -> bool:
    """Whether every machine takes this for itself: 127.x.x.x, ::1, localhost."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        found = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def limited_as(address: str) -> str:
    """Whom a limit of an address is for.

    One machine on an IPv6 network has all of its /64 to come from, so that is limited
    together. A link-local one is shared by everybody on the link: there each is for itself.
    """
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.strip("[]"))
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    if found.is_link_local:
        return str(found)
    network = int(found) >> 64 << 64
    return f"{ipaddress.IPv6Address(network)}/64"


def resolves_to_loopback(host: str) -> bool:
    """Whether this machine takes a name for itself and nothing else; unknown names are not so."""
    if is_loopback(host):
        return True
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(is_loopback(str(each[4][0])) for each in found)


def is_own(address: str) -> bool:
    """Whether it is an address of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address.strip("[]"), 0))
    except OSError:
        return False
    return True


def source_towards(host: str, port: int) -> str | None:
    """The address of ours with which we reach a host; None if there is no way to it."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # of a datagram socket: nothing is sent
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def outward(host: str, port: int) -> str | None:
    """The address at which who talks to a host, or others, reach us; None if only we do."""
    for target in ((host, port), _ANYWHERE):
        found = source_towards(*target)
        if found is not None and not is_loopback(found):
            return found
    return None
