"""Messages made from the spec: every operation, with the arguments that one chooses."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from raw_client import SPEC  # isort: skip  (it says where gpgen is)
from gpgen import layout, spec, spec_load
from gpgen.param import HANDLE_KINDS, Param

#: Sizes of C types on the wire, and what they are aligned to; enumerations and others have 4.
SIZES = {
    "unsigned char": 1,
    "unsigned short": 2,
    **dict.fromkeys(("uint64_t", "size_t", "CUdeviceptr", "unsigned long long", "cuuint64_t"), 8),
    **dict.fromkeys(("CUtexObject", "CUsurfObject"), 8),
}
#: In lengths of what a message carries.
CONSTANTS = {"GP_NCCL_ID_BYTES": 128}
STRUCTURES = {
    "CUmemLocation": (8, 4),
    "CUmemAllocationProp": (32, 8),
    "CUmemPoolProps": (88, 8),
    "CUstreamAttrValue": (64, 8),
    "CUDA_MEMCPY3D": (200, 8),
    "CUDA_ARRAY_DESCRIPTOR": (24, 8),
    "CUDA_ARRAY3D_DESCRIPTOR": (40, 8),
    "struct gp_array_box": (40, 8),
    "struct gp_resource": (56, 8),
    "CUDA_TEXTURE_DESC": (104, 4),
    "CUDA_RESOURCE_VIEW_DESC": (112, 8),
    "CUmemAccessDesc": (12, 4),
    "CUlaunchAttribute": (72, 8),
}
WIRE = spec_load.load(SPEC).wire
KINDS = {kind: number for number, kind in enumerate(HANDLE_KINDS, 1)}

Parameter = Param
Function = spec.Function
#: The value of a parameter of so many bytes.
Choose = Callable[[Parameter, int], int]


def size_of(ctype: str) -> int:
    return STRUCTURES.get(ctype, (SIZES.get(ctype, 4), 0))[0]


def put(body: bytearray, data: bytes, alignment: int) -> None:
    body += bytes(-len(body) % alignment)
    body += data


def message(function: spec.Function, choose: Choose, noise: random.Random) -> bytes:
    """The body of a request: lengths fit to each other, as the decoder wants them."""
    params = {p.name: p for p in function.params}
    body, values = bytearray(), {}
    tails = {p.name: p for p in layout.tails_in(function)}
    fields = layout.request(function)
    for field in fields:
        param = params.get(field.name)
        if param is not None and field.ctype not in STRUCTURES:
            size = size_of(field.ctype)
            values[field.name] = choose(param, size) & (1 << 8 * size) - 1
    ends = b""
    for field in fields:
        if field.name in values:
            size = size_of(field.ctype)
            put(body, values[field.name].to_bytes(size, "little"), size)
        elif field.name.startswith("has_"):
            put(body, struct.pack("<I", noise.randrange(2)), 4)
        elif field.ctype in STRUCTURES:
            size, alignment = STRUCTURES[field.ctype]
            put(body, structure(size, noise), alignment)
        else:
            tail = tail_of(tails[field.name.removeprefix("n_")], values, noise)
            put(body, struct.pack("<I", len(tail)), 4)
            ends += tail + bytes(-len(tail) % 8)
    body += bytes(-len(body) % 8)
    return bytes(body) + ends


def structure(size: int, noise: random.Random) -> bytes:
    """Small numbers, which may mean something, and others."""
    words = (
        noise.choice((0, 0, 1, 1, 2, 1 << 21, noise.getrandbits(32))) for _ in range(size // 4)
    )
    return b"".join(struct.pack("<I", word) for word in words)


def tail_of(param: Param, values: dict[str, int], noise: random.Random) -> bytes:
    if param.has("string"):
        return noise.choice((b"nothing\0", b"\0", b"x" * 300 + b"\0"))
    count = int(eval(param.count, {"__builtins__": {}}, {**CONSTANTS, **values}))  # noqa: S307
    size = max(count, 0) * (1 if param.element == "uint8_t" else size_of(param.element))
    if size > 1 << 16:
        return b""  # does not fit: such a message ends the session
    return structure(size, noise)[:size] + bytes(size % 4)
