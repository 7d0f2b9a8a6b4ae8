"""Nodes: they join, say that they are there, go, come back, and are told what holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpupool_common.lease import LeaseEnd, LeaseState
from gpupool_common.node_protocol import (
    Apply,
    GpuReading,
    Heartbeat,
    Orders,
    Report,
    ReportedGpu,
    ReportedSession,
    RollKey,
    SendReport,
)
from gpupool_common.sizes import format_size
from gpupool_manager.busy import BusyTimes
from gpupool_manager.lease_tokens import Signer
from gpupool_manager.leases import Leases
from gpupool_manager.ledger import Ledger
from gpupool_manager.link_keys import LinkKeys
from gpupool_manager.node_key_rolls import NodeKeyRolls, check_key
from gpupool_manager.orders import (
    ended_leases,
    ordered_gpus,
    ordered_grants,
    ordered_leaving,
    ordered_tenants,
)
from gpupool_manager.problems import Problem, bad_field, not_found
from gpupool_manager.records import Admission, Gpu, Lease, Mode, Node, Token
from gpupool_manager.sick_gpus import SickGpus
from gpupool_manager.transaction import Transaction


@dataclass(slots=True)
class Seen:
    """What the last heartbeat of a node said; not kept over a restart."""

    sessions: list[ReportedSession] = field(default_factory=list)
    #: By UUID: how its GPUs do.
    readings: dict[str, GpuReading] = field(default_factory=dict)


class Fleet:
    """Every change of a node or a GPU."""

    def __init__(
        self,
        ledger: Ledger,
        leases: Leases,
        interval: float,
        lost_after: float,
        signer: Callable[[], Signer],
        offline_seconds: float,
        link_keys: Callable[[], LinkKeys],
    ) -> None:
        self._ledger = ledger
        self._signer = signer
        self._link_keys = link_keys
        self._offline_seconds = offline_seconds
        self.node_keys = NodeKeyRolls(ledger)
        #: By node: the keys that it says to have, the manager's own among them.
        self.keys: dict[str, set[str]] = {}
        self._leases = leases
        self._interval = interval
        self._lost_after = lost_after
        self.seen: dict[str, Seen] = {}
        self.busy = BusyTimes(ledger)
        self.sick = SickGpus(ledger, leases)
        #: What a node said was wrong when an operator opened it all the same.
        self._forgiven: dict[str, str] = {}

    # What nodes say --------------------------------------------------------------------

    def report(
        self, transaction: Transaction, token: Token, name: str, report: Report, key: str = ""
    ) -> Node:
        """A node joins, or says what it has now. ``key``: what its connection proved to have."""
        ledger = self._ledger
        self._check_report(token, name, report, key)
        node = ledger.nodes.get(name)
        if node is None:
            node = self._enter(transaction, token, name, report, key)
        else:
            if node.lost:
                transaction.log("node.back", name)
                for lease in ledger.leases_on[name]:
                    ledger.works(lease, transaction.now)  # for all that was heard of it meanwhile
            node.address = report.address
            node.server_version = report.server_version
            node.driver = report.driver
            node.token = token.id
            node.key = key
            node.front_end_key = report.front_end_key
            node.trouble = "" if node.lost else node.trouble
            node.lost = False
            node.last_seen = transaction.now
            node.version += 1
        transaction.put(node)
        self._take_gpus(transaction, node, report.gpus)
        self.sick.take(transaction, name, {gpu.uuid: gpu.sick for gpu in report.gpus})
        ledger.refresh(name)
        self._leases.pump(transaction)
        return node

    def _enter(
        self, transaction: Transaction, token: Token, name: str, report: Report, key: str
    ) -> Node:
        """A node that is new, or let in again: what an operator has said of it holds."""
        ledger = self._ledger
        known = ledger.admissions.pop(name, None)
        if known is not None:
            transaction.drop(known)
        own = known is None or known.removed is None and not known.labels
        node = Node(
            name,
            report.address,
            report.server_version,
            report.labels if known is None or own else known.labels,
            "open" if known is None else known.mode,
            False,
            token.id,
            transaction.now,
            transaction.now,
            key,
            report.front_end_key,
            report.driver,
        )
        ledger.nodes[name] = node
        ledger.leases_on[name] = set()
        transaction.log("node.joined", name, address=report.address, gpus=len(report.gpus))
        return node

    def _check_report(self, token: Token, name: str, report: Report, key: str) -> None:
        node = self._ledger.nodes.get(name)
        self.check_token(token, name)
        if node is not None:
            check_key(node, key)
        uuids = [gpu.uuid for gpu in report.gpus]
        if len(set(uuids)) != len(uuids):
            raise bad_field("gpus", "a UUID is there twice")
        if len({gpu.index for gpu in report.gpus}) != len(uuids):
            raise bad_field("gpus", "an index is there twice")
        for place, gpu in enumerate(report.gpus):
            known = self._ledger.gpus.get(gpu.uuid)
            if known is None:
                continue
            if known.node != name and known.present:
                # Not even of a node that is lost: it may be cut off by who wants its GPUs.
                raise bad_field(
                    f"gpus.{place}.uuid",
                    f"'{gpu.uuid}' is on node '{known.node}'; was it moved, remove that node first",
                )
            slot = self._ledger.index.slots[gpu.uuid]
            if slot.holders and (known.node != name or gpu.memory_bytes < slot.used_bytes):
                raise Problem(
                    409,
                    "in-use",
                    f"the GPU '{gpu.uuid}' of node '{known.node}' has"
                    f" {slot.holders} grants with {format_size(slot.used_bytes)}; end them first",
                )

    def check_token(self, token: Token, name: str) -> None:
        """A token is for one node only."""
        if token.scope != "node" or token.node != name:
            what = f"for the node '{token.node}'" if token.node else "no node's"
            raise Problem(403, "forbidden", f"the token is {what}, not for '{name}'")

    def _take_gpus(self, transaction: Transaction, node: Node, reported: list[ReportedGpu]) -> None:
        ledger = self._ledger
        named = {gpu.uuid for gpu in reported}
        for slot in list(ledger.index.nodes.get(node.name, {}).values()):
            gpu = ledger.gpus[slot.uuid]
            if gpu.uuid not in named and gpu.present:
                gpu.present = False
                gpu.version += 1
                transaction.put(gpu)
                transaction.log("gpu.gone", gpu.uuid, node=node.name)
                ledger.index.close(gpu.uuid, ledger.why_closed(gpu))
                self._lose_grants(transaction, gpu)
        for new in reported:
            self._take_gpu(transaction, node, new)

    def _take_gpu(self, transaction: Transaction, node: Node, new: ReportedGpu) -> None:
        ledger = self._ledger
        gpu = ledger.gpus.get(new.uuid)
        if gpu is None:
            gpu = Gpu(
                new.uuid,
                node.name,
                new.index,
                new.model,
                new.compute_capability,
                new.memory_bytes,
                new.pci,
                True,
                new.policy,
                new.max_inst,
                new.prio_ratio,
            )
            transaction.log("gpu.added", gpu.uuid, node=node.name, model=gpu.model)
        else:
            if not gpu.present:
                transaction.log("gpu.back", gpu.uuid, node=node.name)
            gpu.node, gpu.number, gpu.model = node.name, new.index, new.model
            gpu.capability, gpu.memory_bytes = new.compute_capability, new.memory_bytes
            gpu.pci, gpu.present = new.pci, True
        slot = ledger.slot_of(gpu) if gpu.uuid not in ledger.gpus else None
        ledger.gpus[gpu.uuid] = gpu
        transaction.put(gpu)
        if slot is None:
            # Its settings may all be others now; what it has given stays given.
            old = ledger.index.remove(gpu.uuid)
            slot = ledger.slot_of(gpu)
            slot.used_bytes, slot.used_permille = old.used_bytes, old.used_permille
            slot.holders = old.holders
        ledger.index.add(slot)

    def _lose_grants(self, transaction: Transaction, gpu: Gpu) -> None:
        """A GPU is gone: a lease continues with what it has left, and ends with its last one."""
        for name in sorted(self._ledger.leases_on[gpu.node]):
            lease = self._ledger.leases[name]
            for grant in lease.grants:
                if grant.gpu == gpu.uuid:
                    grant.lost = True
                    transaction.put(grant)
            if all(grant.lost for grant in lease.grants):
                self._leases.finish(transaction, lease, LeaseState.LOST, "all its GPUs are gone")

    def heartbeat(
        self, token: Token, name: str, beat: Heartbeat, now: float, key: str = ""
    ) -> list[Lease]:
        """Note it in memory; the leases that it says can be released."""
        self.check_token(token, name)
        node = self._ledger.nodes.get(name)
        if node is None or node.lost:
            return []
        if node.token != token.id:
            raise Problem(403, "forbidden", f"the node '{name}' joined with another token")
        check_key(node, key)
        node.last_seen = now
        here = self._ledger.leases_on[name]
        self._note_new(self.seen.get(name, Seen()), beat.sessions, here, now)
        self.seen[name] = Seen(beat.sessions, {each.gpu: each for each in beat.readings})
        for each in beat.busy:
            self.busy.count(name, each, now)
        for used in {session.lease for session in beat.sessions} & here:
            self._leases.renew(self._ledger.leases[used], now)
        return [
            self._ledger.leases[idle]
            for idle in sorted(set(beat.idle) & here)
            if self._ledger.leases[idle].until == LeaseEnd.LAST_SESSION
            and not self._has_sessions(self._ledger.leases[idle])
        ]

    def reading(self, gpu: Gpu) -> GpuReading | None:
        """How a GPU does, by the last heartbeat of its own node, if that is there."""
        node, seen = self._ledger.nodes.get(gpu.node), self.seen.get(gpu.node)
        return None if node is None or node.lost or seen is None else seen.readings.get(gpu.uuid)

    def _note_new(
        self, before: Seen, sessions: list[ReportedSession], here: set[str], now: float
    ) -> None:
        """A session that begins is a sign of life of its lease."""
        known = {session.id for session in before.sessions}
        for session in sessions:
            if session.id not in known and session.lease in here:
                self._ledger.works(session.lease, now)

    def is_news(self, name: str, trouble: str) -> bool:
        """Whether what a node says of its sessions changes anything."""
        node = self._ledger.nodes.get(name)
        if not trouble:
            self._forgiven.pop(name, None)
        if node is None or node.lost or self._forgiven.get(name) == trouble != "":
            return False
        return node.trouble != trouble

    def set_trouble(self, transaction: Transaction, name: str, trouble: str) -> None:
        """Sessions do not start on a node: put it aside; they do again: use it again."""
        if not self.is_news(name, trouble):
            return
        node = self._ledger.nodes[name]
        node.trouble = trouble
        node.version += 1
        transaction.put(node)
        transaction.log("node.aside" if trouble else "node.well", name, reason=trouble)
        self._ledger.refresh(name)
        self._leases.pump(transaction)

    def leave(self, transaction: Transaction, token: Token, name: str, key: str) -> None:
        """Its server stops: nothing new goes there until it reports again."""
        self.check_token(token, name)
        node = self.find(name)
        if node.token != token.id:
            raise Problem(403, "forbidden", f"the node '{name}' joined with another token")
        check_key(node, key)
        if not node.lost:
            transaction.log("node.left", name)
            self._lose(transaction, node, "its server was stopped")
            self._leases.pump(transaction)

    def give_up(self, transaction: Transaction, name: str) -> None:
        """It does not say that it has its orders: what it was to have goes elsewhere."""
        node = self._ledger.nodes.get(name)
        waiting = list(self._ledger.unconfirmed.get(name, ()))
        if node is None or not waiting:
            return
        why = f"the server of node '{name}' did not confirm it"
        if not node.lost:
            transaction.log("node.silent", name, leases=len(waiting))
            self._lose(transaction, node, "its server does not confirm leases")
        for lease in waiting:
            self._leases.move(transaction, self._ledger.leases[lease], why)
        self._leases.pump(transaction)

    def _lose(self, transaction: Transaction, node: Node, why: str) -> None:
        node.lost, node.trouble = True, why
        node.version += 1
        self.seen.pop(node.name, None)
        self.keys.pop(node.name, None)
        transaction.put(node)
        self._ledger.refresh(node.name)

    def _has_sessions(self, lease: Lease) -> bool:
        return any(
            session.lease == lease.id
            for node in {grant.node for grant in lease.grants}
            if node in self.seen
            for session in self.seen[node].sessions
        )

    def seen_gpus(self, lease: Lease) -> set[str]:
        """Of a lease's GPUs those that a session of it sees, as far as its servers have said."""
        return {
            gpu
            for node in {grant.node for grant in lease.grants}
            if node in self.seen
            for session in self.seen[node].sessions
            if session.lease == lease.id
            for gpu in session.gpus
        }

    def orders(self, name: str, applied: str, now: float) -> Orders:
        """What a node that has applied this generation must be told."""
        node = self._ledger.nodes.get(name)
        if node is None or node.lost:
            return Orders(next_heartbeat=self._interval, commands=[SendReport()])
        generation = self._ledger.generation(name)
        commands: list[Apply | SendReport | RollKey] = []
        if applied != generation:
            commands.append(self._all(node, generation, now))
        commands += self.node_keys.orders(node)
        return Orders(next_heartbeat=self._interval, commands=commands)

    def _all(self, node: Node, generation: str, now: float) -> Apply:
        leases = [self._ledger.leases[name] for name in sorted(self._ledger.leases_on[node.name])]
        self.busy.expect(leases)
        signer = self._signer()
        return Apply(
            generation=generation,
            at=now,
            mode=node.mode,
            grants=ordered_grants(self._ledger, signer, node.name, leases),
            leaving=ordered_leaving(node.name, leases, now),
            gpus=ordered_gpus(self.gpus_of(node.name), self.sick),
            keys=signer.public_keys(),
            manager_key=self._link_keys().announced,
            offline_seconds=self._offline_seconds,
            ended=ended_leases(self._ledger, node.name),
            tenants=ordered_tenants(self._ledger, {lease.tenant for lease in leases}),
        )

    def gpus_of(self, node: str) -> list[Gpu]:
        slots = self._ledger.index.nodes.get(node, {}).values()
        return [self._ledger.gpus[slot.uuid] for slot in sorted(slots, key=lambda s: s.index)]

    # What operators do -----------------------------------------------------------------

    def change(
        self, transaction: Transaction, name: str, mode: Mode | None, labels: dict[str, str] | None
    ) -> Node:
        """Cordon, drain, open again; label."""
        node = self.find(name)
        if mode is not None:
            node.mode = mode
        if mode == "open" and node.trouble and not node.lost:
            # An operator knows better, until its server says something else.
            self._forgiven[name], node.trouble = node.trouble, ""
        if labels is not None:
            node.labels = labels
        node.version += 1
        transaction.put(node)
        transaction.log("node.changed", name, mode=node.mode, labels=node.labels)
        self._ledger.refresh(name)
        self._leases.pump(transaction)
        return node

    def find(self, name: str) -> Node:
        node = self._ledger.nodes.get(name)
        if node is None:
            raise not_found("node", name)
        return node

    def find_gpu(self, uuid: str) -> Gpu:
        gpu = self._ledger.gpus.get(uuid)
        if gpu is None:
            raise not_found("GPU", uuid)
        return gpu

    def change_gpu(self, transaction: Transaction, uuid: str, settings: dict[str, Any]) -> Gpu:
        """Policy, max_inst, prio_ratio: kept, and ordered from its node. Not aside: used again."""
        gpu = self.find_gpu(uuid)
        if settings.pop("aside", None) is False:
            self.sick.open(transaction, gpu)
        most = settings.get("max_inst", gpu.max_inst)
        holders = self._ledger.index.slots[uuid].holders
        if isinstance(most, int) and most < holders:
            raise Problem(409, "in-use", f"the GPU has {holders} grants, {most} would be allowed")
        for key, value in settings.items():
            setattr(gpu, key, value)
        gpu.version += 1
        transaction.put(gpu)
        transaction.log("gpu.changed", uuid, node=gpu.node, **settings)
        self._ledger.index.limit(uuid, gpu.max_inst)
        self._ledger.touch(gpu.node)
        self._leases.pump(transaction)
        return gpu

    def remove(self, transaction: Transaction, name: str, force: bool = False) -> None:
        """Forget a node; it must have no leases, or ``force`` ends them.

        It is out until an operator makes a token for it, and then it is again what operators
        have made of it: drained, with its labels.
        """
        node = self.find(name)
        leases = sorted(self._ledger.leases_on[name])
        if leases and not force:
            raise Problem(
                409,
                "in-use",
                f"the node '{name}' has leases ({len(leases)}); drain it and wait, or release"
                " them; --force (force=true) ends them",
            )
        for lease in leases:  # on all their nodes: this one knows what joins their workers
            ended = self._ledger.leases[lease]
            self._leases.finish(
                transaction, ended, LeaseState.LOST, f"its node '{name}' was removed"
            )
        for gpu in self.gpus_of(name):
            self._ledger.index.remove(gpu.uuid)
            del self._ledger.gpus[gpu.uuid]
            transaction.drop(gpu)
        del self._ledger.nodes[name]
        del self._ledger.leases_on[name]
        self.seen.pop(name, None)
        self.keys.pop(name, None)
        self.node_keys.forget(name)
        transaction.drop(node)
        self._shut_out(transaction, node)
        transaction.log("node.removed", name)
        self._leases.pump(transaction)

    def _shut_out(self, transaction: Transaction, node: Node) -> None:
        ledger = self._ledger
        known = Admission(node.name, node.labels, node.mode, transaction.now)
        ledger.admissions[node.name] = known
        transaction.put(known)
        for token in ledger.tokens.by_id.values():
            if token.node == node.name and token.revoked is None:
                token.revoked = transaction.now
                transaction.put(token)
        ledger.touch(node.name)  # its server is to learn of it now

    # Time ------------------------------------------------------------------------------

    def overdue(self, now: float) -> list[str]:
        """Nodes that have not been heard of for too long."""
        return [
            node.name
            for node in self._ledger.nodes.values()
            if not node.lost and now - node.last_seen > self._lost_after
        ]

    def lose(self, transaction: Transaction) -> None:
        """Give those up for now. Their leases stay until they expire: programs may still run."""
        for name in self.overdue(transaction.now):
            node = self._ledger.nodes[name]
            silent = round(transaction.now - node.last_seen, 1)
            transaction.log("node.lost", name, silent_seconds=silent)
            self._lose(transaction, node, f"not heard of for {silent:.0f} s")
        self._leases.pump(transaction)  # who waits for these alone holds nobody up any more
