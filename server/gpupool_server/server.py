"""The server: its parts in the order in which they start and stop."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gpupool_common import __version__, hosts, interrupt, logs, paths, tracing
from gpupool_common.ask import split_tcp, with_key
from gpupool_common.errors import InstallError
from gpupool_common.keys import Keys, load_keys
from gpupool_common.node_protocol import Report
from gpupool_server import admin, arbiter, worker
from gpupool_server import inventory as inventories
from gpupool_server.admin import AdminHandler, AdminServer
from gpupool_server.board import OpenBoard
from gpupool_server.config import Settings
from gpupool_server.front_end import FrontEnd, RequestHandler
from gpupool_server.gpu_events import open_events
from gpupool_server.gpu_readings import GpuReadings
from gpupool_server.gpus import Gpus
from gpupool_server.health import GpuHealth
from gpupool_server.inventory import Inventory, driver_environment
from gpupool_server.jail import Jail
from gpupool_server.local_users import Admitted
from gpupool_server.node_keys import NodeKeys
from gpupool_server.nvml_cards import open_cards
from gpupool_server.nvml_inventory import KnownCards
from gpupool_server.rundir import (
    RunDir,
    lasting_dir,
    make_state_dir,
    own_token,
    read_token,
)
from gpupool_server.sessions import SessionSupervisor
from gpupool_server.shm_door import ShmDoor
from gpupool_server.shm_socket import socket_path
from gpupool_server.tenants import Tenants
from gpupool_server.usage import open_usage
from gpupool_server.watchdog import Watchdog

if TYPE_CHECKING:
    from gpupool_server.manager_connection import ManagerConnection
    from gpupool_server.manager_keys import ManagerKeys
    from gpupool_server.metrics import MetricsServer
    from gpupool_server.pool_member import PoolMember

#: How long questions that are being answered may take when the server stops.
DRAIN_SECONDS = 5.0


class Server:
    """Everything between a checked configuration and a front end that is open."""

    def __init__(self, settings: Settings, home: paths.Home | None = None) -> None:
        self.settings = settings
        self._home = home or paths.find_home()
        self._log = logs.get("server")
        self._run_dir: RunDir | None = None
        self._supervisor: SessionSupervisor | None = None
        self._front_end: FrontEnd | None = None
        self._shm_door: ShmDoor | None = None
        self._admin: AdminServer | None = None
        self._watchdog: Watchdog | None = None
        self._health: GpuHealth | None = None
        self._metrics: MetricsServer | None = None
        self._manager_keys: ManagerKeys
        self._keys: Keys | None = None
        self._node_keys: NodeKeys | None = None
        self._member: PoolMember | None = None
        self._connection: ManagerConnection | None = None
        self._stopping = asyncio.Event()

    @property
    def url(self) -> str:
        """Where the front end is, with the port that was chosen for ``:*``."""
        if self._front_end is None:
            raise RuntimeError("the server has not started")
        return self._front_end.url

    @property
    def front_end_key(self) -> str:
        """The public key that clients must know; empty: they speak to it in clear."""
        encrypts = self.settings.curve and self.settings.listen.startswith("tcp://")
        return self._keys.public if self._keys is not None and encrypts else ""

    async def start(self) -> None:
        """Bring everything up; on an error nothing stays behind."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        settings = self.settings
        _raise_file_limit()
        program = (settings.worker or self._home.part(paths.WORKER)).absolute()
        build = await asyncio.to_thread(worker.ask_build, program)
        if build is None:
            self._log.warning(
                "the worker does not say what it was built from; only it can refuse a client"
                " of another version",
                worker=str(program),
            )
        self._run_dir = RunDir(settings.run_dir or paths.default_run_dir())
        token = self._find_token(self._run_dir)
        tenants = Tenants.load(token, settings)
        known = KnownCards(self._run_dir.gpus)
        inventory = await asyncio.to_thread(inventories.take, settings, self._home, known.load())
        if inventory.kind == "cuda":
            known.save(inventory.devices)
        open_board = await asyncio.to_thread(self._find_boards, program)
        gpus = Gpus(settings, inventory, tenants, self._run_dir.gpus, open_board)
        plugins = self._home.root / paths.PLUGINS
        jail = Jail(settings, inventory, self._home, program, self._run_dir.path)
        jail.sweep()
        await jail.probe()
        self._supervisor = SessionSupervisor(
            settings, inventory, self._run_dir, program, plugins, gpus, jail
        )
        self._supervisor.adopt()
        handler = RequestHandler(settings, gpus, inventory, self._supervisor, build)
        await self._look_after(gpus, inventory)
        await self._open_to_operators(gpus, inventory)
        await asyncio.to_thread(self._load_keys)
        readings = GpuReadings(gpus, open_cards(inventory))
        member = self._make_member(gpus, handler, readings)
        self._front_end = FrontEnd(
            handler, settings.listen, self._keys if self.front_end_key else None
        )
        shm = socket_path(settings)
        if shm is not None:
            admitted = Admitted(settings.shm_allow)
            self._shm_door = ShmDoor(shm, admitted, self._supervisor.by_door, self._front_end.ask)
        if member is not None and settings.pool is not None:
            self._connect_to_manager(member, settings.pool)
        self._log.info(
            "ready",
            version=__version__,
            listen=with_key(self._front_end.url, self.front_end_key),
            driver=str(inventory.driver),
            devices=[device.name for device in inventory.devices],
            sessions=len(self._supervisor),
            run_dir=str(self._run_dir.path),
        )
        self._warn(inventory)

    async def _look_after(self, gpus: Gpus, inventory: Inventory) -> None:
        """Watch the workers, and the GPUs themselves."""
        assert self._supervisor is not None
        settings = self.settings
        reader = await asyncio.to_thread(open_usage, inventory, driver_environment(settings))
        self._watchdog = Watchdog(settings.watch, gpus, self._supervisor, reader)
        await self._watchdog.start()
        events = await asyncio.to_thread(open_events, inventory)
        self._health = GpuHealth(settings.sick_xids, gpus, self._supervisor, events)
        self._health.take_lost(inventory.lost)
        self._health.start()

    async def _open_to_operators(self, gpus: Gpus, inventory: Inventory) -> None:
        """The admin socket, and the metrics."""
        assert self._supervisor is not None and self._run_dir is not None
        assert self._health is not None
        settings = self.settings
        self._admin = AdminServer(
            AdminHandler(self._supervisor, gpus, self._watchdog, self._health),
            self._run_dir.path / admin.NAME,
        )
        await self._admin.open()
        if settings.metrics_listen != "none":
            self._metrics = _metrics_server(
                settings, gpus, self._supervisor, inventory, self._health
            )
            await self._metrics.open()

    def _load_keys(self) -> None:
        """The node's before the front end's, of which it is no copy then."""
        if self.settings.pool is not None:
            self._node_keys = NodeKeys.load(key_folder(self.settings))
        if self.settings.curve:
            self._keys = server_keys(self.settings)

    def _warn(self, inventory: Inventory) -> None:
        """What an operator should know: the last words of the start, so that they are seen."""
        settings = self.settings
        if not (settings.curve or settings.is_loopback):
            self._log.warning(
                "TOKENS AND DATA TRAVEL IN CLEAR TEXT (--insecure-plain): others on the network can"
                " read and change them",
                listen=settings.listen,
            )
        if inventory.simulated:
            self._log.warning(
                "THE GPUS ARE SIMULATED: no CUDA driver with a GPU was found, so kernels run on"
                " this host's CPU, slowly; --driver cuda insists on GPUs, --driver soft says that"
                " this is meant",
                soft_gpus=len(inventory.devices),
            )

    def _make_member(
        self, gpus: Gpus, handler: RequestHandler, readings: GpuReadings
    ) -> PoolMember | None:
        settings = self.settings
        if settings.pool is None or settings.join_token is None:
            return None
        assert self._run_dir is not None and self._supervisor is not None
        from gpupool_server.join_token import JoinToken
        from gpupool_server.manager_keys import ManagerKeys
        from gpupool_server.pool_member import PoolMember

        token = JoinToken.read(settings.join_token)
        self._manager_keys = ManagerKeys(token, key_folder(settings))
        self._member = PoolMember(
            settings.node,
            self._run_dir.path,
            gpus,
            self._supervisor,
            health=self._health,
            readings=readings,
        )
        handler.join(self._member)
        return self._member

    def _connect_to_manager(self, member: PoolMember, pool: str) -> None:
        from gpupool_server.manager_connection import ManagerConnection, find_address

        assert self._supervisor is not None and self._node_keys is not None
        address, labels = find_address(self.settings, self.url), self.settings.labels
        host, _ = split_tcp(address)
        if hosts.resolves_to_loopback(host):
            self._log.warning(
                "only clients on this machine can reach the advertised address", tells=address
            )
        else:
            self._log.info("this address is advertised to the pool's clients", tells=address)

        def make_report() -> Report:
            return member.report(address, self.front_end_key, labels)

        self._connection = ManagerConnection(
            pool, self._manager_keys, self._node_keys, member, make_report
        )
        self._supervisor.on_change = self._connection.wake
        self._connection.start()

    def _find_boards(self, program: Path) -> OpenBoard | None:
        """How boards are opened, if arbiter and worker are both there for them."""
        open_board = arbiter.find_opener(self._home)
        if open_board is not None and worker.knows(program, "--seat"):
            return open_board
        self._log.warning(
            "no limits of memory and shares can be kept; arbiter or worker are of an older release",
            arbiter=str(self._home.root / arbiter.PROGRAM),
            worker=str(program),
        )
        return None

    def _find_token(self, run_dir: RunDir) -> str:
        if self.settings.token is not None:
            if self.settings.token_borrowed:
                self._log.warning(
                    "clients need the token in this server's GPUPOOL_TOKEN, which is meant for"
                    " clients; set GPUPOOL_SERVER_TOKEN to it, or use --token-file"
                )
            return self.settings.token.get_secret_value()
        if self.settings.token_file is not None:
            return read_token(self.settings.token_file)
        token, path = own_token(self._lasting_dir(run_dir))
        if self.settings.pool is None or self.settings.own_token:
            self._log.info("clients need the token in a file here", path=str(path))
        return token

    def _lasting_dir(self, run_dir: RunDir) -> Path:
        """Where a token is kept that clients continue to use: run directories end with a reboot."""
        path, reason = lasting_dir(self.settings, run_dir.path)
        if reason:
            self._log.warning(
                "the token made here lasts until the next reboot; set --state-dir to a folder"
                " that outlasts one, or --token-file",
                reason=reason,
            )
        return path

    def stop(self) -> None:
        """Make :meth:`run` return; for signal handlers."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until :meth:`stop`."""
        await self._stopping.wait()
        self._log.info("stopping", on_stop=self.settings.on_stop)

    async def close(self) -> None:
        """Close the front end, then leave the sessions running or end them."""
        if self._connection is not None:
            await self._connection.leave()
        if self._front_end is not None:
            await self._front_end.close(DRAIN_SECONDS)
        if self._shm_door is not None:
            await self._shm_door.close()
        if self._connection is not None:
            await self._connection.close()
        if self._member is not None:
            self._member.close()
        if self._admin is not None:
            await self._admin.close()
        if self._metrics is not None:
            await self._metrics.close()
        if self._watchdog is not None:
            await self._watchdog.close()
        if self._health is not None:
            await self._health.close()
        if self._supervisor is not None:
            await self._supervisor.close()
        if self._run_dir is not None:
            self._run_dir.close()
        self._front_end = self._admin = self._metrics = self._supervisor = self._run_dir = None
        self._connection = self._member = self._shm_door = self._watchdog = self._health = None


def server_keys(settings: Settings) -> Keys:
    """The key pair of this host, made at the first start of a server that needs one."""
    return load_keys(key_folder(settings))


def key_folder(settings: Settings) -> Path:
    """Where key pairs outlast a reboot."""
    return make_state_dir(settings, settings.run_dir or paths.default_run_dir())


def _metrics_server(
    settings: Settings,
    gpus: Gpus,
    supervisor: SessionSupervisor,
    inventory: Inventory,
    health: GpuHealth,
) -> MetricsServer:
    """Loads Prometheus' library, which only a server with metrics needs."""
    try:
        from gpupool_server.metrics import MetricsServer
        from gpupool_server.metrics_access import MetricsAccess
    except ImportError:
        raise InstallError(
            "key 'metrics_listen' needs the Python package prometheus-client; reinstall gpupool"
        ) from None
    state_dir = key_folder(settings) if settings.metrics_listen.startswith("https:") else None
    access = MetricsAccess(settings, state_dir)
    if access.context is not None:
        logs.get("metrics").info(
            "scrapers need the token in a file here",
            listen=settings.metrics_listen,
            path=str(access.token_file),
            fingerprint=access.fingerprint,
        )
    return MetricsServer(settings, gpus, supervisor, open_cards(inventory), health, access)


def _raise_file_limit() -> None:
    """Each session takes a handful of descriptors; the soft limit is often only 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        logs.get("server").debug("the limit of open files stays as it is")


async def serve(settings: Settings, ready_fd: int | None, private: bool) -> None:
    """Run a server until SIGTERM, SIGINT or SIGHUP.

    When it is ready its address is written to ``ready_fd``, if that is given. A
    ``private`` server belongs to the process at the other end of its stdin: it stops
    when that ends, however it does, and takes its run directory with it.
    """
    tracing.start("gpupool-server")
    server = Server(settings)
    loop = asyncio.get_running_loop()
    for number in interrupt.ending():
        loop.add_signal_handler(number, server.stop)
    if private:
        _watch_stdin(server)
    try:
        await server.start()
        if ready_fd is not None:
            os.write(ready_fd, f"{with_key(server.url, server.front_end_key)}\n".encode())
            os.close(ready_fd)
        await server.run()
    finally:
        await server.close()
        await asyncio.to_thread(tracing.stop)
        if private and settings.run_dir is not None:
            shutil.rmtree(settings.run_dir, ignore_errors=True)


def _watch_stdin(server: Server) -> None:
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            server.stop()

    os.set_blocking(0, False)
    loop.add_reader(0, readable)
