"""Leases, quotas and nodes in any order, with failures and restarts, against a model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from gpupool_common.node_protocol import GrantChange, Heartbeat
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.problems import Problem
from gpupool_manager.store import StoreError
from gpupool_manager.transaction import Transaction
from manager_checks import TENANTS, Checks
from manager_databases import Postgres
from manager_model import COUNTED, Model, ModelLease, ModelNode
from manager_world import WANT, World, gpu

T = TypeVar("T")
NODES = ("n1", "n2", "n3")
SIZES = (6000 * MIB, 10_000 * MIB)
LOST_AFTER, PATIENCE = 40.0, 100.0

AMOUNT = st.none() | st.integers(0, 4)
WANTS = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from((1, 1, 1, 2, 3)),
        "hosts": st.sampled_from(("any", "same", "spread")),
        "policy": st.sampled_from(("binpack", "spread", "fragmentation")),
        "size": st.sampled_from(
            ((1000, 100), (3000, 600), (6000, 300), (10_000, 1000), (None, 1000))
        ),
    }
)
#: Memory and share, and which of the servers that answer refuse.
CHANGES = st.tuples(
    st.sampled_from(((1000, 100), (2000, 700), (3000, 600))),
    st.lists(st.sampled_from((False, False, True)), max_size=6),
)


class Pools(Checks, RuleBasedStateMachine):
    """One pool and its model."""

    #: Makes the address of an empty database.
    new_url: Callable[[], Coroutine[Any, Any, str]]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model = Model(LOST_AFTER, PATIENCE)
        self.names = itertools.count()
        self.run(self._open())

    async def _open(self) -> None:
        url = await type(self).new_url()
        self.world = await World(url, lost_after=LOST_AFTER, patience=PATIENCE).open()
        for name in TENANTS:
            await self.world.tenant(name)
            self.model.quotas[name] = dict.fromkeys(COUNTED)
        self._join("n1", [SIZES[1], SIZES[0]])
        await self._join_pool("n1")

    def teardown(self) -> None:
        self.run(self.world.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    # Nodes -----------------------------------------------------------------------------

    def _join(self, name: str, sizes: list[int]) -> None:
        gpus = {f"GPU-{next(self.names)}": size for size in sizes}
        mode = self.model.modes.pop(name, "open")
        self.model.nodes[name] = ModelNode(gpus, dict.fromkeys(gpus, 3), mode=mode, seen=self.now)

    async def _join_pool(self, name: str) -> None:
        node = self.model.nodes[name]
        reported = [
            gpu(name, index, size, uuid=uuid, max_inst=3)
            for index, (uuid, size) in enumerate(node.gpus.items())
        ]
        await self.world.join(name, reported)

    @precondition(lambda self: len(self.model.nodes) < len(NODES))
    @rule(sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))
    def join(self, sizes: list[int]) -> None:
        name = next(name for name in NODES if name not in self.model.nodes)
        self._join(name, sizes)
        self.run(self._join_pool(name))
        self.check()

    @precondition(lambda self: self.model.nodes)
    @rule(data=st.data(), keep=st.integers(0, 3), more=st.integers(0, 2))
    def report(self, data: st.DataObject, keep: int, more: int) -> None:
        """A node that may have been lost is there, with other GPUs."""
        name = data.draw(st.sampled_from(sorted(self.model.nodes)))
        node = self.model.nodes[name]
        for uuid in list(node.gpus)[keep:]:
            del node.gpus[uuid]
            self.model.gpu_gone(uuid)
        for _ in range(more):
            uuid = f"GPU-{next(self.names)}"
            node.gpus[uuid], node.max_inst[uuid] = SIZES[0], 3
        node.lost, node.alive, node.seen = False, True, self.now
        self.run(self._join_pool(name))
        self.check()

    @precondition(lambda self: self.model.nodes)
    @rule(data=st.data(), mode=st.sampled_from(("open", "cordoned", "draining")))
    def set_mode(self, data: st.DataObject, mode: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.nodes)))
        self.do(lambda transaction: self.world.pool.fleet.change(transaction, name, mode, None))
        self.model.nodes[name].mode = mode
        self.check()

    @precondition(lambda self: self.model.nodes)
    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.nodes)))
        self.model.nodes[name].alive = False

    @precondition(lambda self: self.model.nodes)
    @rule(data=st.data(), most=st.integers(1, 3))
    def set_max_inst(self, data: st.DataObject, most: int) -> None:
        places = [(name, uuid) for name, node in self.model.nodes.items() for uuid in node.gpus]
        if not places:
            return
        name, uuid = data.draw(st.sampled_from(sorted(places)))
        change = {"max_inst": most}
        status = self.do(
            lambda transaction: self.world.pool.fleet.change_gpu(transaction, uuid, change)
        )
        assert status == (409 if len(self.model.on_gpu(uuid)) > most else None)
        if status is None:
            self.model.nodes[name].max_inst[uuid] = most
        self.check()

    @precondition(lambda self: self.model.nodes)
    @rule(data=st.data())
    def remove_node(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.nodes)))
        ledger = self.world.pool.ledger
        used = any(
            grant.node == name
            for lease in self.model.live("active")
            for grant in ledger.leases[lease.id].grants
        )
        status = self.do(lambda transaction: self.world.pool.fleet.remove(transaction, name))
        assert status == (409 if used else None)
        if status is None:
            self.model.modes[name] = self.model.nodes.pop(name).mode
        self.check()

    # Tenants ---------------------------------------------------------------------------

    @rule(tenant=st.sampled_from(TENANTS), gpus=AMOUNT, memory=AMOUNT, compute=AMOUNT, most=AMOUNT)
    def set_quota(
        self,
        tenant: str,
        gpus: int | None,
        memory: int | None,
        compute: int | None,
        most: int | None,
    ) -> None:
        quota = {
            "gpus": gpus,
            "memory_bytes": None if memory is None else memory * 5000 * MIB,
            "compute_permille": None if compute is None else compute * 600,
            "sessions": most,
        }
        self.model.quotas[tenant] = quota
        self.run(self.world.quota(tenant, **quota, priority=2))
        self.check()

    @rule(tenant=st.sampled_from(TENANTS), disabled=st.booleans())
    def disable(self, tenant: str, disabled: bool) -> None:
        (self.model.disabled.add if disabled else self.model.disabled.discard)(tenant)
        change = {"disabled": disabled}
        assert (
            self.do(lambda transaction: self.world.pool.tenancy.change(transaction, tenant, change))
            is None
        )
        self.check()

    # Leases ----------------------------------------------------------------------------

    @rule(
        tenant=st.sampled_from(TENANTS),
        wanted=WANTS,
        wait=st.sampled_from((0.0, 30.0, 500.0)),
        ttl=st.sampled_from((30.0, 300.0)),
    )
    def ask(self, tenant: str, wanted: dict[str, Any], wait: float, ttl: float) -> None:
        mib, share = wanted.pop("size")
        memory = None if mib is None else mib * MIB
        want = {**WANT, **wanted, "memory_bytes": memory, "share_permille": share}
        model = self.model
        over, fits = model.over_quota(tenant, want, True), model.fits(tenant, want)
        late, off = model.someone_is_late(self.now), tenant in model.disabled
        try:
            lease = self.run(self.world.ask(tenant, wait=wait, ttl=ttl, **want))
        except Problem as problem:
            assert (problem.status == 403) == (over or off), problem.detail
            assert problem.status in (403, 409)
            if problem.status == 409:
                assert late or not fits, problem.detail
                # Without waiting everything is refused, with it only what can never be.
                assert wait == 0 or problem.code == "impossible"
        else:
            assert not over and not off
            assert fits if lease.state == "active" else (late or not fits) and wait > 0
            model.take(lease)
        self.check()

    def _one(self, data: st.DataObject) -> ModelLease:
        live = [lease.id for lease in self.model.leases.values() if lease.is_live]
        return self.model.leases[data.draw(st.sampled_from(live))]

    @precondition(lambda self: any(lease.is_live for lease in self.model.leases.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        known = self._one(data)
        self.run(self.world.end(self.world.pool.ledger.leases[known.id]))
        known.state = "cancelled" if known.state == "queued" else "released"
        self.check()

    @precondition(lambda self: self.model.live("active"))
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.model.live("active")))
        self.world.pool.leases.renew(self.world.pool.ledger.leases[known.id], self.now)
        known.expires = max(known.expires, self.now + known.ttl)

    @precondition(lambda self: any(lease.is_live for lease in self.model.leases.values()))
    @rule(data=st.data(), changes=st.lists(CHANGES, min_size=1, max_size=5))
    def resize(
        self, data: st.DataObject, changes: Sequence[tuple[tuple[int, int], list[bool]]]
    ) -> None:
        """Other limits for some lease, and another, and what the first servers say of each."""
        for size, refusals in changes:
            if any(lease.is_live for lease in self.model.leases.values()):
                self._resize(self._one(data), size, refusals)

    def _resize(self, known: ModelLease, size: tuple[int, int], refusals: Sequence[bool]) -> None:
        model = self.model
        memory, share = size[0] * MIB, size[1]
        if known.leaves and known.target != size_of(size):
            assert self._try_limits(known, memory, share) == 409
            self.check()
            return
        over, room = model.exceeds(known, memory, share), model.has_room(known, memory, share)
        late, waits = model.someone_is_late(self.now), known.state == "queued"
        status = self._try_limits(known, memory, share)
        assert (status == 403) == over
        if status is None:
            assert room
            model.resize(known, memory, share)
        elif status == 409:
            assert waits or late or not room
        self.check()
        for refuses in refusals:
            self._answer(known, refuses)

    def _try_limits(self, known: ModelLease, memory: int, share: int) -> int | None:
        pool, limits = self.world.pool, {"memory_bytes": memory, "share_permille": share}
        return self.do(
            lambda transaction: pool.resizes.change(
                transaction, pool.ledger.leases[known.id], limits
            )
        )

    @precondition(lambda self: self.model.live("active"))
    @rule(data=st.data(), gpus=st.integers(1, 4), answers=st.integers(0, 3))
    def change_number(self, data: st.DataObject, gpus: int, answers: int) -> None:
        """Another number of GPUs, and what servers say of those that go."""
        known = data.draw(st.sampled_from(self.model.live("active")))
        pool, model = self.world.pool, self.model
        lease = pool.ledger.leases[known.id]
        if gpus < len(known.grants) or known.leaves:
            going = model.going(known, gpus, self.now)
            status = self.do(lambda transaction: pool.shrinking.shrink(transaction, lease, gpus))
            assert status == (409 if going is None else None)
            if going is not None:
                model.shrink(known, going, self.now)
        elif gpus > len(known.grants) or known.made is None:
            status = self.do(lambda transaction: pool.growth.grow(transaction, lease, gpus))
            if status is None and gpus > len(known.grants):
                grants = [(g.gpu, g.memory_bytes, g.share_permille) for g in lease.grants]
                model.grow(known, grants)
        self.check()
        for _ in range(answers):
            self._leave(known)

    def _leave(self, known: ModelLease) -> None:
        """Nothing has the last GPU that goes any more, says its server."""
        pool = self.world.pool
        lease = pool.ledger.leases.get(known.id)
        if lease is None or not lease.leaving:
            return
        grant = lease.leaving[-1]
        said = GrantChange(lease=lease.id, gpu=grant.gpu, number=lease.version)
        self.do(lambda transaction: pool.shrinking.hear(transaction, grant.node, [said]))
        self.model.give(known, grant.gpu)
        self.check()

    def _answer(self, known: ModelLease, refuses: bool) -> None:
        """The first server that has not made a change of a lease does, or refuses."""
        pool = self.world.pool
        lease = pool.ledger.leases.get(known.id)
        if lease is None or known.made is None:
            return
        grant = next(grant for grant in lease.present if grant.gpu not in known.made)
        reason = "more is in use" if refuses else ""
        said = GrantChange(
            lease=lease.id, gpu=grant.gpu, number=lease.version, reason=reason, refused=refuses
        )
        self.do(lambda transaction: pool.resizes.hear(transaction, grant.node, [said]))
        self.model.answer(known, grant.gpu, refuses)
        self.check()

    # Time, failures --------------------------------------------------------------------

    @rule(seconds=st.sampled_from((1.0, 20.0, 45.0, 120.0)))
    def let_time_pass(self, seconds: float) -> None:
        self.world.clock.now += seconds
        for name, node in self.model.nodes.items():
            if node.alive and not node.lost:
                node.seen = self.now
                beat = Heartbeat()
                token = self.run(self.world.node_token(name))
                self.world.pool.fleet.heartbeat(token, name, beat, self.now)
        self.run(self.world.pool.tick())
        self.model.pass_time(self.now)
        self.check()

    @rule()
    def restart(self) -> None:
        self.run(self.world.restart())
        self.model.restart(self.now)
        self.model.pass_time(self.now)
        self.check()

    @rule(tenant=st.sampled_from(TENANTS), fails=st.sampled_from(("before", "after")))
    def fail(self, tenant: str, fails: str) -> None:
        """The database fails while something is asked for: it is in it, or nothing is."""
        store = self.world.pool.store
        commit = store.commit

        async def commit_badly(transaction: Transaction) -> None:
            if transaction.empty:
                return
            if fails == "after":
                await commit(transaction)
            raise StoreError("it broke")

        known = set(self.model.leases)
        store.commit = commit_badly  # type: ignore[method-assign]
        try:
            status = 200
            try:
                self.run(self.world.ask(tenant, wait=500.0, ttl=300.0))
            except Problem as problem:
                status = problem.status
            assert status in (403, 409, 503)
        finally:
            store.commit = commit  # type: ignore[method-assign]
        if status == 503:
            self.model.restart(self.now)  # all is loaded anew
        for lease in self.world.pool.ledger.leases.values():
            if lease.id not in known:
                assert (status, fails) == (503, "after")
                self.model.take(lease)
        self.run(self.world.pool.tick())
        self.model.pass_time(self.now)
        self.check()

    def do(self, operation: Callable[[Transaction], object]) -> int | None:
        """The status of the refusal, or None."""
        try:
            self.run(self.world.pool.commands.do(operation))
        except Problem as problem:
            return problem.status
        return None


def size_of(size: tuple[int, int]) -> tuple[int, int]:
    return size[0] * MIB, size[1]


@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 12), ("postgresql", 5)])
def test_a_pool_is_always_as_its_model_says(
    kind: str, examples: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Postgres | None = None
    if kind == "postgresql":
        server = request.getfixturevalue("postgres")
    numbers = itertools.count()

    async def new_url() -> str:
        if server is not None:
            return server.url(await server.new_database())
        return f"sqlite:///{tmp_path}/{next(numbers)}.db"

    machine = type("Machine", (Pools,), {"new_url": staticmethod(new_url)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
