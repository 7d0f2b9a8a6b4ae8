"""Fetches images from workers that offer them, and has them kept, one after the other."""

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

#: A worker offers none that is not larger, as proto/wire/fatbin.h has it (GP_IMAGE_EAGER). So a
#: worker that was taken over fills a disk no faster than it is charged for, with files or blocks.
LEAST_BYTES = 1 << 20

#: Of one session that wait; the worker keeps the rest until it ends.
MOST_WAITING = 1024

#: After so many offers of one session that came to nothing no more is heard of its images: each may
#: take the time of a silent worker, and has a line in the log.
MOST_FAILED = 16


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
                return True
            size = int(found[2])
            if size <= LEAST_BYTES:
                return False
            if not queue.full() and size <= left:
                left -= size
                queue.put_nowait((found[1].decode(), size))
            return True

        task = asyncio.get_running_loop().create_task(self._serve(session, folder, queue))
        session.images = task
        return hear

    async def _serve(
        self, session: Session, folder: Path, queue: asyncio.Queue[tuple[str, int]]
    ) -> None:
        failed = 0
        while True:
            name, size = await queue.get()
            if failed == MOST_FAILED:
                continue
            try:
                await self._fetch(session, folder, name, size)
            except (ImageError, WorkerError, OSError) as error:
                failed += 1
                self._log.warning(
                    "an image is not kept",
                    session=session.meta.session,
                    reason=str(error),
                    **({"more": "not heard"} if failed == MOST_FAILED else {}),
                )

    async def _fetch(self, session: Session, folder: Path, name: str, size: int) -> None:
        line, descriptors = await session.control.image(name, self._closer)
        try:
            if not descriptors:
                return  # it needed the room, or has ended
            if line != b"image %d\n" % size:
                raise ImageError("a worker brought another image than it had offered")
            async with self._one:  # and no worker that keeps us waiting
                await self._keep(folder, name, size, descriptors[0])
        finally:
            self._closer.close(*descriptors)

    async def _keep(self, folder: Path, name: str, size: int, source: int) -> None:
        """To its end, also when the session ends meanwhile: the thread reads the descriptor."""
        kept = asyncio.ensure_future(
            asyncio.to_thread(self._store.keep, folder, name, size, source)
        )
        try:
            await asyncio.shield(kept)
        finally:
            await asyncio.wait((kept,))
