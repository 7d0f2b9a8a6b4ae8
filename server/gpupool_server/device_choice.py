"""Which of the served devices a new session gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpupool_server.claims import Refusal
from gpupool_server.gpus import Gpus, board_name
from gpupool_server.session_request import SessionRequest

_ALONE = "CUDA shows a program one instance of a GPU (MIG), and nothing beside it"


def choose(
    request: SessionRequest, served: tuple[int, ...], gpus: Gpus, load: Counter[int]
) -> tuple[int, ...]:
    """The devices of a new session, of those that are served; Refusal says why there are none.

    ``load`` has the number of sessions on each device. Of sick GPUs none is chosen; who has to
    have one (by name, by a lease, by its group) gets nothing. An instance of a GPU is chosen
    alone, and without a number of GPUs only where no whole one may be had.
    """
    sick = {gpu.index: gpu.sick for gpu in gpus if gpu.sick}
    chosen = _choose(request, served, gpus, load, sick)
    bad = [index for index in chosen if index in sick]
    if bad or not chosen and sick:
        index = bad[0] if bad else min(sick)
        raise Refusal(
            "no-worker",
            f"GPU {index} is put aside: {sick[index]}; use another one, or wait until an operator"
            " has looked after it",
        )
    return chosen


def _choose(
    request: SessionRequest,
    served: tuple[int, ...],
    gpus: Gpus,
    load: Counter[int],
    sick: Mapping[int, str],
) -> tuple[int, ...]:
    parts = frozenset(gpu.index for gpu in gpus if gpu.device.instance is not None)
    if request.devices is not None:
        return _named(request, request.devices, served, parts)
    allowed = tuple(index for index in served if request.tenant.may_use(index))
    if request.tenant.lease is None:
        allowed = tuple(index for index in allowed if index not in sick)
    own = gpus.devices_of(board_name(request.tenant.name, request.group)) if request.group else ()
    if request.gpus is None and not parts.issuperset(own or allowed):
        return tuple(index for index in own or allowed if index not in parts)
    wanted = request.gpus or min(1, len(allowed))
    if wanted > 1:
        own, allowed = (tuple(i for i in each if i not in parts) for each in (own, allowed))
    if wanted > len(allowed):
        fewer = len(allowed) < len(served)
        of = f", of which its tenant may use {len(allowed)}" if fewer else ""
        why = f" together: {_ALONE}" if fewer and parts.intersection(served) else ""
        raise Refusal(
            "bad-request",
            f"{wanted} GPUs are requested and the server has {len(served)}{of}{why}; ask for fewer",
        )
    if wanted <= len(own):
        return own[:wanted]
    return _freest(request, wanted, allowed, own, gpus, load)


def _named(
    request: SessionRequest,
    devices: tuple[int, ...],
    served: tuple[int, ...],
    parts: frozenset[int],
) -> tuple[int, ...]:
    """The devices that the client names, if it may have them."""
    unknown = [index for index in devices if index not in served]
    if unknown:
        raise Refusal(
            "bad-request",
            f"device {unknown[0]} is not served here; the server has {', '.join(map(str, served))}",
        )
    foreign = [index for index in devices if not request.tenant.may_use(index)]
    if foreign:
        allowed = sorted(request.tenant.gpus or ())
        raise Refusal(
            "over-quota",
            f"tenant '{request.tenant.name}' may not use GPU {foreign[0]}; it may use"
            f" {', '.join(map(str, allowed))}",
        )
    if request.gpus is not None and request.gpus != len(devices):
        raise Refusal(
            "bad-request",
            f"{len(devices)} devices are named but {request.gpus} GPUs asked for;"
            " ask for one or the other",
        )
    together = parts.intersection(devices) if len(devices) > 1 else ()
    if together:
        raise Refusal(
            "bad-request", f"{_ALONE}; name device {min(together)} alone, or leave it out"
        )
    return devices


def _freest(
    request: SessionRequest,
    wanted: int,
    allowed: tuple[int, ...],
    own: tuple[int, ...],
    gpus: Gpus,
    load: Counter[int],
) -> tuple[int, ...]:
    """The least used of the allowed devices: first those of the group, then where it fits."""

    def rank(index: int) -> tuple[bool, bool, int, int]:
        fits = gpus.fits(request.tenant, request.limits, index)
        return (index not in own, not fits, load[index], index)

    return tuple(sorted(sorted(allowed, key=rank)[:wanted]))
