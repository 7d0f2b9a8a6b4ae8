"""The settings of when a GPU is taken for sick."""

from __future__ import annotations

from pydantic import BaseModel, Field, field_validator

#: Errors after which NVIDIA's catalogue of Xid errors has the GPU reset, the host restarted or
#: the card looked at. Those that a program's own mistakes cause (13, 31, 43, 45, …) are not here.
SICK_XIDS = (46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143)

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
