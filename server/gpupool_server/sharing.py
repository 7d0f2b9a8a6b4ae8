"""What tenants may have: the tables [tenants.*], [gpu] and [gpus.N] of the configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StrictBool,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from gpupool_common.budgets import TenantBudgets
from gpupool_common.quantities import (
    LEAST_MEMORY,
    MOST_MEMORY,
    MemorySetting,
    ShareSetting,
)
from gpupool_common.sizes import WHOLE_GPU, parse_size
from gpupool_server.board import POLICIES

_NAME = r"[A-Za-z0-9._-]{1,32}"
TenantName = Annotated[str, StringConstraints(pattern=f"^{_NAME}$")]
GpuIndex = Annotated[int, Field(ge=0, le=63)]
NAME_ALLOWED = "names of 1 to 32 of A-Z a-z 0-9 . _ -"

_SIZE = "a size from 1MiB, e.g. 40GiB"
_PART = 'a part of a GPU from 0.1% to 100%, e.g. "50%" or 0.5'


def name_allowed(name: str) -> bool:
    """Whether a tenant or a group may be called this."""
    return re.fullmatch(_NAME, name) is not None


class TenantSettings(TenantBudgets):
    """One table [tenants.NAME]: who has the token may use this much of the host and of each GPU."""

    token: SecretStr | None = Field(
        None, description="1 to 256 characters without blanks or control characters"
    )
    token_file: Path | None = Field(None, description="the path of a file that holds the token")
    memory: MemorySetting | None = Field(None, description=_SIZE)
    share: ShareSetting = Field(WHOLE_GPU, description=_PART)
    ceiling: ShareSetting = Field(WHOLE_GPU, description=f"{_PART}, not less than 'share'")
    weight: int = Field(1, ge=0, le=25, description="a whole number 0..25")
    high_priority: StrictBool = Field(False, description="true or false")
    gpus: tuple[GpuIndex, ...] | None = Field(
        None, min_length=1, description="indexes of GPUs, e.g. [0, 2]; each once, 0..63"
    )

    @field_validator("ceiling")
    @classmethod
    def _check_ceiling(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("share", 1):
            raise ValueError("less than the share")
        return value

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError("a GPU is named twice")
        return value

    @field_validator("token")
    @classmethod
    def _check_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not token_allowed(value.get_secret_value()):
            raise ValueError("not allowed")
        return value


def token_allowed(token: str) -> bool:
    """Whether a token can travel as a value of the front end's protocol."""
    return 1 <= len(token) <= 256 and token.isprintable() and " " not in token


class GpuSettings(BaseModel):
    """The table [gpu], and [gpus.N] over it. What is None was not set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str | None = Field(
        None, description=f"{', '.join(POLICIES)}, or its number 0..{len(POLICIES) - 1}"
    )
    max_inst: int | None = Field(None, ge=1, le=25, description="a whole number 1..25")
    prio_ratio: int | None = Field(None, ge=20, le=99, description="a whole number 20..99")
    default_memory: int | None = Field(None, ge=0, le=MOST_MEMORY, description=f"{_SIZE}, or none")
    hardware_slices: StrictBool | None = Field(None, description="true or false")

    @field_validator("policy", mode="before")
    @classmethod
    def _parse_policy(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(POLICIES):
            return POLICIES[value]
        if value is not None and value not in POLICIES:
            raise ValueError("no such policy")
        return value

    @field_validator("default_memory", mode="before")
    @classmethod
    def _parse_default(cls, value: object) -> object:
        """0 means ``none``, which is not the same as not set."""
        if value == "none":
            return 0
        size = parse_size(value) if isinstance(value, str) else value
        if isinstance(size, int) and size < LEAST_MEMORY:
            raise ValueError("less than 1MiB")
        return size

    def over(self, below: GpuSettings) -> GpuSettings:
        """These settings, and those of ``below`` where these say nothing."""
        own = self.model_dump(exclude_none=True)
        return GpuSettings.model_construct(**{**below.model_dump(), **own})


#: What holds where nothing is configured: whole GPUs for everybody.
DEFAULTS = GpuSettings.model_construct(
    policy="share", max_inst=20, prio_ratio=90, default_memory=0, hardware_slices=True
)
