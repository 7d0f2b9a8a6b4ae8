"""The served GPUs, and the groups of sessions that have been promised something on them."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupool_common import logs
from gpupool_common.errors import ConfigError, InstallError
from gpupool_common.sizes import format_part, format_size
from gpupool_server import claims
from gpupool_server.arbiter import PROGRAM
from gpupool_server.board import MAX_TENANTS, BoardError, Member, OpenBoard, Seat
from gpupool_server.claims import Claim, LimitsRequest, Refusal
from gpupool_server.config import Settings
from gpupool_server.gpu import Gpu
from gpupool_server.inventory import Inventory
from gpupool_server.sharing import GpuSettings
from gpupool_server.tenants import LeasePart, Promise, Tenant, Tenants


def board_name(tenant: str, group: str | None) -> str:
    """The name of a group on boards; without one it is the tenant itself."""
    return tenant if group is None else f"{tenant}/{group}"


@dataclass
class Group:
    """The sessions that share one request."""

    tenant: Tenant
    group: str | None
    request: LimitsRequest
    sessions: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return board_name(self.tenant.name, self.group)


@dataclass(frozen=True)
class Allocation:
    """One session's place in a group, on the devices that it uses."""

    session: str
    tenant: str
    group: str | None
    devices: tuple[int, ...]
    request: LimitsRequest = LimitsRequest()
    claims: Mapping[int, Claim] = field(default_factory=dict)
    #: Whether its worker has seats at boards.
    seated: bool = False

    @property
    def name(self) -> str:
        return board_name(self.tenant, self.group)

    def record(self) -> dict[str, Any]:
        """What the next server must know of it; empty if it is on no board."""
        if not self.seated:
            return {}
        return {
            "request": self.request.as_dict(),
            "claims": {str(i): claim.as_dict() for i, claim in self.claims.items()},
        }


class Gpus:
    """All served GPUs. Methods are for the event loop's thread only."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        tenants: Tenants,
        folder: Path,
        open_board: OpenBoard | None,
    ) -> None:
        _check_indexes(settings, inventory)
        if open_board is None and (
            settings.tenants or settings.gpus or settings.gpu.model_fields_set
        ):
            raise InstallError(
                f"[tenants.*] and [gpu] need {PROGRAM} and a worker of the same release;"
                " reinstall gpupool"
            )
        self.tenants = tenants
        #: What leases have by the newest orders of the pool's manager: by lease and GPU.
        self.ordered: Mapping[tuple[str, int], Promise] = {}
        #: What leases that go on give back by them, alike.
        self.leaving: frozenset[tuple[str, int]] = frozenset()
        self.enforced = open_board is not None
        self._has_gangs = settings.gangs
        self._log = logs.get("gpus")
        self._groups: dict[str, Group] = {}
        self._known: dict[int, dict[str, Claim]] = {}
        self._by_index: dict[int, Gpu] = {}
        for device in inventory.devices:
            own = settings.gpus.get(device.index, GpuSettings.model_construct())
            configured = own.over(settings.gpu)
            gpu = Gpu(device, configured, folder)
            self._by_index[device.index] = gpu
            if open_board is not None:
                self._known[device.index] = gpu.load()
                gpu.open(open_board)
                gpu.write_settings()

    def __iter__(self) -> Iterator[Gpu]:
        return iter(self._by_index.values())

    def policies(self, indexes: Iterable[int]) -> dict[int, str]:
        """How these GPUs are shared now."""
        found = {index: self.get(index) for index in indexes}
        return {index: gpu.settings.policy or "share" for index, gpu in found.items() if gpu}

    def get(self, index: int) -> Gpu | None:
        return self._by_index.get(index)

    def group(self, name: str) -> Group | None:
        """The group that has this name on boards, if any of its sessions run."""
        return self._groups.get(name)

    def devices_of(self, name: str) -> tuple[int, ...]:
        return tuple(gpu.index for gpu in self._by_index.values() if name in gpu.claims)

    def group_of_session(self, session: str) -> Group | None:
        return next((g for g in self._groups.values() if session in g.sessions), None)

    # Leases -----------------------------------------------------------------------

    def fits(self, tenant: Tenant, request: LimitsRequest, index: int) -> bool:
        """Whether a new group with this request would be admitted on a GPU."""
        try:
            claims.claim(self._by_index[index].headroom(tenant), request)
        except Refusal:
            return False
        return True

    def allocate(
        self,
        session: str,
        tenant: Tenant,
        group: str | None,
        request: LimitsRequest,
        devices: tuple[int, ...],
    ) -> Allocation:
        """A session's place in its group, which begins with it or is there; Refusal."""
        if not self.enforced:
            self._check_enforced(request)
            return Allocation(session, tenant.name, group, devices)
        gpus = [self._by_index[index] for index in devices]
        entry = self._entry(session, tenant, group, request, gpus)
        group = entry.group
        if tenant.lease is not None:
            entry.tenant = tenant  # the newest token knows best what is left of the lease
        self._extend(entry, gpus)
        entry.sessions.add(session)
        self._groups[entry.name] = entry
        return Allocation(
            session,
            tenant.name,
            group,
            devices,
            entry.request,
            {gpu.index: gpu.claims[entry.name] for gpu in gpus},
            True,
        )

    def check(
        self, tenant: Tenant, group: str | None, request: LimitsRequest, devices: tuple[int, ...]
    ) -> None:
        """Refusal if :meth:`allocate` would refuse a new session; nothing is changed."""
        if not self.enforced:
            self._check_enforced(request)
            return
        gpus = [self._by_index[index] for index in devices]
        self._claims(self._entry("new", tenant, group, request, gpus), gpus)

    def _check_enforced(self, request: LimitsRequest) -> None:
        if not request.empty:
            raise Refusal(
                "bad-request",
                "this server keeps no limits of memory or shares: its worker or"
                f" {PROGRAM} is of an older release",
            )

    def _entry(
        self,
        session: str,
        tenant: Tenant,
        group: str | None,
        request: LimitsRequest,
        gpus: Sequence[Gpu],
    ) -> Group:
        """The group of a session: one that is there and asked for the same, or a new one."""
        if group is None and (not request.empty or any(gpu.default_memory for gpu in gpus)):
            group = session
        found = self._groups.get(board_name(tenant.name, group))
        if found is not None:
            _check_same(found, request)
        return found or Group(tenant, group, request)

    def _claims(self, group: Group, gpus: Sequence[Gpu]) -> list[tuple[Gpu, Claim]]:
        """What the group would have on those GPUs where it is not yet; Refusal."""
        name, plain = group.name, group.group is None
        new = [(place, gpu) for place, gpu in enumerate(gpus) if name not in gpu.claims]
        lease = group.tenant.lease
        return [
            (gpu, promised(self._promise(lease, gpu.index)))
            if lease is not None
            else (gpu, claims.claim(gpu.headroom(group.tenant), group.request, place, plain))
            for place, gpu in new
        ]

    def _promise(self, lease: LeasePart, index: int) -> Promise:
        return self.ordered.get((lease.lease, index), lease.promises[index])

    def _extend(self, group: Group, gpus: Sequence[Gpu]) -> None:
        """Claim for the group on those GPUs where it is not yet; on all or on none."""
        name, lease = group.name, group.tenant.lease
        claimed = self._claims(group, gpus)
        self._note_gang(group, [gpu for gpu, _ in claimed])
        try:
            for gpu, claim in claimed:
                gpu.claims[name] = claim
                if lease is not None:
                    gpu.share_slices()
                gpu.write_grants(group.tenant, must=(name,))
        except BoardError as error:
            self._retract(group, [gpu for gpu, _ in claimed])
            self._note_gang(group)
            if error.number == errno.ENOSPC:
                raise Refusal(
                    "full",
                    f"GPU {gpu.index} is full: {MAX_TENANTS} tenants and groups are on it; wait"
                    " for one to end",
                ) from None
            raise Refusal("no-worker", str(error)) from None
        for gpu, claim in claimed:
            gpu.save()
            if claim.weight == 0:
                self._log.warning("a group has no compute", group=name, gpu=gpu.index)

    def _note_gang(self, group: Group, more: Sequence[Gpu] = ()) -> None:
        """Whether its sessions need their turns on several GPUs at once, with ``more`` of them.

        A tenant without groups may run programs that have nothing to do with each other.
        """
        named = [gpu for gpu in self if group.name in gpu.claims or gpu in more]
        is_gang = self._has_gangs and group.group is not None and len(named) > 1
        for gpu in named:
            if is_gang != (group.name in gpu.gangs):
                gpu.gangs ^= {group.name}
                gpu.dirty.add(group.tenant.name)

    def _retract(self, group: Group, gpus: Iterable[Gpu]) -> None:
        for gpu in gpus:
            gpu.gangs.discard(group.name)
            if gpu.claims.pop(group.name, None) is not None:
                gpu.drop(group.name)
                gpu.share_slices()
                gpu.write_grants(group.tenant)
                gpu.save()

    def withdraw(self, name: str, gpu: Gpu) -> None:
        """A group that goes on has no session on a GPU, and is to have none."""
        group = self._groups.get(name)
        if group is not None:
            self._retract(group, [gpu])
            self._note_gang(group)

    def has_given(self, lease: str, index: int) -> bool:
        """Whether a lease that is here does not have a GPU by the newest orders."""
        here = any(name == lease for name, _ in self.ordered)
        return (lease, index) in self.leaving or here and (lease, index) not in self.ordered

    def seats(self, allocation: Allocation) -> list[Seat]:
        """Seats for the worker of a session, in its devices' order; BoardError."""
        found: list[Seat] = []
        try:
            for index in allocation.devices if allocation.seated else ():
                board = self._by_index[index].board
                if board is None:
                    raise BoardError(errno.EPIPE, f"the board of GPU {index}")
                found.append(board.seat(allocation.name))
        except BoardError:
            self.unseat(allocation, found)
            raise
        return found

    def started(self, allocation: Allocation, seats: Sequence[Seat], pid: int) -> None:
        """Their worker has been started."""
        for index, seat in zip(allocation.devices, seats, strict=False):
            board = self._by_index[index].board
            if board is not None:
                board.started(seat, pid)

    def unseat(self, allocation: Allocation, seats: Sequence[Seat]) -> None:
        """It could not be."""
        for index, seat in zip(allocation.devices, seats, strict=False):
            board = self._by_index[index].board
            if board is not None:
                board.leave(seat)

    def release(self, allocation: Allocation, pid: int = 0) -> None:
        """The session has ended, and its worker ``pid`` with it."""
        if not allocation.seated:
            return
        for index in allocation.devices:
            self._reap(self._by_index.get(index), pid)
        group = self._groups.get(allocation.name)
        if group is None:
            return
        group.sessions.discard(allocation.session)
        if not group.sessions:
            del self._groups[allocation.name]
            self._retract(group, self._by_index.values())

    def _reap(self, gpu: Gpu | None, pid: int) -> None:
        if gpu is None or gpu.board is None or pid <= 0:
            return
        try:
            gpu.board.reap(pid)
        except BoardError as error:
            self._log.error("a worker cannot be taken off a board", reason=str(error), pid=pid)

    def adopt(
        self,
        session: str,
        tenant: str,
        group: str | None,
        devices: tuple[int, ...],
        record: Mapping[str, Any],
    ) -> Allocation:
        """A session that an earlier server opened, with what that wrote down of it."""
        if not self.enforced or not record:
            return Allocation(session, tenant, group, devices)
        name = board_name(tenant, group)
        request, written = _read_record(record)
        entry = self._groups.get(name)
        if entry is None:
            owner = self.tenants.known(tenant)
            entry = self._groups[name] = Group(owner, group, request)
        entry.sessions.add(session)
        gpus = [self._by_index[index] for index in devices if index in self._by_index]
        self._note_gang(entry, gpus)
        for gpu in gpus:
            if name not in gpu.claims:
                known = self._known.get(gpu.index, {}).get(name)
                gpu.claims[name] = known or written.get(gpu.index, Claim())
                gpu.write_grants(entry.tenant)
        return Allocation(
            session,
            tenant,
            group,
            devices,
            request,
            {gpu.index: gpu.claims[name] for gpu in gpus},
            True,
        )

    # Time ---------------------------------------------------------------------------

    def faults(self) -> Iterator[tuple[int, Member]]:
        """Workers that do what no worker of ours does, with the GPU on which they do it."""
        for gpu in self._by_index.values():
            snapshot = gpu.snapshots[1]
            for member in snapshot.processes if snapshot else ():
                if member.fault:
                    yield gpu.index, member

    def look(self) -> None:
        """Once a second, and at the start after everything was adopted."""
        for gpu in self._by_index.values():
            try:
                gpu.look()
                for tenant in list(gpu.dirty):
                    gpu.write_grants(self.tenants.known(tenant))
            except BoardError as error:
                self._log.error("a board cannot be looked at", gpu=gpu.index, reason=str(error))

    def close(self) -> None:
        """Let go of the boards; workers keep using them."""
        for gpu in self._by_index.values():
            if gpu.board is not None:
                gpu.board.close()
                gpu.board = None


def promised(promise: Promise) -> Claim:
    """What a lease has been promised, once the pool's manager has found that it fits."""
    return Claim(
        memory=promise.memory,
        share=promise.share,
        ceiling=promise.ceiling,
        high_priority=promise.high_priority,
        pooled=True,
    )


def _read_record(record: Mapping[str, Any]) -> tuple[LimitsRequest, dict[int, Claim]]:
    try:
        request = LimitsRequest.parse(record.get("request", {}))
        written = {int(i): Claim.parse(claim) for i, claim in record.get("claims", {}).items()}
    except (ValueError, TypeError, AttributeError) as error:
        logs.get("gpus").warning("a session's grant cannot be read", reason=str(error)[:200])
        return LimitsRequest(), {}
    return request, written


def _check_same(group: Group, request: LimitsRequest) -> None:
    """A later session asks for what its group has, or for nothing."""
    for key, asked in request.as_dict().items():
        if asked != getattr(group.request, key):
            raise Refusal(
                "bad-request",
                f"the group '{group.group}' runs with another request: its"
                f" {key.replace('_', ' ')} is {_shown(group.request, key)}, not"
                f" {_shown(request, key)}; leave it out, ask for the same, or name another group",
            )


def _shown(request: LimitsRequest, key: str) -> str:
    """As it could have been typed."""
    value = getattr(request, key)
    if value is None or value == ():
        return "not set"
    if key == "fractions":
        return ",".join(f"{part}/{whole}" for part, whole in value)
    forms = {"memory": format_size, "share": format_part, "ceiling": format_part}
    return forms.get(key, str)(value)


def _check_indexes(settings: Settings, inventory: Inventory) -> None:
    served = (*inventory.indexes, *inventory.lost)
    named = [(f"gpus.{index}", index) for index in settings.gpus]
    named += [
        (f"tenants.{name}.gpus", index)
        for name, table in settings.tenants.items()
        for index in table.gpus or ()
    ]
    for key, index in named:
        if index not in served:
            raise ConfigError(
                f"key '{key}' names GPU {index}, which is not served here; the server has"
                f" {', '.join(map(str, served))}"
            )
