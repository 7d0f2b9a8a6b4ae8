"""What a pod asks for with its ServiceAccount token: the token of its own lease.

The API server says whose a token is (TokenReview), down to the pod that it was made for; so a pod
gets its own lease's token and no other's, whatever is written on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gpupool_common import logs
from gpupool_common.errors import GpupoolError
from gpupool_common.lease import LeaseState
from gpupool_kubernetes import names, pods
from gpupool_kubernetes.cluster import Cluster
from gpupool_kubernetes.pod_leases import Owner, PodLeases

#: Of a token; more is none.
_MOST_TOKEN = 16384

_EXTRA = "authentication.kubernetes.io/"
_log = logs.get("credentials")


class DeniedError(Exception):
    """Who asks gets nothing; ``status`` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Caller:
    """The pod that a token was made for."""

    namespace: str
    pod: str
    uid: str


class Credentials:
    """Answers pods."""

    def __init__(self, cluster: Cluster, leases: PodLeases, cluster_id: str) -> None:
        self._cluster, self._leases, self._cluster_id = cluster, leases, cluster_id

    async def token_of(self, token: str) -> str:
        """The lease's token for who shows a ServiceAccount token; DeniedError."""
        caller = await self._review(token)
        pod = await self._cluster.find(f"/api/v1/namespaces/{caller.namespace}/pods/{caller.pod}")
        if pod is None or pods.metadata(pod).get("uid") != caller.uid:
            raise DeniedError(403, "that pod is gone")
        name = pods.notes(pod).get(names.LEASE)
        lease = None if name is None else await self._leases.find(name)
        if lease is None or not Owner.of(self._cluster_id, pod).owns(lease):
            raise DeniedError(404, "this pod has no lease")
        if lease.get("state") != LeaseState.ACTIVE or not isinstance(lease.get("token"), str):
            raise DeniedError(409, f"the lease {lease.get('id')} is {lease.get('state')}")
        return str(lease["token"])

    async def _review(self, token: str) -> Caller:
        if not token or len(token) > _MOST_TOKEN or not token.isascii() or not token.isprintable():
            raise DeniedError(401, "no token is shown")
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [names.AUDIENCE]},
        }
        found = await self._cluster.create("/apis/authentication.k8s.io/v1/tokenreviews", body)
        status: dict[str, Any] = found.get("status") or {}
        if status.get("authenticated") is not True:
            raise DeniedError(401, "the API server does not know that token")
        if names.AUDIENCE not in (status.get("audiences") or []):
            raise DeniedError(401, "that token is for somebody else")
        user = status.get("user") or {}
        parts = str(user.get("username")).split(":")
        extra = user.get("extra") or {}
        pod, uid = (_only(extra.get(_EXTRA + part)) for part in ("pod-name", "pod-uid"))
        if parts[:2] != ["system", "serviceaccount"] or len(parts) != 4 or not pod or not uid:
            raise DeniedError(403, "that token was made for no pod")
        return Caller(parts[2], pod, uid)


def _only(values: object) -> str:
    """The one text of a list; what it may hold is what a path may."""
    if not isinstance(values, list) or len(values) != 1 or not isinstance(values[0], str):
        return ""
    text = values[0]
    return text if text.replace("-", "").replace(".", "").isalnum() and text.isascii() else ""


def make_app(credentials: Credentials) -> Starlette:
    """``POST /v1/token``, and ``GET /healthz`` for the kubelet."""

    async def token(request: Request) -> Response:
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        try:
            found = await credentials.token_of(shown if scheme.lower() == "bearer" else "")
        except DeniedError as error:
            _log.info("no token was given", reason=str(error))
            return JSONResponse({"detail": str(error)}, error.status)
        except GpupoolError as error:
            _log.warning("no token could be given", reason=str(error))
            return JSONResponse({"detail": "not now; ask again"}, 503)
        return JSONResponse({"token": found}, headers={"Cache-Control": "no-store"})

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(
        routes=[Route("/v1/token", token, methods=["POST"]), Route("/healthz", healthz)]
    )
