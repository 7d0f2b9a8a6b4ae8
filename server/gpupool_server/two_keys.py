"""Which of two keys to use while one is replaced and nobody knows whether the other side has it."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")


class TwoKeys(Generic[Key]):
    """The key that held so far and the next one; with either, one of them is right."""

    def __init__(self, current: Key, following: Key | None, try_next: bool) -> None:
        self.current = current
        self.following = following
        self._try_next = try_next and following is not None

    @property
    def in_use(self) -> Key:
        """With which to connect now."""
        if self.following is not None and self._try_next:
            return self.following
        return self.current

    @property
    def uses_next(self) -> bool:
        return self.following is not None and self._try_next

    def offer(self, following: Key) -> None:
        """There is a next key from now on; what is in use stays so."""
        self.following, self._try_next = following, False

    def turn(self) -> None:
        """The other side does not know the one in use: the other is tried, if there is one."""
        self._try_next = self.following is not None and not self._try_next

    def settle_used(self) -> None:
        """The one in use is right; where it is the next one, the one before goes."""
        if self.uses_next:
            self.settle()

    def settle(self) -> None:
        """The next one has held: there is no other any more."""
        if self.following is not None:
            self.current, self.following, self._try_next = self.following, None, False
