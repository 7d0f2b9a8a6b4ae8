"""The settings of when a GPU is taken for sick."""

from __future__ import annotations

from pydantic import BaseModel, Field, field_validator

#: Errors for which NVIDIA's catalogue
#: (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, "Immediate Action")
#: has RESET_GPU, RESTART_BM (79) or RESTART_VM (151); and 48 and 74, for which it has workflows
#: that end in a reset or not, by details that NVML does not tell. Not 155, which is also told of
#: links that were shut down on purpose. What a program's own mistakes cause (13, 31, 43, 45, …) is
#: not here: it has RESTART_APP or IGNORE for these, and for 63 and 94, or a workflow.
SICK_XIDS = (46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 156, 158)

MOST_XID = 9999


class HealthSettings(BaseModel):
    """Which of the driver's errors put a GPU aside."""

    sick_xids: tuple[int, ...] = Field(
        SICK_XIDS,
        description=f"numbers of XID errors, each once, 1..{MOST_XID}, e.g. 48,79; or none",
    )

    @field_validator("sick_xids", mode="before")
    @classmethod
    def _parse_sick_xids(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return [] if value == "none" else value.split(",")

    @field_validator("sick_xids")
    @classmethod
    def _check_sick_xids(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value) or not all(1 <= xid <= MOST_XID for xid in value):
            raise ValueError("not allowed")
        return value
