"""Who is signed in: a cookie's value stands for a token, which the browser never has again."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpupool_manager.records import Token

#: Then one signs in anew.
SESSION_SECONDS = 12 * 3600.0

#: Of one token, or of one who is vouched for: whoever comes later takes the place of the oldest.
MOST_EACH = 16
#: Of all: whoever comes later takes the place of the oldest of the tenant that has most.
MOST = 4096

#: What the next page is to say; who reads no page is told the last of it.
MOST_NEWS = 8


@dataclass(slots=True)
class Session:
    """One browser that is signed in."""

    secret: str
    token: Token
    ends: float
    #: What every form must send back: another site's page does not know it.
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    #: What the next page is to say first.
    news: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NEWS))
    #: Who was vouched for, if the token was made for this session and goes with it.
    person: str = ""

    @property
    def is_admin(self) -> bool:
        return self.token.scope == "admin"

    def take_news(self) -> list[str]:
        found = list(self.news)
        self.news.clear()
        return found

    @property
    def own_token(self) -> bool:
        return bool(self.person)

    @property
    def whose(self) -> tuple[bool, str]:
        """Of whom there may be so many: the person, or else the token."""
        return self.own_token, self.person or self.token.id


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

    def open(self, secret: str, token: Token, person: str = "") -> str:
        """A new session; the cookie's value. ``person``: for whom the token was made."""
        made = Session(secret, token, self._clock() + SESSION_SECONDS, person=person)
        same = [key for key, found in self._open.items() if found.whose == made.whose]
        for key in same[: max(0, len(same) + 1 - MOST_EACH)]:
            del self._open[key]
        while len(self._open) >= MOST:
            self._make_room()
        cookie = secrets.token_urlsafe(32)
        self._open[_key(cookie)] = made
        return cookie

    def _make_room(self) -> None:
        """Whoever has less than most loses nothing to others."""
        have = Counter(found.token.tenant for found in self._open.values())
        most, _ = have.most_common(1)[0]
        del self._open[next(key for key, found in self._open.items() if found.token.tenant == most)]

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
