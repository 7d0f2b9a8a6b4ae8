"""The settings that bound what sessions and tenants may take of this host."""

from __future__ import annotations

import os

from pydantic import BaseModel, Field

from gpupool_common.quantities import SizeSetting

MEBIBYTE = 1 << 20


def half_of_memory() -> int:
    """Half of this machine's memory, in whole MiB."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(16 * MEBIBYTE, pages // 2 // MEBIBYTE * MEBIBYTE)


class BudgetSettings(BaseModel):
    """What one session may have at most, and one tenant of all sessions."""

    max_sessions: int = Field(64, ge=1, le=4096, description="a whole number 1..4096")
    tenant_sessions: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="a whole number 1..4096: sessions of a tenant whose own table says nothing",
    )
    session_host_memory: SizeSetting = Field(
        8 << 30, ge=16 * MEBIBYTE, le=1 << 50, description="a size from 16MiB, e.g. 8GiB"
    )
    session_pinned_memory: SizeSetting = Field(
        default_factory=half_of_memory,
        ge=16 * MEBIBYTE,
        le=1 << 50,
        description="a size from 16MiB, e.g. 64GiB",
    )
    session_shares: int = Field(16384, ge=16, le=60000, description="a whole number 16..60000")
    session_open_files: int = Field(
        8192, ge=256, le=1 << 20, description="a whole number 256..1048576"
    )
    session_disk: SizeSetting = Field(
        320 * MEBIBYTE, ge=16 * MEBIBYTE, le=1 << 50, description="a size from 16MiB, e.g. 1GiB"
    )
    image_cache: SizeSetting = Field(
        8 << 30, ge=0, le=1 << 50, description="a size, e.g. 8GiB; 0: no image is kept"
    )
    session_log_lines: int = Field(
        10_000, ge=100, le=1_000_000_000, description="a whole number 100..1000000000"
    )
    session_log_rate: float = Field(
        10.0, ge=0.1, le=1000.0, allow_inf_nan=False, description="lines a second 0.1..1000"
    )
