"""This server as a node of a pool: what it reports, what it was ordered, whom it lets in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpupool_common import __version__, lease_token, logs
from gpupool_common.budgets import TenantBudgets
from gpupool_common.clock import SteadyClock
from gpupool_common.errors import ProtocolError
from gpupool_common.lease_token import LeaseToken, TokenGrant
from gpupool_common.node_protocol import (
    Apply,
    GrantChange,
    Heartbeat,
    OrderedGpu,
    OrderedGrant,
    Report,
    ReportedGpu,
    ReportedSession,
    SendReport,
    Told,
)
from gpupool_common.protocol import one_line
from gpupool_common.quantities import MEBIBYTE
from gpupool_server import changes
from gpupool_server.claims import Refusal
from gpupool_server.gpu import Gpu
from gpupool_server.gpu_readings import GpuReadings
from gpupool_server.gpus import Gpus
from gpupool_server.health import GpuHealth
from gpupool_server.pool_busy import BusyCounts
from gpupool_server.pool_resize import Ordered, PoolResize
from gpupool_server.pool_shrink import Leaving
from gpupool_server.pool_state import PoolState
from gpupool_server.sessions import SessionSupervisor
from gpupool_server.sharing import name_allowed
from gpupool_server.tenants import LeasePart, Promise, Tenant

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

#: How far clocks may be apart after all that is known of them.
SLACK_SECONDS = 30.0

#: How long sessions of an ended lease may continue while the node is drained.
DRAIN_SECONDS = 30.0


#: How old what is written down about the manager may be.
HEARD_SAVED_SECONDS = 60.0

#: What of a tenant's budgets we know; a later release's manager may tell of others.
BUDGETS = frozenset(TenantBudgets.model_fields)

#: Of so many busy times a heartbeat carries at most; the others follow in the next.
MOST_BUSY = 1024


class PoolMember:
    """Methods are for the event loop's thread only; none of them waits."""

    def __init__(
        self,
        node: str,
        folder: Path,
        gpus: Gpus,
        supervisor: SessionSupervisor,
        clock: Callable[[], float] | None = None,
        health: GpuHealth | None = None,
        readings: GpuReadings | None = None,
    ) -> None:
        self._readings = readings
        self.node = node
        self._health = health or GpuHealth((), gpus, supervisor)
        self._folder = folder
        self._gpus = gpus
        self._supervisor = supervisor
        #: What the manager's time is reckoned from; steps of the wall clock end no lease.
        self.clock = clock or SteadyClock()
        self._state = PoolState.load(folder, node)
        self._ahead = self._state.ahead
        self._busy = BusyCounts(gpus, self._state.busy)
        self._resize = PoolResize(gpus, supervisor)
        self._resize.know(self._ordered(), self._leaving())
        self._expect_busy()
        self._take_budgets()
        self._keys = _verify_keys(self._state.orders)
        self._heard_saved = self._state.heard
        #: When the newest token that was shown for a lease was issued.
        self._shown: dict[str, float] = {}
        #: Ended leases whose sessions may continue for a while.
        self._late: dict[str, asyncio.Task[None]] = {}
        self._log = logs.get("pool")

    # What it says of itself ------------------------------------------------------------

    def report(self, address: str, front_end_key: str, labels: dict[str, str]) -> Report:
        return Report(
            address=address,
            front_end_key=front_end_key,
            server_version=__version__,
            driver=next((gpu.device.driver for gpu in self._gpus), ""),
            labels=labels,
            gpus=[_reported(gpu) for gpu in self._gpus],
        )

    def heartbeat(self, manager_key: str = "") -> Heartbeat:
        self._end_ended()  # those that were just being opened when they should have ended
        sessions = self._supervisor.of_leases()
        busy = {meta.lease for meta in sessions}
        new = {lease for lease in busy if lease is not None} - self._state.used
        if new:
            self._state.used |= new
            self._state.save(self._folder)
        orders = self._state.orders
        return Heartbeat(
            applied="" if orders is None else orders.generation,
            keys=self.key_ids,
            manager_key=manager_key,
            sessions=[
                ReportedSession(
                    id=meta.session,
                    lease=meta.lease or "",
                    program=one_line(meta.program)[:64],
                    state=self._supervisor.state_of(meta.session),
                    gpus=[gpu.device.uuid for gpu in self._gpus if gpu.index in meta.devices],
                )
                for meta in sessions
            ],
            # Said again and again until the lease has ended: no answer, nothing lost.
            idle=sorted((self._state.used & self._state.leases) - busy),
            trouble=one_line(self._supervisor.health.trouble)[:256],
            busy=self._busy.read()[:MOST_BUSY],
            liars=self._supervisor.liars.untold(),
            sick={gpu.device.uuid: gpu.sick for gpu in self._gpus if gpu.sick},
            changes=self.changes,
            readings=[] if self._readings is None else self._readings.read(),
        )

    @property
    def changes(self) -> list[GrantChange]:
        """What has come of the changes of limits that its orders have."""
        return self._resize.said

    def heard(self, beat: Heartbeat) -> None:
        """The manager has answered a heartbeat: it need not be told that again."""
        self._supervisor.liars.told(beat.liars)
        if not beat.busy:
            return
        running = {meta.lease for meta in self._supervisor.of_leases() if meta.lease is not None}
        self._busy.told(beat.busy, self._state.leases | running)
        self._expect_busy()
        self._state.busy = self._busy.totals
        self._state.save(self._folder)

    # What it is told ---------------------------------------------------------------------

    @property
    def key_ids(self) -> list[str]:
        """Names of the keys that tokens are checked with."""
        return list(self._keys)

    def _hear(self) -> None:
        """The manager is there; written down now and then, for the server after this one."""
        state = self._state
        state.heard = self.clock() + self._ahead
        if state.orders is not None and state.heard - self._heard_saved >= HEARD_SAVED_SECONDS:
            self._heard_saved = state.heard
            state.save(self._folder)

    def set_clock(self, ahead: float) -> None:
        """How much the manager's clock is ahead of ours."""
        self._ahead = ahead
        # The next server starts from the wall clock, which may have been set since we did.
        self._state.ahead = ahead - getattr(self.clock, "stepped", 0.0)

    def apply(self, told: Told) -> bool:
        """Do what the manager orders; whether it wants a report."""
        self._hear()
        wanted = False
        for command in told.orders.commands:
            if isinstance(command, Apply):
                self._apply(command)
            elif isinstance(command, SendReport):
                wanted = True
        return wanted

    def _apply(self, orders: Apply) -> None:
        before = self._state.orders
        self._state.orders = orders
        self._state.used &= self._state.leases
        self._take_budgets()
        self._keys = _verify_keys(orders)
        self._state.save(self._folder)
        if before is None or before.mode != orders.mode:
            self._log.info("the node's mode is set", mode=orders.mode)
        for each in orders.gpus:
            self._set_gpu(each)
        self._expect_busy()
        self._end_ended()
        self._resize.follow(self._ordered(), self._leaving())

    def _ordered(self) -> list[Ordered]:
        orders = self._state.orders
        return [
            (grant, gpu, _promise(grant, gpu, grant.priority, grant.ceiling_permille))
            for grant in (orders.grants if orders is not None else ())
            if (gpu := self._gpu_of(grant.gpu)) is not None
        ]

    def _leaving(self) -> list[Leaving]:
        orders = self._state.orders
        return [
            (each, gpu)
            for each in (orders.leaving if orders is not None else ())
            if (gpu := self._gpu_of(each.gpu)) is not None
        ]

    def _take_budgets(self) -> None:
        """What tenants of the pool may have together: it holds for the next session at once."""
        orders = self._state.orders
        if orders is not None:
            self._gpus.tenants.of_pool = {
                each.tenant: {k: v for k, v in each.budgets.items() if k in BUDGETS}
                for each in orders.tenants
            }

    def _expect_busy(self) -> None:
        orders = self._state.orders
        if orders is not None:
            self._busy.expect({grant.lease: grant.tenant for grant in orders.grants})
            self._busy.keep(self._state.held, self._state.leases)

    def _set_gpu(self, wanted: OrderedGpu) -> None:
        gpu = self._gpu_of(wanted.uuid)
        if gpu is None:
            return
        if wanted.opened and gpu.sick == wanted.opened:
            self._health.readmit(gpu, "an operator of the pool said so")
        now = gpu.settings
        differ = {
            key: value
            for key, value in wanted.model_dump(exclude={"uuid", "opened"}).items()
            if value != getattr(now, key)
        }
        if not differ:
            return
        try:
            changes.set_gpu(self._gpus, gpu.index, differ)
            self._log.info("the pool changed a GPU's settings", gpu=gpu.index, **differ)
        except Refusal as error:
            self._log.error("the pool's settings of a GPU cannot be", reason=str(error), **differ)

    def _end_ended(self) -> None:
        """End sessions of leases that have ended: the orders do not have them, and are newer."""
        orders, held = self._state.orders, self._state.leases
        if orders is None:
            return
        self._shown = {k: v for k, v in self._shown.items() if k in held or v > orders.at}
        running = {meta.lease for meta in self._supervisor.of_leases() if meta.lease is not None}
        for lease in running - held - set(self._shown):
            self._end(lease, orders)

    def _end(self, lease: str, orders: Apply) -> None:
        if orders.mode != "draining":
            self._supervisor.end_lease(lease, _farewell(lease, orders))
            return
        if lease not in self._late:
            self._late[lease] = asyncio.create_task(self._end_late(lease))

    async def _end_late(self, lease: str) -> None:
        await asyncio.sleep(DRAIN_SECONDS)
        del self._late[lease]
        if lease not in self._state.leases:
            orders = self._state.orders
            self._supervisor.end_lease(lease, _farewell(lease, orders, ", and the node is drained"))

    def close(self) -> None:
        """Stop what is waited for, and remember everything."""
        for task in self._late.values():
            task.cancel()
        self._resize.close()
        if self._readings is not None:
            self._readings.close()
        self._state.save(self._folder)

    # Whom it lets in -----------------------------------------------------------------------

    def check_open(self) -> None:
        """Refusal while the node is drained."""
        orders = self._state.orders
        if orders is not None and orders.mode == "draining":
            raise Refusal("draining", f"the node '{self.node}' is drained: it opens no sessions")

    def admit(self, text: str) -> Tenant:
        """Whose lease a token is of, with what it has here; Refusal."""
        if self._state.orders is None:
            raise Refusal(
                "no-worker", "the server has not joined its pool yet; try again in a moment"
            )
        try:
            token = lease_token.check(text, self._keys)
        except lease_token.UnknownKeyError as error:
            raise Refusal(
                "bad-token",
                f"the lease token is refused: {error}; renew the lease for another, or try again"
                " in a moment",
            ) from None
        except ProtocolError as error:
            raise Refusal("bad-token", f"the lease token is refused: {error}") from None
        if self.node not in token.nodes:
            raise Refusal("bad-token", "the lease token is refused: it is for other servers")
        self._check_time(token)
        self._check_heard(self._state.orders)
        self._check_names(token)
        promises = self._promises(token)
        self._shown[token.lease] = max(token.issued, self._shown.get(token.lease, 0.0))
        ordered = next(iter(self._state.grants(token.lease)), None)
        peers = "" if ordered is None else ordered.peer_key
        lease = LeasePart(
            token.lease,
            token.request_id,
            promises,
            peers,
            token.sessions,
            self.node,
            tuple(token.nodes),
        )
        known = self._gpus.tenants.known(token.tenant)
        return replace(known, gpus=frozenset(promises), lease=lease)

    def _check_time(self, token: LeaseToken) -> None:
        now = self.clock() + self._ahead
        if now > token.expires + SLACK_SECONDS:
            raise Refusal(
                "bad-token",
                f"the token of lease '{token.lease}' expired {now - token.expires:.0f} s ago;"
                " renew the lease for another",
            )
        if token.issued > now + SLACK_SECONDS:
            raise Refusal(
                "bad-token",
                f"the token of lease '{token.lease}' is from {token.issued - now:.0f} s in the"
                " future; the clocks of manager and server must agree",
            )

    def _check_heard(self, orders: Apply) -> None:
        """Refusal where nobody could tell us that a lease was revoked, for too long."""
        silent = self.clock() + self._ahead - self._state.heard
        if silent > orders.offline_seconds:
            raise Refusal(
                "no-worker",
                f"the server has not heard of the pool's manager for {silent:.0f} s, and opens no"
                " sessions of leases until it has; try again later, or on another server",
            )

    def _check_names(self, token: LeaseToken) -> None:
        if not name_allowed(token.tenant) or not name_allowed(token.lease):
            raise Refusal("bad-token", "the token's tenant or lease has a name too long for us")
        if self._gpus.tenants.named(token.tenant) is not None:
            raise Refusal(
                "bad-token",
                f"the server has a tenant '{token.tenant}' of its own, who is not the pool's;"
                " rename one of the two",
            )

    def _promises(self, token: LeaseToken) -> dict[int, Promise]:
        """What the orders say of the lease, or, where they are older, the token itself."""
        ordered = self._state.grants(token.lease)
        orders = self._state.orders
        if not ordered and orders is not None and orders.at >= token.issued:
            if token.lease in self._state.leases:
                raise Refusal(
                    "bad-token", f"the lease '{token.lease}' has given its GPUs here back"
                )
            raise Refusal("bad-token", _farewell(token.lease, orders))
        grants: Sequence[TokenGrant] = [
            TokenGrant(each.ordinal, each.gpu, each.memory_bytes, each.share_permille)
            for each in ordered
        ] or sorted(token.nodes.get(self.node, ()), key=lambda grant: grant.ordinal)
        if not grants:
            raise Refusal("bad-token", f"the lease '{token.lease}' has no GPU on this server")
        promises: dict[int, Promise] = {}
        for grant in grants:  # one that has gone from here is lost, as the manager will hear
            if (gpu := self._gpu_of(grant.gpu)) is not None:
                promises[gpu.index] = _promise(grant, gpu, token.priority)
        if not promises:
            raise Refusal(
                "bad-token", f"the lease '{token.lease}' is on {grants[0].gpu}, which is not here"
            )
        return promises

    def _gpu_of(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self._gpus if gpu.device.uuid == uuid), None)


def _verify_keys(orders: Apply | None) -> dict[str, Ed25519PublicKey]:
    """What the manager signs with, by ids that we reckon ourselves."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = [bytes.fromhex(key) for key in (orders.keys if orders is not None else ())]
    return {lease_token.key_id(key): Ed25519PublicKey.from_public_bytes(key) for key in raw}


def _farewell(lease: str, orders: Apply | None, more: str = "") -> str:
    """What the users of a lease that has ended are told."""
    reasons = {each.lease: each.reason for each in orders.ended} if orders is not None else {}
    why = f" ({reasons[lease]})" if lease in reasons else ""
    return (
        f"the lease '{lease}' has ended{why}{more}; take a new one, as gpupool run does, and start"
        " the program again"
    )


def _promise(
    grant: TokenGrant | OrderedGrant, gpu: Gpu, priority: int, ceiling: int | None = None
) -> Promise:
    memory = grant.memory_bytes
    whole = gpu.device.memory_bytes // MEBIBYTE * MEBIBYTE
    return Promise(
        memory=0 if memory >= whole else memory,
        share=grant.share_permille,
        ceiling=ceiling,
        high_priority=priority > 0,
    )


def _reported(gpu: Gpu) -> ReportedGpu:
    now, device = gpu.settings, gpu.device
    return ReportedGpu.model_validate(
        {
            "uuid": device.uuid,
            "index": device.index,
            "model": one_line(device.name)[:256] or "GPU",
            "compute_capability": device.capability,
            "memory_bytes": device.memory_bytes // MEBIBYTE * MEBIBYTE,
            "pci": device.pci[:32],
            "policy": now.policy,
            "max_inst": now.max_inst,
            "prio_ratio": now.prio_ratio,
            "sick": gpu.sick,
        }
    )
