"""A pynvml of a host with two cards that are joined by NVLinks: everything that we ask of it.

Its constants and the shapes of its answers are those of nvidia-ml-py 13.615, mistakes and all.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30
UUIDS = ("GPU-00000000", "GPU-00000001")
LINKS = 4


class NvmlError(Exception):
    """Stands for pynvml.NVMLError."""


class TwoCards:
    """``broken`` names a function that does ``breaking`` instead of answering."""

    NVMLError = NvmlError
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = 15, 16
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO = range(4)
    NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_TEMPERATURE_THRESHOLD_MEM_MAX = 2
    NVML_TEMPERATURE_THRESHOLD_GPU_MAX = 3
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_AGGREGATE_ECC = 1
    NVML_MEMORY_LOCATION_DRAM = 2
    NVML_MEMORY_LOCATION_SRAM = 7
    NVML_FI_DEV_MEMORY_TEMP = 82
    NVML_INFOROM_OEM, NVML_INFOROM_ECC, NVML_INFOROM_POWER = range(3)
    NVML_P2P_STATUS_OK = 0
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_ERROR_NOT_FOUND = 6
    # There it is written with a comma behind it.
    NVML_P2P_CAPS_INDEX_READ = (0,)
    nvmlMemory_v2 = 0x02000028

    def __init__(self, broken: str = "", breaking: Callable[..., Any] | None = None) -> None:
        self.asked: set[str] = set()
        self._broken = broken
        self._breaking = breaking

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name != "nvmlMemory_v2":
            self.asked.add(name)
            if name == self._broken and self._breaking is not None:
                return self._breaking
        return super().__getattribute__(name)

    # The host ---------------------------------------------------------------

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(UUIDS)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.03"

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "13.580.159.03"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return range(len(UUIDS))[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return UUIDS.index(uuid)

    # Pairs ------------------------------------------------------------------

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        return 0 if _c_uint(index) == 0 else 6

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return 0 if one == other else 30

    def nvmlDeviceGetNvLinkState(self, card: int, link: int) -> int:
        if _c_uint(link) >= LINKS:
            raise NvmlError("Not Supported")
        return 1

    def nvmlDeviceGetNvLinkVersion(self, card: int, link: int) -> int:
        return 5

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: int, link: int) -> Any:
        return SimpleNamespace(busId=f"00000000:0{1 - card}:00.0")

    # One card ---------------------------------------------------------------

    def nvmlDeviceGetName(self, card: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetUUID(self, card: int) -> str:
        return UUIDS[card]

    def nvmlDeviceGetPciInfo(self, card: int) -> Any:
        return SimpleNamespace(busId=f"00000000:0{card}:00.0", pciDeviceId=1, pciSubSystemId=2)

    def nvmlDeviceGetMemoryInfo(self, card: int, version: int | None = None) -> Any:
        return SimpleNamespace(total=141 * GIB, reserved=GIB, free=139 * GIB, used=GIB)

    def nvmlDeviceGetBAR1MemoryInfo(self, card: int) -> Any:
        return SimpleNamespace(bar1Total=256 * GIB, bar1Used=GIB, bar1Free=255 * GIB)

    def nvmlDeviceGetUtilizationRates(self, card: int) -> Any:
        return SimpleNamespace(gpu=50 + card, memory=10)

    def nvmlDeviceGetCudaComputeCapability(self, card: int) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetMigMode(self, card: int) -> list[int]:
        return [0, 0]

    def nvmlDeviceGetEccMode(self, card: int) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetDefaultEccMode(self, card: int) -> list[int]:
        return [1]

    def nvmlDeviceGetPowerManagementLimitConstraints(self, card: int) -> list[int]:
        return [200_000, 700_000]

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[Any]:
        return [
            SimpleNamespace(pid=120, usedGpuMemory=7 * GIB),
            SimpleNamespace(pid=130, usedGpuMemory=None),
        ]

    def nvmlDeviceGetTemperature(self, card: int, sensor: int) -> int:
        return 40 + _c_uint(sensor)

    def nvmlDeviceGetTemperatureThreshold(self, card: int, threshold: int) -> int:
        return 80 + _c_uint(threshold)

    def nvmlDeviceGetClockInfo(self, card: int, kind: int) -> int:
        return 1500 + _c_uint(kind)

    def nvmlDeviceGetMaxClockInfo(self, card: int, kind: int) -> int:
        return 1980 + _c_uint(kind)

    def nvmlDeviceGetTotalEccErrors(self, card: int, error: int, counter: int) -> int:
        return 2 * _c_uint(error) + _c_uint(counter)

    def nvmlDeviceGetMemoryErrorCounter(
        self, card: int, error: int, counter: int, place: int
    ) -> int:
        return 2 * _c_uint(error) + _c_uint(counter) + 10 * _c_uint(place)

    def nvmlDeviceGetApplicationsClock(self, card: int, kind: int) -> int:
        return 1700 + _c_uint(kind)

    def nvmlDeviceGetDefaultApplicationsClock(self, card: int, kind: int) -> int:
        return 1600 + _c_uint(kind)

    def nvmlDeviceGetMaxCustomerBoostClock(self, card: int, kind: int) -> int:
        return 1900 + _c_uint(kind)

    def nvmlDeviceGetEncoderUtilization(self, card: int) -> list[int]:
        return [11, 100_000]

    def nvmlDeviceGetDecoderUtilization(self, card: int) -> list[int]:
        return [12, 100_000]

    def nvmlDeviceGetJpgUtilization(self, card: int) -> list[int]:
        return [13, 100_000]

    def nvmlDeviceGetOfaUtilization(self, card: int) -> list[int]:
        return [14, 100_000]

    def nvmlDeviceGetRemappedRows(self, card: int) -> tuple[int, int, int, int]:
        return (1, 2, 0, 0)

    def nvmlDeviceGetRowRemapperHistogram(self, card: int) -> Any:
        return SimpleNamespace(max=2557, high=3, partial=2, low=1, none=0)

    def nvmlDeviceGetGspFirmwareMode(self, card: int) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetFieldValues(self, card: int, ids: list[int]) -> list[Any]:
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=50)) for _ in ids]

    def nvmlDeviceGetInforomImageVersion(self, card: int) -> str:
        return "G520.0280.00.01"

    def nvmlDeviceGetInforomVersion(self, card: int, part: int) -> str:
        return f"{2 + _c_uint(part)}.1"

    def nvmlDeviceGetVbiosVersion(self, card: int) -> str:
        return "96.00.99.00.01"

    def nvmlDeviceGetBoardPartNumber(self, card: int) -> str:
        return "692-2G520-0280-501"


def _c_uint(value: int) -> int:
    """What ctypes makes of an argument: a tuple is none."""
    if not isinstance(value, int):
        raise TypeError(f"Don't know how to convert parameter {value!r}")
    return value


def _number(name: str, value: int) -> None:
    def answer(self: TwoCards, card: int) -> int:
        return value

    setattr(TwoCards, name, answer)


for _place, _name in enumerate(
    (
        "nvmlDeviceGetNumGpuCores",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetBrand",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetBusType",
        "nvmlDeviceGetBoardId",
        "nvmlDeviceGetModuleId",
        "nvmlDeviceGetMemoryBusWidth",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetGpuMaxPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetNumFans",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetPerformanceState",
        "nvmlDeviceGetFanSpeed",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "nvmlDeviceGetCurrPcieLinkWidth",
        "nvmlDeviceGetPcieReplayCounter",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetPowerManagementMode",
        "nvmlDeviceGetAccountingBufferSize",
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetPcieLinkMaxSpeed",
        "nvmlDeviceGetSupportedClocksEventReasons",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetPcieSpeed",
    )
):
    _number(_name, _place)

FUNCTIONS = tuple(
    sorted(name for name in vars(TwoCards) if name.startswith("nvml") and name != "nvmlMemory_v2")
)
