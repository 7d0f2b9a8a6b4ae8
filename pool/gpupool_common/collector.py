"""The garbage collector of a process that has much which stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """For imports at start: what they make stays, so nobody looks for garbage in it, ever."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle() -> None:
    """What is there now is kept out of collections, and whole ones become rare.

    The state of a pool is hundreds of thousands of objects that live for long and form no
    cycles: looking through them takes a tenth of a second, in which nobody is answered.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 500)
