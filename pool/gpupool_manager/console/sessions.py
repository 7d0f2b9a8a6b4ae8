"""Who is signed in: a cookie's value stands for a token, which the browser never has again."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from gpupool_manager.records import Token

#: Then one signs in anew.
SESSION_SECONDS = 12 * 3600.0

#: Of one token, and of all: whoever comes later takes the place of the oldest.
MOST_EACH = 16
MOST = 4096


@dataclass(slots=True)
class Session:
    """One browser that is signed in."""

    secret: str
    token: Token
    ends: float
    #: What every form must send back: another site's page does not know it.
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    #: What the next page is to say first.
    news: list[str] = field(default_factory=list)
    #: Whether the token was made for this session, and goes with it.
    own_token: bool = False

    @property
    def is_admin(self) -> bool:
        return self.token.scope == "admin"

    def take_news(self) -> list[str]:
        found, self.news = self.news, []
        return found


def _key(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "surrogateescape")).hexdigest()


class Sessions:
    """All of them, in memory: a manager that is started again knows none."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: By the digest of the cookie's value, the oldest first.
        self._open: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, secret: str, token: Token, own_token: bool = False) -> str:
        """A new session; the cookie's value."""
        same = [key for key, found in self._open.items() if found.token.id == token.id]
        for key in same[: max(0, len(same) + 1 - MOST_EACH)]:
            del self._open[key]
        while len(self._open) >= MOST:
            self._open.popitem(last=False)
        cookie = secrets.token_urlsafe(32)
        ends = self._clock() + SESSION_SECONDS
        self._open[_key(cookie)] = Session(secret, token, ends, own_token=own_token)
        return cookie

    def find(self, cookie: str | None) -> Session | None:
        """Whose cookie it is, if it still counts."""
        if not cookie:
            return None
        key = _key(cookie)
        found = self._open.get(key)
        if found is not None and self._clock() >= found.ends:
            del self._open[key]
            return None
        return found

    def close(self, cookie: str | None) -> None:
        self._open.pop(_key(cookie or ""), None)
