"""Whether sessions start on this host: after failures in a row it tries by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gpupool_common import logs
from gpupool_server.claims import Refusal
from gpupool_server.worker import WorkerError

#: So many workers in a row that do not start are the host's fault. It then tries by itself,
#: at first after so many seconds, and ever more rarely.
FAILURES = 3
PROBE_SECONDS, MOST_PROBE_SECONDS = 5.0, 300.0


class StartHealth:
    """Counts starts that failed, and finds out when they work again."""

    def __init__(self, probe: Callable[[], Awaitable[None]], on_change: Callable[[], None]) -> None:
        """``probe`` opens a session of our own and ends it, or raises."""
        self._probe = probe
        self._on_change = on_change
        #: Why sessions do not start; empty: they do, as far as is known.
        self.trouble = ""
        self._failures = 0
        self._prober: asyncio.Task[None] | None = None
        self._log = logs.get("sessions")

    def failed(self, reason: str) -> None:
        """A worker did not start. After a few in a row it is the host, not the program."""
        self._failures += 1
        if self._failures < FAILURES or self.trouble:
            return
        self.trouble = f"sessions do not start: {reason}"
        self._log.error("sessions do not start; probing until one does", reason=reason)
        self._prober = asyncio.create_task(self._probe_until_well(), name="probe")
        self._on_change()

    def worked(self) -> None:
        """A worker started."""
        self._failures = 0
        if self.trouble:
            self._log.info("sessions start again")
            self.trouble = ""
            self._on_change()

    async def _probe_until_well(self) -> None:
        pause = PROBE_SECONDS
        while self.trouble:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PROBE_SECONDS)
            if not self.trouble:
                return
            try:
                await self._probe()
            except (Refusal, WorkerError, OSError) as error:
                self._log.warning("sessions still do not start", reason=str(error))

    async def close(self) -> None:
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)
