"""The GPUs of this host: through NVML where a real driver is, by probing otherwise."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpupool_common import logs, paths
from gpupool_common.errors import ConfigError, InstallError
from gpupool_common.paths import default_run_dir
from gpupool_common.protocol import one_line
from gpupool_server import driver
from gpupool_server.config import Settings

PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class Device:
    """One GPU. ``index`` is the driver's ordinal in PCI bus order."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    pci: str
    #: The compute capability, e.g. 9.0.
    capability: str = "0.0"
    #: The newest CUDA that its driver knows, e.g. 12.4; empty: it does not say.
    driver: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Inventory:
    """What this host serves and the library that drives it."""

    kind: str
    driver: Path
    devices: tuple[Device, ...]
    #: Whether these are soft GPUs that nobody asked for: there was nothing else.
    simulated: bool = False

    @property
    def indexes(self) -> tuple[int, ...]:
        return tuple(device.index for device in self.devices)


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


def nvml_devices() -> tuple[Device, ...] | None:
    """The devices that NVML lists; None if there is no NVML or it does not work."""
    try:
        import pynvml
    except ImportError:
        return None
    # Whatever goes wrong in it, an error of NVML or not: the driver itself is asked then.
    try:
        pynvml.nvmlInit()
        return tuple(_nvml_device(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount()))
    except Exception as error:
        logs.get("inventory").info("NVML does not list the GPUs", reason=repr(error))
        return None
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def _nvml_device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Device(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        pci=_text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower(),
        capability=_nvml_capability(nvml, handle),
        driver=_nvml_driver(nvml),
    )


def _nvml_driver(nvml: Any) -> str:
    try:
        version = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except Exception:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"


def _nvml_capability(nvml: Any, handle: Any) -> str:
    """Only a pool asks for it; a driver that does not say is no reason not to serve."""
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return f"{int(major)}.{int(minor)}"
    except Exception:
        return "0.0"


def probe_devices(library: Path, env: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices that a driver library lists; InstallError says why it could not."""
    command = [sys.executable, "-m", "gpupool_server.probe", str(library)]
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


def take(settings: Settings, home: paths.Home) -> Inventory:
    """Find driver and devices as the settings say; ConfigError or InstallError if none are."""
    whole = _find(settings, home)
    if settings.devices is None:
        return whole
    missing = [index for index in settings.devices if index not in whole.indexes]
    if missing:
        raise ConfigError(
            f"key 'devices' names GPU {missing[0]}, but this host has {_span(whole.indexes)}"
        )
    chosen = tuple(device for device in whole.devices if device.index in settings.devices)
    return dataclasses.replace(whole, devices=chosen)


def _span(indexes: tuple[int, ...]) -> str:
    return "GPUs " + ", ".join(map(str, indexes)) if len(indexes) > 1 else f"GPU {indexes[0]} only"


def _find(settings: Settings, home: paths.Home) -> Inventory:
    log = logs.get("inventory")
    if os.path.isabs(settings.driver):
        library = driver.checked(Path(settings.driver))
        return _probed("library", library, settings)
    if settings.driver != "soft":
        found = _find_cuda(settings)
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


def _find_cuda(settings: Settings) -> Inventory | None:
    library = driver.find_system()
    try:
        if library is None:
            raise InstallError(
                "--driver cuda: this machine has no libcuda.so.1; install NVIDIA's driver,"
                f" name the library in {driver.VARIABLE}, or use --driver soft"
            )
        devices = nvml_devices()
        if devices:
            return Inventory("cuda", library, devices)
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
