"""Which requests are the console's, and which of them a page of another site has caused."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

FROM_ELSEWHERE = (
    "a page of another site sent it; if that was ours, the manager's setting 'console_url' must"
    " be the address that the browser shows"
)

_READ = ("GET", "HEAD")


def is_console(path: str) -> bool:
    return path == "/" or path == "/console" or path.startswith("/console/")


def is_from_elsewhere(method: str, headers: Mapping[str, str], own: str = "") -> bool:
    """Whether a browser says that another site's page causes this. ``own``: our public address.

    To follow a link to us is allowed, as whoever is signed in is not known there: the cookie is
    sent by our own pages only (SameSite=Strict). To show us in a frame, or to read us, is not.
    """
    site = headers.get("sec-fetch-site", "none")
    if method in _READ and site in ("cross-site", "same-site"):
        is_link = headers.get("sec-fetch-mode") == "navigate"
        return not (is_link and headers.get("sec-fetch-dest") == "document")
    if site not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        found = urlsplit(origin)
    except ValueError:
        return True
    known = {headers.get("host", "").lower(), urlsplit(own).netloc.lower()} - {""}
    return found.scheme not in ("http", "https") or found.netloc.lower() not in known
