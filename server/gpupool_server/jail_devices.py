"""The device nodes, and the files of the kernel, that a worker's driver needs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpupool_server.device import Device
from gpupool_server.inventory import Inventory

#: Nodes that belong to no GPU.
COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")

#: What the driver reads of the machine: processors, memory nodes, the PCI tree.
READ = (
    *("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/bus/pci", "/sys/module/nvidia"),
    "/sys/class/pci_bus",  # by which NCCL finds out what lies between GPUs
)

_MINOR = re.compile(r"^Device Minor:\s*([0-9]{1,4})\s*$", re.MULTILINE)
_CAPABILITY = re.compile(r"^DeviceFileMinor:\s*([0-9]{1,7})\s*$", re.MULTILINE)
_PROC = Path("/proc/driver/nvidia/gpus")
_CAPABILITIES = Path("/proc/driver/nvidia/capabilities")


def node_of(device: Device, proc: Path = _PROC) -> str | None:
    """The node of a GPU, whose number is not its index; None if the kernel does not say."""
    domain, _, rest = device.pci.lower().partition(":")
    for name in (device.pci.lower(), f"{domain[-4:]}:{rest}"):
        try:
            found = _MINOR.search((proc / name / "information").read_text(errors="replace"))
        except OSError:
            continue
        if found is not None:
            return f"/dev/nvidia{int(found[1])}"
    return None


def capability_nodes(device: Device, node: str, proc: Path = _CAPABILITIES) -> list[str] | None:
    """The nodes by which the driver knows who may use an instance; None if the kernel does not
    say. There are two, for the GPU instance and for the compute instance in it."""
    if device.instance is None:
        return []
    gpu = proc / f"gpu{node.removeprefix('/dev/nvidia')}" / "mig"
    own = gpu / f"gi{device.instance.gpu_instance}"
    found: list[str] = []
    for place in (own, own / f"ci{device.instance.compute_instance}"):
        try:
            minor = _CAPABILITY.search((place / "access").read_text(errors="replace"))
        except OSError:
            minor = None
        if minor is None:
            return None
        found.append(f"/dev/nvidia-caps/nvidia-cap{int(minor[1])}")
    return found


def _own_nodes(device: Device) -> list[str] | None:
    node = node_of(device)
    more = None if node is None else capability_nodes(device, node)
    return None if node is None or more is None else [node, *more]


def nodes(inventory: Inventory, indexes: Sequence[int]) -> tuple[list[str], str]:
    """The nodes for a session on these GPUs; or none, and why."""
    if inventory.kind != "cuda":
        return [], ""
    chosen = [device for device in inventory.devices if device.index in indexes]
    known = [_own_nodes(device) for device in chosen]
    own = list(dict.fromkeys(node for each in known if each is not None for node in each))
    if None in known or len(known) != len(indexes):
        return [], "the kernel does not say which nodes in /dev are of which GPU"
    found = [node for node in (*own, *COMMON) if Path(node).exists()]
    missing = [node for node in own if node not in found]
    if missing:
        return [], f"{missing[0]} does not exist"
    return found, ""


def ordinals(inventory: Inventory, indexes: Sequence[int], there: Sequence[int]) -> list[int]:
    """A session's GPUs as its driver counts them, which in a jail sees those that are ``there``.

    A soft GPU needs no node: there all are seen.
    """
    if inventory.kind != "cuda" or inventory.divided:
        return inventory.ordinals(indexes)
    counted = sorted(there)
    return [counted.index(index) for index in indexes]


def load_uvm() -> None:
    """Have the nodes of unified memory made, which a worker in a jail cannot do by itself."""
    program = shutil.which("nvidia-modprobe")
    if program is not None and not Path(COMMON[1]).exists():
        subprocess.run([program, "-u", "-c=0"], capture_output=True, timeout=30.0, check=False)


def kernel_files() -> list[str]:
    """What of /sys a worker with a real driver sees, read-only."""
    trees = sorted(map(str, Path("/sys/devices").glob("pci*")))
    return [path for path in (*READ, *trees) if Path(path).exists()]
