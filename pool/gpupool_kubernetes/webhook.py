"""``gpupool-kubernetes webhook``: the admission webhook as an HTTPS service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import uvloop
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gpupool_common import logs
from gpupool_common.errors import ConfigError
from gpupool_common.setting_options import with_settings
from gpupool_kubernetes import reviews
from gpupool_kubernetes.admission import Admission
from gpupool_kubernetes.cluster import Cluster
from gpupool_kubernetes.command import api_address, ended
from gpupool_kubernetes.config import TABLES, Settings, load_settings
from gpupool_kubernetes.injection import Injector
from gpupool_kubernetes.manager_client import ManagerClient
from gpupool_kubernetes.namespace_quotas import NamespaceQuotas
from gpupool_kubernetes.serving import Certificate, serve

_log = logs.get("webhook")


def make_app(admission: Admission) -> Starlette:
    """``POST /admit``, and ``GET /healthz`` for the kubelet."""

    async def admit(request: Request) -> Response:
        try:
            content = await _body(request)
            review = reviews.read(content)
        except reviews.ReviewError as error:
            _log.warning("no review", reason=str(error))
            return PlainTextResponse(f"{error}\n", status_code=400)
        verdict = await admission.judge(review)
        if verdict.refused is not None:
            _log.info(
                "refused",
                namespace=review.namespace,
                user=review.user.username,
                reason=verdict.refused,
            )
        return JSONResponse(reviews.answer(review.uid, verdict))

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(routes=[Route("/admit", admit, methods=["POST"]), Route("/healthz", healthz)])


async def _body(request: Request) -> bytes:
    """What was sent, if it is not too much."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > reviews.MOST_BYTES:
                raise reviews.ReviewError(f"it has more than {reviews.MOST_BYTES} bytes")
    except ClientDisconnect:
        raise reviews.ReviewError("it was not sent whole") from None
    return b"".join(parts)


def read_ca(settings: Settings) -> str:
    """Who signs the controller's certificate, in PEM, for pods; empty: the system knows it."""
    path = settings.credential_ca
    if path is None:
        return ""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"key 'credential_ca': {path}: cannot be read: {reason}") from None


async def _serve(settings: Settings) -> None:
    certificate = Certificate(settings.tls_certificate, settings.tls_key)
    cluster, manager = Cluster(api_address(settings)), ManagerClient.of(settings)
    admission = Admission(
        settings, Injector(settings, read_ca(settings)), manager, NamespaceQuotas(cluster)
    )
    try:
        _log.info("ready", listen=settings.listen, resource_names=settings.resource_names)
        await serve(make_app(admission), settings.address, certificate)
    finally:
        manager.close()
        await cluster.close()


def webhook(
    config: Annotated[Path | None, typer.Option(help="a TOML file")] = None, **flags: object
) -> None:
    """Take GPUs off the resources of pods, and give them what they need to get GPUs of the pool."""
    with ended():
        settings = load_settings(config, flags)
        logs.configure(settings.log_level, settings.log_json)
        uvloop.run(_serve(settings))


def add_to(app: typer.Typer) -> None:
    app.command("webhook")(with_settings(Settings, webhook, TABLES))
