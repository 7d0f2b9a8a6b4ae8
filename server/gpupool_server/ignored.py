"""What a program asks for and a GPU's policy ignores: the program gets a warning."""

from __future__ import annotations

from collections.abc import Mapping

from gpupool_common.sizes import format_part
from gpupool_server.board import SLICED
from gpupool_server.claims import LimitsRequest

#: The only policy that knows of shares; SLICED are those that know of weights.
_WITH_SHARES = ("share",)
#: What a session weighs that asks for nothing: to ask for it says no more.
_USUAL_WEIGHT = 1
NOTE_MOST = 300


def ignored(
    request: LimitsRequest, policies: Mapping[int, str], usual_weight: int | None = _USUAL_WEIGHT
) -> str:
    """One line for the user; empty if all that was asked for counts on all of the GPUs.

    To ask for the usual weight says nothing, but where one is set (None).
    """
    said = []
    for what, asked, knowing in _requested(request, usual_weight):
        deaf = {index: policy for index, policy in policies.items() if policy not in knowing}
        if asked and deaf:
            where = ", ".join(f"GPU {index} ('{policy}')" for index, policy in deaf.items())
            said.append(f"{asked} changes nothing where the policy has no {what}: {where}")
    return "; ".join(said)[:NOTE_MOST]


def _requested(
    request: LimitsRequest, usual_weight: int | None
) -> list[tuple[str, str, tuple[str, ...]]]:
    weight = "" if request.weight in (None, usual_weight) else f"a weight of {request.weight}"
    parts = [
        f"a {name} of {format_part(value)}"
        for name, value in (("share", request.share), ("ceiling", request.ceiling))
        if value is not None
    ]
    return [("weights", weight, SLICED), ("shares", " with ".join(parts), _WITH_SHARES)]
