"""What gpupool-jail says of the layers of a jail, read with checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpupool_server.worker import WorkerError

#: All layers, in the order in which the starter makes them (server/jail/jail.h).
LAYERS = (
    *("descriptors", "user-namespace", "pid", "ipc", "net", "collectives", "uts", "mount"),
    *("cgroup", "root", "devices", "proc", "rlimits", "uid", "capabilities", "no-new-privs"),
    *("environment", "seccomp"),
)

#: Layers that a server need not have for --confinement=required: another does the same.
NOT_NEEDED = ("user-namespace",)

#: Of a layer that is for those who ask for it.
NOT_CHOSEN = "nothing is chosen for it, see [collectives]"

#: Far more than a starter says.
MOST_BYTES = 65536

_LAYER = re.compile(r"layer ([a-z-]{1,20}) (?:(on)|off (.{1,300}))")
_NUMBER = re.compile(r"(holder|pid|cost-us) ([0-9]{1,10})")


def lacks(layer: str, state: str) -> bool:
    """Whether something is missing where a layer is in this state."""
    return state not in ("on", f"off: {NOT_CHOSEN}") and layer not in NOT_NEEDED


@dataclass
class Report:
    """One start: each layer is ``on``, or ``off: REASON``."""

    layers: dict[str, str] = field(default_factory=dict)
    #: Pids as the server sees them; 0: none was made.
    holder: int = 0
    pid: int = 0
    #: Microseconds that the jail took.
    cost_us: int = 0
    error: str = ""

    @property
    def off(self) -> dict[str, str]:
        """The layers that are off, each with the reason."""
        return {n: s.removeprefix("off: ") for n, s in self.layers.items() if s != "on"}


@dataclass(frozen=True)
class Confined:
    """What the next server must know of a worker's jail."""

    layers: Mapping[str, str] = field(default_factory=dict)
    lease: str = ""
    uid: int = 0
    holder: int = 0
    holder_start: int = 0
    cost_us: int = 0

    @classmethod
    def parse(cls, raw: Any) -> Confined:
        """ValueError, TypeError or KeyError if a record is not one."""
        if not isinstance(raw, dict) or not raw:
            return cls()
        layers = {str(name): str(state) for name, state in raw["layers"].items()}
        numbers = {key: int(raw[key]) for key in ("uid", "holder", "holder_start", "cost_us")}
        if min(numbers.values()) < 0 or not layers.keys() <= set(LAYERS):
            raise ValueError("its jail is wrong")
        return cls(layers=layers, lease=str(raw["lease"]), **numbers)


def parse(said: bytes) -> Report:
    """The report in what a starter has said; WorkerError if it is anything else."""
    report = Report()
    for line in said.decode("utf-8", errors="replace").splitlines():
        if (layer := _LAYER.fullmatch(line)) and layer[1] in LAYERS:
            report.layers[layer[1]] = layer[2] or f"off: {layer[3]}"
        elif number := _NUMBER.fullmatch(line):
            setattr(report, number[1].replace("-", "_"), int(number[2]))
        elif line.startswith("error ") and line.isprintable():
            report.error = line.removeprefix("error ")
        else:
            raise WorkerError(f"gpupool-jail says what nobody expects: {line[:80]!r}")
    return report
