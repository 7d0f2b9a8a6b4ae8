"""What is known of a GPU and its workers at one moment, and what is said of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupool_common.node_protocol import Cause

NS = 1_000_000_000


@dataclass(frozen=True)
class SeenWorker:
    """A worker at one moment; None is what cannot be seen."""

    pid: int
    tenant: str
    #: Bytes that the driver says it has, and that it has been charged.
    held: int | None
    charged: int
    #: GPU time that the driver says it has had since it was seen first.
    used_ns: int | None = None
    #: GPU time for which it was let in, or has said that it worked.
    busy_ns: int = 0
    #: Whether it is still at the work for which it lost its turn, as a long kernel is.
    late: bool = False
    #: How often it has lost its turn so.
    overdue: int = 0
    #: It says that work of it may go on outside of its turns; None: it does not say.
    unseen: bool | None = False
    #: The hardware's time slice; 0: the driver's own.
    slice_us: int = 0
    #: GPU time for which the driver has found it at work in others' turns (watch_turns.py).
    outside_ns: int = 0
    #: And for which it was found at what it may have left there, while these had work.
    left_ns: int = 0


@dataclass(frozen=True)
class SeenTenant:
    """A tenant or group at one moment, as the arbiter has it."""

    #: Bytes; 0: all that there is.
    limit: int
    #: For how long the turn was its own; None: the arbiter does not say.
    held_ns: int | None = None
    #: For how long it has worked, and its workers have waited for its turn, all told.
    busy_ns: int = 0
    waited_ns: int = 0
    #: It may run beside others, out of turn.
    beside: bool = False
    #: Its limit was made less than it had in use, which it keeps.
    forced: bool = False
    #: The limit before that, in bytes; 0: there was none, or it is not known.
    before: int = 0
    #: What the policy gives it: its weight beside the others', and the most, in permille.
    due: int = 0
    most: int = 1000
    #: Of a tenant with all of its groups (watch_groups.py): as of its workers, and of those that
    #: have ended.
    outside_ns: int = 0


@dataclass(frozen=True)
class Look:
    """A GPU at one moment."""

    now_ns: int
    workers: tuple[SeenWorker, ...]
    tenants: Mapping[str, SeenTenant]
    #: Whether the policy knows turns; without them nobody's time is anybody's own.
    turns: bool = True
    #: Counts from different ones cannot be compared: of boards that follow one another.
    era: int = 0
    #: The driver looks so often whose work is on the GPU; 0: it measures what each has.
    sample_ns: int = 0
    #: For how long tenants, each with all of its groups, were found at work in others' turns.
    outside_ns: Mapping[str, int] = field(default_factory=dict)
    #: And for how long work was found that they have left there, while these had work.
    left_ns: Mapping[str, int] = field(default_factory=dict)

    def of(self, tenant: str) -> list[SeenWorker]:
        return [worker for worker in self.workers if worker.tenant == tenant]


@dataclass(frozen=True)
class Verdict:
    """Who has taken too much."""

    pid: int
    tenant: str
    cause: Cause
    reason: str
    #: False: it is asked to end its session first, for the driver may have taken that by itself.
    liar: bool = True
