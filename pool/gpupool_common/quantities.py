"""Memory and compute of GPUs as every message, answer and setting holds them.

Memory is a whole number of bytes and compute a whole number of thousandths of one GPU; a field of
JSON says so by its name: ``memory_bytes``, ``share_permille``. What people write is read by
:mod:`gpupool_common.sizes`, which the types of settings below ask.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from gpupool_common.sizes import LARGEST, UNITS, WHOLE_GPU, parse_part, parse_size

MEBIBYTE = UNITS["MiB"]
#: The least that may be granted, and the most that one GPU may have.
LEAST_MEMORY = MEBIBYTE
MOST_MEMORY = LARGEST
#: The most over all virtual GPUs: every reader of JSON keeps such a number exactly.
MOST_TOTAL_MEMORY = 1 << 53
MOST_TOTAL_COMPUTE = 1 << 31
#: Of a lease on one server.
MOST_SESSIONS = 4096

#: Of one GPU.
Memory = Annotated[int, Field(strict=True, ge=LEAST_MEMORY, le=MOST_MEMORY)]
Share = Annotated[int, Field(strict=True, ge=1, le=WHOLE_GPU)]
#: Over several GPUs.
TotalMemory = Annotated[int, Field(strict=True, ge=0, le=MOST_TOTAL_MEMORY)]
TotalCompute = Annotated[int, Field(strict=True, ge=0, le=MOST_TOTAL_COMPUTE)]


def _read_size(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else value


def _read_share(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("no part of a GPU")
    return parse_part(str(value))


#: Of settings, where people write ``8GiB``, and ``"50%"``, 50 or 0.5.
SizeSetting = Annotated[int, BeforeValidator(_read_size)]
MemorySetting = Annotated[Memory, BeforeValidator(_read_size)]
ShareSetting = Annotated[Share, BeforeValidator(_read_share)]
