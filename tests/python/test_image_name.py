"""Names of images: what C makes of the same bytes (tests/c/test_image_name.c)."""

from __future__ import annotations

import hashlib

import pytest

from gpupool_server.image_name import LEAF, ImageName, image_name

MOST = 5 * LEAF + 3
DATA = bytes((i * 7 + (i >> 12)) & 0xFF for i in range(MOST))
KNOWN = {
    0: "0fdd374bc253032a50be925c5ef3c069b6ef01649e50613812bc9aad65670439",
    3: "6c2931bc9cb6ae63b710e56430633b39a61cab89a5d379cc344e14fc168d11af",
    MOST: "c2c80a5211af2e78aab25cb455287eb50d88634b343d4fa84e75a75c4f9bacb4",
}


@pytest.mark.parametrize("size", KNOWN)
def test_c_has_the_same(size: int) -> None:
    assert image_name(DATA[:size]) == KNOWN[size]


@pytest.mark.parametrize("size", [0, 1, LEAF - 1, LEAF, LEAF + 1, 2 * LEAF, MOST])
def test_a_name_is_by_definition(size: int) -> None:
    leaves = [hashlib.sha256(DATA[at : min(at + LEAF, size)]) for at in range(0, size, LEAF)]
    root = b"gpupool image 1\0" + size.to_bytes(8, "little")
    root += b"".join(leaf.digest() for leaf in leaves)
    assert image_name(DATA[:size]) == hashlib.sha256(root).hexdigest()


@pytest.mark.parametrize("piece", [1000, LEAF - 1, LEAF, LEAF + 1, 3 * LEAF])
def test_pieces_may_be_of_any_size(piece: int) -> None:
    name = ImageName(MOST)
    for at in range(0, MOST, piece):
        name.add(DATA[at : at + piece])
    assert name.hex() == image_name(DATA)


def test_clients_of_releases_before_have_another_name() -> None:
    name = ImageName(MOST)
    name.add(DATA)
    assert name.names() == (image_name(DATA), hashlib.sha256(DATA).hexdigest())


@pytest.mark.parametrize("piece", [1, 15, 1000])
def test_what_names_are_made_of_has_no_name_of_before(piece: int) -> None:
    root = b"gpupool image 1\0" + MOST.to_bytes(8, "little")
    for at in range(0, MOST, LEAF):
        root += hashlib.sha256(DATA[at : at + LEAF]).digest()
    assert hashlib.sha256(root).hexdigest() == image_name(DATA)
    name = ImageName(len(root))
    for at in range(0, len(root), piece):
        name.add(root[at : at + piece])
    assert name.names() == (image_name(root),)
