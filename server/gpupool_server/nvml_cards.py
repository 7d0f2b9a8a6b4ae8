"""What the cards of this host say of themselves: through NVML, or as a soft GPU would.

The words are those of proto/spec_nvml/facts.toml. A word that a card cannot answer is
left out, and the client's library then says NVML_ERROR_NOT_SUPPORTED. Drivers and pynvml
differ from version to version, so every question is asked alone: whatever goes wrong with
one, an error of NVML or not, is one fact missing and never an answer missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from gpupool_common import logs
from gpupool_server.device import Device
from gpupool_server.inventory import Inventory
from gpupool_server.nvml_handles import NvmlHandles

T = TypeVar("T")
Facts = dict[str, int | str]
Readings = tuple[Facts, Mapping[int, int]]

#: Readings younger than this are reused; many clients may ask at once.
FRESH_SECONDS = 0.1
LINKS = 18

#: In a line of pairs: nothing is known of this one.
UNKNOWN = "?"
#: How many spare rows banks of memory have left.
ROWS_LEFT = ("max", "high", "partial", "low", "none")
LEVELS = "012345"

#: The room that the client has for each text, with its NUL; all other words are numbers.
TEXTS = {"vbios": 32, "part-number": 80, "topology": 65, "peers": 65, "nvlink-remotes": 512}
TEXTS |= {f"inforom-{part}": 32 for part in ("image", "oem", "ecc", "power")}
_VERSION_ROOM = 80
_NUMBER_MOST = (1 << 64) - 1

#: What a soft GPU passes for: the driver whose API it has.
SOFT_VERSIONS = {"driver-version": "580.0", "nvml-version": "13.580.0", "cuda-version": "13000"}
#: NVML_DEVICE_ARCH_UNKNOWN: `nvidia-smi topo` stops where it is not told at all.
UNKNOWN_ARCHITECTURE = 0xFFFFFFFF


class Cards(Protocol):
    """All cards of a host."""

    async def versions(self) -> Mapping[str, str]:
        """``driver-version``, ``nvml-version`` and ``cuda-version``, as far as it says."""

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
        nothing = {"brand": 0, "compute-mode": 0, "persistence": 0, "fans": 0}
        return {"minor": device.index, "architecture": UNKNOWN_ARCHITECTURE, **nothing}

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


def _gsp(nvml: Any, card: Any) -> Facts:
    now, usually = nvml.nvmlDeviceGetGspFirmwareMode(card)
    return {"gsp": now, "gsp-default": usually}


def _memory_temperature(nvml: Any, card: Any) -> Facts:
    (field,) = nvml.nvmlDeviceGetFieldValues(card, [nvml.NVML_FI_DEV_MEMORY_TEMP])
    return {"temperature-memory": field.value.uiVal} if field.nvmlReturn == 0 else {}


def _rows(nvml: Any, card: Any) -> Facts:
    corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(card)
    rows = {"rows-corrected": corrected, "rows-uncorrected": uncorrected}
    return {**rows, "rows-pending": pending, "rows-failed": failed}


def _rows_left(nvml: Any, card: Any) -> Facts:
    banks = nvml.nvmlDeviceGetRowRemapperHistogram(card)
    return {f"rows-{left}": getattr(banks, left) for left in ROWS_LEFT}


def _engine(word: str, function: str) -> Reader:
    """How busy an engine was; NVML says beside it of how long it speaks."""

    def read(nvml: Any, card: Any) -> Facts:
        percent, _period = getattr(nvml, function)(card)
        return {word: percent}

    return read


def _links(nvml: Any, card: Any) -> Facts:
    active = [_link_active(nvml, card, link) for link in range(LINKS)]
    if not any(active):
        return {}
    remotes = [_remote(nvml, card, link) if up else "-" for link, up in enumerate(active)]
    return {
        "nvlinks": sum(1 << link for link, up in enumerate(active) if up),
        "nvlink-remotes": ",".join(remotes),
    }


def _link_version(nvml: Any, card: Any) -> Facts:
    for link in range(LINKS):
        if _link_active(nvml, card, link):
            return {"nvlink-version": nvml.nvmlDeviceGetNvLinkVersion(card, link)}
    return {}


def _link_active(nvml: Any, card: Any, link: int) -> bool:
    try:
        return _number(nvml.nvmlDeviceGetNvLinkState(card, link)) == 1
    except Exception:  # a card has fewer links than there are numbers: not worth a line
        return False


def _remote(nvml: Any, card: Any, link: int) -> str:
    read = partial(nvml.nvmlDeviceGetNvLinkRemotePciInfo, card, link)
    text = attempt(lambda: _text(read().busId), "-")
    return text if _is_word(text) and "," not in text else "-"


def _text(value: object) -> str:
    text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise TypeError(f"{value!r} is not text")
    return text


def _number(value: object) -> int:
    """pynvml gives some answers, and has some constants, as tuples of one number."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a number")
    return int(value)


def attempt(ask: Callable[[], T], instead: T) -> T:
    """What NVML answers; ``instead`` if it does not, whatever the reason is."""
    try:
        return ask()
    except Exception as error:  # one fact is missing then
        logs.get("nvml").debug("NVML does not say", reason=repr(error))
        return instead


def _is_word(value: int | str) -> bool:
    text = str(value)
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _is_fact(word: str, value: object) -> bool:
    """Whether the client's library has room for it; it takes no answer with one that is none."""
    if word in TEXTS:
        return isinstance(value, str) and _is_word(value) and len(value) < TEXTS[word]
    return isinstance(value, int) and 0 <= value <= _NUMBER_MOST


def _one(word: str, function: str, *arguments: str) -> Reader:
    """A word that one function answers; its arguments are names of NVML's constants."""

    def read(nvml: Any, card: Any) -> Facts:
        values = [_number(getattr(nvml, name)) for name in arguments]
        answer = getattr(nvml, function)(card, *values)
        return {word: _text(answer) if word in TEXTS else _number(answer)}

    return read


_CLOCKS = (
    ("graphics", "NVML_CLOCK_GRAPHICS"),
    ("sm", "NVML_CLOCK_SM"),
    ("memory", "NVML_CLOCK_MEM"),
    ("video", "NVML_CLOCK_VIDEO"),
)
_CLOCK_KINDS = (
    ("max", "nvmlDeviceGetMaxClockInfo"),
    ("application", "nvmlDeviceGetApplicationsClock"),
    ("default", "nvmlDeviceGetDefaultApplicationsClock"),
    ("boost", "nvmlDeviceGetMaxCustomerBoostClock"),
)
_INFOROM = "nvmlDeviceGetInforomVersion"
_THRESHOLD = "nvmlDeviceGetTemperatureThreshold"
_ECC = "nvmlDeviceGetTotalEccErrors"
_ECC_OF = "nvmlDeviceGetMemoryErrorCounter"
_ECC_COUNTERS = tuple(
    (counter, kind, (f"NVML_MEMORY_ERROR_TYPE_{kind.upper()}", f"NVML_{counter.upper()}_ECC"))
    for counter in ("volatile", "aggregate")
    for kind in ("corrected", "uncorrected")
)

LASTING: tuple[Reader, ...] = (
    _memory,
    _capability,
    _pci,
    _mig,
    _ecc,
    _power_range,
    _bar1,
    _gsp,
    _links,
    _link_version,
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
    _one("numa-node", "nvmlDeviceGetNumaNodeId"),
    _one("power-management", "nvmlDeviceGetPowerManagementMode"),
    _one("accounting-buffer", "nvmlDeviceGetAccountingBufferSize"),
    _one("addressing", "nvmlDeviceGetAddressingMode"),
    _one("pcie-speed-max", "nvmlDeviceGetPcieLinkMaxSpeed"),
    _one("clock-reasons-supported", "nvmlDeviceGetSupportedClocksEventReasons"),
    _one("inforom-image", "nvmlDeviceGetInforomImageVersion"),
    _one("inforom-oem", _INFOROM, "NVML_INFOROM_OEM"),
    _one("inforom-ecc", _INFOROM, "NVML_INFOROM_ECC"),
    _one("inforom-power", _INFOROM, "NVML_INFOROM_POWER"),
    *(
        _one(f"clock-{name}-{kind}", function, clock)
        for name, clock in _CLOCKS
        for kind, function in _CLOCK_KINDS
    ),
)

PASSING: tuple[Reader, ...] = (
    _memory_used,
    _utilisation,
    _bar1_used,
    _memory_temperature,
    _rows,
    _rows_left,
    _engine("utilisation-encoder", "nvmlDeviceGetEncoderUtilization"),
    _engine("utilisation-decoder", "nvmlDeviceGetDecoderUtilization"),
    _engine("utilisation-jpeg", "nvmlDeviceGetJpgUtilization"),
    _engine("utilisation-ofa", "nvmlDeviceGetOfaUtilization"),
    _one("temperature-margin", "nvmlDeviceGetMarginTemperature"),
    _one("pcie-speed", "nvmlDeviceGetPcieSpeed"),
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
    *(_one(f"ecc-{counter}-{kind}", _ECC, *names) for counter, kind, names in _ECC_COUNTERS),
    *(
        _one(
            f"ecc-{counter}-{kind}-{place.lower()}",
            _ECC_OF,
            *names,
            f"NVML_MEMORY_LOCATION_{place}",
        )
        for counter, kind, names in _ECC_COUNTERS
        for place in ("DRAM", "SRAM")
    ),
)


class NvmlCards:
    """Cards that NVML knows, by the numbers that it gives them."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles = NvmlHandles(nvml)
        self._lasting: dict[str, Facts] = {}
        self._passing: dict[str, tuple[float, Readings]] = {}
        self._lock = asyncio.Lock()

    async def versions(self) -> Mapping[str, str]:
        nvml = self._nvml
        said = {
            "driver-version": attempt(lambda: _text(nvml.nvmlSystemGetDriverVersion()), ""),
            "nvml-version": attempt(lambda: _text(nvml.nvmlSystemGetNVMLVersion()), ""),
            "cuda-version": attempt(
                lambda: str(_number(nvml.nvmlSystemGetCudaDriverVersion())), ""
            ),
        }
        return {key: text for key, text in said.items() if _is_version(key, text)}

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
        return self._handles.of(device.uuid)

    def _read(self, device: Device, readers: Sequence[Reader]) -> Facts:
        found: Facts = {}
        nothing: Facts = {}
        for reader in readers:
            found |= attempt(partial(self._one_fact, reader, device), nothing)
        return {word: value for word, value in found.items() if _is_fact(word, value)}

    def _one_fact(self, reader: Reader, device: Device) -> Facts:
        return reader(self._nvml, self._card(device))

    def _processes(self, device: Device) -> Mapping[int, int]:
        return attempt(partial(self._running, device), {})

    def _running(self, device: Device) -> Mapping[int, int]:
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._card(device))
        return {p.pid: p.usedGpuMemory for p in found if isinstance(p.usedGpuMemory, int)}

    def _pairs(self, device: Device, all_devices: Sequence[Device]) -> Facts:
        peers = topology = ""
        for other in all_devices:
            same = other == device
            peers += "0" if same else attempt(partial(self._peer, device, other), UNKNOWN)
            topology += "0" if same else attempt(partial(self._level, device, other), UNKNOWN)
        return {"peers": peers, "topology": topology}

    def _peer(self, device: Device, other: Device) -> str:
        """Whether the one can read the other's memory."""
        nvml = self._nvml
        # In pynvml 13.580 and 13.615 this constant is a tuple, by a comma too many.
        index = _number(nvml.NVML_P2P_CAPS_INDEX_READ)
        status = nvml.nvmlDeviceGetP2PStatus(self._card(device), self._card(other), index)
        return str(int(_number(status) == _number(nvml.NVML_P2P_STATUS_OK)))

    def _level(self, device: Device, other: Device) -> str:
        """The level of NVML's topology at which they meet, in tens."""
        one, two = self._card(device), self._card(other)
        level = str(_number(self._nvml.nvmlDeviceGetTopologyCommonAncestor(one, two)) // 10)
        return level if level in LEVELS else UNKNOWN


def _is_version(key: str, text: str) -> bool:
    if key == "cuda-version":
        return text.isdecimal() and int(text) < 1 << 31
    return bool(text) and text.isprintable() and len(text.encode()) < _VERSION_ROOM
