"""What all sessions of a tenant may have together of one GPU host, beside its GPUs.

The one model of it: of a server's tables ``[tenants.NAME]``, of the REST API and of
``gpupool quota``. The manager passes it on to servers by the names of its fields.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict

from gpupool_common.quantities import MEBIBYTE, MOST_MEMORY, MOST_SESSIONS, SizeSetting

#: With less than this left of a tenant's part no other session begins.
LEAST = {
    "host_memory": 16 * MEBIBYTE,
    "pinned_memory": 16 * MEBIBYTE,
    "shares": 16,
    "disk": 16 * MEBIBYTE,
    "log_lines": 100,
    "open_files": 256,
}

MOST_COUNT = 10**9

Sessions = Annotated[int, Strict(), Field(ge=1, le=MOST_SESSIONS)]
Count = Annotated[int, Strict()]
#: Of each budget, by its name, as it travels: who reads it knows which names it has.
MOST_AMOUNT = MOST_MEMORY


class TenantBudgets(BaseModel):
    """None: what the server's own settings leave."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sessions: Sessions | None = Field(
        None, description="a whole number 1..4096: processes at once, on each host"
    )
    pending: Sessions | None = Field(
        None, description="a whole number 1..4096: connections that are asked for and not made yet"
    )
    host_memory: SizeSetting | None = Field(
        None,
        ge=LEAST["host_memory"],
        le=MOST_MEMORY,
        description="a size from 16MiB, e.g. 64GiB: what workers keep for their clients",
    )
    pinned_memory: SizeSetting | None = Field(
        None,
        ge=LEAST["pinned_memory"],
        le=MOST_MEMORY,
        description="a size from 16MiB, e.g. 64GiB: what clients and workers share",
    )
    shares: Count | None = Field(
        None,
        ge=LEAST["shares"],
        le=MOST_COUNT,
        description="a whole number 16..1000000000: pieces of that",
    )
    disk: SizeSetting | None = Field(
        None,
        ge=LEAST["disk"],
        le=MOST_MEMORY,
        description="a size from 16MiB, e.g. 2GiB: the driver's cache and /tmp of workers",
    )
    log_lines: Count | None = Field(
        None,
        ge=LEAST["log_lines"],
        le=MOST_COUNT,
        description="a whole number 100..1000000000: lines in the server's log",
    )
    open_files: Count | None = Field(
        None,
        ge=LEAST["open_files"],
        le=MOST_COUNT,
        description="a whole number 256..1000000000: descriptors of workers",
    )

    def amounts(self) -> dict[str, int]:
        """Those that are set, by name."""
        return self.model_dump(include=set(TenantBudgets.model_fields), exclude_none=True)
