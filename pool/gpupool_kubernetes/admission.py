"""What becomes of a pod when it is made or changed: the webhook's decisions.

Nothing is changed anywhere but in the answer, so a dry run is like any other. A pod without a
request is not looked at any further.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpupool_common import logs
from gpupool_common.errors import GpupoolError, PoolRefusedError
from gpupool_kubernetes import names, pods, resizing
from gpupool_kubernetes.config import Settings
from gpupool_kubernetes.injection import Injector
from gpupool_kubernetes.manager_client import ManagerClient
from gpupool_kubernetes.namespace_quotas import NamespaceQuotas
from gpupool_kubernetes.pods import Pod, PodError, PodRequest
from gpupool_kubernetes.resources import ResourceError
from gpupool_kubernetes.reviews import Request, Verdict
from gpupool_kubernetes.tenants import NoTenantError, Tenants

#: Who may change everything, also when no controller is there any more.
_MASTERS = "system:masters"

_ALLOWED = Verdict()

_log = logs.get("webhook")


class Admission:
    """Judges requests."""

    def __init__(
        self,
        settings: Settings,
        injector: Injector,
        manager: ManagerClient,
        quotas: NamespaceQuotas,
    ) -> None:
        self._settings = settings
        self._injector = injector
        self._manager = manager
        self._quotas = quotas
        self._tenants = Tenants(settings.tenants)

    async def judge(self, request: Request) -> Verdict:
        """Whether it may be, and what is made of it."""
        if (request.resource.group, request.resource.resource) != ("", "pods"):
            return _ALLOWED
        try:
            if request.operation == "CREATE" and not request.subresource:
                return await self._create(request)
            if request.operation == "UPDATE":
                return await self._update(request)
        except (PodError, ResourceError) as error:
            return Verdict(str(error), code=422)
        return _ALLOWED

    # A new pod -------------------------------------------------------------------------------

    async def _create(self, request: Request) -> Verdict:
        pod = _object(request.object, "object")
        if pods.notes(pod).get(names.INJECT) == "false":
            asked = None
        else:
            settings = self._settings
            asked = pods.asked_of(pod, settings.resource_names, settings.defaults)
        if asked is None:
            return _refuse(_forged(pod, names.OURS))
        if (forged := _forged(pod, (names.LEASE, names.SERVERS), marks=False)) is not None:
            return _refuse(forged)
        if names.REQUEST not in pods.notes(pod) and (taken := _taken(pod)):
            return _refuse(f"{', '.join(taken)}: gpupool adds one of this name; choose another")
        if pods.spec(pod).get("nodeName"):
            return _refuse("a pod that waits for GPUs cannot have 'nodeName'; use 'nodeSelector'")
        asked = resizing.wanted(asked, pods.notes(pod))
        warnings = await self._check(request.namespace, pod, asked)
        if isinstance(warnings, Verdict):
            return warnings
        return Verdict(patch=self._injector.patch(pod, asked), warnings=warnings)

    async def _check(
        self, namespace: str, pod: Pod, asked: PodRequest
    ) -> tuple[str, ...] | Verdict:
        """Warnings, or a refusal: the namespace's quota, then the tenant's."""
        try:
            tenant = self._tenants.of(namespace)
        except NoTenantError as error:
            return Verdict(str(error))
        warnings = []
        try:
            if refusal := await self._quotas.refusal(namespace, asked.resources, pod):
                return Verdict(refusal)
        except GpupoolError as error:
            _log.warning("the namespace's quota was not looked at", reason=str(error))
            warnings.append(f"gpupool: the namespace's quota was not looked at: {error}")
        try:
            found = await self._manager.do("POST", "/leases/explain", asked.lease(tenant))
        except PoolRefusedError as error:
            if error.status in (403, 404, 422):  # the tenant or the request is wrong
                return Verdict(str(error))
            warnings.append(self._not_asked(error))
        except GpupoolError as error:  # the controller finds out
            warnings.append(self._not_asked(error))
        else:
            decision = str(found.get("decision"))
            if decision.startswith("over the quota"):
                return Verdict(decision)
        return tuple(warnings)

    @staticmethod
    def _not_asked(error: GpupoolError) -> str:
        _log.warning("the pool's quota was not looked at", reason=str(error))
        return f"gpupool: the pool's quota was not looked at: {error}"

    # A change of a pod -----------------------------------------------------------------------

    async def _update(self, request: Request) -> Verdict:
        user = request.user
        if user.username == self._settings.controller_account or _MASTERS in user.groups:
            return _ALLOWED
        new, old = _object(request.object, "object"), _object(request.old_object, "oldObject")
        before = pods.request_of(old)
        after = None if before is None else resizing.wanted(before, pods.notes(new))
        ours: tuple[str, ...] = names.OURS
        if after is not None and pods.notes(new).get(names.REQUEST) == after.text():
            ours = tuple(name for name in ours if name != names.REQUEST)  # we wrote it just now
        if changed := list(_changed(old, new, ours)):
            return Verdict(f"{', '.join(changed)}: only gpupool's controller changes this of a pod")
        if request.subresource == "ephemeralcontainers":
            self._check_ephemeral(new)
        if before is None or after is None or before == after:
            return _ALLOWED
        return await self._resize(request.namespace, new, before, after)

    async def _resize(
        self, namespace: str, pod: Pod, before: PodRequest, after: PodRequest
    ) -> Verdict:
        """The tenant's quota is the manager's to check, when the controller asks it."""
        try:
            refusal = await self._quotas.refusal(namespace, resizing.more(before, after), pod)
        except GpupoolError as error:
            return Verdict(f"the namespace's quota cannot be looked at, try again: {error}")
        if refusal is not None:
            return Verdict(refusal)
        notes = {**pods.notes(pod), names.REQUEST: after.text()}
        if notes == pods.notes(pod):
            return _ALLOWED
        return Verdict(patch=({"op": "add", "path": "/metadata/annotations", "value": notes},))

    def _check_ephemeral(self, pod: Pod) -> None:
        probe = {"spec": {"containers": pods.spec(pod).get("ephemeralContainers")}}
        settings = self._settings
        if pods.asked_of(probe, settings.resource_names, settings.defaults) is not None:
            raise PodError("an ephemeral container cannot ask for GPUs")


def _object(found: dict[str, Any] | None, which: str) -> dict[str, Any]:
    if found is None:
        raise PodError(f"the review has no '{which}'")
    return found


def _refuse(why: str | None) -> Verdict:
    return _ALLOWED if why is None else Verdict(why)


def _forged(pod: Pod, ours: tuple[str, ...], marks: bool = True) -> str | None:
    """What of ours somebody has written on a new pod that does not have it from us."""
    written = [f"the annotation {name}" for name in ours if name in pods.notes(pod)]
    if marks and names.MANAGED in pods.labels(pod):
        written.append(f"the label {names.MANAGED}")
    if marks and names.FINALIZER in pods.finalizers(pod):
        written.append(f"the finalizer {names.FINALIZER}")
    if marks and names.GATE in pods.gates(pod):
        written.append(f"the scheduling gate {names.GATE}")
    if not written:
        return None
    return f"{', '.join(written)}: only gpupool writes that; ask for GPUs in resources"


def _taken(pod: Pod) -> list[str]:
    """Names of ours that something of the user's has."""
    volumes = {str(each.get("name")) for each in pods.volumes(pod)}
    own = (names.LIBRARIES_VOLUME, names.LEASE_VOLUME, names.CREDENTIAL_VOLUME)
    found = [f"the volume '{name}'" for name in own if name in volumes]
    if any(each.get("name") == names.CONTAINER for each in pods.containers(pod)):
        found.append(f"the container '{names.CONTAINER}'")
    return found


def _changed(old: Pod, new: Pod, ours: tuple[str, ...]) -> Iterator[str]:
    for name in ours:
        if pods.notes(old).get(name) != pods.notes(new).get(name):
            yield f"the annotation {name}"
    if pods.labels(old).get(names.MANAGED) != pods.labels(new).get(names.MANAGED):
        yield f"the label {names.MANAGED}"
    if (names.FINALIZER in pods.finalizers(old)) != (names.FINALIZER in pods.finalizers(new)):
        yield f"the finalizer {names.FINALIZER}"
    if (names.GATE in pods.gates(old)) != (names.GATE in pods.gates(new)):
        yield f"the scheduling gate {names.GATE}"
