"""The manager without its REST API: state, operations, and what happens with time."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gpupool_common import logs
from gpupool_common.clock import SteadyClock
from gpupool_common.lease import LeaseState
from gpupool_common.node_protocol import Applied, Heartbeat, Orders
from gpupool_manager import key_notes
from gpupool_manager.command_queue import CommandQueue
from gpupool_manager.events import Bus
from gpupool_manager.fleet import Fleet
from gpupool_manager.growth import Growth
from gpupool_manager.idle import IdleRules
from gpupool_manager.key_rolls import KeyRolls
from gpupool_manager.lease_tokens import SECRET_BYTES, Signer
from gpupool_manager.leases import Leases
from gpupool_manager.ledger import Ledger
from gpupool_manager.liars import Liars
from gpupool_manager.link_key_rolls import LinkKeyRolls
from gpupool_manager.link_keys import LinkKeys
from gpupool_manager.problems import Problem
from gpupool_manager.queue_waits import QueueWaits
from gpupool_manager.records import Note, Token
from gpupool_manager.reservations import Reclaims, Reservations
from gpupool_manager.resizes import Resizes
from gpupool_manager.shrinking import Shrinking
from gpupool_manager.signing_keys import KeyRing
from gpupool_manager.store import COUNTED, Loaded, Store, StoreError
from gpupool_manager.tenancy import Tenancy
from gpupool_manager.tokens import is_valid
from gpupool_manager.transaction import MANAGER, Actor, Event, Transaction
from gpupool_manager.waiting import OrderRules

#: So many nodes that do not confirm may a request meet before it is told that it waits.
CONFIRM_TRIES = 4

#: Whoever asks for a lease is answered by then, as clients wait for 20 s.
ANSWER_SECONDS = 15.0

HOUR = 3600.0
DAY = 24 * HOUR

#: How long the answer to an idempotency key is known.
ANSWERS_KEPT = DAY

#: A clock that is wrong by more is worth a warning.
WRONG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Rules:
    """Times and sizes by which a pool works."""

    heartbeat_seconds: float = 10.0
    lost_after: float = 40.0
    #: After waiting for so long, nobody may overtake a request any more.
    patience: float = 60.0
    longest_queue: int = 10_000
    #: Who goes first in the queue.
    order: OrderRules = field(default_factory=OrderRules)
    #: A queued request that nobody asks for so long leaves the queue: its client is dead.
    unasked: float = 90.0
    history_days: float = 365.0
    #: Whether another scheduler places, so that requests must name their GPUs.
    only_checks: bool = False
    #: How long a lease token opens sessions; every renewal of the lease gives another.
    token_seconds: float = 3600.0
    #: How long a node may take to say that it has its orders; then its new leases go elsewhere.
    confirm_seconds: float = 3.0
    #: How long a node that does not hear of us goes on opening sessions of leases.
    offline_seconds: float = 900.0
    #: What comes of leases whose programs do nothing.
    idle: IdleRules = field(default_factory=IdleRules)
    #: Which leases go back for a reservation that needs their GPUs.
    reservation_reclaims: Reclaims = "none"
    #: A name that no tenant may have: who signs people in calls operators so.
    no_tenant: str | None = None


class Pool:
    """Everything between a database and whoever asks."""

    def __init__(
        self,
        store: Store,
        rules: Rules | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        clock = clock or SteadyClock()
        self.store = store
        self.rules = rules or Rules()
        self.clock = clock
        self.epoch = secrets.token_hex(6)
        self.bus = Bus(self.epoch)
        self.queue_waits = QueueWaits()
        self.commands = CommandQueue(store, clock, self._published, self.reload)
        #: Signs lease tokens; a manager that runs for longer gives it a secret that lasts.
        self.signer = Signer(
            secrets.token_bytes(SECRET_BYTES), KeyRing.make(clock()), self.rules.token_seconds
        )
        #: Where servers join, and the keys by which they know that it is this pool.
        self.join_url: str | None = None
        self.link_keys = LinkKeys()
        #: Told which nodes' orders have changed, once that is written down.
        self.on_orders: Callable[[set[str]], None] | None = None
        self._log = logs.get("pool")
        self._ticker: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        #: By node: whoever waits for it to confirm its leases.
        self._confirming: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._loads = 0
        #: What the database says of itself.
        self.notes: dict[str, str] = {}
        #: By how much the machine's clock was ahead of ours when that was last looked at.
        self._stepped = 0.0
        #: Whether nobody who waits was looked at since.
        self._reloaded = False
        self.ledger: Ledger
        self.leases: Leases
        self.fleet: Fleet
        self.liars: Liars
        self.key_rolls: KeyRolls
        self.link_key_rolls: LinkKeyRolls
        self.tenancy: Tenancy
        self.resizes: Resizes
        self.reservations: Reservations
        self.growth: Growth
        self.shrinking: Shrinking
        #: What has become of changes of limits since the start.
        self.resize_counts: Counter[str] = Counter()
        #: Set when the database has another manager now; whoever runs the pool must stop.
        self.dispossessed = asyncio.Event()

    async def open(self, wait: bool = False) -> None:
        """Open the store and take the state from it; ``wait``: while another manager has it."""
        migrated = await self.store.open(wait)
        self._keeper = asyncio.create_task(self._keep(), name="lock")
        try:
            await self.reload()
        except BaseException:
            self._keeper.cancel()
            await self.store.close()
            raise
        self.commands.start()
        await self.commands.do(lambda transaction: self.leases.sweep(transaction))
        self._log.info(
            "pool loaded",
            migrated=migrated,
            nodes=len(self.ledger.nodes),
            gpus=len(self.ledger.gpus),
            leases=len(self.ledger.leases),
        )

    def run_clock(self) -> None:
        """Let time do its part; without this, :meth:`tick` must be called."""
        self._ticker = asyncio.create_task(self._run_clock(), name="clock")

    async def close(self) -> None:
        """Finish what was asked for and write everything down."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        for task in list(self._confirming.values()):
            task.cancel()
        await asyncio.gather(*self._confirming.values(), return_exceptions=True)
        if self.commands.running:
            try:
                await self.commands.do(self._flush)
            except Problem as problem:
                self._log.warning("the last usage is not counted", reason=problem.detail)
            await self.commands.close()
        self.bus.close()
        await self.store.close()

    async def reload(self) -> None:
        """Take everything from the database, as at a start."""
        if self.store.dispossessed:
            self.dispossessed.set()
        loaded = await self.store.load()
        self.notes = loaded.notes
        self._set_clock(loaded)
        self._loads += 1
        self._reloaded = True
        # Nodes must notice that their orders may be others now.
        rules = self.rules
        epoch = f"{self.epoch}.{self._loads}"
        self.ledger = Ledger(loaded, self.clock(), epoch, rules.order)
        self.ledger.confirming = self.on_orders is not None
        self.leases = Leases(
            self.ledger,
            rules.patience,
            rules.longest_queue,
            rules.unasked,
            rules.only_checks,
            rules.idle,
        )
        self.fleet = Fleet(
            self.ledger,
            self.leases,
            rules.heartbeat_seconds,
            rules.lost_after,
            lambda: self.signer,
            rules.offline_seconds,
            lambda: self.link_keys,
        )
        self.liars = Liars(self.fleet.busy)
        self.key_rolls = KeyRolls(self.ledger, self.fleet, lambda: self.signer, rules.lost_after)
        self.link_key_rolls = LinkKeyRolls(self.ledger, self.fleet, lambda: self.link_keys)
        self.tenancy = Tenancy(self.ledger, self.leases, rules.no_tenant)
        self.resizes = Resizes(self.ledger, self.leases, self.resize_counts)
        self.reservations = Reservations(self.ledger, self.leases, rules.reservation_reclaims)
        self.growth = Growth(self.ledger, self.leases, self.resizes, self.resize_counts)
        self.shrinking = Shrinking(
            self.ledger, self.leases, self.resize_counts, self.fleet.seen_gpus
        )

    def _set_clock(self, loaded: Loaded) -> None:
        """Time never goes back over a restart: what was signed later counts more than what was
        signed earlier, and a lease that has ended must not come to life again."""
        if not isinstance(self.clock, SteadyClock):
            return
        newest = [float(loaded.notes.get(COUNTED, 0.0))]
        newest += [lease.granted or lease.created for lease in loaded.leases]
        ahead = self.clock.not_before(max(newest))
        if ahead > WRONG_SECONDS:
            self._log.warning(
                "the clock of this machine is behind the database; times go on from the"
                " database's newest, check the clock",
                seconds=round(ahead),
            )

    def _check_wall(self) -> None:
        if not isinstance(self.clock, SteadyClock):
            return
        stepped = self.clock.stepped
        if abs(stepped - self._stepped) > WRONG_SECONDS:
            self._log.warning(
                "the clock of this machine was set; times go on evenly until the manager is"
                " started again",
                seconds=round(stepped - self._stepped),
            )
            self._stepped = stepped

    def _published(self, events: list[Event]) -> None:
        self.bus.publish(events)
        self.queue_waits.take(events)
        touched, self.ledger.touched = self.ledger.touched, set()
        if touched and self.on_orders is not None:
            self.on_orders(touched)
        for node in touched:
            if self.ledger.unconfirmed.get(node) and node not in self._confirming:
                task = asyncio.create_task(self._watch_over(node), name=f"confirmation of {node}")
                self._confirming[node] = task
        self._pulse()

    # Confirmations ---------------------------------------------------------------------

    def orders_go_by(self, push: Callable[[set[str]], None]) -> None:
        """From now on nodes are told their orders by this, and say when they have them."""
        self.on_orders = push
        self.ledger.confirming = True

    async def applied(
        self, node: str, generation: str, said: Applied | Heartbeat, actor: Actor = MANAGER
    ) -> None:
        """A node says that it has these orders, what it made of them, and which keys it knows."""
        self.fleet.keys[node] = {*said.keys, said.manager_key} - {""}
        if self.ledger.applied(node, generation):
            self._pulse()
        heard: tuple[Resizes | Shrinking, ...] = (self.resizes, self.shrinking)
        for each in heard:
            if news := each.news(node, said.changes):
                await self.commands.do(partial(each.hear, node=node, changes=news), actor)

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def confirmed(self, name: str) -> None:
        """Wait until a lease's servers know of it, or it is queued again, or has ended."""
        limit = min(CONFIRM_TRIES * self.rules.confirm_seconds, ANSWER_SECONDS)
        try:
            async with asyncio.timeout(limit):
                lease = self.ledger.leases.get(name)
                while lease is not None and not self.ledger.is_confirmed(lease):
                    await self._changed.wait()
                    lease = self.ledger.leases.get(name)
        except TimeoutError:
            pass  # it is shown as one that waits

    async def resized(self, name: str, number: int) -> None:
        """Wait until a lease's servers have made its change, or one refuses, or one is away."""
        try:
            async with asyncio.timeout(min(self.rules.confirm_seconds, ANSWER_SECONDS)):
                while self.resizes.awaits(name, number) or self.shrinking.awaits(name, number):
                    await self._changed.wait()
        except TimeoutError:
            pass  # it is shown as one that waits

    async def _watch_over(self, node: str) -> None:
        """Give a node up that does not confirm its leases in time."""
        try:
            while waiting := self.ledger.unconfirmed.get(node):
                oldest = min(since for _, since in waiting.values())
                left = oldest + self.rules.confirm_seconds - time.monotonic()
                if left > 0:
                    await asyncio.sleep(left)
                    continue
                try:
                    await self.commands.do(
                        lambda transaction: self.fleet.give_up(transaction, node)
                    )
                except Problem:
                    await asyncio.sleep(1.0)  # the database is away; who asks waits meanwhile
        finally:
            del self._confirming[node]

    def needs_admin(self) -> bool:
        """Whether no admin token is valid."""
        now = self.clock()
        tokens = self.ledger.tokens.by_id.values()
        return not any(token.scope == "admin" and is_valid(token, now) for token in tokens)

    async def add_admin(self, secret: str) -> None:
        """Let this be an admin token; whoever asks has kept it."""
        await self.commands.do(
            lambda transaction: self.tenancy.create_token(
                transaction, "admin", description="made by the manager", secret=secret
            )
        )

    async def heartbeat(
        self, token: Token, name: str, beat: Heartbeat, actor: Actor, key: str = ""
    ) -> Orders:
        """Take a heartbeat, however it came; the orders for the node."""
        idle = self.fleet.heartbeat(token, name, beat, self.clock(), key)
        await self.applied(name, beat.applied, beat, actor)
        if self.fleet.is_news(name, beat.trouble):
            trouble = beat.trouble
            await self.commands.do(
                lambda transaction: self.fleet.set_trouble(transaction, name, trouble), actor
            )
        sick = beat.sick
        if sick is not None and self.fleet.sick.is_news(name, sick):
            await self.commands.do(
                lambda transaction: self._take_sick(transaction, name, sick), actor
            )
        now = self.clock()
        liars = self.liars.news(name, beat.liars, now)
        if liars:
            await self.commands.do(
                lambda transaction: self.liars.write(transaction, name, liars, now), actor
            )
        if idle:
            names = [lease.id for lease in idle]
            await self.commands.do(lambda transaction: self._release(transaction, names), actor)
        return self.fleet.orders(name, beat.applied, self.clock())

    def _take_sick(self, transaction: Transaction, node: str, said: dict[str, str]) -> None:
        self.fleet.sick.take(transaction, node, said)
        self.leases.pump(transaction)

    def _release(self, transaction: Transaction, names: list[str]) -> None:
        for name in names:
            lease = self.ledger.leases.get(name)
            if lease is not None and lease.state == LeaseState.ACTIVE:
                self.leases.finish(
                    transaction, lease, LeaseState.RELEASED, "its last session ended"
                )
        self.leases.pump(transaction)

    # Time ------------------------------------------------------------------------------

    async def tick(self) -> None:
        """What is due now."""
        now = self.clock()
        if self.fleet.overdue(now):
            await self.commands.do(lambda transaction: self.fleet.lose(transaction))
        if self.resizes.held_up_by_none():
            await self.commands.do(lambda transaction: self.resizes.sweep(transaction))
        if self.shrinking.any_due(now):
            await self.commands.do(lambda transaction: self.shrinking.sweep(transaction))
        if self.key_rolls.due(now):
            await self.commands.do(lambda transaction: self.key_rolls.advance(transaction))
        if self.leases.any_due(now) or self._reloaded:
            self._reloaded = False
            await self.commands.do(lambda transaction: self.leases.sweep(transaction))
        if self.reservations.any_due(now):
            await self.commands.do(lambda transaction: self.reservations.sweep(transaction))

    async def _keep(self) -> None:
        """Use the lock of the database, however long other work takes: else it is given away."""
        while True:
            await asyncio.sleep(1.0)
            try:
                if not await self.store.still_mine():
                    self._log.error("the database is not this manager's any more")
                    self.dispossessed.set()
            except Exception:
                self._log.exception("the database's lock cannot be looked after; trying again")

    async def _note_keys(self) -> None:
        """Write down by which keys the pool is known, for whoever takes over."""
        link = "" if self.join_url is None else self.link_keys.current.public
        text = self.signer.known_by(link)
        if self.notes.get(key_notes.NOTE) != text:
            await self.commands.do(lambda transaction: transaction.put(Note(key_notes.NOTE, text)))
            self.notes[key_notes.NOTE] = text

    async def _run_clock(self) -> None:
        flush = purge = 0.0
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            try:
                await self._note_keys()
                await self.tick()
                if now - flush >= 60:
                    flush = now
                    self._check_wall()
                    await self.commands.do(self._flush)
                if now - purge >= HOUR:
                    purge = now
                    await self._purge()
            except asyncio.CancelledError:
                raise
            except Problem as problem:
                self._log.warning("due work is delayed", reason=problem.detail)
            except Exception:
                self._log.exception("due work failed; trying again")

    def _flush(self, transaction: Transaction) -> None:
        self.fleet.busy.flush(transaction)
        self.ledger.meter.flush(transaction)
        transaction.put(Note(COUNTED, repr(transaction.now)))

    async def _purge(self) -> None:
        now = self.clock()
        self.ledger.answers.forget_before(now - ANSWERS_KEPT)
        most = self.rules.history_days * DAY
        await self.commands.do(lambda transaction: self.tenancy.forget_tokens(transaction, most))
        old = now - most
        try:
            await self.store.purge(now - ANSWERS_KEPT, old, old)
        except StoreError as error:
            self._log.warning("old rows cannot be deleted now", reason=str(error))
