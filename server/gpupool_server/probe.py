"""Ask a driver library which devices it has, in a process of its own.

``python -m gpupool_server.probe PATH`` prints one JSON list. A library that
crashes, hangs or keeps state does so away from the server.
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid
from typing import Any

from gpupool_common.models import is_instance

_PCI_DOMAIN, _PCI_BUS, _PCI_DEVICE = 50, 33, 34
_MAJOR, _MINOR = 75, 76


class ProbeError(Exception):
    """The driver library answered a question with an error."""


class _Driver:
    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)

    def call(self, name: str, *arguments: Any) -> None:
        result = int(getattr(self._library, name)(*arguments))
        if result != 0:
            raise ProbeError(f"{name} answered error {result}")

    def attribute(self, device: ctypes.c_int, attribute: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        return value.value

    def describe(self, index: int) -> dict[str, Any]:
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), index)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 255, device)
        memory = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        ident = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", ident, device)
        domain, bus, slot = (
            self.attribute(device, number) for number in (_PCI_DOMAIN, _PCI_BUS, _PCI_DEVICE)
        )
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        model = name.value.decode("utf-8", errors="replace")
        kind = "MIG" if is_instance(model) else "GPU"
        return {
            "index": index,
            "name": model,
            "uuid": f"{kind}-{uuid.UUID(bytes=bytes(ident))}",
            "memory_bytes": memory.value,
            "pci": f"{domain:08x}:{bus:02x}:{slot:02x}.0",
            "driver": f"{version.value // 1000}.{version.value % 1000 // 10}",
            "capability": f"{self.attribute(device, _MAJOR)}.{self.attribute(device, _MINOR)}",
        }


def probe(path: str) -> list[dict[str, Any]]:
    """Load the library at ``path`` into this process and describe its devices."""
    driver = _Driver(path)
    driver.call("cuInit", 0)
    count = ctypes.c_int()
    driver.call("cuDeviceGetCount", ctypes.byref(count))
    return [driver.describe(index) for index in range(count.value)]


def _main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m gpupool_server.probe PATH")
    try:
        print(json.dumps(probe(sys.argv[1])))
    except (OSError, AttributeError, ProbeError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
