"""The pool's manager, asked from asyncio. Its token is a file that is read again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpupool.pool_address import Where, read_token
from gpupool.pool_client import Params, PoolClient
from gpupool_common import fingerprint
from gpupool_common.errors import ConfigError, PoolRefusedError
from gpupool_kubernetes.config import Settings

T = TypeVar("T")


class ManagerClient:
    """Connections to the manager; to be closed."""

    def __init__(self, url: str, token_file: Path, ca: Path | None, pin: str | None) -> None:
        self._url, self._token_file, self._ca, self._pin = url, token_file, ca, pin
        self._where: Where | None = None
        self._client: PoolClient | None = None

    @classmethod
    def of(cls, settings: Settings) -> ManagerClient:
        pin = _read_pin(settings.pool_fingerprint_file)
        return cls(settings.pool, settings.pool_token_file, settings.pool_ca, pin)

    @classmethod
    def at(cls, url: str, token_file: Path, pin_file: Path | None) -> ManagerClient:
        """A manager whose own files we can read."""
        return cls(url, token_file, None, _read_pin(pin_file))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    async def knows(self, token: str) -> bool:
        """Whether the manager takes a token, whatever that opens."""
        if not token.isascii() or not token.isprintable():
            return False
        try:
            with PoolClient(Where(self._url, token, self._ca, self._pin)) as client:
                await asyncio.to_thread(client.get, "/leases", {"limit": "1"})
        except PoolRefusedError as error:
            return error.status != 401
        return True

    async def get(self, path: str, params: Params | None = None) -> dict[str, Any]:
        return await self._do(lambda client: client.get(path, params))

    async def all(self, path: str, params: Params | None = None) -> list[Any]:
        return await self._do(lambda client: client.all(path, params))

    async def do(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, key: str = ""
    ) -> dict[str, Any]:
        return await self._do(lambda client: client.do(method, path, body, key=key))

    async def etag(self, path: str) -> tuple[dict[str, Any], str | None]:
        """An object and the tag with which it can be changed."""
        answer = await self._do(lambda client: client.ask("GET", path))
        return answer.object(self._url), answer.etag

    async def change(self, path: str, body: Mapping[str, Any], etag: str | None) -> dict[str, Any]:
        return await self._do(lambda client: client.do("PUT", path, body, etag=etag))

    async def _do(self, ask: Callable[[PoolClient], T]) -> T:
        return await asyncio.to_thread(lambda: ask(self._open()))

    def _open(self) -> PoolClient:
        """A client with the token as it is now.

        The one before it is not closed: another thread may be asking by it. It goes with the last
        who does.
        """
        where = Where(self._url, read_token(self._token_file), self._ca, self._pin)
        if self._client is None or self._where != where:
            self._client, self._where = PoolClient(where), where
        return self._client


def _read_pin(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return fingerprint.parse(path.read_text(encoding="ascii")[:4096])
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no fingerprint"
        raise ConfigError(f"key 'pool_fingerprint_file': {path}: {reason}") from None
