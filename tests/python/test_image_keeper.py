"""What the server makes of images that workers offer, with workers that say what they like."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from gpupool_common.closer import Closer
from gpupool_server import image_keeper
from gpupool_server.image_keeper import LEAST_BYTES, MOST_FAILED, MOST_KEEPING, ImageKeeper
from gpupool_server.image_name import image_name
from gpupool_server.image_store import ImageStore
from gpupool_server.session import Session
from gpupool_server.worker import WorkerError

LIMIT = 100
DATA = b"image"
NAME = image_name(DATA)
OFFER = f"image {NAME} {len(DATA)}".encode()


class FakeControl:
    """Answers `image` with a line and files of memory."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.silent = False
        self.line = b"image %d\n" % len(DATA)
        self.files = 1
        self.gone = False

    async def image(self, name: str, closer: Closer) -> tuple[bytes, list[int]]:
        self.asked.append(name)
        if self.silent:
            await asyncio.Event().wait()
        if self.gone:
            raise WorkerError("it has gone")
        files = [os.memfd_create("image") for _ in range(self.files)]
        for file in files:
            os.write(file, DATA)
        return self.line, files


class _Session:
    def __init__(self) -> None:
        self.control = FakeControl()
        self.meta = type("Meta", (), {"session": "a" * 12})()
        self.images: asyncio.Task[None] | None = None


class Offering:
    """A session whose worker offers images, and the folder for them; with another's keeper."""

    def __init__(self, folder: Path, tenant: str = "red", other: Offering | None = None) -> None:
        self.closer = Closer()
        self.store = ImageStore(folder / "images", LIMIT)
        self.folder = self.store.folder_of(None, tenant)
        self.session = _Session()
        self.keeper: ImageKeeper = (
            other.keeper if other else ImageKeeper(self.store, LIMIT, self.closer)
        )
        session = cast(Session, self.session)
        self.offers = self.keeper.listen(session, self.folder)
        self.hear = self.offers.hear

    @property
    def kept(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]

    async def asked(self, count: int) -> None:
        """The worker was asked so often, and what it said is settled."""
        async with asyncio.timeout(30):
            while len(self.session.control.asked) < count:
                await asyncio.sleep(0.005)
        # one more that is not there: it is asked for behind the others
        self.session.control.files = 0
        self.hear(b"image " + b"0" * 64 + b" 1")
        async with asyncio.timeout(30):
            while self.session.control.asked[-1] != "0" * 64:
                await asyncio.sleep(0.005)


@pytest.fixture
async def offering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Offering]:
    monkeypatch.setattr(image_keeper, "LEAST_BYTES", 0)
    one = Offering(tmp_path)
    yield one
    assert one.session.images is not None
    assert not one.session.images.done(), "it hears on, whatever came"
    one.session.images.cancel()
    one.closer.end()


async def test_what_is_offered_is_fetched_and_kept(offering: Offering) -> None:
    assert offering.hear(OFFER)
    await offering.asked(1)
    assert offering.kept == [NAME]


@pytest.mark.parametrize("line", [b"none\n", b"image 6\n", b"image 4\n", b"", b"image 5"])
async def test_another_answer_keeps_nothing(offering: Offering, line: bytes) -> None:
    offering.session.control.line = line
    assert offering.hear(OFFER)
    await offering.asked(1)
    assert offering.kept == []


async def test_another_image_than_its_hash_is_not_kept(offering: Offering) -> None:
    assert offering.hear(b"image " + b"1" * 64 + b" 5")
    await offering.asked(1)
    assert offering.kept == []


async def test_a_worker_that_has_gone(offering: Offering) -> None:
    offering.session.control.gone = True
    assert offering.hear(OFFER)
    async with asyncio.timeout(30):
        while not offering.session.control.asked:
            await asyncio.sleep(0.005)
    offering.session.control.gone = False
    assert offering.hear(OFFER)
    await offering.asked(2)
    assert offering.kept == [NAME]


async def test_a_session_writes_no_more_than_is_kept(offering: Offering) -> None:
    for _ in range(2 * LIMIT // len(DATA)):
        assert offering.hear(OFFER)
    most = LIMIT // len(DATA)
    async with asyncio.timeout(30):
        while len(offering.session.control.asked) < most:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert len(offering.session.control.asked) == most


@pytest.mark.parametrize(
    "said",
    [
        *(b"image", OFFER + b"\n", OFFER.upper(), OFFER[:-1], b"image ../x 5", b"used ../../x"),
        *(b"image " + NAME.encode() + b" -1", b"image " + NAME.encode() + b" " + b"9" * 11),
        *(b"used " + NAME.encode() + b"/..", b"image " + NAME.encode()[1:] + b" 5"),
    ],
)
async def test_what_is_no_offer_is_not_heard(offering: Offering, said: bytes) -> None:
    assert not offering.hear(said)
    assert offering.session.control.asked == []


async def test_what_was_used_is_noted(offering: Offering) -> None:
    assert offering.hear(OFFER)
    await offering.asked(1)
    os.utime(offering.folder / NAME, (1, 1))
    assert offering.hear(b"used " + NAME.encode())
    assert (offering.folder / NAME).stat().st_mtime > 1
    assert offering.hear(b"used " + b"2" * 64), "one that has gone meanwhile"


async def test_small_images_are_no_offer(tmp_path: Path) -> None:
    """Thousands of them would fill a disk with blocks and files that nobody has counted."""
    one = Offering(tmp_path)
    header = Path(__file__).parents[2] / "proto" / "wire" / "fatbin.h"
    (eager,) = re.findall(r"GP_IMAGE_EAGER \((\d+)u << (\d+)\)", header.read_text())
    assert int(eager[0]) << int(eager[1]) == LEAST_BYTES
    for size in (0, 1, LEAST_BYTES):
        assert not one.hear(b"image " + NAME.encode() + b" %d" % size)
    assert one.hear(b"image " + NAME.encode() + b" %d" % (LEAST_BYTES + 1))
    one.closer.end()


async def test_who_fails_again_and_again_is_not_heard(offering: Offering) -> None:
    offering.session.control.line = b"image 4\n"
    for _ in range(LIMIT // len(DATA)):
        assert offering.hear(OFFER)
    async with asyncio.timeout(30):
        while len(offering.session.control.asked) < MOST_FAILED:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert len(offering.session.control.asked) == MOST_FAILED


async def test_a_worker_that_is_silent_keeps_nobody_waiting(
    offering: Offering, tmp_path: Path
) -> None:
    offering.session.control.silent = True
    assert offering.hear(OFFER)
    other = Offering(tmp_path, "blue", offering)
    assert other.hear(OFFER)
    await other.asked(1)
    assert other.kept == [NAME]
    assert offering.kept == []
    assert other.session.images is not None
    other.session.images.cancel()
    other.closer.end()


async def test_a_worker_that_ends_hears_when_its_images_are_fetched(offering: Offering) -> None:
    assert offering.hear(OFFER)
    await offering.offers.settle()
    assert offering.session.control.asked == [NAME]
    offering.session.control.gone = True
    assert offering.hear(OFFER)
    await offering.offers.settle()
    assert len(offering.session.control.asked) == 2


def slow_disk(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, list[Path]]:
    """Nothing is kept before the event is set; and the folders in which something was then."""
    go_on = threading.Event()
    kept: list[Path] = []

    def slowly(folder: Path, name: str, size: int, source: int) -> None:
        assert go_on.wait(30)
        kept.append(folder)

    monkeypatch.setattr(offering.store, "keep", slowly)
    return go_on, kept


async def offer_all(*offerings: Offering) -> None:
    for one in offerings:
        assert one.hear(OFFER)
        await one.offers.settle()


async def test_what_sessions_leave_behind_is_bounded(
    offering: Offering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is memory that no budget counts, for as long as the disk is busy."""
    go_on, kept = slow_disk(offering, monkeypatch)
    monkeypatch.setattr(image_keeper, "MOST_LEFT_BYTES", 2 * len(DATA))
    others = [Offering(tmp_path, f"tenant {n}", offering) for n in range(4)]
    await offer_all(offering, *others)
    for other in others:
        assert other.session.images is not None
        other.session.images.cancel()
        await asyncio.wait((other.session.images,))
        other.closer.end()
    go_on.set()
    last = Offering(tmp_path, "the last", offering)
    assert last.hear(OFFER)
    async with asyncio.timeout(30):
        while last.folder not in kept:
            await asyncio.sleep(0.005)
    assert kept == [one.folder for one in (offering, *others[:2], last)]
    assert last.session.images is not None
    last.session.images.cancel()
    last.closer.end()


async def test_what_was_fetched_is_kept_though_its_session_ends(
    offering: Offering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind another image, which takes its time; and no more of these than are bounded."""
    go_on, kept = slow_disk(offering, monkeypatch)
    others = [Offering(tmp_path, f"tenant {n}", offering) for n in range(MOST_KEEPING)]
    await offer_all(offering, *others)
    for other in others:
        assert other.session.images is not None
        other.session.images.cancel()
        other.closer.end()
    go_on.set()
    async with asyncio.timeout(30):
        while len(kept) < MOST_KEEPING:
            await asyncio.sleep(0.005)
    assert kept == [one.folder for one in (offering, *others[:-1])], "one was too many"
