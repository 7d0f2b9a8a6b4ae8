"""``gpupool run --pool``: ask for GPUs, wait for them, run a program on them, give them back."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from gpupool.lease_files import LEASE, NOTICE, LeaseFiles
from gpupool.pool_address import CA, POOL, TOKEN, Where
from gpupool.pool_client import PoolClient, at
from gpupool.renewer import Renewer, say
from gpupool.run import FORWARDED, client_environment, run_child
from gpupool.show import age
from gpupool_common import paths, tracing
from gpupool_common.ask import ask, with_key
from gpupool_common.errors import (
    TRY_LATER,
    GpupoolError,
    PoolAwayError,
    PoolRefusedError,
    ProtocolError,
    RefusedError,
    UnreachableError,
)
from gpupool_common.lease import LeaseState
from gpupool_common.protocol import one_line

#: Signals that end the wait in the queue.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

#: How long one question about a place in the queue may take. A terminal shows the
#: place, so it is asked for more often there.
POLL_SECONDS = 5
POLL_SECONDS_TERMINAL = 2

#: How long a request is repeated whose answer was lost: once it was heard, there is a
#: lease that only the answer names.
INSIST_SECONDS = 30.0
#: How long the manager may be away beyond the time for which it should have had us wait.
ABSENCE_SECONDS = 120.0
PAUSE_SECONDS = 1.0
#: How long a server that the pool names may take to answer, and with which refusals another
#: one is better asked.
SERVER_SECONDS = 5.0
ELSEWHERE = ("draining", "no-worker", "full", "busy")


class Interrupted(BaseException):
    """A signal came while nothing but a place in the queue was lost by it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Keeps signals for the right moment.

    They are blocked, also in the threads that are started meanwhile: those of a program
    that runs go to the program, those that end a wait are let in while there is one, and
    none comes between a lease and its release.
    """

    _AWAITED = {*FORWARDED, signal.SIGCHLD}

    def __enter__(self) -> Signals:
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._AWAITED)
        self._before = {
            number: signal.signal(number, self._raise)
            for number in ENDING
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while signal.sigtimedwait(self._AWAITED, 0) is not None:
            pass  # it came too late to change anything
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    @staticmethod
    def _raise(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    @contextlib.contextmanager
    def let_in(self) -> Iterator[None]:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


@dataclass(frozen=True)
class Run:
    """How a program is run, whatever it runs on."""

    log: str | None = None
    #: What it gets when a host of its lease is being drained.
    warning: signal.Signals | None = None


def run_in_pool(
    command: Sequence[str],
    where: Where,
    body: Mapping[str, Any],
    env: Mapping[str, str],
    how: Run,
    forever: bool = False,
) -> int:
    """The exit code of a program that had a lease, or of a wait that was interrupted."""
    home = paths.find_home()
    home.part(paths.CLIENT_LIBRARY)  # before anybody waits for GPUs in vain
    with Signals() as signals, _traced(command, env) as trace, PoolClient(where) as client:
        holder = Holder(client, signals, Progress())
        try:
            with tracing.span("ask for a lease") as asking:
                client.traceparent = asking.traceparent
                lease = holder.obtain_reachable(body, forever)
                asking.set(gpupool__lease=str(lease["id"]))
            client.traceparent = trace.traceparent
            traced = {**env, tracing.VARIABLE: trace.traceparent} if tracing.is_on() else env
            return _run_with(lease, command, where, traced, how, signals)
        except Interrupted as interrupted:
            return 128 + interrupted.number
        finally:
            holder.release()


def run_in_lease(
    command: Sequence[str], where: Where, name: str, env: Mapping[str, str], how: Run
) -> int:
    """The exit code of a program that joins a lease, which is there before and after it."""
    paths.find_home().part(paths.CLIENT_LIBRARY)
    with Signals() as signals, PoolClient(where) as client:
        lease = client.get(at("leases", name))
        if _word(lease, "state") != LeaseState.ACTIVE:
            raise NotJoinedError(
                f"the lease {name} is {one_line(lease['state'])}: nothing can be started on it"
            )
        return _run_with(lease, command, where, env, how, signals)


def _run_with(
    lease: Mapping[str, Any],
    command: Sequence[str],
    where: Where,
    env: Mapping[str, str],
    how: Run,
    signals: Signals,
) -> int:
    with LeaseFiles() as files:
        changed = lease_environment(paths.find_home(), lease, env, files, how.log)
        with Renewer(where, lease, files, how.warning):
            return run_child(command, changed, signals.mask)


@contextlib.contextmanager
def _traced(command: Sequence[str], env: Mapping[str, str]) -> Iterator[tracing.Span]:
    """The whole run as a span, of the caller's trace if there is one."""
    tracing.start("gpupool", env, quiet=True)
    try:
        parent = env.get(tracing.VARIABLE, "")
        program = os.path.basename(command[0])
        with tracing.span("gpupool run", parent, process__executable__name=program) as found:
            yield found
    finally:
        tracing.stop()


def lease_environment(
    home: paths.Home,
    lease: Mapping[str, Any],
    env: Mapping[str, str],
    files: LeaseFiles,
    log: str | None,
) -> dict[str, str]:
    """The environment of a lease's program. The pool's own token does not go there."""
    servers, token = lease.get("servers"), lease.get("token")
    if not isinstance(servers, list) or not servers or not isinstance(token, str):
        raise GpupoolError(
            f"the lease {lease['id']} names no server to go to; its nodes may have just been lost"
        )
    try:
        urls = ",".join(with_key(str(each["address"]), each.get("key")) for each in servers)
    except (KeyError, TypeError, AttributeError):
        raise ProtocolError(f"the lease {lease['id']} names a server without an address") from None
    rest = {key: value for key, value in env.items() if key not in (POOL, TOKEN, CA)}
    made = client_environment(home, urls, files.token, rest, log)
    return {**made, LEASE: str(lease["id"]), NOTICE: str(files.notice)}


class Holder:
    """Gets one lease, and gives it back."""

    def __init__(self, client: PoolClient, signals: Signals, progress: Progress) -> None:
        self._client = client
        self._signals = signals
        self._progress = progress
        self._lease = ""

    def obtain(self, body: Mapping[str, Any], forever: bool) -> dict[str, Any]:
        """An active lease; an error says why there is none."""
        while True:
            lease = self._ask(body)
            self._lease = _word(lease, "id")
            with self._progress:
                lease = self._wait(lease, float(body["wait_seconds"]))
            state = _word(lease, "state")
            if state == "active":
                return lease
            self._lease = ""
            if not (state == "timed-out" and forever):
                raise _not_granted(lease, state)

    def obtain_reachable(self, body: Mapping[str, Any], forever: bool) -> dict[str, Any]:
        """As :meth:`obtain`, on servers that answer here, and not the manager only."""
        avoid: set[str] = set()
        while True:
            try:
                lease = self.obtain({**body, "avoid": sorted(avoid)} if avoid else body, forever)
            except PoolRefusedError as error:
                if avoid and error.code in ("impossible", "full"):
                    raise NoServerError(
                        "no server of the pool that has room answers here, not"
                        f" {', '.join(sorted(avoid))}; try again later, or see whether this host"
                        " may reach them"
                    ) from None
                raise
            silent = unreachable(lease)
            if not silent:
                return lease
            for node, reason in silent.items():
                say(f"node {node}: {reason}; asking the pool for another")
            self.release()
            avoid |= silent.keys()

    def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Once, even if the answer gets lost on its way."""
        key = secrets.token_hex(16)
        deadline = time.monotonic() + INSIST_SECONDS
        unsure = False
        while True:
            try:
                return self._client.do("POST", "/leases", body, key=key)
            except PoolAwayError as error:
                if not unsure and not error.unsure:
                    raise
                if time.monotonic() > deadline:
                    raise
                unsure = True
            except PoolRefusedError as error:
                if not unsure or error.status != 503 or time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _wait(self, lease: dict[str, Any], seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds + ABSENCE_SECONDS
        poll = POLL_SECONDS_TERMINAL if self._progress.terminal else POLL_SECONDS
        if lease.get("state") == "queued":
            self._progress.show(_place(lease))
        while lease.get("state") == "queued":
            with self._signals.let_in():
                try:
                    lease = self._client.get(
                        at("leases", self._lease), {"wait": poll}, wait=float(poll)
                    )
                    if lease.get("state") == "queued":
                        self._progress.show(_place(lease))
                except (PoolAwayError, PoolRefusedError) as error:
                    if isinstance(error, PoolRefusedError) and error.status != 503:
                        raise
                    if time.monotonic() > deadline:
                        raise
                    self._progress.show("the pool's manager does not answer; asking again")
                    time.sleep(PAUSE_SECONDS)
        return lease

    def release(self) -> None:
        """Whatever there is. Without a manager the lease ends by itself, soon."""
        if not self._lease:
            return
        try:
            self._client.do("POST", at("leases", self._lease, "release"))
        except GpupoolError as error:
            say(f"the lease {self._lease} could not be released and will expire: {error}")
        self._lease = ""


class NotJoinedError(GpupoolError):
    """A lease on which nothing can be started."""


class NotGrantedError(GpupoolError):
    """The queue gave nothing."""

    exit_code = TRY_LATER


class NoServerError(GpupoolError):
    """There are GPUs, and none of their servers answers."""

    exit_code = TRY_LATER


def unreachable(lease: Mapping[str, Any]) -> dict[str, str]:
    """The nodes of a lease whose servers do not take us now, and why."""
    found: dict[str, str] = {}
    servers, token = lease.get("servers"), str(lease.get("token"))
    for server in servers if isinstance(servers, list) else ():
        try:
            url = with_key(str(server["address"]), server.get("key"))
            ask(url, "info", {"token": token}, SERVER_SECONDS)
        except UnreachableError as error:
            found[str(server.get("node"))] = one_line(str(error))
        except RefusedError as error:
            if error.code not in ELSEWHERE:
                raise
            found[str(server.get("node"))] = one_line(str(error))
        except (KeyError, TypeError, AttributeError):
            continue  # whoever uses it says what is wrong with it
    return found


def _not_granted(lease: Mapping[str, Any], state: str) -> NotGrantedError:
    reason = one_line(str(lease.get("reason") or "no reason given"))
    what = "no GPUs within the time to wait" if state == "timed-out" else f"it is {state}"
    return NotGrantedError(f"the lease {lease['id']} was not granted: {what}: {reason}")


def _word(lease: Mapping[str, Any], key: str) -> str:
    value = lease.get(key)
    if not isinstance(value, str) or not value:
        raise ProtocolError(f"the pool answered a lease without '{key}'; another release?")
    return value


def _place(lease: Mapping[str, Any]) -> str:
    position = lease.get("position")
    place = f"position {position} in the queue" if position is not None else "in the queue"
    return f"waiting at {place}: {one_line(str(lease.get('reason') or ''))}"


class Progress:
    """One line on stderr: rewritten on a terminal, else a new one when there is news."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self._since = 0.0
        self._last = ""

    def __enter__(self) -> Progress:
        self._since = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.terminal and self._last:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        self._last = ""

    def show(self, text: str) -> None:
        if not self.terminal:
            if text != self._last:
                say(text)
        else:
            line = f"gpupool: {age(time.monotonic() - self._since)} {text}"
            print("\r\033[K" + line[: _columns() - 1], end="", file=sys.stderr, flush=True)
        self._last = text


def _columns() -> int:
    try:
        return max(os.get_terminal_size(sys.stderr.fileno()).columns, 20)
    except OSError:
        return 80
