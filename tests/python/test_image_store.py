"""What is kept of images, for whom, and what a worker that lies can do to it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from gpupool_server.image_name import image_name
from gpupool_server.image_store import UNUSED_SECONDS, ImageError, ImageStore

KIB = 1 << 10


def memory(data: bytes) -> int:
    file = os.memfd_create("image")
    os.write(file, data)
    return file


class Kept:
    """A store, and what is put into it."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.store = ImageStore(folder / "images", limit)
        self._clock = int(time.time()) - 1000

    def folder(self, tenant: str, pool: str | None = None) -> Path:
        return self.store.folder_of(pool, tenant)

    def put(
        self, tenant: str, data: bytes, name: str = "", size: int = 0, pool: str | None = None
    ) -> Path:
        source = memory(data)
        folder, name = self.folder(tenant, pool), name or image_name(data)
        try:
            self.store.keep(folder, name, size or len(data), source)
        finally:
            os.close(source)
        self._clock += 1  # the order is told by the clock of the test alone
        os.utime(folder / name, (self._clock, self._clock))
        return folder / name


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path, 10 * KIB)


def test_what_is_kept_is_read_by_all_and_written_by_none(kept: Kept) -> None:
    path = kept.put("red", b"image")
    assert path.read_bytes() == b"image"
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700


def test_tenants_have_folders_of_their_own(kept: Kept) -> None:
    folders = {
        kept.folder("red"),
        kept.folder("blue"),
        kept.folder(".."),
        kept.folder("red", "tcp://one:1"),
        kept.folder("red", "tcp://two:1"),
    }
    assert len(folders) == 5
    assert {each.parent for each in folders} == {kept.folder("red").parent}


@pytest.mark.parametrize("name", ["0" * 64, "../" + "0" * 61, "0" * 63, "A" * 64, "0" * 64 + "\n"])
def test_a_wrong_hash_is_not_kept(kept: Kept, name: str) -> None:
    with pytest.raises(ImageError):
        kept.put("red", b"image", name)
    assert list(kept.folder("red").iterdir()) == []


@pytest.mark.parametrize("size", [-1, 6, 4096, 10 * KIB + 1, 1 << 33, 1 << 64])
def test_a_wrong_size_is_not_kept(kept: Kept, size: int) -> None:
    with pytest.raises(ImageError):
        kept.put("red", b"image", size=size)
    assert list(kept.folder("red").iterdir()) == []


def test_only_files_of_memory_are_read(kept: Kept, tmp_path: Path) -> None:
    """Whose reading ends: a FIFO, or a file of somebody's file system, may keep a thread."""
    read, write = os.pipe()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(file, b"image")
    for source in (read, write, file):
        if source == file and os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
            continue
        with pytest.raises(ImageError, match="no file of memory"):
            kept.store.keep(kept.folder("red"), image_name(b"image"), 5, source)
    for source in (read, write, file):
        os.close(source)


def test_the_tenant_that_has_most_gives_way(kept: Kept) -> None:
    first, second = kept.put("red", b"1" * 3 * KIB), kept.put("red", b"2" * 3 * KIB)
    other = kept.put("blue", b"3" * 2 * KIB)
    kept.store.used(first.parent, first.name)
    third = kept.put("blue", b"4" * 3 * KIB)
    assert first.exists(), "it was used since"
    assert not second.exists()
    assert other.exists() and third.exists()


def test_who_sends_much_takes_nothing_from_others(kept: Kept) -> None:
    mine = kept.put("blue", b"b" * 4 * KIB)
    for number in range(20):
        kept.put("red", bytes([number]) * 3 * KIB)
    assert mine.exists()
    assert len(list(kept.folder("red").iterdir())) == 2
    assert (kept.store.bytes, kept.store.limit) == (10 * KIB, 10 * KIB)


def test_a_start_tidies_up(kept: Kept, tmp_path: Path) -> None:
    old, new = kept.put("red", b"1" * 4 * KIB), kept.put("red", b"2" * 4 * KIB)
    draft = old.with_suffix(".new")
    draft.write_bytes(b"1")
    (old.parent / "link").symlink_to(tmp_path)
    (old.parent / "folder").mkdir()
    ImageStore(tmp_path / "images", 5 * KIB).tidy()
    assert not draft.exists() and not old.exists()
    assert {path.name for path in new.parent.iterdir()} == {new.name, "folder"}
    assert tmp_path.exists()


def test_what_is_kept_is_not_written_again(kept: Kept) -> None:
    """Nor does anything give way to it."""
    other, path = kept.put("red", b"1" * 4 * KIB), kept.put("red", b"2" * 5 * KIB)
    before = path.stat().st_ino
    assert kept.put("red", b"2" * 5 * KIB).stat().st_ino == before
    assert other.exists()


def test_what_was_damaged_is_replaced(kept: Kept) -> None:
    path = kept.put("red", b"image")
    path.write_bytes(b"other")
    assert kept.put("red", b"image").read_bytes() == b"image"


@pytest.mark.parametrize("size", [5, 4096])
def test_a_lie_removes_nothing(kept: Kept, size: int) -> None:
    """A file goes only where another of its hash comes: not for a size that it cannot have."""
    path = kept.put("red", b"image of mine")
    source = memory(b"2" * 4096)
    with pytest.raises(ImageError, match="not what its hash says"):
        kept.store.keep(path.parent, path.name, size, source)
    os.close(source)
    assert path.read_bytes() == b"image of mine"


def test_what_is_replaced_takes_no_room_from_others(kept: Kept) -> None:
    other, path = kept.put("red", b"1" * 4 * KIB), kept.put("red", b"2" * 5 * KIB)
    path.write_bytes(b"3" * 5 * KIB)
    assert kept.put("red", b"2" * 5 * KIB).read_bytes() == b"2" * 5 * KIB
    assert other.exists()
    assert kept.store.bytes == 9 * KIB


def test_a_folder_that_is_removed_meanwhile(kept: Kept) -> None:
    """By the operator, under a server that runs: nothing is kept until the tenant comes again."""
    path = kept.put("red", b"image")
    shutil.rmtree(path.parent.parent)
    source = memory(b"other")
    with pytest.raises(FileNotFoundError):
        kept.store.keep(path.parent, image_name(b"other"), 5, source)
    kept.store.used(path.parent, path.name)
    os.close(source)
    assert kept.put("red", b"other").read_bytes() == b"other"


def test_what_is_no_file_is_neither_followed_nor_waited_for(kept: Kept, tmp_path: Path) -> None:
    folder, other = kept.folder("red"), tmp_path / "other"
    other.write_bytes(b"image")
    os.utime(other, (1, 1))
    for make in (lambda at: at.symlink_to(other), os.mkfifo):
        path = folder / image_name(b"image")
        path.unlink(missing_ok=True)
        make(path)
        kept.store.used(folder, path.name)
        assert kept.put("red", b"image").read_bytes() == b"image"
        assert stat.S_ISREG(path.lstat().st_mode)
    assert (other.read_bytes(), other.stat().st_mtime) == (b"image", 1)


def test_what_nobody_uses_goes(kept: Kept) -> None:
    """Of tenants that have gone, of pools at other addresses: they kept their parts for ever."""
    gone = kept.put("red", b"1" * KIB, pool="tcp://before:1")
    lasting = kept.put("red", b"2" * KIB, pool="tcp://before:2")
    used, unused = kept.put("blue", b"3" * KIB), kept.put("blue", b"4" * KIB)
    empty = kept.folder("green")
    now = time.time()
    for path in (gone, unused, gone.parent, empty):
        os.utime(path, (now - UNUSED_SECONDS - 60,) * 2)
    for path in (lasting, used):
        os.utime(path, (now - UNUSED_SECONDS + 60,) * 2)
    kept.store.tidy()
    assert lasting.exists() and used.exists() and not unused.exists()
    assert not empty.exists()
    assert kept.store.bytes == 2 * KIB
    os.utime(gone.parent, (now - UNUSED_SECONDS - 60,) * 2)  # it was changed by the first time
    kept.store.tidy()
    assert not gone.parent.exists()
    assert kept.put("green", b"5" * KIB).exists(), "who comes back begins anew"


def test_a_folder_is_there_for_who_keeps_its_first_image_late(kept: Kept) -> None:
    """Of a session that has lasted longer than what nobody uses."""
    folder, data = kept.folder("red"), b"1" * KIB
    os.utime(folder, (time.time() - UNUSED_SECONDS - 60,) * 2)
    source = memory(data)
    kept.store.keep(folder, image_name(data), KIB, source)
    os.close(source)
    assert (folder / image_name(data)).read_bytes() == data


def test_a_full_disk_keeps_nothing(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not half of an image either, and the next one is kept as ever."""
    other = kept.put("red", b"1" * KIB)
    whole, write = b"2" * 4 * KIB, os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 4 * KIB:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(file, data[:KIB])

    source = memory(whole)
    with monkeypatch.context() as patch:
        patch.setattr("gpupool_server.image_store.os.write", full)
        with pytest.raises(OSError, match="no space"):
            kept.store.keep(kept.folder("red"), image_name(whole), len(whole), source)
    assert [path.name for path in kept.folder("red").iterdir()] == [other.name]
    os.close(source)
    assert kept.put("red", whole).read_bytes() == whole


def test_what_changes_while_it_is_read_is_what_is_hashed(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks at it a worker may write what it likes."""
    good = b"1" * 4 * KIB
    source, read = memory(good), os.pread

    def changing(file: int, size: int, at: int) -> bytes:
        data = read(file, size, at)
        os.pwrite(source, b"2" * 4 * KIB, 0)
        return data

    monkeypatch.setattr("gpupool_server.image_store.PIECE", KIB)
    monkeypatch.setattr("gpupool_server.image_store.os.pread", changing)
    with pytest.raises(ImageError, match="not what its hash says"):
        kept.store.keep(kept.folder("red"), image_name(good), len(good), source)
    assert list(kept.folder("red").iterdir()) == []
    os.close(source)
