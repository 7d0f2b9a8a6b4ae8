"""What the cards of this host say of themselves: through NVML, or as a soft GPU would.

The words are those of proto/spec_nvml/facts.toml. A word that a card cannot answer is
left out, and the client's library then says NVML_ERROR_NOT_SUPPORTED.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gpupool_server import logs
from gpupool_server.inventory import Device, Inventory

Facts = dict[str, int | str]
Readings = tuple[Facts, Mapping[int, int]]

#: Readings younger than this are given to the next asker, too; many may ask at once.
FRESH_SECONDS = 0.1
LINKS = 18

#: What a soft GPU passes for: the driver whose API it has.
SOFT_VERSIONS = {"driver-version": "580.0", "nvml-version": "13.580.0", "cuda-version": "13000"}


class Cards(Protocol):
    """All cards of a host."""

    async def versions(self) -> Mapping[str, str]:
        """``driver-version``, ``nvml-version`` and ``cuda-version``."""

    async def lasting(self, device: Device) -> Facts:
        """What does not change."""

    async def passing(self, device: Device) -> Readings:
        """What does, and the memory of each process that is there."""

    async def pairs(self, device: Device, all_devices: Sequence[Device]) -> Facts:
        """How it lies to each of the devices: a digit for each."""


def open_cards(inventory: Inventory) -> Cards:
    """Through NVML where the devices are real and it works."""
    if inventory.kind == "cuda":
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # whatever is wrong with it, there are devices to serve
            logs.get("nvml").warning("NVML does not work; little is said", reason=str(error))
        else:
            return NvmlCards(pynvml)
    return SoftCards()


class SoftCards:
    """Cards without sensors."""

    async def versions(self) -> Mapping[str, str]:
        return SOFT_VERSIONS

    async def lasting(self, device: Device) -> Facts:
        return {"minor": device.index, "brand": 0, "compute-mode": 0, "persistence": 0, "fans": 0}

    async def passing(self, device: Device) -> Readings:
        return {"utilisation": 0, "utilisation-memory": 0, "performance": 0}, {}

    async def pairs(self, device: Device, all_devices: Sequence[Device]) -> Facts:
        others = [int(other != device) for other in all_devices]
        return {
            "peers": "".join(map(str, others)),
            "topology": "".join(str(5 * other) for other in others),  # over the system
        }


# Real cards -----------------------------------------------------------------

Reader = Callable[[Any, Any], Facts]


def _memory(nvml: Any, card: Any) -> Facts:
    memory = nvml.nvmlDeviceGetMemoryInfo(card, nvml.nvmlMemory_v2)
    return {"memory-reserved": memory.reserved}


def _memory_used(nvml: Any, card: Any) -> Facts:
    return {"memory-used": nvml.nvmlDeviceGetMemoryInfo(card, nvml.nvmlMemory_v2).used}


def _capability(nvml: Any, card: Any) -> Facts:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(card)
    return {"capability-major": major, "capability-minor": minor}


def _pci(nvml: Any, card: Any) -> Facts:
    pci = nvml.nvmlDeviceGetPciInfo(card)
    return {"pci-device": pci.pciDeviceId, "pci-subsystem": pci.pciSubSystemId}


def _mig(nvml: Any, card: Any) -> Facts:
    now, pending = nvml.nvmlDeviceGetMigMode(card)
    return {"mig": now, "mig-pending": pending}


def _ecc(nvml: Any, card: Any) -> Facts:
    now, pending = nvml.nvmlDeviceGetEccMode(card)
    return {"ecc": now, "ecc-pending": pending}


def _power_range(nvml: Any, card: Any) -> Facts:
    low, high = nvml.nvmlDeviceGetPowerManagementLimitConstraints(card)
    return {"power-min": low, "power-max": high}


def _bar1(nvml: Any, card: Any) -> Facts:
    return {"bar1-total": nvml.nvmlDeviceGetBAR1MemoryInfo(card).bar1Total}


def _bar1_used(nvml: Any, card: Any) -> Facts:
    return {"bar1-used": nvml.nvmlDeviceGetBAR1MemoryInfo(card).bar1Used}


def _utilisation(nvml: Any, card: Any) -> Facts:
    rates = nvml.nvmlDeviceGetUtilizationRates(card)
    return {"utilisation": rates.gpu, "utilisation-memory": rates.memory}


def _links(nvml: Any, card: Any) -> Facts:
    active = [_link_active(nvml, card, link) for link in range(LINKS)]
    if not any(active):
        return {}
    remotes = [_remote(nvml, card, link) if up else "-" for link, up in enumerate(active)]
    return {
        "nvlinks": sum(1 << link for link, up in enumerate(active) if up),
        "nvlink-version": nvml.nvmlDeviceGetNvLinkVersion(card, active.index(True)),
        "nvlink-remotes": ",".join(remotes),
    }


def _link_active(nvml: Any, card: Any, link: int) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetNvLinkState(card, link))
    except nvml.NVMLError:
        return False


def _remote(nvml: Any, card: Any, link: int) -> str:
    try:
        return _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(card, link).busId)
    except nvml.NVMLError:
        return "-"


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def _one(word: str, function: str, *arguments: str) -> Reader:
    """A word that one function answers; its arguments are names of NVML's constants."""

    def read(nvml: Any, card: Any) -> Facts:
        values = [getattr(nvml, name) for name in arguments]
        answer = getattr(nvml, function)(card, *values)
        if isinstance(answer, list | tuple) and len(answer) == 1:
            answer = answer[0]  # pynvml gives the default ECC mode so
        if isinstance(answer, bytes):
            answer = _text(answer)
        return {word: answer} if isinstance(answer, int | str) else {}

    return read


_CLOCKS = (
    ("graphics", "NVML_CLOCK_GRAPHICS"),
    ("sm", "NVML_CLOCK_SM"),
    ("memory", "NVML_CLOCK_MEM"),
    ("video", "NVML_CLOCK_VIDEO"),
)
_THRESHOLD = "nvmlDeviceGetTemperatureThreshold"
_ECC = "nvmlDeviceGetTotalEccErrors"

LASTING: tuple[Reader, ...] = (
    _memory,
    _capability,
    _pci,
    _mig,
    _ecc,
    _power_range,
    _bar1,
    _links,
    _one("vbios", "nvmlDeviceGetVbiosVersion"),
    _one("part-number", "nvmlDeviceGetBoardPartNumber"),
    _one("cores", "nvmlDeviceGetNumGpuCores"),
    _one("minor", "nvmlDeviceGetMinorNumber"),
    _one("brand", "nvmlDeviceGetBrand"),
    _one("architecture", "nvmlDeviceGetArchitecture"),
    _one("bus-type", "nvmlDeviceGetBusType"),
    _one("board-id", "nvmlDeviceGetBoardId"),
    _one("module-id", "nvmlDeviceGetModuleId"),
    _one("bus-width", "nvmlDeviceGetMemoryBusWidth"),
    _one("pcie-gen-max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    _one("pcie-gen-gpu-max", "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
    _one("pcie-width-max", "nvmlDeviceGetMaxPcieLinkWidth"),
    _one("persistence", "nvmlDeviceGetPersistenceMode"),
    _one("compute-mode", "nvmlDeviceGetComputeMode"),
    _one("ecc-default", "nvmlDeviceGetDefaultEccMode"),
    _one("power-limit", "nvmlDeviceGetPowerManagementLimit"),
    _one("power-default", "nvmlDeviceGetPowerManagementDefaultLimit"),
    _one("power-enforced", "nvmlDeviceGetEnforcedPowerLimit"),
    _one("fans", "nvmlDeviceGetNumFans"),
    _one("temperature-shutdown", _THRESHOLD, "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN"),
    _one("temperature-slowdown", _THRESHOLD, "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN"),
    _one("temperature-memory-max", _THRESHOLD, "NVML_TEMPERATURE_THRESHOLD_MEM_MAX"),
    _one("temperature-gpu-max", _THRESHOLD, "NVML_TEMPERATURE_THRESHOLD_GPU_MAX"),
    *(_one(f"clock-{name}-max", "nvmlDeviceGetMaxClockInfo", kind) for name, kind in _CLOCKS),
)

PASSING: tuple[Reader, ...] = (
    _memory_used,
    _utilisation,
    _bar1_used,
    _one("temperature", "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    _one("power", "nvmlDeviceGetPowerUsage"),
    _one("energy", "nvmlDeviceGetTotalEnergyConsumption"),
    _one("performance", "nvmlDeviceGetPerformanceState"),
    _one("fan", "nvmlDeviceGetFanSpeed"),
    _one("clock-reasons", "nvmlDeviceGetCurrentClocksEventReasons"),
    _one("pcie-gen", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _one("pcie-width", "nvmlDeviceGetCurrPcieLinkWidth"),
    _one("pcie-replays", "nvmlDeviceGetPcieReplayCounter"),
    *(_one(f"clock-{name}", "nvmlDeviceGetClockInfo", kind) for name, kind in _CLOCKS),
    *(
        _one(f"ecc-{counter.lower()}-{kind.lower()}", _ECC, error, f"NVML_{counter}_ECC")
        for counter in ("VOLATILE", "AGGREGATE")
        for kind, error in (
            ("CORRECTED", "NVML_MEMORY_ERROR_TYPE_CORRECTED"),
            ("UNCORRECTED", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
        )
    ),
)


class NvmlCards:
    """Cards that NVML knows, by the numbers that it gives them."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._lasting: dict[str, Facts] = {}
        self._passing: dict[str, tuple[float, Readings]] = {}
        self._lock = asyncio.Lock()

    async def versions(self) -> Mapping[str, str]:
        nvml = self._nvml
        return {
            "driver-version": _text(nvml.nvmlSystemGetDriverVersion()),
            "nvml-version": _text(nvml.nvmlSystemGetNVMLVersion()),
            "cuda-version": str(nvml.nvmlSystemGetCudaDriverVersion()),
        }

    async def lasting(self, device: Device) -> Facts:
        async with self._lock:
            if device.uuid not in self._lasting:
                read = asyncio.to_thread(self._read, device, LASTING)
                self._lasting[device.uuid] = await read
            return dict(self._lasting[device.uuid])

    async def passing(self, device: Device) -> Readings:
        async with self._lock:
            taken, readings = self._passing.get(device.uuid, (0.0, ({}, {})))
            if time.monotonic() - taken > FRESH_SECONDS or not readings[0]:
                facts = await asyncio.to_thread(self._read, device, PASSING)
                readings = (facts, await asyncio.to_thread(self._processes, device))
                self._passing[device.uuid] = (time.monotonic(), readings)
            return dict(readings[0]), readings[1]

    async def pairs(self, device: Device, all_devices: Sequence[Device]) -> Facts:
        return await asyncio.to_thread(self._pairs, device, all_devices)

    def _card(self, device: Device) -> Any:
        return self._nvml.nvmlDeviceGetHandleByUUID(device.uuid)

    def _read(self, device: Device, readers: Sequence[Reader]) -> Facts:
        facts: Facts = {}
        for read in readers:
            try:
                facts |= read(self._nvml, self._card(device))
            except (self._nvml.NVMLError, AttributeError):
                continue  # the card cannot say, or this pynvml cannot ask
        return {word: value for word, value in facts.items() if not _is_negative(value)}

    def _processes(self, device: Device) -> Mapping[int, int]:
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._card(device))
        except self._nvml.NVMLError:
            return {}
        return {p.pid: p.usedGpuMemory for p in found if p.usedGpuMemory is not None}

    def _pairs(self, device: Device, all_devices: Sequence[Device]) -> Facts:
        peers = topology = ""
        for other in all_devices:
            peer, level = ("0", "0") if other == device else self._pair(device, other)
            peers, topology = peers + peer, topology + level
        return {"peers": peers, "topology": topology}

    def _pair(self, device: Device, other: Device) -> tuple[str, str]:
        nvml, one, two = self._nvml, self._card(device), self._card(other)
        peer, level = "0", "-"
        try:
            level = str(nvml.nvmlDeviceGetTopologyCommonAncestor(one, two) // 10)
            index = nvml.NVML_P2P_CAPS_INDEX_READ
            peer = str(int(nvml.nvmlDeviceGetP2PStatus(one, two, index) == nvml.NVML_P2P_STATUS_OK))
        except nvml.NVMLError:
            pass
        return peer, level


def _is_negative(value: int | str) -> bool:
    return isinstance(value, int) and value < 0
