"""The garbage collector of a process whose state is large and stays."""

from __future__ import annotations

import gc


def settle() -> None:
    """What is there now is kept out of collections, and whole ones become rare.

    The state of a pool is hundreds of thousands of objects that live for long and form no
    cycles: looking through them takes a tenth of a second, in which nobody is answered.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 500)
