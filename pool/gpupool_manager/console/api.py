"""The console's way to the REST API: as any program's, with a token, but in this process.

So whoever is signed in sees and does what the token may, and nothing is decided here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from starlette.types import Message, Scope

from gpupool_manager.problems import TITLES, Problem

_PROBLEM = "urn:gpupool:problem:"


@dataclass(slots=True)
class Answer:
    """What the API said."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def document(self) -> Any:
        return json.loads(self.body) if self.body else None

    def check(self) -> Answer:
        """Itself, or what was refused as the Problem that it is."""
        if self.status < 400:
            return self
        found = self.document()
        code = str(found.pop("type")).removeprefix(_PROBLEM)
        more = {key: found[key] for key in ("errors", "limits") if key in found}
        raise Problem(self.status, code if code in TITLES else "failed", found["detail"], **more)


def at(*names: str) -> str:
    """The path of something, whatever its name has."""
    return "/" + "/".join(quote(name, safe="") for name in names)


def inner_scope(
    request: Request, secret: str, method: str, path: str, query: dict[str, Any]
) -> Scope:
    """A request to the API in the name of who is signed in, from where that one is."""
    given = {key: value for key, value in query.items() if value not in (None, "")}
    headers = [
        (b"host", request.headers.get("host", "").encode("latin-1")),
        (b"authorization", f"Bearer {secret}".encode("latin-1", "replace")),
        (b"x-request-id", request.state.request_id.encode("latin-1")),
    ]
    outer = request.scope
    # Names have no percent signs: what is quoted in a path is the name of nothing.
    return {
        **{key: outer[key] for key in ("type", "asgi", "http_version", "scheme")},
        **{key: outer.get(key) for key in ("client", "server")},
        "method": method,
        "path": f"/v1{path}",
        "raw_path": f"/v1{path}".encode(),
        "root_path": "",
        "query_string": urlencode(given, doseq=True).encode(),
        "headers": headers,
        "state": {"of_console": True},
    }


class Api:
    """The API as one token sees it."""

    def __init__(self, request: Request, secret: str) -> None:
        self._request = request
        self._secret = secret

    async def ask(
        self, method: str, path: str, body: Any = None, if_match: str | None = None, **query: Any
    ) -> Answer:
        """One request; Problem if it is refused."""
        scope = inner_scope(self._request, self._secret, method, path, query)
        if body is not None:
            scope["headers"].append((b"content-type", b"application/json"))
        if if_match:
            scope["headers"].append((b"if-match", if_match.encode("latin-1", "replace")))
        sent = b"" if body is None else json.dumps(body).encode()
        answer = Answer()

        async def receive() -> Message:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                pairs = message.get("headers", ())
                answer.headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in pairs}
            else:
                answer.body += message.get("body", b"")

        await self._request.app(scope, receive, send)
        return answer.check()

    async def get(self, path: str, **query: Any) -> Any:
        return (await self.ask("GET", path, **query)).document()

    async def send(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        return (await self.ask(method, path, body, **more)).document()
