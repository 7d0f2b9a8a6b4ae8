"""A simple model of a pool's leases, to which the real one is compared after every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpupool_manager.records import Lease

#: What an amount of a tenant's quota counts.
COUNTED = ("gpus", "memory_bytes", "compute_permille", "sessions")


#: How long programs have to leave a GPU that goes back.
GRACE = 60.0

#: Memory of each GPU (None: all of it) and share.
Limits = tuple[int | None, int]


@dataclass
class ModelNode:
    gpus: dict[str, int]
    max_inst: dict[str, int]
    lost: bool = False
    mode: str = "open"
    #: Whether it sends heartbeats.
    alive: bool = True
    seen: float = 0.0

    @property
    def is_open(self) -> bool:
        return not self.lost and self.mode == "open"


@dataclass
class ModelLease:
    id: str
    tenant: str
    want: dict[str, Any]
    ttl: float
    created: float
    deadline: float
    state: str = "queued"
    expires: float = 0.0
    #: (GPU, memory, share), as they count.
    grants: list[tuple[str, int, int]] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    #: What each of them is to be, what it was to be before, and which GPUs' servers have made it.
    target: Limits = (None, 1000)
    before: Limits = (None, 1000)
    made: set[str] | None = None
    undone: bool = False
    #: When those of its GPUs go back that do while it goes on.
    leaves: dict[str, float] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        return self.state in ("queued", "active")

    def use(self) -> dict[str, int]:
        """What it counts as; a whole GPU that is not there yet has no size."""
        if self.grants:
            gpus, memory = len(self.grants), sum(size for _, size, _ in self.grants)
            compute = sum(share for _, _, share in self.grants)
        else:
            gpus = self.want["gpus"]
            memory = gpus * (self.want["memory_bytes"] or 0)
            compute = gpus * self.want["share_permille"]
        return {
            "gpus": gpus,
            "memory_bytes": memory,
            "compute_permille": compute,
            "sessions": 1,
        }


class Model:
    """What must be so, worked out the slow way."""

    def __init__(self, lost_after: float, patience: float) -> None:
        self.lost_after = lost_after
        self.patience = patience
        self.quotas: dict[str, dict[str, int | None]] = {}
        self.disabled: set[str] = set()
        self.nodes: dict[str, ModelNode] = {}
        #: Of nodes that were removed: let in again, they are in it again.
        self.modes: dict[str, str] = {}
        self.leases: dict[str, ModelLease] = {}

    def live(self, state: str, tenant: str | None = None) -> list[ModelLease]:
        return [
            lease
            for lease in self.leases.values()
            if lease.state == state and tenant in (None, lease.tenant)
        ]

    def use(self, state: str, tenant: str) -> dict[str, int]:
        uses = [lease.use() for lease in self.live(state, tenant)]
        return {name: sum(use[name] for use in uses) for name in COUNTED}

    def on_gpu(self, uuid: str) -> list[tuple[int, int]]:
        """Memory and share of everything that is on a GPU."""
        return [
            (size, share)
            for lease in self.live("active")
            for gpu, size, share in lease.grants
            if gpu == uuid
        ]

    def total(self, uuid: str) -> int:
        return next(node.gpus[uuid] for node in self.nodes.values() if uuid in node.gpus)

    # What may be -----------------------------------------------------------------------

    def over_quota(self, tenant: str, want: dict[str, Any], with_queue: bool) -> bool:
        asked = ModelLease("", tenant, want, 0, 0, 0).use()
        sizes = {size for node in self.nodes.values() for size in node.gpus.values()}
        if want["memory_bytes"] is None and sizes:
            asked["memory_bytes"] = want["gpus"] * min(sizes)
        used = self.use("active", tenant)
        waits = self.use("queued", tenant) if with_queue else dict.fromkeys(COUNTED, 0)
        return any(
            limit is not None and asked[name] + used[name] + waits[name] > limit
            for name, limit in self.quotas[tenant].items()
        )

    def fits(self, tenant: str, want: dict[str, Any]) -> bool:
        """Whether there is room now, without anybody's turn being looked at."""
        by_node: dict[str, int] = {}
        gpus: int = want["gpus"]
        limit = self.quotas[tenant]["memory_bytes"]
        left = None if limit is None else limit - self.use("active", tenant)["memory_bytes"]
        for name, node in self.nodes.items():
            for uuid, size in node.gpus.items():
                if node.is_open and self._has_room(node, uuid, size, want, left):
                    by_node[name] = by_node.get(name, 0) + 1
        if want["hosts"] == "same":
            return max(by_node.values(), default=0) >= gpus
        if want["hosts"] == "spread":
            return len(by_node) >= gpus
        return sum(by_node.values()) >= gpus

    def _has_room(
        self, node: ModelNode, uuid: str, size: int, want: dict[str, Any], left: int | None
    ) -> bool:
        there = self.on_gpu(uuid)
        if len(there) >= node.max_inst[uuid]:
            return False
        if want["memory_bytes"] is None:
            return not there and (left is None or size * want["gpus"] <= left)
        memory: int = want["memory_bytes"] + sum(size for size, _ in there)
        share: int = want["share_permille"] + sum(part for _, part in there)
        return memory <= size and share <= 1000

    def someone_is_late(self, now: float) -> bool:
        return any(now - lease.created > self.patience for lease in self.live("queued"))

    # What happens ----------------------------------------------------------------------

    def take(self, lease: Lease) -> None:
        """A lease that the pool has made, or has now granted; what it may not be is an error."""
        known = self.leases.get(lease.id)
        if known is None:
            known = self.leases[lease.id] = ModelLease(
                lease.id,
                lease.tenant,
                lease.request.as_dict(),
                lease.ttl,
                lease.created,
                lease.deadline,
            )
        if lease.state == "active":
            self._grant(known, lease)

    def _grant(self, known: ModelLease, lease: Lease) -> None:
        assert known.state == "queued", f"{lease.id} was {known.state} and is granted"
        want = known.want
        grants = [(grant.gpu, grant.memory_bytes, grant.share_permille) for grant in lease.grants]
        uuids = [gpu for gpu, _, _ in grants]
        assert len(set(uuids)) == len(uuids) == want["gpus"]
        for grant in lease.grants:
            node = self.nodes[grant.node]
            assert node.is_open, f"{lease.id} was granted on {grant.node}: {node}"
            size = node.gpus[grant.gpu]
            assert grant.memory_bytes == (want["memory_bytes"] or size)
            assert grant.share_permille == want["share_permille"]
            if want["memory_bytes"] is None:
                assert not self.on_gpu(grant.gpu)
        nodes = {grant.node for grant in lease.grants}
        assert want["hosts"] != "same" or len(nodes) == 1
        assert want["hosts"] != "spread" or len(nodes) == want["gpus"]
        assert known.tenant not in self.disabled
        known.grants, known.state = grants, "active"
        known.target = known.before = (want["memory_bytes"], want["share_permille"])
        known.made = None
        assert lease.granted is not None and lease.expires == lease.granted + lease.ttl
        known.expires = lease.expires
        used = self.use("active", known.tenant)
        for name, limit in self.quotas[known.tenant].items():
            assert limit is None or used[name] <= limit, f"{known.tenant}: {name} {used[name]}"

    # Limits that change -----------------------------------------------------------------

    def grown(self, lease: ModelLease, memory: int, share: int) -> list[tuple[str, int, int]]:
        """What its grants count while a change to these limits is open."""
        return [
            (gpu, size, part) if gpu in lease.lost else (gpu, max(size, memory), max(part, share))
            for gpu, size, part in lease.grants
        ]

    def exceeds(self, lease: ModelLease, memory: int, share: int) -> bool:
        """Whether other limits would go over the quota by what they add."""
        want = {**lease.want, "memory_bytes": memory, "share_permille": share}
        after = ModelLease("", lease.tenant, want, 0, 0, 0, grants=self.grown(lease, memory, share))
        have, ask = lease.use(), after.use()
        counted = [self.use(state, lease.tenant) for state in ("active", "queued")]
        return any(
            limit is not None
            and ask[name] > have[name]
            and ask[name] - have[name] + sum(use[name] for use in counted) > limit
            for name, limit in self.quotas[lease.tenant].items()
        )

    def has_room(self, lease: ModelLease, memory: int, share: int) -> bool:
        """Whether its GPUs have what other limits add."""
        for old, new in zip(lease.grants, self.grown(lease, memory, share), strict=True):
            if new == old:
                continue
            there = self.on_gpu(old[0])
            if sum(size for size, _ in there) + new[1] - old[1] > self.total(old[0]):
                return False
            if sum(part for _, part in there) + new[2] - old[2] > 1000:
                return False
        return True

    def resize(self, lease: ModelLease, memory: int, share: int) -> None:
        """Its limits change: at once if it waits, else when its servers say so."""
        if lease.state == "queued":
            lease.want = {**lease.want, "memory_bytes": memory, "share_permille": share}
        elif lease.target != (memory, share):
            now, old = lease.target, lease.before
            if lease.made is not None:
                whole = now[0] is None or old[0] is None
                now = (None if whole else max(now[0] or 0, old[0] or 0), max(now[1], old[1]))
            lease.before, lease.target = now, (memory, share)
            lease.grants = self.grown(lease, memory, share)
            lease.made, lease.undone = set(), False

    def answer(self, lease: ModelLease, uuid: str, refuses: bool) -> None:
        """The server of one of its GPUs has made a change, or refuses."""
        assert lease.made is not None
        if not refuses:
            lease.made.add(uuid)
            self.settle(lease)
        elif not lease.undone:
            lease.target, lease.made, lease.undone = lease.before, set(), True

    def settle(self, lease: ModelLease) -> None:
        """What all have made counts, and no more."""
        if lease.made is None or {gpu for gpu, _, _ in lease.grants} - lease.lost - lease.made:
            return
        memory, share = lease.target
        lease.grants = [
            (gpu, size, part)
            if gpu in lease.lost
            else (gpu, self.total(gpu) if memory is None else memory, share)
            for gpu, size, part in lease.grants
        ]
        lease.made = None

    # GPUs that come and go ---------------------------------------------------------------

    def node_of(self, uuid: str) -> str:
        """Where a GPU is; empty: it is gone."""
        return next((name for name, node in self.nodes.items() if uuid in node.gpus), "")

    def going(self, lease: ModelLease, gpus: int, now: float) -> set[str] | None:
        """Which go if so many are to stay; None: that may not be."""
        uuids = [gpu for gpu, _, _ in lease.grants]
        if lease.state != "active" or lease.made is not None or gpus > len(uuids):
            return None
        lost = [gpu for gpu in uuids if gpu in lease.lost]
        last = [gpu for gpu in reversed(uuids) if gpu not in lease.lost]
        going = set([*lost[::-1], *last][: len(uuids) - gpus])
        if any(at <= now and gpu not in going for gpu, at in lease.leaves.items()):
            return None
        there = {gpu for gpu in uuids if gpu not in lease.lost}
        nodes = {self.node_of(gpu) for gpu in there}
        return None if nodes - {self.node_of(gpu) for gpu in there - going} else going

    def shrink(self, lease: ModelLease, going: set[str], now: float) -> None:
        """They are told; what is gone anyhow counts no more."""
        lease.leaves = {gpu: lease.leaves.get(gpu, now + GRACE) for gpu in going}
        self.forget_lost(lease)

    def forget_lost(self, lease: ModelLease) -> None:
        for gpu in lease.leaves.keys() & lease.lost:
            self.give(lease, gpu)

    def give(self, lease: ModelLease, uuid: str) -> None:
        """Its server says that nothing has it any more: only now it counts no more."""
        del lease.leaves[uuid]
        lease.lost.discard(uuid)
        lease.grants = [grant for grant in lease.grants if grant[0] != uuid]
        if lease.lost == {gpu for gpu, _, _ in lease.grants}:
            lease.state = "lost"

    def grow(self, lease: ModelLease, grants: list[tuple[str, int, int]]) -> None:
        """It was given more; what may not be is an error."""
        (node,) = {self.node_of(gpu) for gpu, _, _ in lease.grants}
        assert self.nodes[node].is_open
        new = grants[len(lease.grants) :]
        assert grants[: len(lease.grants)] == lease.grants and new and not lease.lost
        for gpu, size, share in new:
            there = self.on_gpu(gpu)
            assert gpu not in {mine for mine, _, _ in lease.grants}
            assert self.node_of(gpu) == node and len(there) < self.nodes[node].max_inst[gpu]
            assert (size, share) == (lease.target[0] or self.total(gpu), lease.target[1])
            assert lease.target[0] is not None or not there
        lease.grants, lease.made, lease.undone, lease.before = grants, set(), False, lease.target
        used = self.use("active", lease.tenant)
        for name, limit in self.quotas[lease.tenant].items():
            assert limit is None or name == "sessions" or used[name] <= limit, name

    # Time -------------------------------------------------------------------------------

    def gpu_gone(self, uuid: str) -> None:
        """Leases go on with what they have left, and end with their last GPU."""
        for lease in self.live("active"):
            if uuid in {gpu for gpu, _, _ in lease.grants}:
                lease.lost.add(uuid)
                if lease.lost == {gpu for gpu, _, _ in lease.grants}:
                    lease.state = "lost"

    def pass_time(self, now: float) -> None:
        """What a tick at this time ends."""
        for node in self.nodes.values():
            if now - node.seen > self.lost_after:
                node.lost = True
        for lease in self.leases.values():
            if lease.state == "queued" and lease.deadline <= now:
                lease.state = "timed-out"
            elif lease.state == "active" and lease.expires <= now:
                lease.state = "expired"
            elif lease.state == "active":
                self.settle(lease)
                self.forget_lost(lease)

    def restart(self, now: float) -> None:
        """Renewals and heartbeats were not written down: everybody gets a whole period again."""
        for node in self.nodes.values():
            node.seen = now
        for lease in self.live("active"):
            lease.expires = max(lease.expires, now + lease.ttl)
            lease.made = None if lease.made is None else set()  # servers say it again
            lease.leaves = {gpu: max(at, now + GRACE) for gpu, at in lease.leaves.items()}
