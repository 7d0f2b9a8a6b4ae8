"""What an operator's browser may be made to ask by a page that somebody else has written.

Nothing of ours is a web page, and no answer sets a cookie. So a request that says that it comes
from a page is refused whole, whatever token it has (CSRF, CORS); and what needs no token on the
loopback is not told to a page whose name was made to mean this machine (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from gpupool_common.hosts import is_loopback

FROM_A_PAGE = "a page in a browser sent it, and only programs are answered here"


def is_from_a_page(headers: Mapping[str, str]) -> bool:
    """Names of ``headers`` are in lower case. A person who types an address is no page."""
    return "origin" in headers or headers.get("sec-fetch-site", "none") != "none"


def is_rebound(headers: Mapping[str, str]) -> bool:
    """Whether a request that came over the loopback was for a name that may be anybody's."""
    host = headers.get("host", "localhost").strip()
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    if is_loopback(name):
        return False
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return True
    return False
