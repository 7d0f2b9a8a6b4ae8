"""The cluster's API server: objects are read, listed, watched and changed as JSON.

The token and the CA are files that the kubelet renews; the token is read for every request.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx

from gpupool_common import __version__, json_text
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.protocol import one_line
from gpupool_common.secret_file import MOST_BYTES

#: Where a pod finds what its ServiceAccount may do.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

ANSWER_SECONDS = 30.0
#: The API server ends a watch after about so long, and one that is silent for longer is dead.
WATCH_SECONDS = 300
PAGE = 500
#: An object is 1.5 MiB at most (etcd's limit), a page of 500 usually much less.
MAX_ANSWER = 256 << 20
MAX_LINE = 8 << 20

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

Object = dict[str, Any]


class ApiError(GpupoolError):
    """The API server said no; ``status`` is HTTP's, ``reason`` that of its Status object."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ApiAwayError(GpupoolError):
    """The API server gave no answer."""


class GoneError(GpupoolError):
    """A watch cannot go on from where it was; list again."""


@dataclass(frozen=True)
class Address:
    """An API server, and as whom we come to it."""

    url: str
    token_file: Path | None = None
    ca: Path | None = None

    @classmethod
    def in_cluster(cls) -> Address:
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
        if not host or not port:
            raise ConfigError(
                "no API server is named: this is no pod (KUBERNETES_SERVICE_HOST is not set);"
                " set 'api_server'"
            )
        shown = f"[{host}]" if ":" in host else host
        return cls(f"https://{shown}:{port}", ACCOUNT / "token", ACCOUNT / "ca.crt")


def own_namespace() -> str | None:
    """The namespace of the pod that this process is in; None: it is in none."""
    try:
        return (ACCOUNT / "namespace").read_text(encoding="ascii").strip() or None
    except OSError:
        return None


class Cluster:
    """A connection to the API server; to be closed."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._http = httpx.AsyncClient(
            base_url=address.url,
            headers={"Accept": "application/json", "User-Agent": f"gpupool/{__version__}"},
            verify=_trust(address),
            timeout=ANSWER_SECONDS,
            limits=httpx.Limits(max_connections=64),
            follow_redirects=False,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    # Questions and changes -------------------------------------------------------------------

    async def get(self, path: str) -> Object:
        return await self.ask("GET", path)

    async def find(self, path: str) -> Object | None:
        """One object, or None if there is none."""
        try:
            return await self.ask("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, path: str, body: Object) -> Object:
        return await self.ask("POST", path, body)

    async def replace(self, path: str, body: Object) -> Object:
        return await self.ask("PUT", path, body)

    async def patch(self, path: str, body: Object, kind: str = MERGE) -> Object:
        return await self.ask("PATCH", path, body, kind=kind)

    async def delete(self, path: str, body: Object | None = None) -> None:
        """An object that is gone already is none to complain of."""
        try:
            await self.ask("DELETE", path, body)
        except ApiError as error:
            if error.status != 404:
                raise

    async def list(self, path: str, **query: str) -> tuple[list[Object], str]:
        """All objects, page by page, and the version from which to watch."""
        found: list[Object] = []
        following = ""
        while True:
            more = {"continue": following} if following else {}
            page = await self.ask("GET", path, query={**query, "limit": str(PAGE), **more})
            items, meta = page.get("items"), page.get("metadata") or {}
            if not isinstance(items, list):
                raise ApiError(200, "NotAList", f"the API server answered {path} without a list")
            found += items
            following = str(meta.get("continue") or "")
            if not following:
                return found, str(meta.get("resourceVersion") or "")

    async def watch(
        self, path: str, version: str, **query: str
    ) -> AsyncIterator[tuple[str, Object]]:
        """What changes from a version on: ADDED, MODIFIED, DELETED or BOOKMARK, and the object.

        It ends when the API server ends it. GoneError: the version is too old.
        """
        asked = {
            **query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = httpx.Timeout(ANSWER_SECONDS, read=WATCH_SECONDS + ANSWER_SECONDS)
        try:
            async with self._http.stream(
                "GET", path, params=asked, headers=self._credential(), timeout=timeout
            ) as response:
                if response.status_code != 200:
                    self._judge(path, response, await response.aread())
                async for line in _lines(response.aiter_bytes()):
                    yield _event(path, line)
        except httpx.HTTPError as error:
            raise self._away(path, error) from None

    async def ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> Object:
        """One request, one answer that is a yes."""
        headers = self._credential()
        content = None
        if body is not None:
            headers["Content-Type"] = kind
            content = json.dumps(body, allow_nan=False).encode()
        try:
            response = await self._http.request(
                method, path, content=content, params=query, headers=headers
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._away(path, error) from None
        return self._judge(path, response, response.content)

    # Answers ---------------------------------------------------------------------------------

    def _credential(self) -> dict[str, str]:
        path = self.address.token_file
        if path is None:
            return {}
        try:
            token = path.read_text(encoding="ascii")[: 4 * MOST_BYTES].strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ApiAwayError(
                f"the ServiceAccount token {path}: cannot be read: {reason}"
            ) from None
        return {"Authorization": f"Bearer {token}"}

    def _judge(self, path: str, response: httpx.Response, content: bytes) -> Object:
        if len(content) > MAX_ANSWER:
            raise ApiAwayError(f"the API server answered {path} with more than {MAX_ANSWER} bytes")
        try:
            body = json_text.parse(content)
        except ValueError:
            body = None
        status = response.status_code
        if not isinstance(body, dict):
            raise ApiAwayError(f"the API server answered {path} with {status} and no JSON object")
        if not 200 <= status < 300:
            reason, message = (
                str(body.get("reason") or ""),
                one_line(str(body.get("message") or "")),
            )
            raise ApiError(status, reason, f"the API server refused {path}: {status} {message}")
        return cast(Object, body)

    def _away(self, path: str, error: Exception) -> ApiAwayError:
        why = one_line(str(error)) or type(error).__name__
        return ApiAwayError(f"the API server at {self.address.url}: no answer to {path}: {why}")


def _trust(address: Address) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if address.ca is None else str(address.ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{address.ca}: holds no certificate to trust: {error}") from None


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > MAX_LINE:
            raise ApiAwayError(f"the API server sent an event of more than {MAX_LINE} bytes")
        for line in lines:
            if line.strip():
                yield line


def _event(path: str, line: bytes) -> tuple[str, Object]:
    try:
        event = json_text.parse(line)
    except ValueError:
        event = None
    found = event.get("object") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(found, dict):
        raise ApiAwayError(f"the API server sent an event of {path} that is none")
    if event.get("type") == "ERROR":
        if found.get("code") == 410:
            raise GoneError(f"the watch of {path} is too old")
        raise ApiError(int(found.get("code") or 500), "", one_line(str(found.get("message"))))
    return str(event.get("type")), found
