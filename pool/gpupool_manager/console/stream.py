"""The API's events for a page's script, which hears only those without a name of their own."""

from __future__ import annotations

import json
import re
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gpupool_manager.console.api import inner_scope
from gpupool_manager.console.visit import Visit, Visiting, session_of

router = APIRouter(include_in_schema=False)

_EVENT = re.compile(rb"event: ([a-z.-]+)\ndata: ([^\n]*)\n")


def _unnamed(found: re.Match[bytes]) -> bytes:
    """The name becomes a field of what is told."""
    told = {**json.loads(found[2]), "kind": found[1].decode()}
    return b"data: " + json.dumps(told).encode() + b"\n"


class _Forwarded(Response):
    """The API's own answer, as it comes."""

    def __init__(self, visit: Visit, recent: int) -> None:
        super().__init__()
        self._visit = visit
        self._recent = recent

    def _lasts(self) -> bool:
        """Whether that one is still signed in: a page may be left open, or be somebody else's."""
        return session_of(self._visit.request) is self._visit.session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, secret = self._visit.request, self._visit.session.secret
        inner = inner_scope(request, secret, "GET", "/events", {"recent": self._recent})
        inner["state"]["lasts"] = self._lasts
        last = request.headers.get("last-event-id")
        if last is not None:
            inner["headers"].append((b"last-event-id", last.encode("latin-1")))

        async def send_unnamed(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": _EVENT.sub(_unnamed, message.get("body", b""))}
            else:
                named = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
                message = {**message, "headers": named}
            await send(message)

        await request.app(inner, receive, send_unnamed)


@router.get("/console/stream")
async def stream(visit: Visiting, recent: Annotated[int, Query(ge=0, le=1000)] = 0) -> Response:
    """What happens, until the page or the session is closed."""
    return _Forwarded(visit, recent)
