"""The cards of this host, as NVML lists them: those that answer, and those that are lost.

NVML goes on counting a card that has fallen off the bus, and has no handle for it. What it was is
known from the server before this one, if that has served it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpupool_common import logs
from gpupool_common.protocol import one_line
from gpupool_server import mig
from gpupool_server.device import Device, Instance
from gpupool_server.nvml_handles import text, why_lost

T = TypeVar("T", Device, Instance)

_log = logs.get("inventory")


@dataclass(frozen=True)
class Listed:
    """The cards of a host: also those of ``lost`` (why, by index) that were known before."""

    devices: tuple[Device, ...]
    lost: Mapping[int, str]
    #: Whether MIG divides one of them.
    divided: bool = False


class KnownCards:
    """RUN/gpus/cards.json: what a server says of its real cards to the next one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "cards.json"

    def load(self) -> tuple[Device, ...]:
        try:
            return tuple(map(_read, json.loads(self._path.read_text(encoding="utf-8"))))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError) as error:
            _log.warning("what cards there were cannot be read", reason=str(error)[:200])
            return ()

    def save(self, devices: Sequence[Device]) -> None:
        draft = self._path.with_suffix(".new")
        try:
            draft.write_text(json.dumps([each.as_dict() for each in devices]), encoding="utf-8")
            draft.rename(self._path)
        except OSError as error:
            _log.error("what cards there are cannot be saved", reason=str(error))


def _read(raw: dict[str, Any]) -> Device:
    device = Device(**raw)
    if raw.get("instance") is not None:
        device = dataclasses.replace(device, instance=_checked(Instance(**raw["instance"])))
    return _checked(device)


def _checked(read: T) -> T:
    """ValueError unless each field has its type: a file may say anything."""
    for field in dataclasses.fields(read):
        wanted = {"int": int, "str": str}.get(str(field.type))
        if wanted is not None and not isinstance(getattr(read, field.name), wanted):
            raise ValueError(f"'{field.name}' of a card is no {wanted.__name__}")
    return read


def nvml_devices(known: Sequence[Device] = ()) -> Listed | None:
    """The devices that NVML lists; None if there is no NVML or it does not work.

    ``known`` are those that were there before, of which one may be lost now.
    """
    try:
        import pynvml
    except ImportError:
        return None
    # Whatever goes wrong in it, an error of NVML or not: the driver itself is asked then.
    try:
        pynvml.nvmlInit()
        return _list(pynvml, known)
    except Exception as error:
        _log.info("NVML does not list the GPUs", reason=repr(error))
        return None
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()


def _list(nvml: Any, known: Sequence[Device]) -> Listed:
    found: dict[int, Device] = {}
    lost: dict[int, str] = {}
    divided = False
    first: BaseException | None = None
    count = nvml.nvmlDeviceGetCount()
    for index in range(count):
        try:
            card, instances = _card(nvml, index, count)
            divided = divided or instances is not None
            found |= {each.index: each for each in ((card,) if instances is None else instances)}
        except _LostError as error:
            lost[index] = str(error)
            first = first or error.__cause__ or error
    if first is not None and not found:
        raise first  # it is NVML that does not work, and no card of several
    there = {device.uuid for device in found.values()}
    for index, why in dict(lost).items():
        before = [each for each in known if each.card == index and each.uuid not in there]
        found |= {each.index: each for each in before}
        lost |= {each.index: why for each in before}
        named = ", ".join(f"{each.name} {each.uuid}" for each in before) or "not served before"
        _log.error("a GPU is lost; the others are served", gpu=index, card=named, reason=why)
    return Listed(tuple(found[index] for index in sorted(found)), lost, divided)


class _LostError(Exception):
    """Of one card alone."""


def _card(nvml: Any, index: int, cards: int) -> tuple[Device, tuple[Device, ...] | None]:
    """A card, and its instances if it is divided."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        # Drivers say "GPU is lost" here, or "Unknown Error".
        why = why_lost(nvml, error) or f"NVML has no handle for it: {one_line(str(error))[:80]}"
        raise _LostError(why) from error
    try:
        card = _described(nvml, index, handle)
        return card, mig.instances(nvml, card, handle, cards)
    except Exception as error:
        if (known := why_lost(nvml, error)) is None:
            raise
        raise _LostError(known) from error


def _described(nvml: Any, index: int, handle: Any) -> Device:
    return Device(
        index=index,
        name=text(nvml.nvmlDeviceGetName(handle)),
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        pci=text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower(),
        capability=_capability(nvml, handle),
        driver=_driver(nvml),
    )


def _driver(nvml: Any) -> str:
    try:
        version = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except Exception:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"


def _capability(nvml: Any, handle: Any) -> str:
    """Only a pool asks for it; a driver that does not say is no reason not to serve."""
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return f"{int(major)}.{int(minor)}"
    except Exception:
        return "0.0"
