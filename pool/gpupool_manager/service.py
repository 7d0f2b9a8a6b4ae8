"""The process: state directory, pool, REST API, signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from gpupool_common import __version__, collector, interrupt, keys, logs, tracing
from gpupool_common import certificate as certificates
from gpupool_common.browser import own_names
from gpupool_common.certificate import Certificate
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.secret_file import read_secret, replace_secret
from gpupool_manager import key_notes
from gpupool_manager.app import make_app
from gpupool_manager.attempts import Attempts
from gpupool_manager.config import Settings
from gpupool_manager.connections import Acceptor, ImpatientProtocol, Limits, raise_file_limit
from gpupool_manager.console.openid import Issuer
from gpupool_manager.identity import check_identity
from gpupool_manager.lease_tokens import SECRET_BYTES, Signer
from gpupool_manager.link_keys import LinkKeys
from gpupool_manager.node_server import NodeServer
from gpupool_manager.pool import Pool
from gpupool_manager.request_budgets import RequestBudgets
from gpupool_manager.signing_keys import KeyRing
from gpupool_manager.standby import Door
from gpupool_manager.state_dir import TOKEN_FILE, default_state_dir, make_state_dir
from gpupool_manager.store import Store
from gpupool_manager.tokens import new_secret

#: What peers' keys are made with; a manager that takes over needs the same one.
SECRET_FILE = "lease.secret"
#: What signs lease tokens.
KEYS_FILE = "signing.keys"


def lease_secret(path: Path) -> bytes:
    """What peers' keys are made with, made at the first start; GpupoolError if damaged."""
    if not path.exists():
        replace_secret(path, secrets.token_hex(SECRET_BYTES))
    try:
        secret = bytes.fromhex(read_secret(path, "secret file").strip())
    except ConfigError as error:  # no setting is wrong: the file is ours
        raise GpupoolError(str(error)) from None
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise GpupoolError(
            f"{path}: holds no secret of ours; restore it, or remove it for a new one"
        )
    return secret


class _Uvicorn(uvicorn.Server):
    """Leaves signals and accepting to us."""

    limits = Limits()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        await self.lifespan.startup()

        class Protocol(ImpatientProtocol):
            seconds = self.limits.seconds

        def make() -> ImpatientProtocol:
            return Protocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        acceptor = Acceptor(sockets[0], make, self.config.ssl, self.limits)
        self.servers = [acceptor]  # type: ignore[list-item]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Manager:
    """Starts the manager from checked settings, and stops it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._log = logs.get("manager")
        self._stopping = asyncio.Event()
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None
        #: Until it leads, of a manager that stood by.
        self._leading: asyncio.Task[None] | None = None
        self._pool: Pool | None = None
        self._nodes: NodeServer | None = None
        self._openid: Issuer | None = None
        self.url = ""

    async def start(self) -> None:
        """Bring everything up; on an error nothing stays behind."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        settings = self.settings
        raise_file_limit()
        state_dir = settings.state_dir or default_state_dir()
        make_state_dir(state_dir)
        database = await asyncio.to_thread(settings.database_url)
        store = Store(database or f"sqlite:///{state_dir / 'manager.db'}", settings.standby)
        certificate = await asyncio.to_thread(self._certificate, state_dir)
        self._openid = await asyncio.to_thread(settings.openid)
        listener = self._listen()
        door = Door()
        try:
            if settings.standby:
                await self._check_keys(store, state_dir)
                await self._serve(door, listener, certificate)
                leading = self._lead(store, state_dir, door, certificate)
                self._leading = asyncio.create_task(leading)
            else:
                await self._lead(store, state_dir, door, certificate)
                await self._serve(door, listener, certificate)
        except BaseException:
            listener.close()
            raise

    async def _lead(
        self, store: Store, state_dir: Path, door: Door, certificate: Certificate | None
    ) -> None:
        """Have the pool, as soon as no other manager has it, and let requests in."""
        settings = self.settings
        pool = Pool(store, settings.rules)
        await pool.open(wait=settings.standby)
        self._pool = pool
        await check_identity(pool, state_dir)
        collector.settle()
        if settings.standby:
            await self._check_keys(store, state_dir)
        await self._make_first_token(pool, state_dir / TOKEN_FILE)
        secret = await asyncio.to_thread(lease_secret, state_dir / SECRET_FILE)
        ring = await asyncio.to_thread(KeyRing.load, state_dir / KEYS_FILE, pool.clock())
        pool.signer = Signer(secret, ring, settings.lease_token_seconds)
        await self._open_link(pool, state_dir)
        pool.run_clock()
        own = await asyncio.to_thread(own_names)
        app = make_app(
            pool,
            settings.open_metrics,
            Attempts(),
            RequestBudgets(settings.tenant_requests),
            plain=certificate is None,
            host_names=own | set(settings.metrics_hosts),
            console_url=settings.console_url,
            openid=self._openid,
        )
        door.lead_to(app)
        self._say_ready(pool, state_dir, certificate)

    async def _check_keys(self, store: Store, state_dir: Path) -> None:
        """GpupoolError if this state folder has other keys than the manager that leads, or led."""
        known = await store.peek(key_notes.NOTE)
        if known is None:
            return
        link = [] if self.settings.nodes_url is None else [keys.NAME]
        key_notes.check_files(state_dir, [SECRET_FILE, KEYS_FILE, *link])
        secret = await asyncio.to_thread(lease_secret, state_dir / SECRET_FILE)
        ring = await asyncio.to_thread(KeyRing.load, state_dir / KEYS_FILE, 0.0)
        public = LinkKeys.load(state_dir).public if link else []
        key_notes.check(known, secret, [key.id for key in ring.keys], public)

    async def _serve(
        self, door: Door, listener: socket.socket, certificate: Certificate | None
    ) -> None:
        config = uvicorn.Config(
            door,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            # Who is on this machine is no proxy: neither address nor scheme is a header's to say.
            proxy_headers=False,
            timeout_graceful_shutdown=3,
            ssl_certfile=None if certificate is None else str(certificate.path),
            ssl_keyfile=None if certificate is None else str(certificate.key),
        )
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            raise GpupoolError(f"the certificate or its key cannot be used: {error}") from None
        self._server = _Uvicorn(config)
        self._server.limits = Limits(self.settings.connections_each, self.settings.request_seconds)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.01)
        if self._serving.done():
            raise GpupoolError(f"cannot listen at {self.settings.listen}")

    def _say_ready(self, pool: Pool, state_dir: Path, certificate: Certificate | None) -> None:
        if not self.settings.is_tls and not self.settings.is_loopback:
            self._log.warning(
                "TOKENS TRAVEL IN CLEAR TEXT (--insecure-plain): others reach this without TLS",
                listen=self.settings.listen,
            )
        self._log.info(
            "ready",
            version=__version__,
            listen=self.url,
            nodes=pool.join_url or "none",
            state_dir=str(state_dir),
            **({} if certificate is None else {"fingerprint": certificate.fingerprint}),
        )

    def _certificate(self, state_dir: Path) -> Certificate | None:
        """What REST shows its clients; None: it speaks in clear."""
        settings = self.settings
        if not settings.is_tls:
            return None
        if settings.tls_certificate is not None and settings.tls_key is not None:
            return certificates.read(settings.tls_certificate, settings.tls_key)
        return certificates.own_certificate(state_dir, settings.address[0], "gpupool-manager")

    async def _open_link(self, pool: Pool, state_dir: Path) -> None:
        listen = self.settings.nodes_url
        if listen is None:
            return
        pool.link_keys = await asyncio.to_thread(LinkKeys.load, state_dir)
        self._nodes = NodeServer(pool, listen)
        self._nodes.open()
        pool.join_url = self._nodes.url

    def _listen(self) -> socket.socket:
        host, port = self.settings.address
        host = "0.0.0.0" if host == "*" else host
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
            except OSError:
                listener.close()
                raise
        except OSError as error:
            raise GpupoolError(
                f"cannot listen at {self.settings.listen}: {error.strerror}"
            ) from None
        shown = f"[{host}]" if ":" in host else host
        scheme = "https" if self.settings.is_tls else "http"
        self.url = f"{scheme}://{shown}:{listener.getsockname()[1]}"
        return listener

    async def _make_first_token(self, pool: Pool, path: Path) -> None:
        if self.settings.new_admin_token or pool.needs_admin():
            # The file comes first: a token that is valid and that nobody has helps nobody.
            secret = new_secret()
            await asyncio.to_thread(replace_secret, path, secret)
            await pool.add_admin(secret)
            self._log.info("an admin token was made; it is in a file here", path=str(path))

    def stop(self) -> None:
        """Make :meth:`run` return; for signal handlers."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until :meth:`stop`; GpupoolError if that is not possible any more."""
        assert self._serving is not None
        stop = asyncio.create_task(self._stopping.wait())
        ends: set[asyncio.Task[Any]] = {stop, self._serving}
        if self._leading is not None:
            await asyncio.wait({*ends, self._leading}, return_when=asyncio.FIRST_COMPLETED)
            if self._leading.done():
                self._leading.result()
        if self._pool is not None:
            lost = asyncio.create_task(self._pool.dispossessed.wait())
            await asyncio.wait({*ends, lost}, return_when=asyncio.FIRST_COMPLETED)
            lost.cancel()
        stop.cancel()
        if not self._stopping.is_set():
            raise GpupoolError("another manager owns the database now, or the HTTP server ended")
        self._log.info("stopping")

    async def close(self) -> None:
        """Stop listening, finish what was asked for, write everything down."""
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.gather(self._leading, return_exceptions=True)
        if self._pool is not None:
            self._pool.bus.close()  # those who watch would keep their connections open
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._nodes is not None:
            await self._nodes.close()
        if self._pool is not None:
            await self._pool.close()
        self._server = self._serving = self._pool = self._nodes = None


async def serve(settings: Settings, ready_fd: int | None) -> None:
    """Run a manager until it is told to end; write its address to ``ready_fd`` when ready."""
    tracing.start("gpupool-manager")
    manager = Manager(settings)
    loop = asyncio.get_running_loop()
    for number in interrupt.ending():
        loop.add_signal_handler(number, manager.stop)
    try:
        await manager.start()
        if ready_fd is not None:
            os.write(ready_fd, f"{manager.url}\n".encode())
            os.close(ready_fd)
        await manager.run()
    finally:
        await manager.close()
        await asyncio.to_thread(tracing.stop)
