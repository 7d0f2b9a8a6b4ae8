"""The side of a suite: it is given a group and an order, and tells what happens.

    python tests/outside/telling.py SUITE GROUP ORDER EVENTS

ORDER is a JSON file (`skip`, `only`: names of tests; `settings` of the suite), EVENTS an open
descriptor that takes JSON lines: `ready` once the tests are known, `begin` and `end` of each,
and `over`. Standard library only: this runs in the Python that has the framework.
"""

from __future__ import annotations

import importlib
import json
import os
import site
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: A child ends with this when CUDA is lost to it: what is left wants a new process.
CONTEXT_LOST = 75

WHY_LENGTH = 300


class Skipped(Exception):
    """The test has nothing to say here."""


@dataclass(frozen=True)
class Order:
    """Which tests of a group are wanted."""

    skip: frozenset[str] = frozenset()
    #: None: all of them.
    only: frozenset[str] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    #: Of so many parts of a group, which.
    part: tuple[int, int] = (1, 1)

    @classmethod
    def read(cls, path: Path) -> Order:
        told = json.loads(path.read_text(encoding="utf-8"))
        only = None if told["only"] is None else frozenset(told["only"])
        return cls(frozenset(told["skip"]), only, told["settings"], tuple(told["part"]))

    def wants(self, test: str) -> bool:
        if test in self.skip or (self.only is not None and test not in self.only):
            return False
        number, count = self.part
        return zlib.crc32(test.encode()) % count == number - 1


class Teller:
    """Tells the parent what happens."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._began = 0.0

    def ready(self) -> None:
        self._say(ready=True)

    def begin(self, test: str) -> None:
        self._began = time.monotonic()
        self._say(begin=test)

    def end(self, test: str, outcome: str, why: str = "", digest: str = "") -> None:
        seconds = round(time.monotonic() - self._began, 2)
        self._say(end=test, outcome=outcome, why=why[:WHY_LENGTH], digest=digest, seconds=seconds)

    def over(self) -> None:
        self._say(over=True)

    def _say(self, **what: Any) -> None:
        left = (json.dumps(what) + "\n").encode()
        while left:
            left = left[os.write(self._descriptor, left) :]


def run_one(
    teller: Teller, test: str, body: Callable[[], str], healthy: Callable[[], bool]
) -> None:
    """Run a test that answers with the digest of its results; ends the process if CUDA is lost."""
    teller.begin(test)
    try:
        digest = body()
    except Skipped as reason:
        teller.end(test, "skipped", str(reason))
    except Exception as error:
        teller.end(test, "failed", f"{type(error).__name__}: {error}")
        if not healthy():
            os._exit(CONTEXT_LOST)
    else:
        teller.end(test, "passed", digest=digest)


def main(words: list[str]) -> int:
    suite, group, path, descriptor = words
    teller, order = Teller(int(descriptor)), Order.read(Path(path))
    if folder := order.settings.get("site"):
        site.addsitedir(str(folder))  # behind the framework's own; it reads .pth files, too
    importlib.import_module(suite).run(group, order, teller)
    teller.over()
    return 0


if __name__ == "__main__":
    sys.modules["telling"] = sys.modules["__main__"]  # the suite's exceptions are these
    sys.exit(main(sys.argv[1:]))
