"""Our custom resources: quotas of tenants, and what the pool has, to be read with kubectl.

The models are the truth: ``kubernetes/chart/crds`` says the same in YAML, and a test compares them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gpupool_common.quantities import MOST_TOTAL_COMPUTE, MOST_TOTAL_MEMORY
from gpupool_kubernetes import names, quantities

_MOST = 1 << 31
_QUANTITY = r"^[0-9]{1,18}(\.[0-9]{1,6})?(Ki|Mi|Gi|Ti|Pi|[kMGTP])?$"

Count = Annotated[int, Field(ge=0)]
Quantity = Annotated[str, Field(pattern=_QUANTITY, max_length=32)]


class _Part(BaseModel):
    """Named in an object as Kubernetes names things, and here as Python does."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    def shown(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


# TenantQuota ---------------------------------------------------------------------------------


class TenantQuotaSpec(_Part):
    """What a tenant may have at once; what is left out is not limited."""

    tenant: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._-]{1,32}$", description="the object's own name if left out"
    )
    gpus: Annotated[int, Field(ge=0, le=_MOST)] | None = Field(None, description="virtual GPUs")
    memory: Quantity | None = Field(None, description="over all virtual GPUs, e.g. 200Gi")
    compute: Annotated[int, Field(ge=0, le=_MOST // 10)] | None = Field(
        None, description="percent of a GPU, over all virtual GPUs"
    )
    leases: Annotated[int, Field(ge=0, le=_MOST)] | None = Field(
        None, description="granted and queued"
    )
    priority: Annotated[int, Field(ge=0, le=100)] = Field(
        0, description="the highest that may be asked for"
    )
    models: Annotated[list[str], Field(max_length=64)] | None = Field(
        None, description="patterns of GPU models, e.g. 'NVIDIA H100*'"
    )

    def quota(self) -> dict[str, Any]:
        """As the manager takes it; ValueError says what is too much."""
        memory = None if self.memory is None else quantities.whole(self.memory)
        compute = None if self.compute is None else self.compute * 10
        if (memory or 0) > MOST_TOTAL_MEMORY or (compute or 0) > MOST_TOTAL_COMPUTE:
            raise ValueError("is more than a quota can hold")
        return {
            "gpus": self.gpus,
            "memory_bytes": memory,
            "compute_permille": compute,
            "sessions": self.leases,
            "priority": self.priority,
            "models": self.models,
        }


class InUse(_Part):
    gpus: Count = 0
    memory_bytes: Count = 0
    compute_permille: Count = 0
    sessions: Count = Field(default=0, description="leases")


class TenantQuotaStatus(_Part):
    state: Annotated[str, Field(pattern="^(Applied|Refused)$")] = "Applied"
    message: str = ""
    observed_generation: Count = 0
    in_use: InUse = InUse()


# What mirrors show ---------------------------------------------------------------------------


class LeaseGrant(_Part):
    ordinal: Count
    gpu: str
    node: str
    memory_bytes: Count
    share_permille: Count


class LeaseStatus(_Part):
    """A lease that is granted or waits, as the manager has it."""

    tenant: str
    state: str
    pod: str = Field("", description="NAMESPACE/NAME; empty: no pod of this cluster has it")
    priority: Count = 0
    position: Count | None = Field(None, description="in the queue; 1 is next")
    reason: str = ""
    created: str = ""
    granted: str | None = None
    grants: list[LeaseGrant] = Field(default_factory=list)


class NodeGpu(_Part):
    uuid: str
    index: Count
    model: str
    memory_bytes: Count
    used_bytes: Count
    used_permille: Count
    usable: bool
    closed: str | None = Field(None, description="why nothing new is placed here")


class NodeStatus(_Part):
    """A GPU host, as the manager has it."""

    name: str
    address: str
    state: str
    mode: str
    reason: str = ""
    server_version: str = ""
    leases: Count = 0
    gpus: list[NodeGpu] = Field(default_factory=list)


#: Kind → the parts of its objects.
MODELS: dict[str, dict[str, type[_Part]]] = {
    names.TENANT_QUOTA[0]: {"spec": TenantQuotaSpec, "status": TenantQuotaStatus},
    names.LEASE_MIRROR[0]: {"status": LeaseStatus},
    names.NODE_MIRROR[0]: {"status": NodeStatus},
}


def schema(kind: str) -> dict[str, Any]:
    """The openAPIV3Schema of a kind: structural, as the API server wants it."""
    parts = {part: _structural(model) for part, model in MODELS[kind].items()}
    required = [part for part in parts if part == "spec"]
    found: dict[str, Any] = {"type": "object", "properties": parts}
    return {**found, "required": required} if required else found


def _structural(model: type[_Part]) -> dict[str, Any]:
    made = model.model_json_schema(by_alias=True)
    plain: dict[str, Any] = _plain(made, made.get("$defs", {}))
    return plain


def _plain(part: Any, defined: dict[str, Any]) -> Any:
    """Without references, titles, defaults of ours, and null as a type of its own."""
    if "$ref" in part:
        return _plain(defined[part["$ref"].rpartition("/")[2]], defined)
    if "anyOf" in part:
        (value,) = (each for each in part["anyOf"] if each.get("type") != "null")
        described = {key: part[key] for key in ("description",) if key in part}
        return {**_plain(value, defined), **described}
    kept = ("type", "description", "pattern", "minimum", "maximum", "maxLength", "maxItems")
    found = {key: part[key] for key in kept if key in part}
    if found.get("type") == "integer":
        found["format"] = "int64"
    if part.get("type") == "object":
        inner = part.get("properties", {})
        found["properties"] = {name: _plain(each, defined) for name, each in inner.items()}
        if part.get("required"):
            found["required"] = list(part["required"])
    if part.get("type") == "array":
        found["items"] = _plain(part["items"], defined)
    return found
