"""The GPUs of this host: through NVML where a real driver is, by probing otherwise."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpupool_common import logs, paths
from gpupool_common.errors import ConfigError, InstallError
from gpupool_common.helper_process import command_of
from gpupool_common.paths import default_run_dir
from gpupool_common.protocol import one_line
from gpupool_server import driver
from gpupool_server.config import Settings
from gpupool_server.device import Device
from gpupool_server.nvml_inventory import nvml_devices

PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class Inventory:
    """What this host serves and the library that drives it."""

    kind: str
    driver: Path
    devices: tuple[Device, ...]
    #: Whether these are soft GPUs that nobody asked for: there was nothing else.
    simulated: bool = False
    #: Cards that do not answer, and why, by index. Of those that were known before there is a
    #: device; the driver counts none of them.
    lost: Mapping[int, str] = field(default_factory=dict)
    #: Whether MIG divides a card of this host, served or not. CUDA then shows a process one
    #: instance and no whole GPU, unless it is told which ones it may see.
    divided: bool = False

    @property
    def indexes(self) -> tuple[int, ...]:
        return tuple(device.index for device in self.devices)

    def ordinals(self, indexes: Sequence[int]) -> list[int]:
        """Devices as the driver counts them where it sees all that there are, or what
        :meth:`visible` says."""
        if self.divided:
            return list(range(len(indexes)))
        return [index - sum(lost < index for lost in self.lost) for index in indexes]

    def visible(self, indexes: Sequence[int]) -> dict[str, str]:
        """What shows a worker's driver these devices, in this order, where it must be told."""
        if not self.divided:
            return {}
        uuids = {device.index: device.uuid for device in self.devices}
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids[index] for index in indexes)}


def soft_environment(settings: Settings) -> dict[str, str]:
    """What the soft GPU reads about itself."""
    values = {
        "GPUPOOL_SOFT_GPUS": str(settings.soft_gpus),
        "GPUPOOL_SOFT_MEMORY": str(settings.soft_memory),
    }
    # Several servers of a machine must not have GPUs of the same UUIDs.
    seed = settings.node_name or (str(settings.run_dir) if settings.run_dir else "")
    if seed:
        values["GPUPOOL_SOFT_SEED"] = seed
    # Where sessions of a soft GPU take turns on it, as they do on hardware.
    values["GPUPOOL_SOFT_TIME"] = str((settings.run_dir or default_run_dir()) / "gpus" / "soft")
    return values


#: What a worker reads of its server's environment, for whoever debugs it.
DEBUG_VARIABLES = frozenset({"GPUPOOL_WATCH_CAPTURES"})


def _is_workers(key: str) -> bool:
    if key in DEBUG_VARIABLES or key.startswith("GPUPOOL_SOFT_"):
        return True
    return key != "CUDA_VISIBLE_DEVICES" and not key.startswith("GPUPOOL_")


def driver_environment(settings: Settings, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for every process that opens the driver.

    CUDA's own order puts the fastest device first and obeys CUDA_VISIBLE_DEVICES;
    both would make its numbers differ from the ones that we and NVML use. What else
    starts with GPUPOOL_ is the server's or a client's and not a worker's.
    """
    inherited = os.environ if env is None else env
    kept = {key: value for key, value in inherited.items() if _is_workers(key)}
    return {**kept, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **soft_environment(settings)}


def probe_devices(library: Path, env: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices that a driver library lists; InstallError says why it could not."""
    command = [*command_of("gpupool_server.probe"), str(library)]
    try:
        done = subprocess.run(
            command,
            env=_python_path(env),
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InstallError(
            f"the driver library {library} did not answer within {PROBE_SECONDS:g} s"
        ) from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        raise InstallError(f"the driver library {library} does not work: {one_line(lines[-1])}")
    return tuple(Device(**fields) for fields in json.loads(done.stdout))


def _python_path(env: Mapping[str, str]) -> dict[str, str]:
    """The probe must find this package wherever it was imported from."""
    own = str(Path(__file__).resolve().parent.parent)
    client = str(Path(paths.__file__).resolve().parent.parent)
    old = env.get("PYTHONPATH")
    return {**env, "PYTHONPATH": ":".join([own, client, *([old] if old else [])])}


def take(settings: Settings, home: paths.Home, known: Sequence[Device] = ()) -> Inventory:
    """Find driver and devices as the settings say; ConfigError or InstallError if none are.

    ``known`` are real cards of which an earlier server knew: one that is lost now is named.
    """
    whole = _find(settings, home, known)
    if settings.devices is None:
        return whole
    there = {*whole.indexes, *whole.lost}
    missing = [index for index in settings.devices if index not in there]
    if missing:
        raise ConfigError(
            f"key 'devices' names GPU {missing[0]}, but this host has {_span(whole.indexes)}"
        )
    chosen = tuple(device for device in whole.devices if device.index in settings.devices)
    return dataclasses.replace(whole, devices=chosen)


def _span(indexes: tuple[int, ...]) -> str:
    return "GPUs " + ", ".join(map(str, indexes)) if len(indexes) > 1 else f"GPU {indexes[0]} only"


def _find(settings: Settings, home: paths.Home, known: Sequence[Device]) -> Inventory:
    log = logs.get("inventory")
    if os.path.isabs(settings.driver):
        library = driver.checked(Path(settings.driver))
        return _probed("library", library, settings)
    if settings.driver != "soft":
        found = _find_cuda(settings, known)
        if found is not None:
            return found
        _check_asked(settings)
        log.info("no CUDA driver with a GPU here; serving soft GPUs", count=settings.soft_gpus)
    found = _probed("soft", driver.find_soft(home), settings)
    return dataclasses.replace(found, simulated=settings.driver == "auto")


def _check_asked(settings: Settings) -> None:
    """A pool that is given soft GPUs by accident gives them to programs that want GPUs."""
    if settings.pool is not None:
        raise ConfigError(
            "driver 'auto' found no CUDA driver with a GPU here, and a pool is given soft GPUs"
            " only on purpose; install NVIDIA's driver, or join with soft GPUs: --driver soft"
        )


def _find_cuda(settings: Settings, known: Sequence[Device]) -> Inventory | None:
    library = driver.find_system()
    try:
        if library is None:
            raise InstallError(
                "--driver cuda: this machine has no libcuda.so.1; install NVIDIA's driver,"
                f" name the library in {driver.VARIABLE}, or use --driver soft"
            )
        listed = nvml_devices(known)
        if listed is not None and listed.devices:
            return Inventory(
                "cuda", library, listed.devices, lost=listed.lost, divided=listed.divided
            )
        return _probed("cuda", library, settings)
    except InstallError as error:
        if settings.driver == "cuda":
            raise
        if library is not None:
            logs.get("inventory").warning("the CUDA driver is not usable", reason=str(error))
        return None


def _probed(kind: str, library: Path, settings: Settings) -> Inventory:
    devices = probe_devices(library, driver_environment(settings))
    if not devices:
        raise InstallError(f"the driver library {library} has no devices")
    return Inventory(kind, library, devices)
