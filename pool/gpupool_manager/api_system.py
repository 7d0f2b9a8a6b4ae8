"""/v1/health, /v1/ready and /v1/metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials
from sqlalchemy import literal, select

from gpupool_common import __version__
from gpupool_common.browser import is_rebound, of_rebound
from gpupool_common.hosts import is_loopback
from gpupool_manager.api_common import ThePool, bearer, need, send
from gpupool_manager.metrics import Metrics
from gpupool_manager.problems import Problem, unavailable
from gpupool_manager.schemas import HealthOut, ReadyOut

router = APIRouter(tags=["system"])


@router.get("/health", response_model=HealthOut)
async def health() -> Response:
    """The process answers. No token is needed."""
    return send(HealthOut(status="ok", version=__version__))


@router.get("/ready", response_model=ReadyOut)
async def ready(pool: ThePool) -> Response:
    """The database answers, too, and changes can be made. No token is needed."""
    if not pool.commands.running:
        raise unavailable("the manager is stopping")
    await pool.store.fetch(select(literal(1)))
    return send(ReadyOut(status="ready", nodes=len(pool.ledger.nodes), gpus=len(pool.ledger.gpus)))


#: Whose scope is "metrics" can do nothing else with it.
_need_token = need("admin", "metrics")


async def _may_look(
    request: Request,
    pool: ThePool,
    given: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
) -> None:
    if not request.app.state.open_metrics:
        await _need_token(request, pool, given)
    elif _is_rebound(request):
        if given is None:
            raise Problem(401, "bad-token", f"{of_rebound(request.headers)}, or show a token")
        await _need_token(request, pool, given)


def _is_rebound(request: Request) -> bool:
    """Beyond the loopback, names are the network's, and TLS proves them."""
    at = (request.scope.get("server") or ("",))[0]
    plain: bool = request.app.state.plain
    return (
        plain and is_loopback(str(at)) and is_rebound(request.headers, request.app.state.host_names)
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "content": {"text/plain": {}, "application/openmetrics-text": {}},
            "description": "Prometheus' text format, or OpenMetrics",
        }
    },
    dependencies=[Depends(_may_look)],
)
async def metrics(request: Request) -> Response:
    """For Prometheus, or as OpenMetrics where that is accepted.

    Needs a token of the scope 'metrics' or an admin's, unless 'open_metrics' is on.
    """
    found: Metrics = request.app.state.metrics
    body, kind = found.render(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": kind})
