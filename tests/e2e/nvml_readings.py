"""What a poller reads of the first device, by pynvml, as a line of JSON (test_nvml_readings.py)."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import pynvml as nv

CLOCKS = {
    "graphics": nv.NVML_CLOCK_GRAPHICS,
    "sm": nv.NVML_CLOCK_SM,
    "memory": nv.NVML_CLOCK_MEM,
    "video": nv.NVML_CLOCK_VIDEO,
}
KINDS = {
    "": nv.nvmlDeviceGetClockInfo,
    "-max": nv.nvmlDeviceGetMaxClockInfo,
    "-application": nv.nvmlDeviceGetApplicationsClock,
    "-default": nv.nvmlDeviceGetDefaultApplicationsClock,
    "-boost": nv.nvmlDeviceGetMaxCustomerBoostClock,
}
#: Functions that give one number, by the fact that it is.
PLAIN = {
    "power-management": nv.nvmlDeviceGetPowerManagementMode,
    "accounting-buffer": nv.nvmlDeviceGetAccountingBufferSize,
    "pcie-speed-max": nv.nvmlDeviceGetPcieLinkMaxSpeed,
    "pcie-speed": nv.nvmlDeviceGetPcieSpeed,
    "clock-reasons-supported": nv.nvmlDeviceGetSupportedClocksEventReasons,
    "temperature-margin": nv.nvmlDeviceGetMarginTemperature,
    "inforom-image": nv.nvmlDeviceGetInforomImageVersion,
}
ENGINES = {
    "utilisation-encoder": nv.nvmlDeviceGetEncoderUtilization,
    "utilisation-decoder": nv.nvmlDeviceGetDecoderUtilization,
    "utilisation-jpeg": nv.nvmlDeviceGetJpgUtilization,
    "utilisation-ofa": nv.nvmlDeviceGetOfaUtilization,
}


def facts(card: Any) -> dict[str, Any]:
    """Values by the words of proto/spec_nvml/facts.toml."""
    found: dict[str, Any] = {word: read(card) for word, read in PLAIN.items()}
    found |= {word: read(card)[0] for word, read in ENGINES.items()}
    for kind, read in KINDS.items():
        found |= {f"clock-{name}{kind}": read(card, clock) for name, clock in CLOCKS.items()}
    for number, part in enumerate(("oem", "ecc", "power")):
        found[f"inforom-{part}"] = nv.nvmlDeviceGetInforomVersion(card, number)
    found["gsp"], found["gsp-default"] = nv.nvmlDeviceGetGspFirmwareMode(card)
    rows = nv.nvmlDeviceGetRemappedRows(card)
    named = zip(("corrected", "uncorrected", "pending", "failed"), rows, strict=True)
    found |= {f"rows-{name}": value for name, value in named}
    banks = nv.nvmlDeviceGetRowRemapperHistogram(card)
    left = ("max", "high", "partial", "low", "none")
    found |= {f"rows-{name}": getattr(banks, name) for name in left}
    for counter, counted in enumerate(("volatile", "aggregate")):
        for error, kind in enumerate(("corrected", "uncorrected")):
            for place, number in (("dram", 2), ("sram", 7)):
                read = nv.nvmlDeviceGetMemoryErrorCounter(card, error, counter, number)
                found[f"ecc-{counted}-{kind}-{place}"] = read
    found["addressing"] = addressing(card)
    found["temperature-memory"] = field(card, nv.NVML_FI_DEV_MEMORY_TEMP)
    return found


def addressing(card: Any) -> int:
    """pynvml gives its structure no version, which NVML wants."""
    words = (ctypes.c_uint * 2)(8 | 1 << 24)
    result = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetAddressingMode(card, words)
    nv._nvmlCheckReturn(result)
    return int(words[1])


def field(card: Any, number: int) -> int:
    (value,) = nv.nvmlDeviceGetFieldValues(card, [number])
    nv._nvmlCheckReturn(value.nvmlReturn)
    return int(value.value.uiVal)


def nothing(card: Any) -> dict[str, Any]:
    """What a tenant has none of."""
    frames = nv.nvmlDeviceGetFBCStats(card)
    return {
        "encoder": nv.nvmlDeviceGetEncoderStats(card),
        "frames": [frames.sessionsCount, frames.averageFPS, frames.averageLatency],
        "sessions": [count(card, "Encoder"), count(card, "FBC")],
    }


def count(card: Any, of: str) -> int:
    """Without pynvml, which passes a null pointer for none."""
    sessions = ctypes.c_uint(7)
    library = ctypes.CDLL("libnvidia-ml.so.1")
    call = getattr(library, f"nvmlDeviceGet{of}Sessions")
    nv._nvmlCheckReturn(call(card, ctypes.byref(sessions), None))
    return sessions.value


def wrong(card: Any) -> dict[str, str]:
    """The errors of wrong arguments."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    words, text = (ctypes.c_uint * 4)(), ctypes.create_string_buffer(32)
    short, total = ctypes.c_uint(2), ctypes.c_ulonglong()
    calls = {
        "clock": ("nvmlDeviceGetClock", card, 0, 9, words),
        "no clock": ("nvmlDeviceGetApplicationsClock", card, 0, None),
        "place": ("nvmlDeviceGetMemoryErrorCounter", card, 0, 0, 1, ctypes.byref(total)),
        "no place": ("nvmlDeviceGetMemoryErrorCounter", card, 0, 0, 8, ctypes.byref(total)),
        "part": ("nvmlDeviceGetInforomVersion", card, 3, text, 32),
        "no part": ("nvmlDeviceGetInforomVersion", card, 4, text, 32),
        "no room": ("nvmlDeviceGetInforomVersion", card, 0, text, short),
        "margin": ("nvmlDeviceGetMarginTemperature", card, words),
        "addressing": ("nvmlDeviceGetAddressingMode", card, words),
        "no rows": ("nvmlDeviceGetRemappedRows", card, words, words, words, None),
    }
    found = {}
    for name, (function, *arguments) in calls.items():
        try:
            nv._nvmlCheckReturn(getattr(library, str(function))(*arguments))
            found[name] = "success"
        except nv.NVMLError as error:
            found[name] = type(error).__name__.removeprefix("NVMLError_")
    return found


def main() -> None:
    nv.nvmlInit()
    card = nv.nvmlDeviceGetHandleByIndex(0)
    print(json.dumps({"facts": facts(card), "nothing": nothing(card), "wrong": wrong(card)}))


if __name__ == "__main__":
    main()
