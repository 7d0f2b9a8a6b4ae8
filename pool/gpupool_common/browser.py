"""What an operator's browser may be made to ask by a page that somebody else has written.

Nothing of this is a web page, and no answer sets a cookie: the manager's console, which is one, has
rules of its own. So a request that says that it comes from a page is refused whole, whatever token
it has (CSRF, CORS); and what needs no token on the loopback is not told to a page whose name was
made to mean this machine (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection, Mapping
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from gpupool_common.hosts import is_loopback
from gpupool_common.protocol import one_line

FROM_A_PAGE = "a page in a browser sent it, and only programs are answered here"


def is_from_a_page(headers: Mapping[str, str]) -> bool:
    """Names of ``headers`` are in lower case. A person who types an address is no page."""
    return "origin" in headers or headers.get("sec-fetch-site", "none") != "none"


def _parse_names(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


def _check_names(value: tuple[str, ...]) -> tuple[str, ...]:
    if not all(re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name) for name in value):
        raise ValueError("no name of a host")
    return tuple(map(_plain, value))


#: A setting: by which further names scrapers may ask over the loopback.
HostNames = Annotated[tuple[str, ...], BeforeValidator(_parse_names), AfterValidator(_check_names)]
HOST_NAMES_ALLOWED = (
    "names of hosts, without ports, by which scrapers on this machine or behind its proxy may ask,"
    " e.g. gpu1.example,metrics.local"
)


def own_names() -> frozenset[str]:
    """What this host calls itself; it may ask a name server. No stranger's page has its name."""
    return frozenset(map(_plain, (socket.gethostname(), socket.getfqdn())))


def is_rebound(headers: Mapping[str, str], allowed: Collection[str] = ()) -> bool:
    """Whether a request that came over the loopback was for a name that may be anybody's."""
    name = _host(headers)
    if is_loopback(name) or _plain(name) in allowed:
        return False
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return True
    return False


def of_rebound(headers: Mapping[str, str]) -> str:
    """Why that is refused. An honest scraper's operator must see what to do."""
    return (
        f"it asks for '{one_line(_host(headers))[:80]}', which a stranger's page may have made to"
        " mean this machine; ask for an address, localhost or this host's own name, or add that"
        " name to the setting 'metrics_hosts'"
    )


def _host(headers: Mapping[str, str]) -> str:
    """The name that was asked for, without the port."""
    host = headers.get("host", "localhost").strip()
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _plain(name: str) -> str:
    return name.rstrip(".").lower()
