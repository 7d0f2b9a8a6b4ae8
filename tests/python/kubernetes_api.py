"""A small API server: objects by their paths, versions, patches, finalizers and watches."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import socket
import uuid
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

Object = dict[str, Any]


class FakeApi:
    """What a cluster's API server keeps. Only what our programs use is there."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.history: list[tuple[int, str, str, Object]] = []
        #: Versions up to this one are forgotten: a watch from there is 410.
        self.forgotten = 0
        #: Requests that are answered 503, until it is 0.
        self.away = 0
        self.reviews: dict[str, Object] = {}
        self.changed = asyncio.Condition()
        self.app = Starlette(routes=[Route("/{path:path}", self._any, methods=METHODS)])

    @property
    def version(self) -> int:
        return self.history[-1][0] if self.history else 1

    # What tests do -------------------------------------------------------------------------

    async def put(self, path: str, body: Object) -> Object:
        """An object as it is to be from now on."""
        made = copy.deepcopy(body)
        meta = made.setdefault("metadata", {})
        kind = "MODIFIED" if path in self.objects else "ADDED"
        before = self.objects.get(path, {}).get("metadata", {})
        meta["uid"] = before.get("uid") or meta.get("uid") or str(uuid.uuid4())
        meta.setdefault("name", path.rpartition("/")[2])
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        await self._keep(kind, path, made)
        return made

    async def remove(self, path: str, force: bool = False) -> None:
        """As ``kubectl delete``: what has finalizers only begins to go, unless it is forced."""
        found = copy.deepcopy(self.objects[path])
        if found["metadata"].get("finalizers") and not force:
            found["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:01Z")
            await self._keep("MODIFIED", path, found)
        else:
            await self._keep("DELETED", path, found)

    async def until(self, condition: Any, seconds: float = 60.0) -> None:
        """Wait until something holds of what is kept."""
        async with asyncio.timeout(seconds):
            async with self.changed:
                await self.changed.wait_for(condition)

    async def _keep(self, kind: str, path: str, found: Object) -> None:
        number = self.version + 1
        found["metadata"]["resourceVersion"] = str(number)
        if kind == "DELETED":
            self.objects.pop(path, None)
        else:
            self.objects[path] = found
        self.history.append((number, kind, path, copy.deepcopy(found)))
        async with self.changed:
            self.changed.notify_all()

    # What clients ask ----------------------------------------------------------------------

    async def _any(self, request: Request) -> Response:
        path = request.url.path
        if self.away:
            self.away -= 1
            return _status(503, "ServiceUnavailable", "away")
        if request.method == "GET":
            if path in self.objects:
                return JSONResponse(self.objects[path])
            if _is_list(path):
                return await self._list(request)
            return _status(404, "NotFound", f"{path} not found")
        body = json.loads(await request.body() or b"{}")
        if request.method == "POST":
            return await self._create(path, body)
        return await self._change(request, path.removesuffix("/status"), body)

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        if query.get("watch"):
            since = int(query["resourceVersion"])
            if since < self.forgotten:
                return _status(410, "Expired", "too old resource version")
            stream = self._stream(request.url.path, since, query.get("labelSelector"))
            return StreamingResponse(stream, media_type="application/json")
        items = [
            each
            for at, each in sorted(self.objects.items())
            if _belongs(at, request.url.path) and _selected(each, query.get("labelSelector"))
        ]
        meta = {"resourceVersion": str(self.version)}
        return JSONResponse({"kind": "List", "metadata": meta, "items": items})

    async def _stream(self, path: str, since: int, selector: str | None) -> AsyncIterator[str]:
        while True:
            for number, kind, at, found in list(self.history):
                if number > since and _belongs(at, path):
                    since = number
                    if _selected(found, selector):
                        yield json.dumps({"type": kind, "object": found}) + "\n"
            if since < self.forgotten:
                status = {"kind": "Status", "code": 410, "message": "too old"}
                yield json.dumps({"type": "ERROR", "object": status}) + "\n"
                return
            async with self.changed:
                with contextlib.suppress(TimeoutError):
                    # asyncio.wait_for would wait in a task of its own, which is cancelled beside
                    # this one at the end of the loop, and then has the lock for ever.
                    async with asyncio.timeout(0.2):
                        await self.changed.wait()

    async def _create(self, path: str, body: Object) -> Response:
        if path.endswith("/tokenreviews"):
            token = body["spec"]["token"]
            return JSONResponse({**body, "status": self.reviews.get(token, {})}, 201)
        at = f"{path}/{body['metadata']['name']}"
        if at in self.objects:
            return _status(409, "AlreadyExists", f"{at} already exists")
        return JSONResponse(await self.put(at, body), 201)

    async def _change(self, request: Request, path: str, body: Object) -> Response:
        found = copy.deepcopy(self.objects.get(path))
        if found is None:
            return _status(404, "NotFound", f"{path} not found")
        if request.method == "DELETE":
            await self.remove(path)
            return JSONResponse(found)
        version = (body.get("metadata") or {}).get("resourceVersion")
        if version is not None and version != found["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", "the object has been modified")
        if request.method == "PUT":
            return JSONResponse(await self.put(path, body))
        strategic = "strategic" in request.headers["content-type"]
        merged = _merge(found, body, strategic)
        meta = merged["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            await self._keep("DELETED", path, merged)
        else:
            await self._keep("MODIFIED", path, merged)
        return JSONResponse(merged)


METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def _is_list(path: str) -> bool:
    """Whether a path's last part is a plural, and no name."""
    parts = path.strip("/").split("/")
    behind = parts[2 if parts[0] == "api" else 3 :]
    return len(behind) % 2 == 1


def _belongs(at: str, path: str) -> bool:
    """Whether an object is in a list: that of its namespace, or that of all."""
    folder, _, _ = at.rpartition("/")
    if folder == path:
        return True
    head, _, rest = folder.partition("/namespaces/")
    return bool(rest) and f"{head}/{rest.partition('/')[2]}" == path


def _selected(found: Object, selector: str | None) -> bool:
    key, _, value = (selector or "").partition("=")
    return not selector or (found["metadata"].get("labels") or {}).get(key) == value


def _merge(found: Any, patch: Any, strategic: bool, key: str = "") -> Any:
    """RFC 7396; strategic: conditions are merged by their type."""
    if key == "conditions" and strategic:
        by_type = {each["type"]: each for each in found or []}
        for each in patch:
            by_type[each["type"]] = {**by_type.get(each["type"], {}), **each}
        return list(by_type.values())
    if not isinstance(patch, dict):
        return patch
    merged = dict(found) if isinstance(found, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value, strategic, name)
    return merged


def _status(code: int, reason: str, message: str) -> Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
    return JSONResponse({**body, "message": message}, code)


@contextlib.asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """An app at a port of this machine, for clients that want one."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await serving
        listener.close()
