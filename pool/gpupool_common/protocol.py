"""The front end's language: one question, one answer, both short texts.

A message is UTF-8 with LF line ends. Its first line is ``GPUPOOL/1 WORD``; every
other line is ``key: value``. At most 64 lines and 8 KiB, no control characters,
no key twice. The same rules hold in both directions, and in the C library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpupool_common.errors import ProtocolError

MAGIC = "GPUPOOL/1"
MAX_BYTES = 8192
MAX_LINES = 64

#: Why a server says no. ``bad-request`` means the client must change what it asks, as may
#: ``over-quota``; ``full``, ``no-worker`` and ``draining`` may pass with time, and ``busy``
#: passes so soon that a client asks again by itself.
REFUSAL_CODES = (
    "bad-token",
    "version",
    "full",
    "busy",
    "bad-request",
    "over-quota",
    "no-worker",
    "draining",
)

_WORD = re.compile(r"[a-z][a-z-]{0,31}")
_KEY = re.compile(r"[a-z][a-z0-9-]{0,31}")


@dataclass(frozen=True)
class Message:
    """One parsed message: the word of its first line and its fields."""

    word: str
    fields: Mapping[str, str] = field(default_factory=dict)

    def require(self, key: str) -> str:
        """The value of ``key``, which the message must have."""
        try:
            return self.fields[key]
        except KeyError:
            raise ProtocolError(f"{self.word}: the line '{key}: …' is missing") from None


def _is_control(char: str) -> bool:
    code = ord(char)
    return code < 0x20 or 0x7F <= code < 0xA0 or char in "\u2028\u2029"


def decode(payload: bytes) -> Message:
    """Parse a message; ProtocolError says in one line what is wrong with it."""
    if len(payload) > MAX_BYTES:
        raise ProtocolError(f"a message of {len(payload)} bytes; at most {MAX_BYTES} are allowed")
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"byte {error.start} of the message is not UTF-8") from None
    lines = text.removesuffix("\n").split("\n")
    if len(lines) > MAX_LINES:
        raise ProtocolError(f"a message of {len(lines)} lines; at most {MAX_LINES} are allowed")
    word = _first_line(lines[0])
    fields: dict[str, str] = {}
    for number, line in enumerate(lines[1:], start=2):
        key, value = _field(line, number)
        if key in fields:
            raise ProtocolError(f"line {number}: duplicate key '{key}'")
        fields[key] = value
    return Message(word, fields)


def _first_line(line: str) -> str:
    magic, _, word = line.partition(" ")
    if not magic.startswith("GPUPOOL/"):
        raise ProtocolError(f"this is not a gpupool message; the first line must be '{MAGIC} WORD'")
    if magic != MAGIC:
        raise ProtocolError(f"line 1: the protocol must be '{MAGIC}'; use the same gpupool release")
    if _WORD.fullmatch(word) is None:
        raise ProtocolError(f"line 1: what follows '{MAGIC} ' must be one lower-case word")
    return word


def _field(line: str, number: int) -> tuple[str, str]:
    if any(map(_is_control, line)):
        raise ProtocolError(f"line {number}: control characters are not allowed")
    key, colon, value = line.partition(":")
    if not colon or _KEY.fullmatch(key) is None:
        raise ProtocolError(f"line {number} must be 'key: value'")
    return key, value.strip(" ")


def one_line(text: str) -> str:
    """``text`` with every control character made a space, so that it fits in a value."""
    return "".join(" " if _is_control(char) else char for char in text).strip()


def encode(word: str, fields: Mapping[str, str]) -> bytes:
    """The bytes of a message; ProtocolError if they would break the rules above."""
    lines = [f"{MAGIC} {word}", *(f"{key}: {value}" for key, value in fields.items())]
    payload = ("\n".join(lines) + "\n").encode("utf-8", errors="strict")
    if decode(payload) != Message(word, fields):
        raise ProtocolError(f"{word}: a value has a line end in it, or blanks at its ends")
    return payload


def refusal(code: str, message: str) -> bytes:
    """The bytes of ``refused``; the message is cut rather than the answer lost."""
    if code not in REFUSAL_CODES:
        raise ValueError(f"{code!r} is not a refusal code")
    text = one_line(message.encode("utf-8", errors="replace").decode("utf-8"))
    return encode("refused", {"code": code, "message": text[:1000]})


def refused_as(payload: bytes, code: str) -> bool:
    """Whether these are the bytes of a refusal with this code."""
    return payload.startswith(f"{MAGIC} refused\ncode: {code}\n".encode())
