"""The instances of a GPU that MIG divides: each is a device of its own, and the GPU is none."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from gpupool_common import logs
from gpupool_common.models import MIG, is_instance
from gpupool_common.sizes import WHOLE_GPU
from gpupool_server import nvml_handles
from gpupool_server.device import Device, Instance
from gpupool_server.device_indexes import MAX_DEVICES
from gpupool_server.nvml_handles import text

#: No model has more; so instances have the same numbers whatever the other cards are divided into.
PLACES = 7

_log = logs.get("inventory")


def instances(nvml: Any, card: Device, handle: Any, cards: int) -> tuple[Device, ...] | None:
    """Of a card of ``cards``; None: it is not divided. One that does not answer is left out."""
    listed = nvml_handles.instances(nvml, handle)
    if listed is None:
        return None
    found: list[Device] = []
    for place, part in listed:
        index = cards + card.index * PLACES + place
        if place >= PLACES or index >= MAX_DEVICES:
            _log.error("an instance is not served: there are too many", gpu=card.index, place=place)
            continue
        try:
            found.append(_described(nvml, card, handle, part, index))
        except Exception as error:
            if nvml_handles.why_lost(nvml, error) is not None:
                raise
            _log.error("an instance is not served", gpu=card.index, reason=repr(error)[:200])
    if not found:
        _log.warning("MIG is on, and there are no instances to serve", gpu=card.index)
    return _with_memory(found)


def _described(nvml: Any, card: Device, handle: Any, part: Any, index: int) -> Device:
    has = nvml.nvmlDeviceGetAttributes(part)
    most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    slices = int(has.computeInstanceSliceCount)
    name = text(nvml.nvmlDeviceGetName(part))
    return dataclasses.replace(
        card,
        index=index,
        name=name if is_instance(name) else f"{card.name}{MIG}{slices}g",
        uuid=text(nvml.nvmlDeviceGetUUID(part)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(part).total),
        instance=Instance(
            parent=card.uuid,
            card=card.index,
            share_permille=min(WHOLE_GPU * slices // int(most), WHOLE_GPU),
            gpu_instance=int(nvml.nvmlDeviceGetGpuInstanceId(part)),
            compute_instance=int(nvml.nvmlDeviceGetComputeInstanceId(part)),
        ),
    )


def _with_memory(found: list[Device]) -> tuple[Device, ...]:
    """Compute instances of one GPU instance share its memory: each has an equal part here."""

    def home(device: Device) -> int:
        return device.instance.gpu_instance if device.instance is not None else -1

    sharing = Counter(map(home, found))
    return tuple(
        dataclasses.replace(each, memory_bytes=each.memory_bytes // sharing[home(each)])
        for each in found
    )
