"""Whether processes grow while they do the same things for long."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

PAGE = os.sysconf("SC_PAGESIZE")

#: Random sizes come and go: so much more than before is none of it.
SLACK_BYTES, SLACK_SHARE = 32 << 20, 0.1
#: Fewer looks than these say nothing.
LOOKS_LEAST = 12


def resident(pid: int) -> int:
    """Bytes of a process in memory; 0 once it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0


def grown(looks: Sequence[int]) -> int:
    """By how many bytes the last third lies above the middle third, beyond the slack.

    The first third is left out: pools and tables fill there.
    """
    if len(looks) < LOOKS_LEAST:
        return 0
    third = len(looks) // 3
    before, after = max(looks[third : 2 * third]), max(looks[2 * third :])
    return max(0, after - before - SLACK_BYTES - int(before * SLACK_SHARE))


class Watch:
    """Looks at processes a few times a second, on a thread of its own."""

    def __init__(self, pids: Callable[[], dict[str, int]], seconds: float = 0.5) -> None:
        """`pids` names the processes that there are now."""
        self._pids = pids
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.looks: dict[str, list[int]] = {}

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(self._seconds):
            for name, pid in self._pids().items():
                if bytes_now := resident(pid):
                    self.looks.setdefault(name, []).append(bytes_now)

    def grown(self) -> dict[str, int]:
        """The processes that grew, and by how many bytes."""
        return {name: by for name, looks in self.looks.items() if (by := grown(looks))}

    def most(self) -> str:
        """What each had at most, for who reads along."""
        return ", ".join(f"{name} {max(looks) >> 20} MiB" for name, looks in self.looks.items())
