"""What was answered to requests with an idempotency key, for a day, and not for any number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from gpupool_manager.records import Answer

#: Of one token; the oldest are forgotten first.
MOST = 2000


class Answers:
    """By the token that asked and the key that it gave."""

    def __init__(self, loaded: Iterable[Answer] = ()) -> None:
        self._of: dict[str, OrderedDict[str, Answer]] = {}
        for answer in sorted(loaded, key=lambda each: each.created):
            self.keep(answer)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((owner, key) for owner, mine in self._of.items() for key in mine)

    def get(self, owner: str, key: str) -> Answer | None:
        mine = self._of.get(owner)
        return None if mine is None else mine.get(key)

    def keep(self, answer: Answer) -> list[Answer]:
        """Keep it; those that are forgotten for it."""
        mine = self._of.setdefault(answer.owner, OrderedDict())
        mine[answer.key] = answer
        return [mine.popitem(last=False)[1] for _ in range(len(mine) - MOST)]

    def forget_before(self, created: float) -> None:
        for owner, mine in list(self._of.items()):
            while mine and next(iter(mine.values())).created < created:
                mine.popitem(last=False)
            if not mine:
                del self._of[owner]
