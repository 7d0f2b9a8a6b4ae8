"""Which tenant of the pool a namespace is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpupool_common.errors import GpupoolError

#: As a namespace: every one that is not named. As a tenant: the one of the namespace's own name.
ANY = "*"

_TENANT = re.compile(r"[A-Za-z0-9._-]{1,32}", re.ASCII)


class NoTenantError(GpupoolError):
    """A namespace has no tenant."""


class Tenants:
    """The mapping of the settings."""

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self._mapping = mapping

    def of(self, namespace: str) -> str:
        """The tenant whose quota a namespace's pods use; NoTenantError."""
        tenant = self._mapping.get(namespace, self._mapping.get(ANY))
        if tenant is None:
            raise NoTenantError(
                f"the namespace '{namespace}' has no tenant of the pool; an operator names one in"
                " the table 'tenants' of gpupool-kubernetes' settings"
            )
        tenant = namespace if tenant == ANY else tenant
        if not _TENANT.fullmatch(tenant):
            raise NoTenantError(
                f"the namespace '{namespace}' cannot be a tenant by its own name, which has more"
                " than 32 characters; name its tenant in the table 'tenants'"
            )
        return tenant


def check(mapping: Mapping[str, str]) -> None:
    """ValueError if a tenant has no name that the manager allows."""
    for tenant in mapping.values():
        if tenant != ANY and not _TENANT.fullmatch(tenant):
            raise ValueError("no tenant's name")
