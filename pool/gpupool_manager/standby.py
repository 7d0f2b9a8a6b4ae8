"""The door of a manager that stands by: it says that another one leads, until this one does."""

from __future__ import annotations

import json
import secrets

from starlette.types import ASGIApp, Receive, Scope, Send

from gpupool_common import __version__
from gpupool_manager.problems import Problem

#: Where it says that the process answers, as a manager that leads does.
_HEALTH = ("/v1/health", "/healthz")

#: When to ask again: a lock that is free is found sooner.
_RETRY_SECONDS = "1"


class Door:
    """An ASGI application that is another one from some moment on."""

    def __init__(self) -> None:
        self._app: ASGIApp = _stand_by

    def lead_to(self, app: ASGIApp) -> None:
        """From now on requests are this application's."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _stand_by(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    if scope["path"] in _HEALTH and scope["method"] == "GET":
        await _answer(send, 200, {"status": "standby", "version": __version__}, "application/json")
        return
    problem = Problem(503, "standby", "this manager stands by, as another one leads the pool")
    document = problem.document(secrets.token_hex(8))
    await _answer(send, problem.status, document, "application/problem+json")


async def _answer(send: Send, status: int, body: object, kind: str) -> None:
    text = json.dumps(body).encode()
    headers = {"content-type": kind, "content-length": str(len(text)), "cache-control": "no-store"}
    if status == 503:
        headers["retry-after"] = _RETRY_SECONDS
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": text})
