"""What the server asks of the board of one GPU (server/arbiter/board.h).

The board is the arbiter's (arbiter.py). The server tells it policy, weights and limits, gets
seats for workers from it, and reads the accounts.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpupool_common.errors import GpupoolError

#: ``enum gp_policy``: a policy's number is its place here.
POLICIES = ("average", "preemptive", "weighted", "fixed", "weak", "native", "share")
#: Policies under which a tenant's part is counted in slices, of which there are max_inst.
SLICED = ("weighted", "fixed")

MAX_NAME = 95
MAX_TENANTS = 64

_MEANINGS = {
    errno.EPROTO: "it is of another release",
    errno.EUCLEAN: "what it says cannot be",
    errno.EPIPE: "its arbiter has ended",
    errno.ETIMEDOUT: "its arbiter does not answer",
    errno.ENOSPC: f"it has no room for more than {MAX_TENANTS} tenants and groups",
    errno.EINVAL: "a value is out of its range",
    errno.EBUSY: "it is in use",
    errno.ENOENT: "there is no such tenant on it",
}


class BoardError(GpupoolError):
    """A board that cannot do what it was asked; ``number`` is the errno."""

    def __init__(self, number: int, what: str, meaning: str = "") -> None:
        super().__init__(f"{what}: {meaning or _MEANINGS.get(number) or os.strerror(number)}")
        self.number = number


@dataclass(frozen=True)
class BoardGpu:
    """Settings of the GPU (``struct gp_board_gpu``)."""

    policy: str
    max_inst: int
    prio_ratio: int
    hardware: bool
    memory_total: int


@dataclass(frozen=True)
class Grant:
    """What a tenant or group may have (``struct gp_board_grant``); 0 bytes: all there is."""

    memory: int = 0
    weight: int = 1
    share: int = 1000
    ceiling: int = 1000
    high_priority: bool = False
    #: The limit of memory holds for what is new, whatever is in use already.
    forced: bool = False
    #: It is on several GPUs, and has its turns at the same time on all of them.
    gang: bool = False


@dataclass(frozen=True)
class Account:
    """One tenant or group on the board: its grant and what it has had."""

    name: str
    memory_limit: int
    weight: int
    share: int
    ceiling: int
    high_priority: bool
    memory_used: int
    memory_peak: int
    memory_denied: int
    busy_ns: int
    waited_ns: int
    turns: int
    launches: int
    bytes_copied: int
    copy_ns: int
    members: int
    entitled: int
    host_used: int = 0
    #: For how long the turn was its own; None: an arbiter of an older release.
    held_ns: int | None = None
    #: Of that, after it should have ended; 0 also of an arbiter of an older release.
    ending_ns: int = 0
    #: Its weight beside others' in what is contended for; 0: none, or an older release.
    due: int = 0


@dataclass(frozen=True)
class Member:
    """One worker on the board."""

    pid: int
    tenant: str
    memory_used: int
    slice_us: int
    #: GPU time for which it was let in, or has said that it worked.
    busy_ns: int = 0
    #: What it was given: at least what it uses, and charged.
    memory_given: int = 0
    #: Requests that it has made: most of what it does needs none.
    questions: int = 0
    #: Turns that it did not give back in time.
    overdue: int = 0
    #: Whether it is still at work for which it lost its turn, or needed none.
    late: bool = False
    #: It says that work of it may go on outside of its turns; None: it, or its arbiter, is of an
    #: older release and does not say.
    unseen: bool | None = None
    #: What it has done that no worker of ours does; empty: nothing.
    fault: str = ""


@dataclass(frozen=True)
class Seat:
    """A worker's place on a board: the descriptors, which are the board's, that it is given."""

    index: int
    tenant: str
    page: int
    bell: int


@dataclass(frozen=True)
class Snapshot:
    """Everything on a board at one moment."""

    gpu: BoardGpu
    tenants: tuple[Account, ...]
    processes: tuple[Member, ...]
    now_ns: int

    def account(self, name: str) -> Account | None:
        return next((account for account in self.tenants if account.name == name), None)


@dataclass(frozen=True)
class Turn:
    """Of a tenant's, in CLOCK_MONOTONIC nanoseconds; an empty name: the tenant was removed."""

    tenant: str
    began_ns: int
    ended_ns: int


@dataclass(frozen=True)
class TurnLog:
    """The turns on a board that are over, from one of them on."""

    now_ns: int
    #: The number of the first: later than was asked for, where earlier ones are forgotten.
    first: int
    turns: tuple[Turn, ...]
    #: The one that is not over, until now; of no length: it is nobody's turn.
    now: Turn


class Board(Protocol):
    """What the server asks of a board. Every method may raise :class:`BoardError`."""

    def set_gpu(self, gpu: BoardGpu) -> None: ...

    def put(self, name: str, grant: Grant) -> None:
        """Add or change; EBUSY if more memory is in use than a new limit that is not forced."""

    def remove(self, name: str) -> None:
        """ENOENT; EBUSY while it has workers."""

    def seat(self, name: str) -> Seat:
        """A seat for a worker that is about to be started; ENOENT."""

    def started(self, seat: Seat, pid: int) -> None:
        """The worker of a seat has been started."""

    def leave(self, seat: Seat) -> None:
        """It could not be."""

    def reap(self, pid: int) -> int:
        """Take out the worker ``pid``, which has ended; returns how many that were."""

    def orphans(self) -> dict[int, Seat]:
        """The seats of running workers by pid, for another board; this one is closed then."""

    def adopt(self, orphans: dict[int, Seat]) -> None:
        """Take over running workers as soon as their tenants are there."""

    def snapshot(self) -> Snapshot: ...

    def turns(self, since: int) -> TurnLog:
        """From number ``since`` on; ENOSYS: the arbiter is of an older release."""

    def charge(self, name: str, ns: int, whose: str) -> None:
        """Work of ``name`` went on so long in turns of ``whose``: it has less of the next ones.

        ENOENT; EINVAL: over a minute; ENOSYS: the arbiter is of an older release."""

    def close(self) -> None: ...


#: Makes the board of a file, or opens the one that is there.
OpenBoard = Callable[[Path], Board]


def read_snapshot(text: bytes) -> Snapshot:
    """What ``gp_board_describe`` wrote; BoardError if it cannot be."""
    try:
        return _parse_snapshot(json.loads(text))
    except (ValueError, LookupError, TypeError) as error:
        raise BoardError(errno.EUCLEAN, f"a board cannot be read ({error})") from None


def read_turns(text: bytes) -> TurnLog:
    """What ``gp_board_describe_turns`` wrote; BoardError if it cannot be."""
    try:
        raw = json.loads(text)
        now_ns = int(raw["now_ns"])
        turns = tuple(
            Turn(str(name), int(began), int(ended)) for name, began, ended in raw["turns"]
        )
        holder = str(raw["holder"])
        now = Turn(holder, int(raw["began_ns"]) if holder else now_ns, now_ns)
        return TurnLog(now_ns, int(raw["first"]), turns, now)
    except (ValueError, LookupError, TypeError) as error:
        raise BoardError(errno.EUCLEAN, f"a board's turns cannot be read ({error})") from None


def _parse_snapshot(raw: dict[str, Any]) -> Snapshot:
    gpu = {**raw["gpu"], "policy": POLICIES[raw["gpu"]["policy"]]}
    return Snapshot(
        gpu=BoardGpu(**_fields(BoardGpu, gpu)),
        tenants=tuple(Account(**_fields(Account, tenant)) for tenant in raw["tenants"]),
        processes=tuple(Member(**_fields(Member, process)) for process in raw["processes"]),
        now_ns=int(raw["now_ns"]),
    )


def _fields(kind: Any, raw: dict[str, Any]) -> dict[str, Any]:
    """The fields that we know; a newer arbiter may have more to say, an older one less."""
    known: dict[str, dataclasses.Field[Any]] = kind.__dataclass_fields__
    return {
        key: raw[key]
        for key, field in known.items()
        if key in raw or field.default is dataclasses.MISSING
    }
