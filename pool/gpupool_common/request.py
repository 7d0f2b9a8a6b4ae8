"""What a program asks of the GPUs it gets: variables of its environment, as limits.

The client sends the variables as written and the server reads them here; `gpupool run`
reads them here as well, so that a mistake is found before the program starts. Nothing here
is a limit: the server checks every field against the tenant's quota.

The names of gpupool come first. Without any of them, those of cGPU and of vCUDA are
read, with the meaning they have there. An empty variable is an absent one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpupool_common.errors import ConfigError
from gpupool_common.request_variables import (
    CEILING,
    CGPU,
    CGPU_CONTAINER,
    CGPU_DEV,
    CGPU_DEVICES,
    CGPU_DISABLE,
    CGPU_PRIORITY,
    CGPU_WEIGHT,
    DEVICES,
    GPUS,
    GROUP,
    MEMORY,
    OWN,
    PRIORITY,
    SHARE,
    VARIABLES,
    VCUDA,
    VCUDA_CORE,
    VCUDA_MEMORY,
    WEIGHT,
)
from gpupool_common.sizes import LARGEST, WHOLE_GPU, parse_part, parse_size

#: The key of each variable in a question: GPUPOOL_MEMORY is ``gpupool-memory``.
KEYS = {name.lower().replace("_", "-"): name for name in VARIABLES}

MAX_GPUS = 64
MAX_WEIGHT = 25
MEBIBYTE = 1 << 20
VCUDA_UNIT = 256 * MEBIBYTE
VCUDA_CARD = 100
WHOLE = "1/1"

_BLANKS = " \t\r\n"
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,32}")
_UUID = re.compile(r"(GPU-)?[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_NUMBER = re.compile(r"[0-9]{1,10}")


def quote(text: str) -> str:
    """``text`` as an error shows it: printable ASCII, and not all of it if it is long."""
    data = text.encode("utf-8", errors="surrogateescape")
    shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "?" for byte in data[:40])
    return f"'{shown}...'" if len(data) > 40 else f"'{shown}'"


@dataclass(frozen=True)
class _Reader:
    """The variables, and what an error calls them (an option, where one set them)."""

    env: Mapping[str, str]
    names: Mapping[str, str]

    def get(self, variable: str) -> str:
        return self.env.get(variable, "").strip(_BLANKS)

    def any_of(self, variables: tuple[str, ...]) -> str | None:
        return next((variable for variable in variables if self.get(variable)), None)

    def name(self, variable: str) -> str:
        return self.names.get(variable, variable)

    def error(self, variable: str, why: str) -> ConfigError:
        return ConfigError(f"{self.name(variable)}: {quote(self.get(variable))} {why}")

    def number(self, variable: str, low: int, high: int) -> int:
        text = self.get(variable)
        if _NUMBER.fullmatch(text) is None or not low <= int(text) <= high:
            raise self.error(variable, f"is not a whole number {low}..{high}")
        return int(text)

    def size(self, variable: str) -> int:
        text = self.get(variable)
        try:
            size = parse_size(text) if text.isascii() and text.isprintable() else 0
        except ValueError:
            size = 0
        if not MEBIBYTE <= size <= LARGEST:
            raise self.error(
                variable, "is not a size; write e.g. 8GiB, 512MiB or bytes (at least 1MiB)"
            )
        return size

    def permille(self, variable: str) -> int:
        text = self.get(variable)
        try:
            value = parse_part(text) if text.isascii() and text.isprintable() else 0
        except ValueError:
            value = 0
        if not 1 <= value <= WHOLE_GPU:
            raise self.error(variable, "is not a part of a GPU; write e.g. 50% or 0.5 (0.1%..100%)")
        return value

    def devices(self, variable: str) -> str:
        parts = [part.strip(_BLANKS) for part in self.get(variable).split(",")]
        for part in parts:
            index = _NUMBER.fullmatch(part) is not None and int(part) < MAX_GPUS
            if not index and _UUID.fullmatch(part) is None:
                raise self.error(variable, "is not a list of GPU indexes (0..63) or UUIDs")
        if len(parts) > MAX_GPUS:
            raise self.error(variable, f"names more than {MAX_GPUS} GPUs")
        return ",".join(parts)


def fields(env: Mapping[str, str], names: Mapping[str, str] | None = None) -> dict[str, str]:
    """The request in ``env`` as fields of the hello; ConfigError says what is wrong with it."""
    reader = _Reader(env, names or {})
    found: dict[str, str] = {}
    if reader.get(GROUP):
        if _GROUP.fullmatch(reader.get(GROUP)) is None:
            raise reader.error(GROUP, "is not a name of 1..32 of A-Z a-z 0-9 . _ -")
        found["group"] = reader.get(GROUP)
    if reader.any_of(OWN):
        return found | _own(reader)
    cgpu, vcuda = _cgpu_asked(reader), reader.any_of(VCUDA)
    if cgpu and vcuda:
        raise ConfigError(
            f"{reader.name(cgpu)} and {reader.name(vcuda)} both ask for GPUs; unset one of them"
        )
    if cgpu:
        return found | _cgpu(reader)
    return found | _vcuda(reader) if vcuda else found


#: The variables that each field of a request comes from.
_SOURCES = {
    "group": (GROUP,),
    "gpus": (GPUS, VCUDA_CORE),
    "devices": (DEVICES, CGPU_DEVICES),
    "memory": (MEMORY, VCUDA_MEMORY),
    "memory-fraction": (CGPU_CONTAINER, *CGPU, VCUDA_MEMORY),
    "share": (SHARE, VCUDA_CORE),
    "ceiling": (CEILING, VCUDA_CORE),
    "weight": (WEIGHT, CGPU_WEIGHT),
    "policy": (CGPU_WEIGHT,),
    "priority": (PRIORITY, CGPU_PRIORITY),
}


def source(field: str, env: Mapping[str, str]) -> str:
    """The variable of ``env`` that asks for a request's field; its own name if none does."""
    return next((name for name in _SOURCES.get(field, ()) if env.get(name)), field)


def variables(question: Mapping[str, str]) -> dict[str, str]:
    """The variables that a question brings."""
    return {KEYS[key]: value for key, value in question.items() if key in KEYS}


def has_limits(asked: Mapping[str, str]) -> bool:
    """Whether fields hold a request that a group of processes is to share."""
    return any(key not in ("group", "gpus", "devices") for key in asked)


def _own(reader: _Reader) -> dict[str, str]:
    found: dict[str, str] = {}
    if reader.get(GPUS):
        found["gpus"] = str(reader.number(GPUS, 1, MAX_GPUS))
    if reader.get(DEVICES):
        found["devices"] = reader.devices(DEVICES)
    if reader.get(MEMORY):
        found["memory"] = str(reader.size(MEMORY))
    if reader.get(SHARE):
        found["share"] = str(reader.permille(SHARE))
    if reader.get(CEILING):
        ceiling = reader.permille(CEILING)
        if ceiling < int(found.get("share", "0")):
            raise reader.error(CEILING, f"is less than {reader.name(SHARE)}")
        found["ceiling"] = str(ceiling)
    if reader.get(WEIGHT):
        found["weight"] = str(reader.number(WEIGHT, 0, MAX_WEIGHT))
    if reader.get(PRIORITY):
        if reader.get(PRIORITY) not in ("high", "normal"):
            raise reader.error(PRIORITY, "is neither high nor normal")
        found["priority"] = "1" if reader.get(PRIORITY) == "high" else "0"
    return found


def _cgpu_asked(reader: _Reader) -> str | None:
    """The first of cGPU's names that asks for something; a CGPU_DISABLE of 'false' does not."""
    if reader.get(CGPU_DISABLE) and _disabled(reader):
        return CGPU_DISABLE
    return reader.any_of(CGPU[:-1])


def _disabled(reader: _Reader) -> bool:
    text = reader.get(CGPU_DISABLE)
    if text not in ("true", "1", "false", "0", ""):
        raise reader.error(CGPU_DISABLE, "is not one of true, 1, false, 0")
    return text in ("true", "1")


def _cgpu(reader: _Reader) -> dict[str, str]:
    found: dict[str, str] = {}
    if reader.get(CGPU_DEVICES):
        found["devices"] = reader.devices(CGPU_DEVICES)
    found["memory-fraction"] = _cgpu_memory(reader)
    if reader.get(CGPU_WEIGHT):
        weight = reader.number(CGPU_WEIGHT, 1, MAX_WEIGHT)
        found["weight"] = str(weight)
        if weight > 1:
            found["policy"] = "weighted"
    if reader.get(CGPU_PRIORITY):
        found["priority"] = str(reader.number(CGPU_PRIORITY, 0, 1))
    return found


def _cgpu_memory(reader: _Reader) -> str:
    """CONTAINER/DEV of each card; the server multiplies by what a card has."""
    card = reader.number(CGPU_DEV, 1, 65536) if reader.get(CGPU_DEV) else None
    values = _cgpu_list(reader, card)
    if _disabled(reader) or not values or 0 in values:
        return WHOLE
    if card is None:
        raise ConfigError(f"{reader.name(CGPU_CONTAINER)} needs {reader.name(CGPU_DEV)} beside it")
    return ",".join(f"{value}/{card}" for value in values)


def _cgpu_list(reader: _Reader, card: int | None) -> list[int]:
    text = reader.get(CGPU_CONTAINER)
    if not text:
        return []
    parts = [part.strip(_BLANKS) for part in text.split(",")]
    if len(parts) > MAX_GPUS:
        raise reader.error(CGPU_CONTAINER, f"names more than {MAX_GPUS} GPUs")
    if any(_NUMBER.fullmatch(part) is None or int(part) > 65536 for part in parts):
        raise reader.error(CGPU_CONTAINER, "is not a list of whole GiB such as 6 or 3,1")
    values = [int(part) for part in parts]
    if card is not None and max(values) > card:
        raise reader.error(
            CGPU_CONTAINER, f"is more than the {card} GiB of {reader.name(CGPU_DEV)}"
        )
    return values


def _vcuda(reader: _Reader) -> dict[str, str]:
    for absent, present in (VCUDA, VCUDA[::-1]):
        if not reader.get(absent):
            raise ConfigError(f"{reader.name(present)} needs {reader.name(absent)} beside it")
    core = reader.number(VCUDA_CORE, 1, VCUDA_CARD * MAX_GPUS)
    if core > VCUDA_CARD and core % VCUDA_CARD:
        raise reader.error(VCUDA_CORE, "is neither 1..99 nor a multiple of 100 (whole GPUs)")
    memory = reader.number(VCUDA_MEMORY, 1, LARGEST // VCUDA_UNIT)
    if core >= VCUDA_CARD:
        return {"gpus": str(core // VCUDA_CARD), "memory-fraction": WHOLE, "share": "1000"}
    # Never more than was asked: what it borrows up to is what it has.
    share = str(core * 10)
    return {"memory": str(memory * VCUDA_UNIT), "share": share, "ceiling": share}


def expand(question: Mapping[str, str]) -> dict[str, str]:
    """A question's fields with those of its variables in their place; ConfigError."""
    others = {key: value for key, value in question.items() if key not in KEYS}
    asked = fields(variables(question))
    for key in asked:
        if key in others:
            raise ConfigError(f"'{key}' is requested twice: by a variable and by a field")
    return others | asked
