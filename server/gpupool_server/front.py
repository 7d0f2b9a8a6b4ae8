"""The front door: one ROUTER socket, one question, one answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import re
import time
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from gpupool import __version__, lease_token, protocol
from gpupool.errors import GpupoolError, ProtocolError
from gpupool_server import logs
from gpupool_server.claims import Refusal
from gpupool_server.config import DEFAULT_TENANT, Settings
from gpupool_server.gpus import Gpus
from gpupool_server.inventory import Inventory
from gpupool_server.keys import Keys
from gpupool_server.nvml_answer import NvmlDesk
from gpupool_server.pool_member import PoolMember
from gpupool_server.sessions import Opened, SessionKeeper
from gpupool_server.tenants import Tenant
from gpupool_server.views import TenantViews
from gpupool_server.wish import read_number, read_wish
from gpupool_server.worker import Build

#: Questions worked on at once; a client beyond that is told to come again.
MAX_ASKING = 256

#: A message longer than this ends its connection inside ZeroMQ; what is longer than
#: the protocol allows but shorter than this still gets an answer.
MAX_FRAME = 8 * protocol.MAX_BYTES

#: Of connections without the right key at most one in so many seconds is logged.
REFUSED_SECONDS = 5.0

#: Bytes of JSON in one answer to ``info``; the rest of the answer's 8 KiB is framing.
PAGE_BYTES = 7000

_WILDCARDS = re.compile(r"tcp://(0\.0\.0\.0|\*|\[::\]):")
_SPEC = re.compile(r"[0-9a-f]{16}")


def boot_id() -> str:
    """Names this boot of this machine: a client with the same one can share memory."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class FrontDesk:
    """Answers questions; knows nothing of sockets, so that tests can ask it directly."""

    def __init__(
        self,
        settings: Settings,
        gpus: Gpus,
        inventory: Inventory,
        keeper: SessionKeeper,
        build: Build | None,
    ) -> None:
        self._settings = settings
        self._tenants = gpus.tenants
        self._inventory = inventory
        self._keeper = keeper
        self._build = build
        self._nvml = NvmlDesk(inventory, TenantViews(gpus, keeper))
        self._boot_id = boot_id()
        self._started = time.time()
        self._log = logs.get("front")
        self._member: PoolMember | None = None
        self.draining = False

    def join(self, member: PoolMember) -> None:
        """From now on leases of a pool open sessions, too."""
        self._member = member

    async def answer(self, payload: bytes) -> bytes:
        """The answer to one question; never an exception, whatever was asked."""
        try:
            question = protocol.decode(payload)
            tenant = self._admit(question)
            if question.word == "hello":
                return await self._hello(question, tenant)
            if question.word == "nvml":
                return await self._nvml.answer(question, tenant.name, tenant.lease)
            return await self._info(question, tenant)
        except Refusal as error:
            self._log.warning("refused", code=error.code, reason=str(error))
            return protocol.refusal(error.code, str(error))
        except ProtocolError as error:
            self._log.warning("refused", code="bad-request", reason=str(error))
            return protocol.refusal("bad-request", str(error))
        except Exception:
            self._log.exception("a question could not be answered")
            return protocol.refusal(
                "no-worker", "the server failed to answer; its log says why; try again"
            )

    def _admit(self, question: protocol.Message) -> Tenant:
        if question.word not in ("hello", "info", "nvml"):
            raise ProtocolError(f"'{question.word}' is no question; ask 'hello' or 'info'")
        token = question.fields.get("token", "")
        tenant = self._find_tenant(token)
        if tenant is not None and question.word != "info":
            self._check_own(tenant)
        if tenant is None:
            what = "is not this server's" if token else "is missing"
            raise Refusal("bad-token", f"the token {what}; set GPUPOOL_TOKEN to the server's token")
        if self.draining and question.word == "hello":
            raise Refusal(
                "draining", "the server is stopping and opens no sessions; try again later"
            )
        if self._member is not None and question.word == "hello":
            self._member.check_open()
        return tenant

    def _find_tenant(self, token: str) -> Tenant | None:
        if not lease_token.looks_like(token):
            return self._tenants.of_token(token)
        if self._member is None:
            raise Refusal("bad-token", "the token is of a pool's lease, and this server is in none")
        return self._member.admit(token)

    def _check_own(self, tenant: Tenant) -> None:
        """In a pool the server's own token, which has no limits, opens nothing."""
        own = tenant.lease is None and tenant.name == DEFAULT_TENANT
        if own and self._member is not None and not self._settings.own_token:
            raise Refusal(
                "bad-token",
                "this server is in a pool, where only leases open sessions; ask the pool for one"
                " (gpupool run --pool), or start the server with --own-token",
            )

    async def _hello(self, question: protocol.Message, tenant: Tenant) -> bytes:
        self._check_version(question)
        wish = read_wish(question, tenant, self._inventory)
        opened = await self._keeper.open(wish)
        return protocol.encode("ok", self._describe(opened))

    def _check_version(self, question: protocol.Message) -> None:
        wire = read_number(question, "wire", 0, 2**31)
        spec = question.require("spec")
        if _SPEC.fullmatch(spec) is None:
            raise ProtocolError("hello: 'spec' must be 16 hexadecimal digits")
        if self._build is None or (wire, spec) == (self._build.wire, self._build.spec):
            return
        raise Refusal(
            "version",
            f"the client speaks wire {wire} of spec {spec}, this server (gpupool {__version__})"
            f" wire {self._build.wire} of spec {self._build.spec};"
            " install the same gpupool release on both",
        )

    def _describe(self, opened: Opened) -> dict[str, str]:
        fields = {
            "session": opened.session,
            "secret": opened.secret,
            "shm": opened.ready.shm,
            "boot-id": self._boot_id,
            "server": __version__,
            "devices": ",".join(map(str, opened.devices)),
        }
        if self._inventory.simulated:
            fields["simulated"] = "1"
        if opened.ready.zmq is not None:
            # Only the client knows under which name it reached a wildcard address.
            fields["zmq"] = _WILDCARDS.sub("tcp://*:", opened.ready.zmq)
        return fields

    async def _info(self, question: protocol.Message, tenant: Tenant) -> bytes:
        page = read_number(question, "page", 0, 10_000) if "page" in question.fields else 0
        pages = _paginate(
            {
                "server": __version__,
                "host": platform.node(),
                "driver": self._inventory.kind,
                "started": self._started,
                "max_sessions": self._settings.max_sessions,
                "draining": self.draining,
            },
            [("devices", device.as_dict()) for device in self._inventory.devices]
            + [("sessions", session) for session in await self._keeper.describe(tenant.name)],
        )
        if page >= len(pages):
            # Sessions may have ended since the asker read the first page.
            pages, page = [json.dumps({"devices": [], "sessions": []})], 0
        return protocol.encode("ok", {"pages": str(len(pages)), "json": pages[page]})


def _paginate(head: dict[str, Any], items: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Texts of JSON of at most PAGE_BYTES; the first has the head, all have some items."""
    pages: list[str] = []
    current: dict[str, Any] = {**head, "devices": [], "sessions": []}
    size = len(json.dumps(current))
    for key, item in items:
        more = len(json.dumps(item)) + 2
        if size + more > PAGE_BYTES:
            pages.append(json.dumps(current))
            current = {"devices": [], "sessions": []}
            size = len(json.dumps(current))
        current[key].append(item)
        size += more
    return [*pages, json.dumps(current)]


def _handshake_failure(value: int) -> str:
    if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return (
            "it does not encrypt; the client's address needs ?key=, see gpupool-server --show-key"
        )
    if value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
        return "the key in the client's address is not this server's"
    return "it is no client of gpupool"


class FrontDoor:
    """The socket before a desk."""

    def __init__(self, desk: FrontDesk, listen: str, keys: Keys | None = None) -> None:
        """With ``keys`` it is encrypted."""
        self._desk = desk
        self._log = logs.get("front")
        self._asking: set[asyncio.Task[None]] = set()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        try:
            self._configure(listen)
            if keys is not None:
                self._encrypt(keys)
            self._socket.bind(listen)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise GpupoolError(
                f"cannot listen at {listen}: {error.strerror}; choose another address: --listen"
            ) from None
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._tasks = [asyncio.create_task(self._read())]
        if keys is not None:
            self._tasks.append(asyncio.create_task(self._watch()))

    def _configure(self, listen: str) -> None:
        for option, value in (
            (zmq.MAXMSGSIZE, MAX_FRAME),
            (zmq.SNDHWM, 16),  # a client that does not read its answers loses them, alone
            (zmq.RCVHWM, 64),
            (zmq.LINGER, 0),
            (zmq.IPV6, int("[" in listen)),  # else even 127.0.0.1 is named ::ffff:127.0.0.1
            (zmq.HEARTBEAT_IVL, 5000),  # ms; frees the connections of hosts that vanished
            (zmq.HEARTBEAT_TIMEOUT, 15000),
            (zmq.HANDSHAKE_IVL, 5000),
        ):
            self._socket.setsockopt(option, value)

    def _encrypt(self, keys: Keys) -> None:
        """Whoever knows the public key may speak; the token says who that is."""
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, bytes.fromhex(keys.secret))

    async def _watch(self) -> None:
        """Write down who could not speak to us, now and then: strangers choose how often.

        Who only connects and goes is no event: our own commands look so whether we are there.
        """
        monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        while True:
            event = await recv_monitor_message(monitor)
            self._log.warning("a connection was refused", reason=_handshake_failure(event["value"]))
            await asyncio.sleep(REFUSED_SECONDS)
            while await monitor.poll(0):
                await recv_monitor_message(monitor)

    async def _read(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            if len(self._asking) >= MAX_ASKING:
                busy = protocol.refusal("full", "the server is busy; try again in a second")
                await self._reply(frames, busy)
                continue
            task = asyncio.create_task(self._serve(frames))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _serve(self, frames: list[bytes]) -> None:
        framed = len(frames) == 2 or (len(frames) == 3 and frames[1] == b"")
        if framed:
            answer = await self._desk.answer(frames[-1])
        else:
            answer = protocol.refusal(
                "bad-request", f"a question is one frame, not {len(frames) - 1}"
            )
        await self._reply(frames, answer)

    async def _reply(self, frames: list[bytes], answer: bytes) -> None:
        delimiter = [b""] if len(frames) > 2 and frames[1] == b"" else []
        with contextlib.suppress(zmq.ZMQError):  # the asker may have gone meanwhile
            await self._socket.send_multipart([frames[0], *delimiter, answer])

    async def close(self, seconds: float) -> None:
        """Take no more questions; give those being worked on ``seconds`` to be answered."""
        self._desk.draining = True
        if self._asking:
            await asyncio.wait(set(self._asking), timeout=seconds)
        ending = [*self._tasks, *self._asking]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._context.destroy(linger=500)
