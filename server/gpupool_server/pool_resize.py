"""Leases that change while their programs run, as the pool's manager orders.

The manager numbers each change of a lease and says it in its orders until every server has
answered. What was answered is said again with every heartbeat, so nothing depends on one message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gpupool_common import logs
from gpupool_common.node_protocol import GrantChange, OrderedGrant
from gpupool_common.protocol import one_line
from gpupool_server import changes
from gpupool_server.changes import InUse
from gpupool_server.claims import Refusal
from gpupool_server.gpu import Gpu
from gpupool_server.gpus import Gpus, board_name
from gpupool_server.pool_shrink import Leaving, PoolShrink
from gpupool_server.sessions import SessionSupervisor
from gpupool_server.tenants import Promise

#: How often what could not be made yet is tried again.
RETRY_SECONDS = 0.5

#: A grant, the GPU that it is on, and what it promises there.
Ordered = tuple[OrderedGrant, Gpu, Promise]


class PoolResize:
    """Methods are for the event loop's thread only; none of them waits."""

    def __init__(self, gpus: Gpus, supervisor: SessionSupervisor) -> None:
        self._gpus = gpus
        self._supervisor = supervisor
        self._ordered: list[Ordered] = []
        self._shrink = PoolShrink(gpus, supervisor)
        self._retrying: asyncio.Task[None] | None = None
        #: What has come of the changes that are in the orders.
        self.said: list[GrantChange] = []
        self._log = logs.get("pool")

    def follow(self, ordered: Sequence[Ordered], leaving: Sequence[Leaving]) -> None:
        """These are the orders now: do what they change."""
        self.know(ordered, leaving)
        self._try()
        if self._waits and self._retrying is None:
            self._retrying = asyncio.create_task(self._retry())

    def know(self, ordered: Sequence[Ordered], leaving: Sequence[Leaving]) -> None:
        """These are the orders: a session that is let in before and begins later is held to them,
        too."""
        self._ordered = [each for each in ordered if each[0].number]
        self._gpus.ordered = {(grant.lease, gpu.index): promise for grant, gpu, promise in ordered}
        self._shrink.know(leaving)

    @property
    def _waits(self) -> int:
        """How many there are that cannot be made yet."""
        return sum(bool(change.reason) and not change.refused for change in self.said)

    async def _retry(self) -> None:
        try:
            while waited := self._waits:
                await asyncio.sleep(RETRY_SECONDS)
                self._try()
                if self._waits < waited:
                    self._supervisor.on_change()
        finally:
            self._retrying = None

    def _try(self) -> None:
        changed: set[str] = set()
        self.said = [self._change(*each, changed.add) for each in self._ordered]
        self.said += self._shrink.look()
        for lease in sorted(changed):
            self._tell(lease)

    def _change(
        self, grant: OrderedGrant, gpu: Gpu, promise: Promise, changed: Callable[[str], None]
    ) -> GrantChange:
        answer = GrantChange(lease=grant.lease, gpu=grant.gpu, number=grant.number)
        group = self._gpus.group(board_name(grant.tenant, grant.lease))
        if group is None or group.name not in gpu.claims:
            return answer  # nothing of it runs here
        before = gpu.claims[group.name]
        try:
            changes.set_promise(gpu, group, promise, grant.force)
        except Refusal as error:
            answer.refused = isinstance(error, InUse) and not grant.force
            answer.reason = one_line(str(error))[:256]
        if gpu.claims[group.name] != before:
            changed(grant.lease)
            self._log.info(
                "the pool changed a lease's limits", lease=grant.lease, **changes.shown(gpu, group)
            )
        return answer

    def _tell(self, lease: str) -> None:
        """Users may wonder why their program sees something else."""
        grant = next(grant for grant, _, _ in self._ordered if grant.lease == lease)
        limits = grant.model_dump(
            include={"memory_bytes", "share_permille", "ceiling_permille"}, exclude_none=True
        )
        self._supervisor.say(
            lambda meta: meta.lease == lease,
            f"the limits of the lease '{lease}' were changed: {changes.in_words(limits)}; the"
            " program continues under them",
        )

    def close(self) -> None:
        """Stop what is waited for."""
        if self._retrying is not None:
            self._retrying.cancel()
