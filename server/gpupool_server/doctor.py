"""``gpupool-server doctor``: whether this host can serve, and how workers would be confined."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from gpupool_common import paths
from gpupool_common.errors import GpupoolError
from gpupool_common.findings import Finding, line, lines
from gpupool_server import inventory as inventories
from gpupool_server import worker
from gpupool_server.config import Settings
from gpupool_server.inventory import Inventory, driver_environment
from gpupool_server.jail import Jail
from gpupool_server.jail_status import LAYERS, lacks
from gpupool_server.rundir import RunDir
from gpupool_server.usage import open_usage


def check_driver(settings: Settings, home: paths.Home) -> tuple[Inventory | None, list[Finding]]:
    try:
        found = inventories.take(settings, home)
    except GpupoolError as error:
        return None, [Finding("driver", False, str(error))]
    if found.simulated:
        text = "no CUDA driver with a GPU was found, so GPUs are simulated; --driver cuda says why"
        return found, [Finding("driver", False, text)]
    names = ", ".join(f"{device.index}: {device.name}" for device in found.devices)
    findings = [Finding("driver", True, str(found.driver)), Finding("GPUs", True, names)]
    lost = "; ".join(f"GPU {index}: {why}" for index, why in found.lost.items())
    return found, [*findings, *([Finding("lost GPUs", False, lost)] if lost else [])]


def check_worker(program: Path) -> Finding:
    try:
        build = worker.ask_build(program)
    except GpupoolError as error:
        return Finding("worker", False, str(error))
    if build is None:
        return Finding("worker", False, f"{program} does not say what it was built from")
    return Finding("worker", True, str(program))


def check_listen(url: str) -> Finding:
    """Whether the address is there to be listened at."""
    scheme, _, rest = url.partition("://")
    if scheme != "tcp":
        return Finding("listen", True, url)
    host, _, port = rest.rpartition(":")
    host = "0.0.0.0" if host == "*" else host.strip("[]")  # noqa: S104 - tried, not served
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        text = f"{url}: {error.strerror}; if that is this server at work, all is well"
        return Finding("listen", False, text)
    return Finding("listen", True, f"{url} is free")


def check_run_dir(path: Path) -> Finding:
    """Whether the server could make, or use, its run directory."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if there == path and not (path.is_dir() and path.stat().st_uid == os.geteuid()):
        text = f"{path} is no directory of this user; --run-dir names another"
        return Finding("run directory", False, text)
    if not os.access(there, os.W_OK | os.X_OK):
        text = f"{path} cannot be made in {there}; --run-dir names another place"
        return Finding("run directory", False, text)
    return Finding("run directory", True, str(path))


@contextlib.contextmanager
def _own_run_dir() -> Iterator[RunDir]:
    """One for the doctor alone: the server may be at work in its own."""
    folder = Path(tempfile.mkdtemp(prefix="gpd-", dir="/tmp"))
    run_dir = RunDir(folder / "run")
    try:
        yield run_dir
    finally:
        run_dir.close()
        shutil.rmtree(folder, ignore_errors=True)


def check_watch(settings: Settings, found: Inventory) -> Finding:
    """Whether the driver says what a worker takes beside its grant."""
    if settings.watch.mode == "off":
        return Finding("watchdog", True, "off, as watch.mode says")
    reader = open_usage(found, driver_environment(settings))
    read = [(device.index, reader.read(device)) for device in found.devices]
    blind = [
        f"GPU {index}: {reason}"
        for index, usage in read
        for reason in dict.fromkeys((usage.memory_off, usage.time_off))
        if reason
    ]
    if blind:
        return Finding("watchdog", False, "; ".join(blind))
    return Finding("watchdog", True, "the driver says what each process has and does")


def check_layers(
    settings: Settings, found: Inventory | None, home: paths.Home, program: Path
) -> dict[str, str]:
    """Each layer of confinement: ``on``, or ``off: …``."""
    if found is None:
        return dict.fromkeys(LAYERS, "off: without a driver no worker can be tried")
    if settings.confined == "required":  # to list all that is off, not the first
        best = {"confinement": "best", "require_confinement": False}
        settings = settings.model_copy(update=best)
    with _own_run_dir() as run_dir:
        jail = Jail(settings, found, home, program, run_dir.path)
        try:
            return asyncio.run(jail.probe())
        finally:
            jail.close()


def examine(settings: Settings) -> tuple[list[Finding], dict[str, str]]:
    """All that the doctor looks at."""
    home = paths.find_home()
    program = (settings.worker or home.root / paths.WORKER).absolute()
    found, findings = check_driver(settings, home)
    findings.append(check_worker(program))
    findings.append(check_listen(settings.listen))
    findings.append(check_run_dir(settings.run_dir or paths.default_run_dir()))
    if found is not None:
        findings.append(check_watch(settings, found))
    return findings, check_layers(settings, found, home, program)


def healthy(findings: list[Finding], layers: dict[str, str]) -> bool:
    """Whether nothing is missing; a layer that another replaces is not."""
    missing = [name for name, state in layers.items() if lacks(name, state)]
    return all(finding.good for finding in findings) and not missing


def as_json(findings: list[Finding], layers: dict[str, str]) -> str:
    """For ``--json``."""
    told = {
        name: {"on": state == "on", "reason": state.removeprefix("off: ") if state != "on" else ""}
        for name, state in layers.items()
    }
    whole = {
        "healthy": healthy(findings, layers),
        "checks": [asdict(finding) for finding in findings],
        "layers": told,
    }
    return json.dumps(whole, indent=1)


def as_text(findings: list[Finding], layers: dict[str, str]) -> str:
    """A table for people, of 80 columns."""
    told = ["this host", *lines(findings), "confinement of workers"]
    for name, state in layers.items():
        word = "on" if state == "on" else "OFF" if lacks(name, state) else "-"
        told.append(line(name, word, "" if state == "on" else state.removeprefix("off: ")))
    return "\n".join(told)
