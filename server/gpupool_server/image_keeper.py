"""Fetches images from workers that offer them, and has them kept, one after the other."""

from __future__ import annotations

import asyncio
import re
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


#: Of all sessions at once, that were fetched and are not kept yet: each holds memory of a worker
#: that may have ended.
MOST_KEEPING = 64
#: Of sessions that have ended, together: no budget counts these.
MOST_LEFT_BYTES = 1 << 30


class Offers:
    """What one session's worker says of images."""

    def __init__(self, store: ImageStore, folder: Path, limit: int) -> None:
        """``limit`` is what it may have written to the disk: no more than the store holds."""
        self._store = store
        self.folder = folder
        self._left = limit
        #: Names and sizes.
        self.queue: asyncio.Queue[tuple[str, int]] = asyncio.Queue(MOST_WAITING)

    def hear(self, question: bytes) -> bool:
        """Whether it was of images."""
        found = _SAID.fullmatch(question)
        if found is None:
            return False
        if found[3] is not None:
            self._store.used(self.folder, found[3].decode())
            return True
        size = int(found[2])
        if size <= LEAST_BYTES:
            return False
        if not self.queue.full() and size <= self._left:
            self._left -= size
            self.queue.put_nowait((found[1].decode(), size))
        return True

    async def settle(self) -> None:
        """Until all that was offered so far was fetched, or could not be."""
        await self.queue.join()


class ImageKeeper:
    """What workers say of images. For the event loop's thread only."""

    def __init__(self, store: ImageStore, limit: int, closer: Closer) -> None:
        self._store = store
        self._limit = limit
        self._closer = closer
        self._one = asyncio.Lock()
        self._keeping: set[asyncio.Task[None]] = set()
        self._left_bytes = 0
        self._log = logs.get("images")

    def listen(self, session: Session, folder: Path) -> Offers:
        """What hears a session's worker."""
        offers = Offers(self._store, folder, self._limit)
        session.images = asyncio.get_running_loop().create_task(self._serve(session, offers))
        return offers

    async def _serve(self, session: Session, offers: Offers) -> None:
        failed = 0
        while True:
            name, size = await offers.queue.get()
            if failed == MOST_FAILED:
                offers.queue.task_done()
                continue
            try:
                await self._take(session, offers, name, size)
            except (ImageError, WorkerError, OSError) as error:
                failed += 1
                self._log.warning(
                    "an image is not kept",
                    session=session.meta.session,
                    reason=str(error),
                    **({"more": "not heard"} if failed == MOST_FAILED else {}),
                )

    async def _take(self, session: Session, offers: Offers, name: str, size: int) -> None:
        """Fetch an image and have it kept, also when the session ends once it is fetched."""
        try:
            file = await self._fetch(session, name, size)
        finally:
            offers.queue.task_done()
        if file is None:
            return
        keeping = asyncio.create_task(self._keep(offers.folder, name, size, file))
        self._keeping.add(keeping)
        keeping.add_done_callback(self._kept)
        try:
            await asyncio.shield(keeping)
        except asyncio.CancelledError:
            self._leave(keeping, size)
            raise

    def _leave(self, keeping: asyncio.Task[None], size: int) -> None:
        """Its session has ended: it is kept all the same if not too much waits so."""
        if self._left_bytes + size > MOST_LEFT_BYTES:
            keeping.cancel()
            return

        def done(_: asyncio.Task[None]) -> None:
            self._left_bytes -= size

        self._left_bytes += size
        keeping.add_done_callback(done)

    async def _fetch(self, session: Session, name: str, size: int) -> int | None:
        """The file; None: the worker needed the room, or has ended."""
        line, descriptors = await session.control.image(name, self._closer)
        if not descriptors:
            return None
        problem = None
        if line != b"image %d\n" % size:
            problem = "a worker brought another image than it had offered"
        elif len(self._keeping) == MOST_KEEPING:
            problem = "too many others are just being kept"
        if problem is not None:
            self._closer.close(*descriptors)
            raise ImageError(problem)
        return descriptors[0]

    async def _keep(self, folder: Path, name: str, size: int, file: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with self._one:  # and no worker that keeps us waiting
                kept = loop.run_in_executor(None, self._store.keep, folder, name, size, file)
                try:
                    await asyncio.shield(kept)
                finally:
                    await asyncio.wait((kept,))  # the thread reads the descriptor
        finally:
            self._closer.close(file)

    def _kept(self, keeping: asyncio.Task[None]) -> None:
        self._keeping.discard(keeping)
        if not keeping.cancelled():
            keeping.exception()  # its session may have ended, and then nobody asks
