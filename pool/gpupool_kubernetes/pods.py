"""What of a pod is ours: what it asks of the pool, and what the controller has written on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpupool_common import json_text
from gpupool_common.quantities import Memory, Share
from gpupool_common.request import MAX_GPUS
from gpupool_kubernetes import names, resources
from gpupool_kubernetes.resources import Asked, Defaults

Pod = dict[str, Any]

#: The lists of a pod that have containers. Ephemeral ones come later, and may ask for nothing.
CONTAINERS = ("initContainers", "containers")

_Whole = Annotated[int, Field(strict=True)]
_Text = Annotated[str, Field(max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Version = Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,2}$")]


class PodError(ValueError):
    """A pod that cannot be taken; one line that says why."""


class PodRequest(BaseModel):
    """The annotation ``gpupool.io/request``: which container asks, for what, in whose words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    container: Annotated[str, Field(min_length=1, max_length=63)]
    #: What was taken off it, for quotas of the namespace.
    resources: dict[str, str | int]
    gpus: Annotated[_Whole, Field(ge=1, le=MAX_GPUS)] = 1
    memory_bytes: Memory | None = None
    share_permille: Share = 1000
    policy: str | None = Field(None, pattern="^(binpack|spread|fragmentation)$")
    hosts: str | None = Field(None, pattern="^(any|same|spread)$")
    model: _Text | None = None
    capability: _Version | None = None
    min_driver: _Version | None = None
    priority: Annotated[_Whole, Field(ge=0, le=100)] | None = None

    def text(self) -> str:
        return json.dumps(self.model_dump(exclude_none=True), sort_keys=True)

    def lease(self, tenant: str) -> dict[str, Any]:
        """The body with which the manager is asked."""
        asked = self.model_dump(exclude_none=True, exclude={"container", "resources"})
        return {**asked, "tenant": tenant}


def metadata(pod: Mapping[str, Any]) -> dict[str, Any]:
    return _table(pod, "metadata")


def spec(pod: Mapping[str, Any]) -> dict[str, Any]:
    return _table(pod, "spec")


def notes(pod: Mapping[str, Any]) -> dict[str, str]:
    return _texts(metadata(pod), "annotations")


def labels(pod: Mapping[str, Any]) -> dict[str, str]:
    return _texts(metadata(pod), "labels")


def finalizers(pod: Mapping[str, Any]) -> list[Any]:
    return _list(metadata(pod), "finalizers")


def gates(pod: Mapping[str, Any]) -> list[str]:
    return [str(each.get("name")) for each in _tables(spec(pod), "schedulingGates")]


def containers(pod: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for part in CONTAINERS:
        yield from _tables(spec(pod), part)


def volumes(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _tables(spec(pod), "volumes")


def affinity_terms(pod: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What it says of pods that it wants near, or far away."""
    affinity = _table(spec(pod), "affinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        found = _table(affinity, kind)
        yield from _tables(found, "requiredDuringSchedulingIgnoredDuringExecution")
        for weighted in _tables(found, "preferredDuringSchedulingIgnoredDuringExecution"):
            yield _table(weighted, "podAffinityTerm")


def is_finished(pod: Mapping[str, Any]) -> bool:
    return _table(pod, "status").get("phase") in ("Succeeded", "Failed")


def is_going(pod: Mapping[str, Any]) -> bool:
    return bool(metadata(pod).get("deletionTimestamp"))


def request_of(pod: Mapping[str, Any]) -> PodRequest | None:
    """What the annotation says; None: there is none. PodError if it is none of ours."""
    text = notes(pod).get(names.REQUEST)
    if text is None:
        return None
    try:
        return PodRequest.model_validate(json_text.parse(text))
    except ValueError as error:
        wrong = error.errors()[0]["loc"] if isinstance(error, ValidationError) else ("JSON",)
        place = ".".join(map(str, wrong))
        raise PodError(f"the annotation {names.REQUEST} cannot be read: {place}") from None


def asked_of(
    pod: Mapping[str, Any], families: tuple[str, ...], defaults: Defaults
) -> PodRequest | None:
    """What a pod's containers ask for; PodError if that cannot be.

    A webhook may be called again with what it has made of a pod: then the resources are those of
    its annotation. Somebody who writes that by hand gets what the resources would have given.
    """
    found = {
        _name(container): own
        for container in containers(pod)
        if (own := resources.amounts(_name(container), _table(container, "resources"), families))
    }
    if not found and (earlier := request_of(pod)) is not None:
        allowed = {name for family in families for name in resources.FAMILIES[family][0]}
        if not earlier.resources or not set(earlier.resources) <= allowed:
            raise PodError(f"the annotation {names.REQUEST} is not for users; ask in resources")
        found = {earlier.container: dict(earlier.resources)}
        if earlier.container not in map(_name, containers(pod)):
            raise PodError(f"the annotation {names.REQUEST} names a container that is not there")
    if not found:
        return None
    if len(found) > 1:
        shown = ", ".join(f"'{name}'" for name in found)
        raise PodError(
            f"the containers {shown} ask for GPUs; a pod has one lease, so let one of them ask"
        )
    ((container, amounts),) = found.items()
    return _request(pod, container, amounts, resources.read(container, amounts, defaults))


def _request(
    pod: Mapping[str, Any], container: str, amounts: Mapping[str, object], asked: Asked
) -> PodRequest:
    said = notes(pod)
    more: dict[str, Any] = {
        "policy": said.get(names.POLICY),
        "hosts": said.get(names.HOSTS),
        "model": said.get(names.MODEL),
        "capability": said.get(names.CAPABILITY),
        "min_driver": said.get(names.MIN_DRIVER),
    }
    if (priority := said.get(names.PRIORITY)) is not None:
        if not (priority.isascii() and priority.isdecimal() and len(priority) < 4):
            raise PodError(f"the annotation {names.PRIORITY}: {priority[:40]!r} is not 0..100")
        more["priority"] = int(priority)
    try:
        return PodRequest(
            container=container,
            resources={name: _plain(amount) for name, amount in amounts.items()},
            gpus=asked.gpus,
            memory_bytes=asked.memory_bytes,
            share_permille=asked.share_permille,
            **more,
        )
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0]).replace("_", "-")
        raise PodError(
            f"the annotation {names.GROUP}/{field}: {str(error.errors()[0]['input'])[:40]!r} is not"
            " allowed; docs/kubernetes.md says what is"
        ) from None


def _plain(amount: object) -> str | int:
    return amount if isinstance(amount, int) else str(amount)


def _name(container: Mapping[str, Any]) -> str:
    return str(container.get("name", ""))


def _table(of: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = of.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise PodError(f"'{key}' is no object")
    return found


def _texts(of: Mapping[str, Any], key: str) -> dict[str, str]:
    found = _table(of, key)
    if not all(isinstance(value, str) for value in found.values()):
        raise PodError(f"a value of '{key}' is no text")
    return found


def _list(of: Mapping[str, Any], key: str) -> list[Any]:
    found = of.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise PodError(f"'{key}' is no list")
    return found


def _tables(of: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = _list(of, key)
    if not all(isinstance(each, dict) for each in found):
        raise PodError(f"'{key}' has something that is no object")
    return found
