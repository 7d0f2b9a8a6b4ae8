"""Keeps a lease while its program runs, and tells the program what it hears of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from gpupool.lease_files import LeaseFiles
from gpupool.pool_address import Where
from gpupool.pool_client import PoolClient, at
from gpupool_common.errors import GpupoolError, PoolRefusedError
from gpupool_common.protocol import one_line

#: A lease is renewed so often within its time to live, and after so many seconds at the latest:
#: each renewal also brings what its programs are to know in time.
RENEWALS, LATEST = 4, 15.0


#: What of a notice is worth another word, when it is another.
_NEWS = ("reason", "nodes", "devices")


def say(text: str) -> None:
    print(f"gpupool: {one_line(text)}", file=sys.stderr, flush=True)


def notice_of(lease: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the processes of a lease should know: which of its devices are to go."""
    grants, ending = lease.get("grants"), lease.get("ending")
    listed = [
        grant
        for grant in (grants if isinstance(grants, list) else [])
        if isinstance(grant, Mapping)
    ]
    if isinstance(ending, Mapping):
        said = {
            "reason": "ending",
            "at": str(ending.get("at")),
            "why": str(ending.get("reason")),
        }
        return said | _going(lease, listed)
    if leaving := [grant for grant in listed if grant.get("leaves")]:
        at = min(str(grant["leaves"]) for grant in leaving)
        return {"reason": "shrinking", "at": at} | _going(lease, leaving)
    going = [grant for grant in listed if grant.get("draining") is True]
    return {"reason": "draining"} | _going(lease, going) if going else None


def _going(lease: Mapping[str, Any], grants: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "lease": str(lease.get("id")),
        "nodes": sorted({str(grant.get("node")) for grant in grants}),
        "devices": sorted(n for grant in grants if isinstance(n := grant.get("ordinal"), int)),
    }


def idle_since(lease: Mapping[str, Any]) -> str:
    """Since when a lease does nothing, if its programs are to hear of that and it goes on."""
    idle = lease.get("idle")
    told = isinstance(idle, Mapping) and idle.get("told") is True and lease.get("ending") is None
    return str(idle.get("since")) if told and isinstance(idle, Mapping) else ""


class Renewer:
    """A thread that keeps a lease while its program runs.

    An unreachable manager is not an error: servers let the program continue, and the lease
    is renewed when the manager is back. Each renewal brings a fresh token, and whether a host is
    being drained: then the program gets a notice, and the signal ``warning`` if there is one.
    """

    def __init__(
        self,
        where: Where,
        lease: Mapping[str, Any],
        files: LeaseFiles,
        warning: signal.Signals | None = None,
    ) -> None:
        self._where = where
        self._lease = str(lease["id"])
        self._files = files
        self._warning = warning
        self._notice: dict[str, Any] | None = None
        self._idle = ""
        self._complaint = ""
        ttl = lease.get("ttl_seconds")
        lasts = max(float(ttl) if isinstance(ttl, int | float) else 60.0, 4.0)
        self.pause = min(lasts / RENEWALS, LATEST)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="renewer", daemon=True)
        self._take(lease)

    def __enter__(self) -> Renewer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # It is not waited for: what it may still be asking changes nothing.
        self._stop.set()

    def _take(self, lease: Mapping[str, Any]) -> None:
        token = lease.get("token")
        if isinstance(token, str) and token:
            self._files.write_token(token)
        self._say_idle(idle_since(lease))
        notice = notice_of(lease)
        if notice == self._notice:
            return
        self._files.write_notice(notice)
        before, self._notice = self._notice, notice
        if notice is None:
            say(f"the lease {self._lease}: none of its GPUs is to go any more")
        elif before is None or any(notice[key] != before[key] for key in _NEWS):
            self._warn(notice)

    def _say_idle(self, since: str) -> None:
        """No notice and no signal: nothing goes, and a program that works again need not end."""
        before, self._idle = self._idle, since
        if since and not before:
            say(f"the lease {self._lease} has done nothing since {since}: end it if it has done")

    def _warn(self, notice: Mapping[str, Any]) -> None:
        if notice["reason"] == "draining":
            nodes = ", ".join(notice["nodes"])
            say(f"node {nodes} is being drained and opens no sessions: save, end, and start again")
        elif notice["reason"] == "shrinking":
            devices = ", ".join(map(str, notice["devices"]))
            say(
                f"the lease gives device {devices} back at {notice['at']}, and goes on with the"
                " others: save, end, and start again on those"
            )
        else:
            say(f"the lease ends at {notice['at']}: {notice['why']}: save, and end")
        if self._warning is not None:
            # To ourselves: as every signal that comes here, it goes on to the program.
            os.kill(os.getpid(), self._warning)

    def _run(self) -> None:
        with PoolClient(self._where) as client:
            while not self._stop.wait(self.pause):
                try:
                    self.renewed(client.do("POST", at("leases", self._lease, "renew")))
                except PoolRefusedError as error:
                    if self._stop.is_set():
                        return
                    if error.status in (404, 409):
                        say(f"{error}; the program's GPUs are gone")
                        return
                    if error.status != 503:
                        self._complain(f"cannot be renewed: {error}")
                except GpupoolError:
                    continue

    def renewed(self, lease: Mapping[str, Any]) -> None:
        """What the manager has answered."""
        if self._stop.is_set():
            return
        try:
            self._take(lease)
            self._complaint = ""
        except GpupoolError as error:
            self._complain(f"was renewed, and its programs are not told: {error}")

    def _complain(self, what: str) -> None:
        """Once, until it is well again."""
        if what != self._complaint:
            say(f"the lease {self._lease} {what}")
        self._complaint = what
