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

#: A lease is renewed so often within its time to live.
RENEWALS = 4


def say(text: str) -> None:
    print(f"gpupool: {text}", file=sys.stderr, flush=True)


def notice_of(lease: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the processes of a lease should know: which of its devices are to go."""
    grants = lease.get("grants")
    going = [
        grant
        for grant in (grants if isinstance(grants, list) else [])
        if isinstance(grant, Mapping) and grant.get("draining") is True
    ]
    if not going:
        return None
    return {
        "reason": "draining",
        "lease": str(lease.get("id")),
        "nodes": sorted({str(grant.get("node")) for grant in going}),
        "devices": sorted(int(grant.get("ordinal", 0)) for grant in going),
    }


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
        self._complaint = ""
        ttl = lease.get("ttl_seconds")
        self._pause = max(float(ttl) if isinstance(ttl, int | float) else 60.0, 4.0) / RENEWALS
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
        notice = notice_of(lease)
        if notice == self._notice:
            return
        self._files.write_notice(notice)
        before, self._notice = self._notice, notice
        if notice is None:
            say(f"the lease {self._lease}: none of its nodes is being drained any more")
        elif before is None or notice["nodes"] != before["nodes"]:
            self._warn(notice)

    def _warn(self, notice: Mapping[str, Any]) -> None:
        nodes = ", ".join(notice["nodes"])
        say(f"node {nodes} is being drained and opens no sessions: save, end, and start again")
        if self._warning is not None:
            # To ourselves: as every signal that comes here, it goes on to the program.
            os.kill(os.getpid(), self._warning)

    def _run(self) -> None:
        with PoolClient(self._where) as client:
            while not self._stop.wait(self._pause):
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
