"""Fetches images from workers that offer them, one after the other, and has them kept."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from gpupool_common import logs
from gpupool_common.closer import Closer
from gpupool_server.image_store import ImageError, ImageStore
from gpupool_server.session import Session
from gpupool_server.worker import WorkerError

_SAID = re.compile(rb"(?:image ([0-9a-f]{64}) ([0-9]{1,10})|used ([0-9a-f]{64}))")

#: Of one session that wait; the worker keeps the rest until it ends.
MOST_WAITING = 1024


class ImageKeeper:
    """What workers say of images. For the event loop's thread only."""

    def __init__(self, store: ImageStore, limit: int, closer: Closer) -> None:
        self._store = store
        self._limit = limit
        self._closer = closer
        self._one = asyncio.Lock()
        self._log = logs.get("images")

    def listen(self, session: Session, folder: Path) -> Callable[[bytes], bool]:
        """What hears a session's worker: whether it was of images."""
        queue: asyncio.Queue[tuple[str, int]] = asyncio.Queue(MOST_WAITING)
        left = self._limit  # a session writes no more to the disk than the store holds

        def hear(question: bytes) -> bool:
            nonlocal left
            found = _SAID.fullmatch(question)
            if found is None:
                return False
            if found[3] is not None:
                self._store.used(folder, found[3].decode())
            elif not queue.full() and int(found[2]) <= left:
                left -= int(found[2])
                queue.put_nowait((found[1].decode(), int(found[2])))
            return True

        task = asyncio.get_running_loop().create_task(self._serve(session, folder, queue))
        session.images = task
        return hear

    async def _serve(
        self, session: Session, folder: Path, queue: asyncio.Queue[tuple[str, int]]
    ) -> None:
        while True:
            name, size = await queue.get()
            async with self._one:
                try:
                    await self._fetch(session, folder, name, size)
                except (ImageError, WorkerError, OSError) as error:
                    self._log.warning(
                        "an image is not kept", session=session.meta.session, reason=str(error)
                    )

    async def _fetch(self, session: Session, folder: Path, name: str, size: int) -> None:
        line, descriptors = await session.control.image(name, self._closer)
        try:
            if not descriptors:
                return  # it needed the room, or has ended
            if line != b"image %d\n" % size:
                raise ImageError("a worker brought another image than it had offered")
            # to its end, also when the session ends meanwhile: the thread reads the descriptor
            kept = asyncio.ensure_future(
                asyncio.to_thread(self._store.keep, folder, name, size, descriptors[0])
            )
            try:
                await asyncio.shield(kept)
            finally:
                await asyncio.wait((kept,))
        finally:
            self._closer.close(*descriptors)
