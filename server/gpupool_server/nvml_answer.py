"""The answer to ``nvml``: what a client's libnvidia-ml.so.1 knows of its devices.

One line ``gpuN`` of words ``word=value`` for each device (proto/spec_nvml/facts.toml has
the words), beside it the lines ``gpuN-name`` and ``gpuN-processes``. What does not fit in
one answer comes in the next: ``next`` is the device to ask for then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool_common import protocol
from gpupool_common.errors import ProtocolError
from gpupool_server.device import Device
from gpupool_server.device_indexes import parse_indexes
from gpupool_server.inventory import Inventory
from gpupool_server.nvml_cards import Cards, Facts, SoftCards, open_cards
from gpupool_server.sessions import SessionSupervisor
from gpupool_server.tenants import LeasePart

#: What one answer may hold: less than the protocol allows, by the lines before the devices.
PAGE_BYTES = 7400
PAGE_LINES = 56

#: As many as the client has room for, and what their line may take.
MAX_PROCESSES = 128
PROCESS_BYTES = 3000


@dataclass(frozen=True)
class NvmlClient:
    """Who asks, and what it said of what it wants to see."""

    tenant: str
    group: str | None
    host: str
    pid: int | None
    gpus: int | None
    memory: int | None
    devices: tuple[int, ...] | None
    #: Of the pool, if its token is of one.
    lease: LeasePart | None = None


@dataclass(frozen=True)
class Running:
    """A client process with a worker on a device; ``memory`` is None if it is not known."""

    pid: int
    worker_pid: int
    memory: int | None = None


@dataclass(frozen=True)
class View:
    """A device as one tenant sees it.

    ``limit`` is what the tenant may use of its memory (None: all of it), ``used`` what it
    uses (None: as the card says), ``processes`` are the tenant's on the client's host.
    """

    device: Device
    limit: int | None = None
    used: int | None = None
    processes: tuple[Running, ...] = ()


#: Which devices a client may use, in the order in which CUDA gives them to it.
VisibleDevices = Callable[[NvmlClient], Awaitable[Sequence[View]]]


class WholeDevices:
    """The views without quotas: every served device, limited by the client's own request."""

    def __init__(self, inventory: Inventory, supervisor: SessionSupervisor) -> None:
        self._inventory = inventory
        self._supervisor = supervisor

    async def __call__(self, client: NvmlClient) -> list[View]:
        sessions = await self._supervisor.describe()
        return [
            View(device, limit=client.memory, processes=_running(sessions, device, client))
            for device in self._choose(client, sessions)
        ]

    def _choose(self, client: NvmlClient, sessions: Sequence[Mapping[str, Any]]) -> list[Device]:
        served = {device.index: device for device in self._inventory.devices}
        if client.devices is not None:
            return [served[index] for index in client.devices if index in served]
        for session in sessions:
            if (session["client_host"], session["client_pid"]) == (client.host, client.pid):
                return [served[index] for index in session["devices"] if index in served]
        return list(served.values())[: client.gpus]


def _running(
    sessions: Iterable[Mapping[str, Any]], device: Device, client: NvmlClient
) -> tuple[Running, ...]:
    found = []
    for session in sessions:
        if device.index not in session["devices"] or session["client_host"] != client.host:
            continue
        # A worker's account is of all its devices together.
        memory = session.get("memory_bytes") if len(session["devices"]) == 1 else None
        found.append(Running(session["client_pid"], session["pid"], memory))
    return tuple(found)


class NvmlHandler:
    """Answers ``nvml``."""

    def __init__(self, inventory: Inventory, visible: VisibleDevices) -> None:
        self._visible = visible
        self._inventory = inventory
        self._cards: Cards | None = None

    async def answer(
        self, question: protocol.Message, tenant: str, lease: LeasePart | None = None
    ) -> bytes:
        """One page of what the client may see."""
        what = question.fields.get("what", "all")
        if what not in ("all", "fresh"):
            raise ProtocolError(f"nvml: 'what' must be 'all' or 'fresh', not '{what}'")
        first = _number(question, "from", 0, 1023) or 0
        client = _read_client(question, tenant)
        if lease is not None:
            client = NvmlClient(
                tenant, lease.lease, client.host, client.pid, None, None, None, lease
            )
        views = await self._visible(client)
        if self._cards is None:
            self._cards = open_cards(self._inventory)
        head = {**(await self._cards.versions()), "devices": str(len(views))}
        blocks = []
        for index in range(first, len(views)):
            blocks.append(await self._block(views, index, what == "all"))
        return protocol.encode("ok", _page(head, blocks, first))

    async def _block(self, views: Sequence[View], index: int, everything: bool) -> dict[str, str]:
        view, cards = views[index], self._cards or SoftCards()
        facts: Facts = {"uuid": view.device.uuid}
        if everything:
            facts |= {"pci": view.device.pci, "memory-total": view.device.memory_bytes}
            facts |= await cards.lasting(view.device)
            facts |= await cards.pairs(view.device, [other.device for other in views])
        now, memory_of = await cards.passing(view.device)
        facts |= now
        running = [(p.pid, _known(p.memory, memory_of.get(p.worker_pid))) for p in view.processes]
        _limit(facts, view, running, everything)
        block = {f"gpu{index}": _words(facts)}
        if everything:
            block[f"gpu{index}-name"] = _name(view.device.name)
        if running:
            block[f"gpu{index}-processes"] = _process_words(running)
        return block


def _known(first: int | None, second: int | None) -> int | None:
    return second if first is None else first


def _limit(
    facts: Facts, view: View, running: Sequence[tuple[int, int | None]], everything: bool
) -> None:
    """Make the memory that of the tenant, where it has a limit of its own."""
    own = view.used
    if own is None and (view.limit is not None or "memory-used" not in facts):
        own = sum(memory or 0 for _, memory in running)
    if own is not None:
        facts["memory-used"] = own
    if view.limit is not None and view.limit < view.device.memory_bytes:
        facts.pop("memory-reserved", None)  # is not taken from the tenant's part
        if everything:
            facts["memory-total"] = view.limit


def _words(facts: Mapping[str, int | str]) -> str:
    words = ((key, str(value)) for key, value in facts.items())
    return " ".join(f"{key}={value}" for key, value in words if _is_word(value))


def _is_word(value: str) -> bool:
    return bool(value) and value.isascii() and value.isprintable() and " " not in value


def _name(name: str) -> str:
    """At most 95 bytes, which is what NVML's callers have room for."""
    return protocol.one_line(name).encode()[:95].decode(errors="ignore").strip() or "GPU"


def _process_words(running: Iterable[tuple[int, int | None]]) -> str:
    line, count = "", 0
    for pid, memory in sorted(running):
        word = f"{pid}={'-' if memory is None else memory}"
        if count == MAX_PROCESSES or len(line) + len(word) > PROCESS_BYTES:
            break
        line, count = f"{line} {word}".lstrip(), count + 1
    return line


def _page(
    head: Mapping[str, str], blocks: Sequence[Mapping[str, str]], first: int
) -> dict[str, str]:
    fields, size = dict(head), 0
    for index, block in enumerate(blocks, first):
        more = sum(len(key) + len(value.encode()) + 3 for key, value in block.items())
        if index > first and (size + more > PAGE_BYTES or len(fields) + len(block) > PAGE_LINES):
            fields["next"] = str(index)
            break
        fields |= block
        size += more
    return fields


def _read_client(question: protocol.Message, tenant: str) -> NvmlClient:
    devices: tuple[int, ...] | None = None
    if "devices" in question.fields:
        try:
            devices = parse_indexes(question.fields["devices"])
        except ValueError as error:
            raise ProtocolError(f"nvml: devices: {error}") from None
    return NvmlClient(
        tenant=tenant,
        group=question.fields.get("group"),
        host=question.fields.get("host", "")[:256],
        pid=_number(question, "pid", 1, 2**22),
        gpus=_number(question, "gpus", 1, 1024),
        memory=_number(question, "memory", 1, 2**63 - 1),
        devices=devices,
    )


def _number(question: protocol.Message, key: str, low: int, high: int) -> int | None:
    text = question.fields.get(key)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise ProtocolError(f"nvml: '{key}' must be a whole number")
    if not low <= int(text) <= high:
        raise ProtocolError(f"nvml: '{key}' must be {low}..{high}")
    return int(text)
