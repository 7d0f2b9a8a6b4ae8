"""HTTPS for the API server and for pods, with certificates that are read again when they change."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gpupool_common import logs
from gpupool_common.errors import GpupoolError

#: The kubelet brings a renewed secret within about a minute.
LOOK_SECONDS = 10.0

_log = logs.get("serving")


class Certificate:
    """A certificate and its key, as they are in their files."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._stamp()
        self._load()

    def _stamp(self) -> list[tuple[int, int, int]]:
        try:
            found = [path.stat() for path in self._files]
        except OSError as error:
            raise GpupoolError(f"{error.filename}: cannot be read: {error.strerror}") from None
        return [(each.st_ino, each.st_size, each.st_mtime_ns) for each in found]

    def _load(self) -> None:
        certificate, key = self._files
        try:
            # Of a pair that does not fit nothing is loaded: the context keeps what it has.
            probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            probe.load_cert_chain(certificate, key)
            self.context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise GpupoolError(f"{certificate}, {key}: cannot be used: {error}") from None

    def look(self) -> bool:
        """Load them again if they are others now; connections that are there keep theirs."""
        seen = self._stamp()
        if seen == self._seen:
            return False
        self._load()
        self._seen = seen
        return True

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if await asyncio.to_thread(self.look):
                    _log.info("the certificate was read again")
            except GpupoolError as error:  # half of a renewal: it is complete the next time
                _log.warning("the certificate cannot be read again", reason=str(error))


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are ours


async def serve(
    app: ASGIApp,
    address: tuple[str, int],
    certificate: Certificate,
    *beside: Coroutine[Any, Any, None],
) -> None:
    """Answer until a signal ends it, and run what runs beside it; an error of that ends all."""
    host, port = address
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        proxy_headers=False,
        limit_concurrency=512,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=10,
    )
    config.load()
    config.ssl = certificate.context
    server = _Server(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve())
    tasks = [asyncio.create_task(each) for each in (certificate.watch(), *beside)]
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([serving, stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, *tasks):
        task.cancel()
    await asyncio.gather(stopping, *tasks, return_exceptions=True)
    server.should_exit = True
    await asyncio.gather(serving, return_exceptions=True)
    if serving in done:
        raise GpupoolError(f"cannot listen at {host}:{port}; its log may say why")
    for task in done:
        if task is not stopping and not task.cancelled() and (error := task.exception()):
            raise error
