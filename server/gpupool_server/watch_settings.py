"""The table [watch] of the configuration: when a worker is taken for a liar."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gpupool_common.quantities import MOST_MEMORY, ShareSetting, SizeSetting

_SIZE = "a size from 0 to 1TiB, e.g. 640MiB"


class WatchSettings(BaseModel):
    """What is compared with the grant, how often, and from when on a worker is ended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["end", "log", "off"] = Field(
        "end", description="end, log (a worker that takes too much is named, not ended) or off"
    )
    interval_ms: int = Field(250, ge=100, le=10000, description="a whole number 100..10000")
    context_memory: SizeSetting = Field(640 << 20, ge=0, le=MOST_MEMORY, description=_SIZE)
    driver_memory: SizeSetting = Field(128 << 20, ge=0, le=MOST_MEMORY, description=_SIZE)
    lasting_seconds: int = Field(30, ge=1, le=3600, description="a whole number of seconds 1..3600")
    time_share: ShareSetting = Field(
        100, description='a part of a GPU from 0.1% to 100%, e.g. "10%" or 0.1'
    )
    time_seconds: int = Field(5, ge=2, le=600, description="a whole number of seconds 2..600")
    owed_seconds: int = Field(
        60, ge=0, le=3600, description="a whole number of seconds 0..3600; 0: nobody is ended"
    )
