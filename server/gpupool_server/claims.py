"""What the groups of a tenant may have of one GPU: requests against the quota.

Nothing here knows of boards or sessions. A *claim* is what a group has been promised on
one GPU; from all claims of a tenant on a GPU follow the grants on its board.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpupool_common.errors import GpupoolError
from gpupool_common.quantities import LEAST_MEMORY, MEBIBYTE
from gpupool_common.sizes import format_part, format_size
from gpupool_server.board import Grant
from gpupool_server.tenants import Quota

WHOLE = 1000


def tenant_of(name: str) -> str:
    """The tenant of a name on a board."""
    return name.partition("/")[0]


class Refusal(GpupoolError):
    """A session that is not opened; ``code`` travels to the client with the message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class LimitsRequest:
    """What a client asks for; None (no fractions): it did not say."""

    memory: int | None = None
    share: int | None = None
    ceiling: int | None = None
    weight: int | None = None
    high_priority: bool | None = None
    #: Parts of a card's memory, by the card's place; the last holds for the rest.
    fractions: tuple[tuple[int, int], ...] = ()

    @property
    def empty(self) -> bool:
        return self == LimitsRequest()

    def memory_on(self, place: int, total: int) -> int | None:
        """The bytes that are requested on the card at a place, which has ``total``."""
        if not self.fractions:
            return self.memory
        part, whole = self.fractions[min(place, len(self.fractions) - 1)]
        # cGPU's arithmetic is in MiB; all of the card is all of it.
        return total if part == whole else total // MEBIBYTE * part // whole * MEBIBYTE

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in (None, ())}

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> LimitsRequest:
        """What :meth:`as_dict` wrote; ValueError or TypeError if it is not that."""
        fields = dict(raw)
        fractions = tuple((int(part), int(of)) for part, of in fields.pop("fractions", ()))
        return cls(**fields, fractions=fractions)


@dataclass(frozen=True)
class Claim:
    """What one group has been promised. Memory 0: all of the GPU; share and ceiling None:
    nothing of its own, but a part of what its tenant has left."""

    memory: int = 0
    share: int | None = None
    ceiling: int | None = None
    weight: int = 1
    high_priority: bool = False
    #: It is of a lease of the pool: its weight follows from its share.
    pooled: bool = False
    #: More memory was in use than it has now: what is in use stays, and nothing comes to it.
    forced: bool = False
    #: The memory that a forced one had before, likewise.
    before: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Without what is as usual: a server of before a field was there knows the rest."""
        return {key: value for key, value in asdict(self).items() if value != getattr(Claim, key)}

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Claim:
        """ValueError if ``raw`` is not what :meth:`as_dict` made of a claim."""
        try:
            claim = cls(**raw)
        except TypeError as error:
            raise ValueError(str(error)) from None
        parts = (claim.share or 1, claim.ceiling or 1)
        numbers = (claim.memory, claim.before, claim.weight, *parts)
        if not all(isinstance(number, int) and 0 <= number <= 1 << 50 for number in numbers):
            raise ValueError("a claim holds a number that cannot be")
        return claim


@dataclass(frozen=True)
class Headroom:
    """What a new claim of one tenant has to fit into on one GPU."""

    where: str  # for messages, e.g. "tenant 'research' on GPU 0"
    quota: Quota
    claims: tuple[Claim, ...]  # of the tenant's other groups there
    memory_total: int
    default_memory: int
    #: Slices that nobody has, where the policy is one of slices; None: it is not.
    free_weight: int | None = None


def claim(headroom: Headroom, request: LimitsRequest, place: int = 0, plain: bool = False) -> Claim:
    """The claim of a new group; Refusal with the numbers if the quota does not allow it.

    ``plain``: it is the tenant itself, for sessions without a request.
    """
    if request.high_priority and not headroom.quota.high_priority:
        raise Refusal("over-quota", f"{headroom.where}: high priority is not allowed")
    return Claim(
        memory=_memory(headroom, request.memory_on(place, headroom.memory_total)),
        share=_share(headroom, request.share),
        ceiling=_ceiling(headroom, request.ceiling),
        weight=_weight(headroom, request.weight, plain),
        high_priority=bool(request.high_priority),
    )


def changed(headroom: Headroom, old: Claim, values: Mapping[str, Any]) -> Claim:
    """An operator's change of a group's claim, within the quota but for the priority."""
    share, ceiling = values.get("share", old.share), values.get("ceiling", old.ceiling)
    check_part(headroom.where, share, ceiling)
    return Claim(
        memory=_memory(headroom, values["memory"]) if "memory" in values else old.memory,
        share=_share(headroom, share) if "share" in values else share,
        ceiling=_ceiling(headroom, ceiling) if "ceiling" in values else ceiling,
        weight=_weight(headroom, values["weight"], False) if "weight" in values else old.weight,
        high_priority=bool(values.get("high_priority", old.high_priority)),
    )


def check_part(where: str, share: int | None, ceiling: int | None) -> None:
    """Refusal if a ceiling is less than the share under it."""
    if share is not None and ceiling is not None and ceiling < share:
        raise Refusal(
            "bad-request",
            f"{where}: a ceiling of {format_part(ceiling)} is less than the share of"
            f" {format_part(share)}",
        )


def _memory_quota(headroom: Headroom) -> int | None:
    quota = headroom.quota.memory
    return None if quota is None else min(quota, headroom.memory_total)


def _memory(headroom: Headroom, asked: int | None) -> int:
    quota = _memory_quota(headroom)
    if asked is not None and asked > headroom.memory_total:
        raise Refusal(
            "bad-request",  # no quota and no wait would make it fit
            f"{headroom.where}: {format_size(asked)} are requested and the GPU has"
            f" {format_size(headroom.memory_total)}",
        )
    if quota is None:
        return asked or headroom.default_memory
    used = sum(min(claim.memory or quota, quota) for claim in headroom.claims)
    left = quota - used
    wanted = asked if asked is not None else min(headroom.default_memory or left, left)
    if wanted > left or wanted < LEAST_MEMORY:
        what = f"{format_size(asked)} are requested" if asked else "no memory is left"
        raise Refusal(
            "over-quota",
            f"{headroom.where}: {what}, {format_size(used)} are in use by its groups, its quota is"
            f" {format_size(quota)}",
        )
    return wanted


def _share(headroom: Headroom, asked: int | None) -> int | None:
    if asked is None:
        return None
    used = sum(claim.share or 0 for claim in headroom.claims)
    if used + asked > headroom.quota.share:
        raise Refusal(
            "over-quota",
            f"{headroom.where}: a share of {format_part(asked)} is requested, {format_part(used)}"
            f" are in use by its groups, its quota is {format_part(headroom.quota.share)}",
        )
    return asked


def _ceiling(headroom: Headroom, asked: int | None) -> int | None:
    if asked is not None and asked > headroom.quota.ceiling:
        raise Refusal(
            "over-quota",
            f"{headroom.where}: a ceiling of {format_part(asked)} is requested, its quota is"
            f" {format_part(headroom.quota.ceiling)}",
        )
    return asked


def _weight(headroom: Headroom, asked: int | None, plain: bool) -> int:
    quota = headroom.quota.weight
    left = None if quota is None else quota - sum(claim.weight for claim in headroom.claims)
    if asked is not None and left is not None and asked > left:
        raise Refusal(
            "over-quota",
            f"{headroom.where}: a weight of {asked} is requested, {(quota or 0) - left} are in use"
            f" by its groups, its quota is {quota}",
        )
    wanted = asked
    if wanted is None:
        wanted = left if plain and left is not None else 1
    if headroom.free_weight is None:
        return max(0, wanted)
    if headroom.free_weight == 0:
        return 0  # as cGPU has it: it is there, and gets no compute
    if asked is None:
        if left is not None and left < 1 and quota:
            raise Refusal(
                "over-quota",
                f"{headroom.where}: no weight is left, {quota - left} are in use by its groups, its"
                f" quota is {quota}",
            )
        return max(0, min(wanted, headroom.free_weight, wanted if left is None else left))
    if asked > headroom.free_weight:
        raise Refusal(
            "over-quota",
            f"{headroom.where}: a weight of {asked} is requested, {headroom.free_weight} of the"
            " GPU's slices are free",
        )
    return asked


def grants(quota: Quota, claims: Mapping[str, Claim]) -> dict[str, Grant]:
    """What follows for the board from all claims of one tenant on one GPU.

    Groups that asked for no share divide what the others left. Where the tenant itself
    has a ceiling, its groups' ceilings together keep to it: else a tenant could have more
    by asking for more groups.
    """
    shares = _shares(quota, claims)
    ceilings = _ceilings(quota, claims, shares)
    return {
        name: Grant(
            memory=claim.memory,
            weight=claim.weight,
            share=shares[name],
            ceiling=ceilings[name],
            high_priority=claim.high_priority,
            forced=claim.forced,
        )
        for name, claim in claims.items()
    }


def _shares(quota: Quota, claims: Mapping[str, Claim]) -> dict[str, int]:
    reserved = sum(claim.share or 0 for claim in claims.values())
    others = sum(claim.share is None for claim in claims.values())
    each = max(1, (quota.share - reserved) // others) if others else 0
    limits = {name: claim.ceiling or quota.ceiling for name, claim in claims.items()}
    return {name: claim.share or min(each, limits[name], WHOLE) for name, claim in claims.items()}


def _ceilings(
    quota: Quota, claims: Mapping[str, Claim], shares: Mapping[str, int]
) -> dict[str, int]:
    wanted = {
        name: max(min(claim.ceiling or quota.ceiling, quota.ceiling), shares[name])
        for name, claim in claims.items()
    }
    if quota.ceiling >= WHOLE or sum(wanted.values()) <= quota.ceiling:
        return wanted
    spare = max(0, quota.ceiling - sum(shares.values()))
    above = sum(wanted.values()) - sum(shares.values())
    return {
        name: shares[name] + (spare * (wanted[name] - shares[name]) // above if above else 0)
        for name in wanted
    }


def slices(shares: Mapping[str, int], number: int) -> dict[str, int]:
    """So many slices, divided as nearly by share as whole ones can be; each has at least one.

    Where there are more shares than slices, some have none.
    """
    found = {name: max(1, number * share // WHOLE) for name, share in shares.items()}
    excess = sum(found.values()) - max(0, number)
    while excess > 0:
        largest = max(found, key=lambda name: (found[name], name))
        found[largest] -= 1
        excess -= 1
    return found
