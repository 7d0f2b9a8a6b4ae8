"""Lease tokens: what is in them, and who can make them."""

from __future__ import annotations

import base64
import hmac
import json
import uuid
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool_common import lease_token
from gpupool_common.errors import ProtocolError
from gpupool_common.lease_token import TokenGrant
from lease_token_harness import (
    GPUS,
    KEY,
    KEYS,
    MIB,
    NOW,
    OTHER_KEY,
    issued,
    token_of,
)

# The text -----------------------------------------------------------------------------------


def test_every_node_reads_what_was_written() -> None:
    token = token_of(
        nodes={
            "here": (TokenGrant(0, GPUS[0], 64 * MIB, 500), TokenGrant(1, "GPU-soft.1", MIB, 1000)),
            "there": (TokenGrant(2, GPUS[1], 1 << 50, 1),),
        },
        sessions=7,
    )
    assert lease_token.check(lease_token.issue(token, KEY), KEYS) == token


def test_no_key_but_the_managers_signs() -> None:
    forged = lease_token.issue(token_of(tenant="blue"), OTHER_KEY)
    with pytest.raises(lease_token.UnknownKeyError, match="does not know"):
        lease_token.check(forged, KEYS)
    # Not under the manager's name either, nor with a genuine signature of something else.
    (name,) = KEYS
    genuine = issued().removeprefix(lease_token.PREFIX).split(".")
    other = forged.removeprefix(lease_token.PREFIX).split(".")
    for parts in (
        [genuine[0], *other[1:]],
        [genuine[0], genuine[1], other[2]],
        [genuine[0], other[1], genuine[2]],
    ):
        with pytest.raises(ProtocolError, match="not issued by this pool's manager"):
            lease_token.check(lease_token.PREFIX + ".".join(parts), KEYS)


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "none", "kid": "KID"},
        {"alg": "HS256", "kid": "KID"},
        {"alg": "EdDSA"},
        {"alg": "EdDSA", "kid": 7},
        {"alg": "EdDSA", "kid": ["KID"]},
        {"alg": "EdDSA", "kid": "KID", "crit": ["b64"], "b64": False},
        {"alg": "EdDSA", "kid": "KID", "jwk": {"kty": "OKP", "crv": "Ed25519", "x": "AA"}},
        {"alg": "EdDSA", "kid": "KID", "jku": "https://evil.example/keys"},
        ["EdDSA", "KID"],
        "KID",
        None,
    ],
)
def test_a_header_chooses_neither_key_nor_algorithm(header: Any) -> None:
    """What JOSE is known for: signed by the right key even, it is the header that is refused."""
    (name,) = KEYS
    text = json.dumps(header).replace("KID", name).encode()
    parts = [urlsafe(text), urlsafe(msgpack.packb([2]))]
    for key in (KEY.sign(".".join(parts).encode()), hs256(name, parts), bytes(64)):
        with pytest.raises(ProtocolError, match="not issued|not a lease token"):
            lease_token.check(f"{lease_token.PREFIX}{'.'.join(parts)}.{urlsafe(key)}", KEYS)


def hs256(name: str, parts: list[str]) -> bytes:
    """The MAC under the public key, which some decoders took for a signature."""
    secret = KEYS[name].public_bytes_raw()
    return hmac.digest(secret, ".".join(parts).encode(), "sha512")


def urlsafe(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def test_any_other_character_makes_it_worthless() -> None:
    text = issued()
    for place in range(len(lease_token.PREFIX), len(text)):
        other = "B" if text[place] == "A" else "A"
        with pytest.raises(ProtocolError):
            lease_token.check(text[:place] + other + text[place + 1 :], KEYS)
        with pytest.raises(ProtocolError):
            lease_token.check(text[:place], KEYS)
    with pytest.raises(ProtocolError):
        lease_token.check(text + "A", KEYS)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
def test_no_text_is_more_than_refused(text: str) -> None:
    tail = issued().partition(".")[2]
    for tried in (text, f"gpl_{text}", f"gpl_{text}.{text}.{text}", f"gpl_{text}.{tail}"):
        with pytest.raises(ProtocolError):
            lease_token.check(tried, KEYS)


@given(st.integers(0, 2**16), st.binary(min_size=1, max_size=40))
def test_no_mutation_of_a_token_is_more_than_refused(place: int, put: bytes) -> None:
    raw = bytearray(issued().encode())
    at = place % len(raw)
    raw[at : at + len(put)] = put
    text = raw.decode("latin-1")
    if text != issued():
        with pytest.raises(ProtocolError):
            lease_token.check(text, KEYS)


@given(
    st.recursive(
        st.none() | st.integers(-9, 1 << 60) | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=9),
        max_leaves=30,
    )
)
def test_no_signed_payload_is_more_than_refused(content: Any) -> None:
    """Not even the manager's own mistakes get further than the check."""
    try:
        payload = msgpack.packb(content)
    except (ValueError, OverflowError):
        return
    with pytest.raises(ProtocolError):
        lease_token.check(signed(payload), KEYS)


def signed(payload: bytes) -> str:
    return lease_token.sign(payload, KEY)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (1, "a b"),
        (1, ""),
        (1, 7),
        (2, "x" * 65),
        (3, "soon"),
        (4, None),
        (5, 101),
        (5, True),
        (7, [["here", [[0, "GPU 0", 64, 50]]]]),
        (7, [["here", [[0, "GPU-0", 0, 50]]]]),
        (7, [["here", [[0, "GPU-0", 64, 101]]]]),
        (7, [["here", [[0, b"short", 64, 50]]]]),
        (7, [["here", [[0, "GPU-0", 64]]]]),
        (7, 3),
        (8, 0),
        (8, 4097),
        (8, 1.0),
        (8, "many"),
        (3, float("nan")),
        (4, float("inf")),
    ],
)
def test_no_signed_field_is_taken_that_cannot_be(place: int, value: object) -> None:
    fields: list[object] = [3, "lease-1", "red", NOW, NOW + 1, 0, "r", [["here", []]], None]
    lease_token.check(signed(msgpack.packb(fields)), KEYS)
    fields[place] = value
    with pytest.raises(ProtocolError, match="it is malformed"):
        lease_token.check(signed(msgpack.packb(fields)), KEYS)


def payload_of(text: str) -> list[Any]:
    body = text.removeprefix(lease_token.PREFIX).split(".")[1]
    fields: list[Any] = msgpack.unpackb(base64.urlsafe_b64decode(body + "=="), raw=False)
    return fields


def test_an_older_server_reads_a_token_without_a_limit() -> None:
    """The manager is upgraded first: what it need not say, it says as the release before."""
    version, *fields = payload_of(issued())
    assert version == 2 and len(fields) == 7
    assert lease_token.check(issued(), KEYS) == token_of()
    version, *limited = payload_of(issued(sessions=7))
    assert version == 3 and limited == [*fields, 7]
    for bad in ([2, *limited], [3, *fields]):
        with pytest.raises(ProtocolError, match="malformed"):
            lease_token.check(lease_token.sign(msgpack.packb(bad), KEY), KEYS)


def test_another_version_is_named() -> None:
    with pytest.raises(ProtocolError, match="version 4, this server knows versions 2 and 3"):
        lease_token.check(signed(msgpack.packb([4, "new"])), KEYS)


@pytest.mark.parametrize(
    ("gpus", "nodes", "most"), [(16, 16, 4096), (64, 8, lease_token.MAX_LENGTH)]
)
def test_a_large_lease_fits_in_a_question(gpus: int, nodes: int, most: int) -> None:
    names = [f"node-with-a-rather-long-name.example.org-{n:02}" for n in range(nodes)]
    each = gpus // nodes
    token = token_of(
        request_id="r" * 32,
        nodes={
            name: tuple(
                TokenGrant(place * each + i, f"GPU-{uuid.uuid4()}", 1 << 40, 1000)
                for i in range(each)
            )
            for place, name in enumerate(names)
        },
    )
    assert len(lease_token.issue(token, KEY)) <= most
