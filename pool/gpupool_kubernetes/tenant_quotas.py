"""TenantQuotas: what is written there becomes the quota of a tenant, which is made if need be.

To delete one leaves tenant and quota as they are: a tenant has leases, tokens and a history.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from gpupool.pool_client import at
from gpupool_common.errors import PoolRefusedError
from gpupool_common.protocol import one_line
from gpupool_kubernetes import names
from gpupool_kubernetes.cluster import ApiError, Cluster, Object
from gpupool_kubernetes.crds import InUse, TenantQuotaSpec, TenantQuotaStatus
from gpupool_kubernetes.manager_client import ManagerClient

PATH = f"/apis/{names.API_VERSION}/{names.TENANT_QUOTA[1]}"

#: So often it is looked whether the manager still has it, and what is in use.
LOOK_SECONDS = 30.0


class TenantQuotas:
    """Applies them."""

    def __init__(self, cluster: Cluster, manager: ManagerClient) -> None:
        self._cluster, self._manager = cluster, manager

    async def look(self, found: Object) -> float | None:
        """Apply one; in how many seconds to look again."""
        meta = found["metadata"]
        status = TenantQuotaStatus(observed_generation=int(meta.get("generation") or 0))
        try:
            status.in_use = await self._apply(str(meta["name"]), found.get("spec") or {})
        except (ValueError, PoolRefusedError) as error:
            if isinstance(error, PoolRefusedError) and error.status in (401, 412, 503):
                raise
            status.state, status.message = "Refused", _why(error)
        shown = status.shown()
        if found.get("status") != shown:
            try:
                await self._cluster.patch(f"{PATH}/{meta['name']}/status", {"status": shown})
            except ApiError as error:
                if error.status != 404:
                    raise
        return LOOK_SECONDS

    async def _apply(self, name: str, spec: dict[str, Any]) -> InUse:
        asked = TenantQuotaSpec.model_validate(spec, extra="forbid")
        tenant, quota = asked.tenant or name, asked.quota()
        try:
            before, etag = await self._manager.etag(at("tenants", tenant, "quota"))
        except PoolRefusedError as error:
            if error.status != 404:
                raise
            body = {"name": tenant, "description": "made by a TenantQuota", "quota": quota}
            made = await self._manager.do("POST", "/tenants", body)
            before, etag = made.get("quota") or {}, None
        if any(before.get(key) != value for key, value in quota.items()):
            # What a TenantQuota cannot say stays.
            kept: dict[str, Any] = {
                key: before[key] for key in ("weight", "borrow") if key in before
            }
            body = {**quota, **kept, "budgets": before.get("budgets") or {}}
            before = await self._manager.change(at("tenants", tenant, "quota"), body, etag)
        return InUse.model_validate(before.get("in_use") or {})


def _why(error: ValueError | PoolRefusedError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"spec.{'.'.join(map(str, first['loc']))}: {one_line(first['msg'])}"
    return one_line(str(error))
