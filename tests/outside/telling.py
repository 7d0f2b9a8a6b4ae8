"""The side of a suite: it is given orders to run groups, and tells what happens.

    python tests/outside/telling.py SUITE ORDERS EVENTS

ORDERS and EVENTS are open descriptors. The first gives names of JSON files, one a line, each an
order to run a part of a group (`Order`); the process ends when there are no more. The second takes
JSON lines: `ready` once the tests are known, with their number, `begin` and `end` of each, and
`over`, or `left` of an order whose time was too short. Standard library only: this runs in the
Python that has the framework.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import os
import site
import sys
import time
import zlib
from collections.abc import Callable, Mapping
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
    group: str = ""
    #: Seconds, from when the tests are known; None: as long as it takes.
    slice: float | None = None

    @classmethod
    def read(cls, path: Path) -> Order:
        told = json.loads(path.read_text(encoding="utf-8"))
        told["only"] = None if told["only"] is None else frozenset(told["only"])
        return cls(**{**told, "skip": frozenset(told["skip"]), "part": tuple(told["part"])})

    def wants(self, test: str) -> bool:
        if test in self.skip or (self.only is not None and test not in self.only):
            return False
        number, count = self.part
        return zlib.crc32(test.encode()) % count == number - 1 and not self.forbids(test)

    def forbids(self, test: str) -> bool:
        """Whether the suite's settings say that a test must not be run."""
        patterns = self.settings.get("not_tests", ())
        return any(fnmatch.fnmatchcase(f"{self.group}::{test}", pattern) for pattern in patterns)


class Teller:
    """Tells the parent what happens."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._began = 0.0
        self._until: float | None = None
        self._left = False

    def ready(self, order: Order, tests: int) -> None:
        self._left = False
        self._until = None if order.slice is None else time.monotonic() + order.slice
        self._say(ready=tests)

    def has_time(self) -> bool:
        """Whether another test may begin; if not, the order is not over."""
        if self._until is not None and time.monotonic() >= self._until:
            self._left = True
        return not self._left

    def begin(self, test: str) -> None:
        self._began = time.monotonic()
        self._say(begin=test)

    def end(self, test: str, outcome: str, why: str = "", digest: str = "") -> None:
        seconds = round(time.monotonic() - self._began, 2)
        self._say(end=test, outcome=outcome, why=why[:WHY_LENGTH], digest=digest, seconds=seconds)

    def over(self) -> None:
        self._say(over="left" if self._left else "over")

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


def run_all(
    teller: Teller,
    order: Order,
    tests: Mapping[str, Callable[[], str]],
    healthy: Callable[[], bool],
) -> None:
    """Run those that are wanted, while there is time."""
    teller.ready(order, len(tests))
    for name, body in tests.items():
        if order.wants(name):
            if not teller.has_time():
                return
            run_one(teller, name, body, healthy)


def main(words: list[str]) -> int:
    suite, orders, events = words
    teller = Teller(int(events))
    os.set_inheritable(int(events), False)
    with open(int(orders), encoding="utf-8") as lines:
        os.set_inheritable(int(orders), False)
        for line in lines:
            order = Order.read(Path(line.rstrip("\n")))
            if folder := order.settings.get("site"):
                site.addsitedir(str(folder))  # behind the framework's own; it reads .pth files, too
            importlib.import_module(suite).run(order, teller)
            teller.over()
    return 0


if __name__ == "__main__":
    sys.modules["telling"] = sys.modules["__main__"]  # the suite's exceptions are these
    sys.exit(main(sys.argv[1:]))
