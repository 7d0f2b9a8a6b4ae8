"""Names of images, as ``proto/wire/image_name.h`` has them: SHA-256 over the leaves' own."""

from __future__ import annotations

import hashlib

#: Bytes of each leaf but the last.
LEAF = 256 << 10
_WHAT = b"gpupool image 1\0"


class ImageName:
    """The name of an image of ``size`` bytes that comes piece by piece."""

    def __init__(self, size: int) -> None:
        #: As releases before the first with leaves named it.
        self._before = hashlib.sha256()
        self._begin = b""  #: what it begins with
        self._root = hashlib.sha256(_WHAT + size.to_bytes(8, "little"))
        self._leaf = hashlib.sha256()
        self._room = LEAF  #: in the leaf

    def add(self, piece: bytes) -> None:
        """The bytes that follow."""
        self._before.update(piece)
        self._begin += piece[: len(_WHAT) - len(self._begin)]
        left = memoryview(piece)
        while left:
            part, left = left[: self._room], left[self._room :]
            self._leaf.update(part)
            self._room -= len(part)
            if self._room == 0:
                self._end_leaf()

    def hex(self) -> str:
        """When all have come."""
        if self._room < LEAF:
            self._end_leaf()
        return self._root.hexdigest()

    def names(self) -> tuple[str, ...]:
        """That, and what clients of releases before call it.

        What begins as that of which names are made has none of those, which could be another
        image's; nor is it an image.
        """
        if self._begin == _WHAT:
            return (self.hex(),)
        return self.hex(), self._before.hexdigest()

    def _end_leaf(self) -> None:
        self._root.update(self._leaf.digest())
        self._leaf = hashlib.sha256()
        self._room = LEAF


def image_name(data: bytes) -> str:
    """The name of an image that is there as a whole."""
    name = ImageName(len(data))
    name.add(data)
    return name.hex()
