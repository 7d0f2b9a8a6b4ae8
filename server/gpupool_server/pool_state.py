"""What a server remembers of its pool: RUN/pool.json, for the server after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpupool_common import logs
from gpupool_common.errors import GpupoolError
from gpupool_common.node_protocol import Apply, OrderedGrant
from gpupool_common.secret_file import replace_secret

NAME = "pool.json"


@dataclass
class PoolState:
    """The orders in force, and what it takes to check lease tokens."""

    node: str
    #: How much the manager's clock is ahead of ours, in seconds.
    ahead: float = 0.0
    #: When the manager was heard last, by its clock.
    heard: float = 0.0
    #: None: the server has never joined.
    orders: Apply | None = None
    #: Leases that have had sessions here.
    used: set[str] = field(default_factory=set)
    #: For how many nanoseconds leases have kept GPUs busy: by lease and UUID.
    busy: dict[tuple[str, str], int] = field(default_factory=dict)

    def grants(self, lease: str) -> list[OrderedGrant]:
        """What a lease has here, in the order of its devices."""
        grants = self.orders.grants if self.orders is not None else []
        return sorted((g for g in grants if g.lease == lease), key=lambda grant: grant.ordinal)

    @property
    def held(self) -> set[tuple[str, str]]:
        """By lease and UUID: the GPUs that leases have here, and those that they give back."""
        if self.orders is None:
            return set()
        given = {(each.lease, each.gpu) for each in self.orders.leaving}
        return given | {(each.lease, each.gpu) for each in self.orders.grants}

    @property
    def leases(self) -> set[str]:
        return {lease for lease, _ in self.held}

    def save(self, folder: Path) -> None:
        """Write it down, whole or not at all; a disk that is full does not stop the server."""
        text = json.dumps(
            {
                "node": self.node,
                "ahead": self.ahead,
                "heard": self.heard,
                "orders": None if self.orders is None else self.orders.model_dump(),
                "used": sorted(self.used),
                "busy": [[*key, count] for key, count in sorted(self.busy.items())],
            }
        )
        try:
            replace_secret(folder / NAME, text)
        except GpupoolError as error:
            logs.get("pool").error("the pool's orders cannot be saved", reason=str(error))

    @classmethod
    def load(cls, folder: Path, node: str) -> PoolState:
        """What the last server of this name wrote; empty if there was none."""
        try:
            raw: Any = json.loads((folder / NAME).read_text(encoding="utf-8"))
            if raw["node"] != node:
                return cls(node)
            return cls(node, **_read(raw))
        except FileNotFoundError:
            return cls(node)
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            logs.get("pool").warning("the saved orders cannot be read", reason=str(error)[:200])
            return cls(node)


def _read(raw: Mapping[str, Any]) -> dict[str, Any]:
    orders = raw["orders"]
    return {
        "ahead": float(raw["ahead"]),
        "heard": float(raw["heard"]),
        "orders": None if orders is None else Apply.model_validate(orders),
        "used": {str(name) for name in raw["used"]},
        "busy": {(str(lease), str(gpu)): int(count) for lease, gpu, count in raw["busy"]},
    }
