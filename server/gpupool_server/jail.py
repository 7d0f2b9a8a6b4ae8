"""The jail of each worker: what the host allows of it, and how a worker is started in it.

``gpupool-jail`` (server/jail) makes the layers; this says what they are to be, and reads what
has become of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpupool_common import logs, paths
from gpupool_common.errors import ConfigError, GpupoolError, InstallError
from gpupool_server import (
    jail_collectives,
    jail_devices,
    jail_environment,
    jail_files,
    jail_leases,
    jail_limits,
    jail_status,
    worker_libraries,
)
from gpupool_server.cgroups import Cgroups
from gpupool_server.config import Settings
from gpupool_server.inventory import Inventory
from gpupool_server.jail_ids import Uids
from gpupool_server.jail_leases import Lease, Leases
from gpupool_server.jail_status import LAYERS, NOT_NEEDED, Confined, Report, lacks
from gpupool_server.network import Network
from gpupool_server.process import Process, start_time
from gpupool_server.tenants import LeasePart
from gpupool_server.worker import WorkerError, knows

__all__ = ["LAYERS", "Confined", "Jail", "Place"]

PROGRAM = "libexec/gpupool-jail"
SECONDS = 10.0
_NULL = subprocess.DEVNULL
#: Of what a worker may write, one part in so many is /tmp; the others are the driver's cache.
TMP_PART = 5

#: What cannot be on together, or is another way to the same.
ALTERNATIVE = "the server has the right to make the other layers without it"

#: Behind a lease's name: the namespaces of its workers in the host's network are others, as all
#: that are held together are joined together.
IN_HOST = "(in the host's network)"

#: Layers that are not off for a worker because they were for the first.
ASKED_ANEW = ("cgroup", "seccomp", "collectives")

#: As if a lease of this host and of another had a worker: to try what such a lease has.
_PROBE_PART = LeasePart(
    "probe", "", {}, secrets.token_hex(32), node="here", nodes=("here", "there")
)


@dataclass(frozen=True)
class Place:
    """Where one worker is to be: its lease, its GPUs, what it is handed."""

    session: str
    lease: str
    devices: tuple[int, ...]
    #: Bytes of this host's memory that it may keep and pin for its client.
    memory: int = 0
    #: Bytes that it may write to files, and files that it may have open; 0: as the settings say.
    disk: int = 0
    open_files: int = 0
    #: Descriptors that it gets.
    keep: tuple[int, ...] = ()
    #: Of the pool's lease that it is of, if it is of one.
    part: LeasePart | None = None
    #: Folders that it may read, and files that it may write to.
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    #: Layers that its session cannot have, and why.
    off: Mapping[str, str] = field(default_factory=dict)
    rdma: bool = False  # whether it finds the host's RDMA devices


class Jail:
    """How workers of this server are confined. For the event loop's thread only."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        home: paths.Home,
        program: Path,
        run_dir: Path,
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._home = home
        self._program = program
        self._plugins = home.root / paths.PLUGINS
        self._root = run_dir / "jail"
        self._run_dir = run_dir
        self._log = logs.get("jail")
        self._leases = Leases()
        self._uids: Uids | None = None
        self._libraries: list[str] = []
        #: Of RDMA devices, if there are some for leases.
        self._verbs: list[str] = []
        #: Of what the server as a whole cannot have: the reasons, by layer.
        self._off: dict[str, str] = {}
        #: Of the host, as the start found it out.
        self.layers: dict[str, str] = {}
        #: Whether workers are started in it at all.
        self.on = False
        self._learn = jail_limits.open_learned(settings)
        self._cgroups = Cgroups(settings)

    # The host ------------------------------------------------------------------------

    def sweep(self) -> None:
        """Remove what an earlier server has left: for a server that starts."""
        self._cgroups.sweep()

    async def probe(self) -> dict[str, str]:
        """Find out what the host allows; ConfigError if the operator wants more than that."""
        mode = self._settings.confined
        if mode == "off":
            self.layers = dict.fromkeys(LAYERS, "off: --confinement=off")
            return self.layers
        try:
            await self._try_ways()
        except (GpupoolError, OSError) as error:
            self.layers = dict.fromkeys(LAYERS, f"off: {error}")
        self._check(mode)
        return self.layers

    async def _try_ways(self) -> None:
        """From the most to the least that a host may allow, until a worker starts."""
        self._prepare()
        network = Network(self._settings, self._program, self._plugins)
        root = os.geteuid() == 0
        ways: list[dict[str, str]] = [{}] if not root else [{"user-namespace": ALTERNATIVE}]
        if root:
            ways += [{"user-namespace": ALTERNATIVE, "uid": ""}]
            ways += [{"uid": "in a user namespace the server's own user is the only one"}]
        ways += [{"user-namespace": ALTERNATIVE, "root": ""}]
        reason = ""
        found: list[tuple[Report, dict[str, str]]] = []
        for way in ways:
            self._off = {**self._fixed_off(network), **{k: v or reason for k, v in way.items()}}
            report = await self._start_probe()
            reason = report.error or report.off.get("mount", "")
            if not report.error:
                found.append((report, self._off))
            if not reason:
                break
        if not found:
            raise InstallError(reason)
        report, self._off = max(found, key=lambda each: -len(each[0].off))
        self.layers = {name: report.layers.get(name, "off: not reported") for name in LAYERS}
        self._off.update({name: why for name, why in report.off.items() if name not in ASKED_ANEW})
        self.on = True

    def _prepare(self) -> None:
        self._home.part(PROGRAM)
        if not knows(self._program, "--control-fd"):
            raise InstallError(f"the worker {self._program} is of a release without jails")
        self._root.mkdir(mode=0o700, exist_ok=True)
        if self._inventory.kind == "cuda":
            jail_devices.load_uvm()
        inventory, env = self._inventory, dict(os.environ)
        opened = worker_libraries.files(self._settings, inventory.kind)
        own = self._program, self._plugins, inventory.driver
        self._libraries = jail_files.libraries(*own, inventory.kind, env, opened)
        if self._settings.collectives.rdma:
            self._verbs = jail_collectives.verbs_libraries()

    def _fixed_off(self, network: Network) -> dict[str, str]:
        """What cannot be with these settings, before the host is asked."""
        off: dict[str, str] = {}
        if os.geteuid() != 0:
            off["uid"] = "the server is not root, so its workers have its own user"
        elif closed := jail_files.closed_to_others(self._files(self._inventory.indexes)):
            off["uid"] = f"only its owner can read {closed}; chmod o+r it"
        elif self._uids is None:
            try:
                self._uids = Uids(*self._settings.jail_uid_range)
            except ConfigError as error:  # one layer less, and not all of them
                off["uid"] = str(error)
        required = self._settings.confined == "required"
        if why := network.host_maybe if required else network.host_always:
            off["net"] = why
        return off

    def _files(self, indexes: Sequence[int]) -> list[str]:
        nodes, reason = jail_devices.nodes(self._inventory, indexes)
        if reason:
            raise InstallError(reason)
        return [*self._libraries, *nodes]

    async def _start_probe(self) -> Report:
        """Start the worker's program in a jail, only to say its version."""
        # a name of its own: the doctor tries beside a server at work
        session = f"probe-{os.getpid()}"
        place = Place(session, "probe", self._inventory.indexes, part=_PROBE_PART)
        lease = self._leases.enter(place.lease, place.session)
        uid = 0
        try:
            uid = self._claim(lease)
            command = [str(self._program), "--version"]
            report = await self._run(place, lease, uid, command, {}, (_NULL, _NULL, _NULL))
            if report.pid:
                reason = await Process.of_pid(report.pid).wait()
                if not report.error and reason != "exit code 0":
                    report.error = f"{self._program} does not run in the jail: {reason}"
            return report
        finally:
            self._leave(place.lease, place.session, uid)

    def _check(self, mode: str) -> None:
        off = {
            name: state.removeprefix("off: ")
            for name, state in self.layers.items()
            if lacks(name, state)
        }
        if mode == "required" and off:
            (name, why), *others = off.items()
            more = f" (off, too: {', '.join(other for other, _ in others)})" if others else ""
            raise ConfigError(
                f"--confinement=required: the layer '{name}' is off: {why}{more}; gpupool-server"
                " doctor says why of all, --confinement=best does without what the host forbids"
            )
        on = [name for name, state in self.layers.items() if state == "on"]
        if not self.on:
            reason = next(iter(off.values()), "")
            self._log.warning("workers are not confined", reason=reason)
        else:
            hint = {"reasons": "gpupool-server doctor"} if off else {}
            self._log.info("workers are confined", on=",".join(on), off=",".join(off), **hint)

    # Workers -------------------------------------------------------------------------

    async def start(
        self,
        place: Place,
        command: Sequence[str],
        env: Mapping[str, str],
        streams: tuple[int, int, int],
    ) -> tuple[Process, Confined]:
        """Start a worker; WorkerError or OSError leave nothing behind."""
        name = f"{place.lease} {IN_HOST}" if "net" in place.off else place.lease
        lease = self._leases.enter(name, place.session)
        uid = 0
        try:
            async with lease.lock:
                uid = self._claim(lease)
                report = await self._run(place, lease, uid, command, env, streams)
                try:
                    self._give(lease, uid, report.pid)
                except BaseException:
                    _kill(report.pid)
                    raise
            if report.error or not report.pid:
                _kill(report.pid)
                raise WorkerError(f"its jail cannot be made: {report.error or 'no process'}")
            process = Process.of_pid(report.pid)
        except BaseException:
            self._leave(name, place.session, uid)
            raise
        holder = lease.holder.pid if lease.holder is not None else 0
        return process, Confined(
            layers={n: s for n, s in report.layers.items()},
            lease=name,
            uid=uid,
            holder=holder,
            holder_start=(start_time(holder) or 0) if holder else 0,
            cost_us=report.cost_us,
        )

    def ordinals(self, indexes: Sequence[int], there: Sequence[int]) -> list[int]:
        """These GPUs as a worker's driver counts them, which has all that are ``there``."""
        confined = self.on and self.layers.get("devices") == "on"
        if confined:
            return jail_devices.ordinals(self._inventory, indexes, there)
        return self._inventory.ordinals(indexes)

    def adopt(self, session: str, confined: Confined) -> None:
        """A worker that an earlier server has started."""
        if confined.lease:
            where = confined.holder, confined.holder_start
            lease = self._leases.adopt(confined.lease, session, *where)
            if self._settings.jail_users == "lease" and lease.holder is not None:
                lease.uid = confined.uid

    def ended(self, session: str, confined: Confined) -> None:
        """The worker of a session has ended."""
        self._leave(confined.lease, session, confined.uid)

    def tidy(self) -> None:
        """Remove what could not be removed when its worker ended."""
        self._cgroups.tidy()

    def close(self) -> None:
        """The server stops, and workers go on."""
        self._leases.forget()

    def _claim(self, lease: Lease) -> int:
        """A user for the next worker of a lease; 0: the server's own."""
        if self._uids is None or "uid" in self._off:
            return 0
        return lease.uid or self._uids.claim()

    def _give(self, lease: Lease, uid: int, pid: int) -> None:
        """The user is the worker's, or that of all of the lease for as long as its holder lives."""
        if not uid or not pid or self._uids is None:
            return
        if self._settings.jail_users == "lease" and lease.holder is not None:
            lease.uid, pid = uid, lease.holder.pid
        self._uids.give(uid, pid)

    def _leave(self, lease: str, session: str, uid: int) -> None:
        """A worker has ended, or was never there."""
        if self._leases.leave(lease, session, uid) and uid and self._uids is not None:
            self._uids.release(uid)
        self._cgroups.remove(session)

    async def _run(
        self,
        place: Place,
        lease: Lease,
        uid: int,
        command: Sequence[str],
        env: Mapping[str, str],
        streams: tuple[int, int, int],
    ) -> Report:
        """Run the starter; what it says, with the process of a new holder taken over."""
        with contextlib.ExitStack() as stack:
            holder = -1
            if "user-namespace" in self._off:  # else each worker has its own
                holder = jail_leases.join(lease)
            if holder >= 0:
                stack.callback(os.close, holder)
            said, theirs = os.pipe()
            stack.callback(os.close, said)
            with contextlib.ExitStack() as handed:
                handed.callback(os.close, theirs)
                text = jail_leases.lines(self._describe(place, uid, env, holder))
                description = os.memfd_create("gpupool-jail")
                handed.callback(os.close, description)
                os.write(description, text)
                os.lseek(description, 0, os.SEEK_SET)
                keep = [fd for fd in (description, theirs, holder, *place.keep) if fd >= 0]
                keep += [self._learn] if self._learn >= 0 else []
                starter = subprocess.Popen(
                    [
                        str(self._home.part(PROGRAM)),
                        *("--description", str(description), "--status", str(theirs), "--"),
                        *command,
                    ],
                    env={},
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=streams[2],
                    start_new_session=True,
                    cwd="/",
                    pass_fds=keep,
                )
            report = await _hear(said, starter)
            if report.holder:
                jail_leases.hold(lease, report.holder)
            return report

    def _describe(
        self, place: Place, uid: int, env: Mapping[str, str], holder: int
    ) -> list[tuple[str, object]]:
        """The lines for the starter (server/jail/description.h)."""
        found: list[tuple[str, object]] = [("root", self._root)]
        if uid:
            found += [("uid", uid), ("gid", uid)]
        if holder >= 0:
            found.append(("holder", holder))
        off = {**self._off, **place.off}
        cgroup, why = self._cgroups.make(place.session, place.memory)
        if cgroup is None:
            off["cgroup"] = why
        else:
            found.append(("cgroup", cgroup))
        spread = jail_collectives.Part(self._settings.collectives, place.part, place.rdma)
        if spread.off:
            off["collectives"] = spread.off
        found += [("off", f"{layer} {why}") for layer, why in off.items()]
        found += spread.lines(self._verbs)
        # first, as what follows may lie below them
        cache, tmp = _disk(place.disk or self._settings.session_disk)
        found += [("tmpfs", f"/tmp {tmp}"), ("tmpfs", f"/cache {cache}")]
        found += [("library", path) for path in self._libraries]
        nodes, _ = jail_devices.nodes(self._inventory, place.devices)
        found += [("device", node) for node in nodes]
        found += [("read", path) for path in (*self._read_only(), *place.read)]
        if self._inventory.kind == "soft":  # its turns, as the hardware's are in the hardware
            found.append(("write", self._run_dir / "gpus" / "soft"))
        else:
            found.append(("hostname", "gpupool"))
        found += [("write", path) for path in place.write]
        found += [("keep", fd) for fd in place.keep]
        found += jail_limits.lines(
            self._settings,
            self._inventory.kind,
            uid,
            self._learn,
            place.open_files or self._settings.session_open_files,
            spread.locked_memory,
        )
        alone = "net" not in off and bool(spread.off)
        inside = jail_environment.inside(env, cache, alone)
        found += [("env", f"{name}={value}") for name, value in inside.items()]
        if self._settings.on_stop == "end":
            found.append(("with-server", 1))
        # the probe is to find all that is off
        if self._settings.confined == "required" and self.on:
            spare = {*NOT_NEEDED, *(("collectives",) if spread.off else ())}
            found += [("require", name) for name in LAYERS if name not in spare]
        return found

    def _read_only(self) -> list[str]:
        always = ["/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/machine-id"]
        kernel = jail_devices.kernel_files() if self._inventory.kind == "cuda" else []
        return [path for path in always if os.path.exists(path)] + kernel


def _disk(whole: int) -> tuple[int, int]:
    """How much of what a worker may write is the driver's cache, and how much /tmp."""
    pages = whole // resource.getpagesize()  # of what is not whole pages the kernel makes one more
    tmp = pages // TMP_PART
    return (pages - tmp) * resource.getpagesize(), tmp * resource.getpagesize()


async def _hear(said: int, starter: subprocess.Popen[bytes]) -> Report:
    """All that the starter says, until it and the worker have let go of the descriptor."""
    loop = asyncio.get_running_loop()
    heard = bytearray()
    end: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        piece = os.read(said, 4096)
        heard.extend(piece)
        if (not piece or len(heard) > jail_status.MOST_BYTES) and not end.done():
            end.set_result(None)

    loop.add_reader(said, readable)
    try:
        async with asyncio.timeout(SECONDS):
            await end
    except TimeoutError:
        starter.kill()
        with contextlib.suppress(WorkerError):  # what it has made goes on without it
            made = jail_status.parse(bytes(heard[: heard.rfind(b"\n") + 1]))
            for pid in filter(None, (made.pid, made.holder)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        raise WorkerError(f"gpupool-jail was not done within {SECONDS:g} s") from None
    finally:
        loop.remove_reader(said)
        if starter.poll() is None:  # else it needs no thread, which the session's client waits for
            await asyncio.to_thread(starter.wait)
    return jail_status.parse(bytes(heard))


def _kill(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def listen_control(path: Path) -> socket.socket:
    """The control socket of a worker that cannot make one; only the server's user may connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        listener.listen(8)
    except BaseException:
        listener.close()
        raise
    return listener
