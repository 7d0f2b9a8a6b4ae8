"""/docs, and the paths by which others ask whether the manager is well.

The page is the schema as HTML, without a script and without anything from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from gpupool_common import __version__
from gpupool_manager import api_system
from gpupool_manager.api_common import ThePool

router = APIRouter(include_in_schema=False)

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 sans-serif;max-width:60rem;margin:auto;"
    "padding:1rem}code{font-size:1rem}td,th{text-align:left;vertical-align:top;padding:.2rem .6rem}"
)
_METHODS = ("get", "post", "put", "patch", "delete")


@router.get("/healthz")
@router.get("/livez")
async def live() -> Response:
    """As /v1/health."""
    return await api_system.health()


@router.get("/readyz")
async def ready(pool: ThePool) -> Response:
    """As /v1/ready."""
    return await api_system.ready(pool)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The REST API on one page."""
    return HTMLResponse("".join(_page(request.app.openapi())), headers=_HEADERS)


def _page(schema: dict[str, Any]) -> Iterator[str]:
    yield "<!doctype html><html lang=en><meta charset=utf-8><title>gpupool manager</title>"
    yield f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
    yield f"<h1>gpupool manager {escape(__version__)}</h1>"
    yield "<p>Its REST API; <a href=/v1/openapi.json>the same as OpenAPI</a>, with all fields.</p>"
    yield "<table><tr><th>request<th>what it does<th>parameters</tr>"
    for path, methods in schema["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield _row(method, path, methods[method])
    yield "</table></html>"


def _row(method: str, path: str, operation: dict[str, Any]) -> str:
    told = operation.get("description") or operation.get("summary", "")
    named = [each["name"] for each in operation.get("parameters", ())]
    return (
        f"<tr><td><code>{method.upper()} {escape(path)}</code><td>{escape(told)}"
        f"<td>{escape(', '.join(named))}</tr>"
    )
