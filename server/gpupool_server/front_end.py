"""The front end: one question, one answer; relay.py has the socket."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupool_common import __version__, lease_token, logs, protocol, request, tracing
from gpupool_common.errors import ConfigError, ProtocolError
from gpupool_common.keys import Keys
from gpupool_common.relay import open_relay
from gpupool_common.relay_limits import Budgets
from gpupool_common.relay_process import Config
from gpupool_server.claims import Refusal
from gpupool_server.config import DEFAULT_TENANT, Settings
from gpupool_server.gpus import Gpus
from gpupool_server.ignored import ignored
from gpupool_server.inventory import Inventory
from gpupool_server.nvml_answer import NvmlHandler
from gpupool_server.session import Opened
from gpupool_server.session_request import read_number, read_session_request
from gpupool_server.sessions import SessionSupervisor
from gpupool_server.tenants import Tenant
from gpupool_server.views import TenantViews
from gpupool_server.worker import Build

if TYPE_CHECKING:
    from gpupool_server.pool_member import PoolMember

#: Questions answered at once; a client beyond that is told to try again.
MAX_ASKING = 256

#: A message longer than this ends its connection inside ZeroMQ; what is longer than
#: the protocol allows but shorter than this still gets an answer.
MAX_FRAME = 4 * protocol.MAX_BYTES

#: Questions a second of one address, and at once. Programs that start together on one
#: machine all come from one.
QUESTION_RATE, QUESTION_BURST = 500.0, 2000.0

#: Lines a second about refusals of one address in the log, and at once.
LINE_RATE, LINE_BURST = 1.0, 60.0

#: Bytes of JSON in one answer to ``info``; the rest of the answer's 8 KiB is framing.
PAGE_BYTES = 7000

_WILDCARDS = re.compile(r"(tcp|tls|plain|ucx)://(0\.0\.0\.0|\*|\[::\]):")

_ONLY_LEASES = (
    "this server is in a pool, where only leases open sessions; ask the pool for one"
    " (gpupool run --pool), or start the server with --own-token"
)


def _span(oldest: int, newest: int) -> str:
    return str(newest) if oldest == newest else f"{oldest} to {newest}"


def boot_id() -> str:
    """Names this boot of this machine: a client with the same one can share memory."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class RequestHandler:
    """Answers questions; knows nothing of sockets, so that tests can ask it directly."""

    def __init__(
        self,
        settings: Settings,
        gpus: Gpus,
        inventory: Inventory,
        supervisor: SessionSupervisor,
        build: Build | None,
    ) -> None:
        self._settings = settings
        self._gpus = gpus
        self._tenants = gpus.tenants
        self._inventory = inventory
        self._supervisor = supervisor
        self._build = build
        self._nvml = NvmlHandler(inventory, TenantViews(gpus, supervisor))
        self._boot_id = boot_id()
        self._started = time.time()
        self._log = logs.get("front")
        self._lines = Budgets(LINE_RATE, LINE_BURST)
        self._member: PoolMember | None = None
        self.draining = False

    def join(self, member: PoolMember) -> None:
        """From now on leases of a pool open sessions, too."""
        self._member = member

    async def answer(self, payload: bytes, address: str = "") -> bytes:
        """The answer to one question; never an exception, whatever was asked.

        ``address`` is where it came from, for the log.
        """
        at = {"address": address} if address else {}
        try:
            question = protocol.decode(payload)
            tenant = self._admit(question)
            question = _with_request(question)
            if question.word == "hello":
                return await self._hello(question, tenant)
            if question.word == "nvml":
                return await self._nvml.answer(question, tenant.name, tenant.lease)
            return await self._info(question, tenant)
        except Refusal as error:
            self._say_refused(error.code, str(error), at)
            return protocol.refusal(error.code, str(error))
        except ProtocolError as error:
            self._say_refused("bad-request", str(error), at)
            return protocol.refusal("bad-request", str(error))
        except Exception:
            self._log.exception("a question could not be answered", **at)
            return protocol.refusal(
                "no-worker", "the server failed to answer; its log says why; try again"
            )

    def _say_refused(self, code: str, reason: str, at: dict[str, str]) -> None:
        """Rate-limited: any client can cause it."""
        if self._lines.spend(at.get("address", "").encode()):
            self._log.warning("refused", code=code, reason=reason, **at)

    def _admit(self, question: protocol.Message) -> Tenant:
        if question.word not in ("hello", "info", "nvml"):
            raise ProtocolError(f"'{question.word}' is not a question; ask 'hello' or 'info'")
        token = question.fields.get("token", "")
        tenant = self._find_tenant(token)
        if tenant is not None and question.word != "info":
            self._check_own(tenant)
        if tenant is None:
            what = "is not this server's" if token else "is missing"
            raise Refusal(
                "bad-token",
                f"the token {what}; give the server's in GPUPOOL_TOKEN, or to gpupool login",
            )
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
        if not self._opens(tenant):
            raise Refusal("bad-token", _ONLY_LEASES)

    def _opens(self, tenant: Tenant) -> bool:
        own = tenant.lease is None and tenant.name == DEFAULT_TENANT
        return not own or self._member is None or self._settings.own_token

    async def _hello(self, question: protocol.Message, tenant: Tenant) -> bytes:
        self._check_version(question)
        request = read_session_request(question, tenant, self._inventory)
        with tracing.span("open a session", _trace_of(tenant), is_server=True) as span:
            span.set(gpupool__tenant=tenant.name, gpupool__lease=tenant.lease_name or "")
            opened = await self._supervisor.open(request)
            span.set(gpupool__session=opened.session)
        fields = self._describe(opened)
        note = ignored(request.limits, self._gpus.policies(opened.devices))
        return protocol.encode("ok", {**fields, **({"note": note} if note else {})})

    def _check_version(self, question: protocol.Message) -> None:
        """Client and worker tell each other their operations; here it is about the protocol."""
        newest = read_number(question, "wire", 0, 2**31)
        oldest = newest
        if "wire-oldest" in question.fields:
            oldest = read_number(question, "wire-oldest", 0, newest)
        build = self._build
        if build is None or (oldest <= build.wire and newest >= build.oldest):
            return
        which = "client" if newest < build.oldest else "server"
        raise Refusal(
            "version",
            f"the client speaks protocol {_span(oldest, newest)}, this server (gpupool"
            f" {__version__}) {_span(build.oldest, build.wire)}; upgrade gpupool on the {which}",
        )

    def _describe(self, opened: Opened) -> dict[str, str]:
        fields = {
            "session": opened.session,
            "secret": opened.secret,
            "boot-id": self._boot_id,
            "server": __version__,
            "devices": ",".join(map(str, opened.devices)),
        }
        if opened.shm:
            fields["shm"] = opened.shm
        if self._inventory.simulated:
            fields["simulated"] = "1"
        if opened.is_narrow:
            fields["visible"] = "1"
        ready = opened.ready
        for name, url in (("tcp", ready.tcp), ("zmq", ready.zmq), ("ucx", ready.ucx)):
            if url is not None:
                # Only the client knows under which name it reached a wildcard address.
                fields[name] = _WILDCARDS.sub(r"\1://*:", url)
        return fields

    async def _info(self, question: protocol.Message, tenant: Tenant) -> bytes:
        if "check" in question.fields and self._opens(tenant):
            await self._supervisor.check(read_session_request(question, tenant, self._inventory))
        page = read_number(question, "page", 0, 10_000) if "page" in question.fields else 0
        pages = _paginate(
            {
                "server": __version__,
                "host": platform.node(),
                "driver": self._inventory.kind,
                "started": self._started,
                "max_sessions": self._settings.max_sessions,
                "draining": self.draining,
                # Why it would get no session: `gpupool run` asks before it starts anything.
                "refused": "" if self._opens(tenant) else _ONLY_LEASES,
            },
            [("devices", device.as_dict()) for device in self._inventory.devices]
            + [("sessions", session) for session in await self._supervisor.describe(tenant.name)],
        )
        if page >= len(pages):
            # Sessions may have ended since the client read the first page.
            pages, page = [json.dumps({"devices": [], "sessions": []})], 0
        return protocol.encode("ok", {"pages": str(len(pages)), "json": pages[page]})


def _trace_of(tenant: Tenant) -> str:
    """What a session belongs to: the request for its lease, if that was traced."""
    request_id = tenant.lease.request_id if tenant.lease is not None else ""
    return request_id if tracing.is_traceparent(request_id) else ""


def _with_request(question: protocol.Message) -> protocol.Message:
    """The question with what its variables ask for as fields; ProtocolError."""
    try:
        asked = request.expand(question.fields)
    except ConfigError as error:
        raise ProtocolError(str(error)) from None
    # The variables stay: errors that come later name them.
    return protocol.Message(question.word, {**question.fields, **asked})


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


class FrontEnd:
    """The process before a handler, and the questions being answered."""

    def __init__(self, handler: RequestHandler, listen: str, keys: Keys | None = None) -> None:
        """With ``keys`` it is encrypted; whoever knows the public one may speak."""
        self._handler = handler
        self._asking: set[asyncio.Task[Any]] = set()
        config = Config(
            listen=listen,
            max_message=MAX_FRAME,
            receive_mark=4,  # a client asks one question
            secret=keys.secret if keys is not None else "",
            rate=QUESTION_RATE,
            burst=QUESTION_BURST,
            answers=True,
        )
        self.relay = open_relay(config, self._take, "--listen")
        self.url = self.relay.url

    def _take(self, connection: bytes, address: str, user: str, frames: list[bytes]) -> None:
        if len(self._asking) >= MAX_ASKING:
            busy = protocol.refusal("busy", "the server is busy; try again in a second")
            self._reply(connection, frames, busy)
            return
        task = asyncio.create_task(self._serve(connection, address, frames))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def ask(self, question: bytes, address: str) -> bytes:
        """The answer to a question that came another way; ``address`` is where from."""
        if len(self._asking) >= MAX_ASKING:
            return protocol.refusal("busy", "the server is busy; try again in a second")
        task = asyncio.create_task(self._handler.answer(question, address))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return await task

    async def _serve(self, connection: bytes, address: str, frames: list[bytes]) -> None:
        framed = len(frames) == 1 or (len(frames) == 2 and frames[0] == b"")
        if framed:
            answer = await self._handler.answer(frames[-1], address)
        else:
            answer = protocol.refusal("bad-request", f"a question is one frame, not {len(frames)}")
        if protocol.refused_as(answer, "bad-token"):
            self.relay.wrong(address, connection)
        self._reply(connection, frames, answer)

    def _reply(self, connection: bytes, frames: list[bytes], answer: bytes) -> None:
        delimiter = [b""] if len(frames) > 1 and frames[0] == b"" else []
        self.relay.send(connection, *delimiter, answer)

    async def close(self, seconds: float) -> None:
        """Take no more questions; give those being worked on ``seconds`` to be answered."""
        self._handler.draining = True
        if self._asking:
            await asyncio.wait(set(self._asking), timeout=seconds)
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self.relay.close()
