"""GPUs that leases give back while they go on, as the pool's manager orders.

No session that begins gets such a GPU. Those that have it are told, may go on until the manager
says that the time is over, and are ended then. What the lease had there is taken off the board
before the manager hears that nothing of it is left: the GPU is another's from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from gpupool_common import logs
from gpupool_common.node_protocol import GrantChange, LeavingGrant
from gpupool_server.gpu import Gpu
from gpupool_server.gpus import Gpus, board_name
from gpupool_server.sessions import SessionSupervisor

#: A grant that goes back, and the GPU that it is on.
Leaving = tuple[LeavingGrant, Gpu]


class PoolShrink:
    """Methods are for the event loop's thread only; none of them waits."""

    def __init__(self, gpus: Gpus, supervisor: SessionSupervisor) -> None:
        self._gpus = gpus
        self._supervisor = supervisor
        self._leaving: Sequence[Leaving] = ()
        #: Those whose users were told, by lease, GPU and number of the change.
        self._told: set[tuple[str, int, int]] = set()
        self._log = logs.get("pool")

    def know(self, leaving: Sequence[Leaving]) -> None:
        """These are the orders: no session begins with one of these GPUs."""
        self._leaving = leaving
        self._gpus.leaving = frozenset((each.lease, gpu.index) for each, gpu in leaving)
        self._told &= {_key(*each) for each in leaving}

    def look(self) -> list[GrantChange]:
        """What still has them; what has nothing is taken off the boards."""
        return [self._look(*each) for each in self._leaving]

    def _look(self, each: LeavingGrant, gpu: Gpu) -> GrantChange:
        answer = GrantChange(lease=each.lease, gpu=each.gpu, number=each.number)
        users = self._supervisor.users(each.lease, gpu.index)
        if not users:
            self._gpus.withdraw(board_name(each.tenant, each.lease), gpu)
            return answer
        self._tell(each, gpu)
        if each.over:
            self._supervisor.end_on(
                gpu.index,
                f"GPU {gpu.index} has gone back from the lease '{each.lease}', which goes on with"
                " fewer; start the program again on those that it has",
                each.lease,
            )
        number = "1 session has" if users == 1 else f"{users} sessions have"
        answer.reason = f"{number} GPU {gpu.index} yet"
        return answer

    def _tell(self, each: LeavingGrant, gpu: Gpu) -> None:
        if _key(each, gpu) in self._told:
            return
        self._told.add(_key(each, gpu))
        at = datetime.fromtimestamp(each.at, UTC).strftime("%H:%M:%SZ")
        self._log.info("a lease gives a GPU back", lease=each.lease, gpu=gpu.index, at=at)
        self._supervisor.say(
            lambda meta: meta.lease == each.lease and gpu.index in meta.devices,
            f"the lease '{each.lease}' is made smaller: the program's session here, which has GPU"
            f" {gpu.index}, ends at {at}; save, end, and start again on the others",
        )


def _key(each: LeavingGrant, gpu: Gpu) -> tuple[str, int, int]:
    return each.lease, gpu.index, each.number
