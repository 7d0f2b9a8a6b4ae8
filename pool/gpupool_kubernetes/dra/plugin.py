"""The plug-in of the kubelet on each node: prepares claims, over gRPC, in files.

The kubelet finds the socket in its folder of plug-ins and asks there what it is; then it calls
the other socket before the first container of a claim starts and after the last has ended. It
calls again after every failure and every restart, so each call may be the second.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from gpupool_common import logs
from gpupool_common.errors import GpupoolError
from gpupool_common.protocol import one_line
from gpupool_kubernetes.cluster import Cluster, Object
from gpupool_kubernetes.dra import claims, prepared
from gpupool_kubernetes.dra.claims import Allocation, ClaimError
from gpupool_kubernetes.dra.driver import secret_path
from gpupool_kubernetes.dra.messages import (
    DRA_METHODS,
    DRA_SERVICES,
    MESSAGES,
    REGISTRATION,
    REGISTRATION_METHODS,
    Method,
)
from gpupool_kubernetes.dra.prepared import Folders
from gpupool_kubernetes.names import DRA_DRIVER

#: So often tokens are compared with what the driver has renewed.
RENEW_SECONDS = 30.0
#: A kubelet asks for the claims of one pod at a time.
MOST_CLAIMS = 256
_MOST_VALUE = 8192

Handler = Callable[[Any], Awaitable[Any]]


class PrepareError(GpupoolError):
    """A claim cannot be prepared now; the kubelet tries again."""


class Plugin:
    """Both services, and the tokens that are renewed meanwhile."""

    def __init__(self, cluster: Cluster, namespace: str, folders: Folders, registry: Path) -> None:
        self._cluster, self._namespace, self._folders = cluster, namespace, folders
        self.registration = registry / f"{DRA_DRIVER}-reg.sock"
        self.endpoint = folders.data / "dra.sock"
        self._servers: list[Any] = []
        self._renewing: asyncio.Task[None] | None = None
        self._log = logs.get("kubelet-plugin")

    async def start(self) -> None:
        """Listen: first where claims are prepared, then where the kubelet looks for us."""
        self._folders.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        calls: dict[str, Handler] = {
            "GetInfo": self._info,
            "NotifyRegistrationStatus": self._registered,
            "NodePrepareResources": self._prepare_all,
            "NodeUnprepareResources": self._unprepare_all,
        }
        dra = {service: DRA_METHODS for service in DRA_SERVICES.values()}
        await self._listen(self.endpoint, dra, calls)
        await self._listen(self.registration, {REGISTRATION: REGISTRATION_METHODS}, calls)
        self._renewing = asyncio.create_task(self._renew_always(), name="tokens")
        self._log.info("ready", socket=str(self.endpoint), registration=str(self.registration))

    async def close(self) -> None:
        """What is prepared stays: its containers run on."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        for server in reversed(self._servers):
            await server.stop(grace=5)
        self.registration.unlink(missing_ok=True)

    async def _listen(
        self, path: Path, services: Mapping[str, tuple[Method, ...]], calls: dict[str, Handler]
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of a process before us
        server = grpc.aio.server()
        for service, methods in services.items():
            handlers = {each.name: _handler(each, calls[each.name]) for each in methods}
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, handlers),)
            )
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError:
            raise GpupoolError(f"{path}: cannot listen there") from None
        await server.start()
        path.chmod(0o600)  # the kubelet is root
        self._servers.append(server)

    # The kubelet's registration ------------------------------------------------------------

    async def _info(self, request: Any) -> Any:
        return MESSAGES["PluginInfo"](
            type="DRAPlugin",
            name=DRA_DRIVER,
            endpoint=str(self.endpoint),
            supported_versions=list(DRA_SERVICES),
        )

    async def _registered(self, request: Any) -> Any:
        if request.plugin_registered:
            self._log.info("registered with the kubelet")
        else:
            self._log.error("the kubelet refused us", reason=one_line(request.error))
        return MESSAGES["RegistrationStatusResponse"]()

    # Claims --------------------------------------------------------------------------------

    async def _prepare_all(self, request: Any) -> Any:
        response = MESSAGES["NodePrepareResourcesResponse"]()
        for claim in request.claims[:MOST_CLAIMS]:
            entry = response.claims[claim.uid]
            try:
                entry.devices.extend(await self._prepare(claim))
            except (GpupoolError, ClaimError) as error:
                entry.error = f"gpupool: {error}"
                self._log.warning("not prepared", claim=one_line(claim.uid), reason=str(error))
        return response

    async def _prepare(self, asked: Any) -> list[Any]:
        about = {"uid": asked.uid, "namespace": asked.namespace, "name": asked.name}
        claims.identity({"metadata": about})
        found = await self._cluster.find(claims.path_of(asked.namespace, asked.name))
        if found is None or found["metadata"].get("uid") != asked.uid:
            raise PrepareError("the claim is gone")
        allocation = claims.read(found)
        if allocation is None:
            raise PrepareError("the claim has no GPU of ours, or is going")
        values = await self._values(allocation)
        if values is None:
            raise PrepareError(f"its lease is not active yet: {_reason(found)}")
        await asyncio.to_thread(
            prepared.prepare,
            self._folders,
            about,
            allocation.devices,
            values["servers"],
            values["token"],
        )
        return [
            MESSAGES["Device"](
                request_names=[result.request],
                pool_name=claims.POOL,
                device_name=result.device,
                cdi_device_ids=[prepared.device_id(asked.uid, number)],
            )
            for number, result in enumerate(allocation.results)
        ]

    async def _values(self, allocation: Allocation) -> dict[str, str] | None:
        """What the driver has for a claim; None: nothing for this allocation of it."""
        secret = await self._cluster.find(secret_path(self._namespace, allocation.uid))
        if secret is None:
            return None
        values = _decoded(secret)
        is_its = values["claim"] == allocation.uid
        return values if is_its and _devices(values["devices"]) == allocation.devices else None

    async def _unprepare_all(self, request: Any) -> Any:
        response = MESSAGES["NodeUnprepareResourcesResponse"]()
        for claim in request.claims[:MOST_CLAIMS]:
            entry = response.claims[claim.uid]
            try:
                if not claims.UID.fullmatch(claim.uid):
                    raise PrepareError("the claim has no uid that can be one")
                await asyncio.to_thread(prepared.unprepare, self._folders, claim.uid)
            except GpupoolError as error:
                entry.error = f"gpupool: {error}"
        return response

    # Tokens --------------------------------------------------------------------------------

    async def _renew_always(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self.renew()
            except GpupoolError as error:
                self._log.warning("tokens are renewed later", reason=str(error))

    async def renew(self) -> int:
        """Give containers the tokens that the driver has renewed; how many were others."""
        count = 0
        for about in list(prepared.prepared(self._folders)):
            secret = await self._cluster.find(secret_path(self._namespace, about["uid"]))
            if secret is not None and _decoded(secret)["claim"] == about["uid"]:
                token = _decoded(secret)["token"]
                count += await asyncio.to_thread(prepared.renew, self._folders, about["uid"], token)
        return count


def _handler(method: Method, call: Handler) -> Any:
    async def behave(request: Any, context: Any) -> Any:
        return await call(request)

    return grpc.unary_unary_rpc_method_handler(
        behave,
        request_deserializer=MESSAGES[method.request].FromString,  # type: ignore[attr-defined]
        response_serializer=lambda answer: answer.SerializeToString(),
    )


def _decoded(secret: Object) -> dict[str, str]:
    """A Secret's values; whoever may write in our namespace may have written anything."""
    data = secret.get("data")
    found: dict[str, str] = {}
    for key in ("claim", "devices", "servers", "token"):
        text = data.get(key) if isinstance(data, dict) else None
        try:
            if not isinstance(text, str) or len(text) > _MOST_VALUE:
                raise ValueError
            found[key] = base64.b64decode(text, validate=True).decode("ascii")
        except (ValueError, binascii.Error):
            raise PrepareError(f"the Secret of its lease has no '{key}' that can be one") from None
        if not found[key].isprintable():
            raise PrepareError(f"the Secret of its lease has no '{key}' that can be one")
    return found


def _devices(text: str) -> list[Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _reason(claim: Object) -> str:
    """What the driver has said of it."""
    for device in (claim.get("status") or {}).get("devices") or []:
        for condition in device.get("conditions") or []:
            if device.get("driver") == DRA_DRIVER and condition.get("message"):
                return one_line(str(condition["message"]))[:1024]
    return "the driver has not come to it"
