"""The front end's text protocol, above all what it must not accept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool_common import protocol
from gpupool_common.errors import ProtocolError
from gpupool_common.protocol import Message, decode, encode, refusal

KEYS = st.from_regex(r"[a-z][a-z0-9-]{0,31}", fullmatch=True)
VALUES = st.text(st.characters(blacklist_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=80).map(
    lambda text: text.strip(" ")
)


@given(
    st.from_regex(r"[a-z][a-z-]{0,31}", fullmatch=True),
    st.dictionaries(KEYS, VALUES, max_size=20),
)
def test_what_is_encoded_decodes_to_the_same(word: str, fields: dict[str, str]) -> None:
    assert decode(encode(word, fields)) == Message(word, fields)


@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda b: b"GPUPOOL/1 hello\n" + b))
def test_any_bytes_decode_or_are_a_protocol_error(payload: bytes) -> None:
    try:
        message = decode(payload)
    except ProtocolError as error:
        assert "\n" not in str(error)
    else:
        assert decode(encode(message.word, message.fields)) == message


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"", "not a gpupool message"),
        (b"GET / HTTP/1.1\r\n\r\n", "not a gpupool message"),
        (b"GPUPOOL/2 hello\n", "same gpupool release"),
        (b"GPUPOOL/1\n", "lower-case word"),
        (b"GPUPOOL/1 HELLO\n", "lower-case word"),
        (b"GPUPOOL/1 hello there\n", "lower-case word"),
        (b"GPUPOOL/1 hello\r\n", "lower-case word"),
        (b"GPUPOOL/1 hello\ntoken\n", "line 2 must be 'key: value'"),
        (b"GPUPOOL/1 hello\n: x\n", "line 2 must be 'key: value'"),
        (b"GPUPOOL/1 hello\n\ntoken: x\n", "line 2 must be 'key: value'"),
        (b"GPUPOOL/1 hello\na: 1\ntoken: x\x00\n", "line 3: control characters"),
        (b"GPUPOOL/1 hello\ntoken: x\r\n", "line 2: control characters"),
        (b"GPUPOOL/1 hello\ntoken: \xc2\x85\n", "line 2: control characters"),
        (b"GPUPOOL/1 hello\ntoken: \xff\n", "not UTF-8"),
        (b"GPUPOOL/1 hello\na: 1\na: 2\n", "duplicate key 'a'"),
        (b"GPUPOOL/1 hello\n" + b"a: 1\n" * 64, "65 lines"),
        (b"GPUPOOL/1 hello\na: " + b"x" * 8192, "at most 8192"),
    ],
)
def test_bad_messages_are_named(payload: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(payload)
    assert complaint in str(caught.value)


def test_limits_are_inclusive() -> None:
    lines = b"GPUPOOL/1 hello\n" + b"".join(b"k%d: v\n" % n for n in range(63))
    assert len(decode(lines).fields) == 63
    start = b"GPUPOOL/1 hello\na: "
    assert len(decode(start + b"x" * (8192 - len(start))).fields["a"]) == 8192 - len(start)


def test_encode_refuses_what_decode_would() -> None:
    with pytest.raises(ProtocolError):
        encode("ok", {"a": "1\nsecret: 2"})


def test_refusals_are_always_one_valid_message() -> None:
    answer = decode(refusal("full", "two\nlines\x00" + "x" * 9000))
    assert answer.fields["code"] == "full"
    assert answer.fields["message"].startswith("two lines")
    with pytest.raises(ValueError):
        refusal("because", "no")
    assert "version" in protocol.REFUSAL_CODES
