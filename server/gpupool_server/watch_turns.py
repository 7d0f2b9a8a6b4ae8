"""Whose turn it was when the driver looked: who was on the GPU in a turn of another's.

NVIDIA's driver looks some five times a second whose work is on a GPU. What it finds is of that
moment: on an H100 (driver 580) each of 400 samples was of a process whose turn it was then, or had
been 0.4 ms before or after. So each sample is compared with the arbiter's log of turns.

A worker may say that work of it outlives its turns, and one that has lost its turn still works.
That is no lie: a kernel that waits for another rank had all but one of 24 samples beside kernels of
50 us, and 16 of 25 beside as much work as a neighbour can queue, as the hardware goes on to it
whenever others have nothing there. It is counted by itself, since it is paid for (watch_debt.py).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpupool_server.board import Account, Member, Turn, TurnLog
from gpupool_server.claims import tenant_of
from gpupool_server.watch_look import NS
from gpupool_server.watch_samples import LONGEST_SECONDS, STRAY

#: A turn is its tenant's from so much before until so much behind it: GPUs change over, and clocks
#: are compared.
MARGIN_NS = 1_000_000

#: Samples are not older than that, nor are processes of workers that have ended.
KEPT_NS = 5 * NS

#: So much of stray work is nobody's to pay for at once.
STRAY_MOST_NS = STRAY * 20 * NS

#: And for so long it is known what a tenant did: longer than any time that is judged.
FORGET_NS = 2 * LONGEST_SECONDS * NS


@dataclass(frozen=True)
class Moment:
    """The driver has found a process at work; times are CLOCK_MONOTONIC nanoseconds."""

    pid: int
    at_ns: int
    #: It stands for so much time.
    took_ns: int


@dataclass(frozen=True)
class Moments:
    """What it has found since it was asked last."""

    seen: tuple[Moment, ...] = ()
    #: The worker of each process that is there: its own, or one that it has started.
    owners: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Left:
    """Work that outlives its turns was found in another's, whose tenant had work for so long."""

    account: str
    whose: str
    ns: int


@dataclass(frozen=True)
class _Known:
    """A worker, or what one has started."""

    worker: int
    account: str
    #: It says that work of it may go on outside of its turns, or does not say.
    unseen: bool
    #: When it was there last.
    at_ns: int


class OutsideTurns:
    """What one GPU's workers did in others' turns; counts only grow."""

    def __init__(self) -> None:
        #: The number of the turn that is to be asked for.
        self.next = 0
        #: Nanoseconds, by tenants with all of their groups, and with workers that have ended.
        self.of_tenant: Counter[str] = Counter()
        self.of_worker: Counter[int] = Counter()
        #: Likewise, of work that may be there.
        self.left_of_tenant: Counter[str] = Counter()
        self.left_of_worker: Counter[int] = Counter()
        #: What was found of that this time.
        self.unpaid: list[Left] = []
        self._turns: deque[Turn] = deque()
        #: What was before is not known.
        self._from_ns = 0
        self._known: dict[int, _Known] = {}
        #: When each tenant was found last.
        self._found_ns: dict[str, int] = {}
        self._lost = _LostTurns()
        self._accounts = _Accounts()
        self._stray = _Stray()

    def forget(self, now_ns: int, *, renumbered: bool = False) -> None:
        """What was until now says nothing; ``renumbered``: turns are counted anew."""
        self._turns.clear()
        self._from_ns = now_ns
        if renumbered:
            self.next = 0

    def add(
        self,
        log: TurnLog,
        moments: Moments,
        workers: Iterable[Member],
        accounts: Iterable[Account] = (),
    ) -> None:
        """All there is to know of the time since it was called last."""
        workers = tuple(workers)
        self._learn(log)
        self._lost.learn(log.now_ns, workers)
        self._accounts.learn(log.now_ns, accounts)
        self._recognise(log.now_ns, moments.owners, {each.pid: each for each in workers})
        self.unpaid = []
        for moment in moments.seen:
            known = self._known.get(moment.pid)
            if known is not None:
                self._compare(known, moment, log)
        for name in [n for n, at in self._found_ns.items() if log.now_ns - at > FORGET_NS]:
            del self._found_ns[name], self.of_tenant[name], self.left_of_tenant[name]

    def _compare(self, known: _Known, moment: Moment, log: TurnLog) -> None:
        at_ns, tenant = moment.at_ns, tenant_of(known.account)
        if not self._from_ns + MARGIN_NS <= at_ns <= log.now_ns - MARGIN_NS:
            return
        lost = self._lost.at(at_ns)
        whose = self._in_turn_of(known.account, at_ns, log)
        if whose is None:
            return
        if known.worker in lost or known.unseen:
            ns = int(moment.took_ns * self._accounts.busy(whose))
            if self._accounts.may_be_beside(known.account):
                return
            if due := self._stray.beyond(known.account, at_ns, ns):
                self.unpaid.append(Left(known.account, whose, due))
            if tenant_of(whose) != tenant:
                self.left_of_worker[known.worker] += ns
                self.left_of_tenant[tenant] += ns
                self._found_ns[tenant] = log.now_ns
        elif whose or any(account != known.account for account in lost.values()):
            self.of_worker[known.worker] += moment.took_ns
            self.of_tenant[tenant] += moment.took_ns
            self._found_ns[tenant] = log.now_ns

    def _learn(self, log: TurnLog) -> None:
        if log.first != self.next:  # some were forgotten
            self.forget(max(self._from_ns, log.turns[0].began_ns if log.turns else log.now_ns))
        self._turns.extend(log.turns)
        self.next = log.first + len(log.turns)
        while self._turns and log.now_ns - self._turns[0].ended_ns > KEPT_NS:
            self._from_ns = max(self._from_ns, self._turns.popleft().ended_ns)

    def _recognise(
        self, now_ns: int, owners: Mapping[int, int], workers: Mapping[int, Member]
    ) -> None:
        """Whose a process was is asked while it lives; what it did may be said later."""
        for pid, worker in owners.items():
            if member := workers.get(worker):
                unseen = member.unseen is not False
                self._known[pid] = _Known(worker, member.tenant, unseen, now_ns)
        for pid in [p for p, known in self._known.items() if now_ns - known.at_ns > KEPT_NS]:
            del self._known[pid]
        gone = {*self.of_worker, *self.left_of_worker}
        for pid in gone - {known.worker for known in self._known.values()}:
            del self.of_worker[pid], self.left_of_worker[pid]

    def _in_turn_of(self, account: str, at_ns: int, log: TurnLog) -> str | None:
        """Another account, or nobody's: empty. None: it may have been its own."""
        whose = ""
        for turn in (*self._turns, log.now):
            if turn.began_ns - MARGIN_NS <= at_ns <= turn.ended_ns + MARGIN_NS:
                if turn.tenant in (account, ""):  # a group goes with its session
                    return None
                if turn.began_ns <= at_ns <= turn.ended_ns:
                    whose = turn.tenant
        return whose


class _LostTurns:
    """When workers were at work for which they had lost their turns: a kernel of seconds may be.

    Each worker for itself: of a tenant that loses its turn all that have work are late.
    """

    def __init__(self) -> None:
        self._looked_ns = 0
        self._before: Mapping[int, Member] = {}
        #: A worker and its account, from when until when.
        self._times: deque[tuple[int, str, int, int]] = deque()

    def learn(self, now_ns: int, workers: Iterable[Member]) -> None:
        here = {each.pid: each for each in workers}
        for pid, each in here.items():
            before = self._before.get(pid)
            was_late, overdue = (before.late, before.overdue) if before else (False, 0)
            if each.late or was_late or each.overdue > overdue:
                self._times.append((pid, each.tenant, self._looked_ns, now_ns))
        while self._times and now_ns - self._times[0][3] > KEPT_NS:
            self._times.popleft()
        self._before, self._looked_ns = here, now_ns

    def at(self, at_ns: int) -> dict[int, str]:
        """The accounts of those workers, then."""
        return {pid: account for pid, account, begin, end in self._times if begin <= at_ns <= end}


class _Stray:
    """What nobody pays for: so little is found of honest ones, too. Of a gang each GPU's arbiter
    would take it from turns that its other GPUs need at the same time."""

    def __init__(self) -> None:
        #: What an account has left of that, and when it was counted.
        self._left: dict[str, tuple[float, int]] = {}

    def beyond(self, account: str, at_ns: int, ns: int) -> int:
        """How much of so many nanoseconds is more than that."""
        known = self._left.get(account, (STRAY_MOST_NS, at_ns))
        left = min(STRAY_MOST_NS, known[0] + STRAY * max(0, at_ns - known[1]))
        self._left = {
            name: each for name, each in self._left.items() if at_ns - each[1] <= FORGET_NS
        }
        self._left[account] = max(0.0, left - ns), at_ns
        return max(0, ns - int(left))


class _Accounts:
    """For which part of the time between two looks accounts had work, or waited with some."""

    def __init__(self) -> None:
        self._looked_ns = 0
        self._before: Mapping[str, Account] = {}
        self._busy: Mapping[str, float] = {}

    def learn(self, now_ns: int, accounts: Iterable[Account]) -> None:
        here = {each.name: each for each in accounts}
        span = now_ns - self._looked_ns
        self._busy = {
            name: min(1.0, max(0.0, (_wanted(now) - _wanted(self._before[name])) / span))
            for name, now in here.items()
            if name in self._before and span > 0
        }
        self._before, self._looked_ns = here, now_ns

    def busy(self, account: str) -> float:
        """0: nothing is known of it."""
        return self._busy.get(account, 0.0)

    def may_be_beside(self, account: str) -> bool:
        """Whether the arbiter lets it in out of turn."""
        return account in self._before and self._before[account].high_priority


def _wanted(account: Account) -> int:
    return account.busy_ns + account.waited_ns
