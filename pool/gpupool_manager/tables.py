"""The tables of the database; migrations/ makes them, a test compares the two."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from gpupool_common.lease import LeaseEnd, LeaseState
from gpupool_manager import records
from gpupool_manager.placement_request import PlacementRequest

metadata = MetaData()


class _PlacementRequest(TypeDecorator[PlacementRequest]):
    """A placement request as JSON."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: PlacementRequest | None, dialect: Dialect) -> Any:
        return None if value is None else value.as_dict()

    def process_result_value(self, value: Any, dialect: Dialect) -> PlacementRequest | None:
        return None if value is None else PlacementRequest.parse(value)


class _Resize(TypeDecorator[records.Resize]):
    """A change of a lease's limits as JSON."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: records.Resize | None, dialect: Dialect) -> Any:
        return None if value is None else asdict(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> records.Resize | None:
        if value is None:
            return None
        limits = {key: records.Limits(**value[key]) for key in ("asked", "before")}
        return records.Resize(**{**value, **limits})


class _Ending(TypeDecorator[records.Ending]):
    """Why and when a lease is to be given back, as JSON."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: records.Ending | None, dialect: Dialect) -> Any:
        return None if value is None else asdict(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> records.Ending | None:
        return None if value is None else records.Ending(**value)


class _State(TypeDecorator[StrEnum]):
    """One of an enumeration's texts."""

    impl = String(16)
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: StrEnum | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        return None if value is None else self.kind(value)


NAME = String(64)
#: PostgreSQL numbers rows with 64 bits; SQLite does so only for a column called INTEGER.
ROW = BigInteger().with_variant(Integer, "sqlite")

tenants = Table(
    "tenants",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("description", Text, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("created", Double, nullable=False),
    Column("version", Integer, nullable=False),
)

quotas = Table(
    "quotas",
    metadata,
    Column("tenant", ForeignKey("tenants.name", ondelete="CASCADE"), primary_key=True),
    Column("gpus", BigInteger),
    Column("memory_bytes", BigInteger),
    Column("compute_permille", BigInteger),
    Column("sessions", BigInteger),
    Column("priority", Integer, nullable=False),
    Column("models", JSON(none_as_null=True)),
    Column("budgets", JSON, nullable=False),
    Column("weight", Integer, nullable=False),
    Column("borrow", Boolean, nullable=False),
    Column("idle_action", String(8)),
    Column("idle_seconds", Integer),
    Column("version", Integer, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("scope", String(16), nullable=False),
    Column("tenant", ForeignKey("tenants.name", ondelete="CASCADE")),
    Column("node", NAME),
    Column("description", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("address", Text, nullable=False),
    Column("server_version", Text, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("lost", Boolean, nullable=False),
    Column("token", NAME, nullable=False),
    Column("created", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    Column("key", String(64), nullable=False),
    Column("front_end_key", String(64), nullable=False),
    Column("driver", String(8), nullable=False),
    Column("trouble", Text, nullable=False),
    Column("version", Integer, nullable=False),
)

#: Of nodes that are not there: what an operator has said of them.
admissions = Table(
    "admissions",
    metadata,
    Column("node", NAME, primary_key=True),
    Column("labels", JSON, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("removed", Double),
)

gpus = Table(
    "gpus",
    metadata,
    Column("uuid", NAME, primary_key=True),
    Column("node", ForeignKey("nodes.name", ondelete="CASCADE"), nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("model", Text, nullable=False),
    Column("capability", String(16), nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("pci", String(32), nullable=False),
    Column("present", Boolean, nullable=False),
    Column("policy", String(16), nullable=False),
    Column("max_inst", Integer, nullable=False),
    Column("prio_ratio", Integer, nullable=False),
    Column("trouble", Text, nullable=False),
    Column("version", Integer, nullable=False),
)

#: Leases and grants outlive tenants and GPUs, as history: so no foreign keys there.
leases = Table(
    "leases",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("tenant", NAME, nullable=False),
    Column("state", _State(LeaseState), nullable=False),
    Column("request", _PlacementRequest, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("ttl", Double, nullable=False),
    Column("label", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("deadline", Double, nullable=False),
    Column("granted", Double),
    Column("expires", Double),
    Column("ended", Double),
    Column("reason", Text, nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("placement", JSON, nullable=False),
    Column("until", _State(LeaseEnd), nullable=False),
    Column("sessions", Integer),
    Column("ceiling_permille", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("resize", _Resize),
    Column("beyond", String(8), nullable=False),
    Column("borrowed", Boolean, nullable=False),
    Column("ending", _Ending),
    Column("time_limit", Double),
    Column("reserved", Boolean, nullable=False),
    Index("leases_of_tenant", "tenant", "id"),
    Index("leases_in_state", "state", "id"),
)

reservations = Table(
    "reservations",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("tenant", ForeignKey("tenants.name", ondelete="CASCADE"), nullable=False),
    Column("request", _PlacementRequest, nullable=False),
    Column("start", Double, nullable=False),
    Column("end", Double, nullable=False),
    Column("label", Text, nullable=False),
    Column("created", Double, nullable=False),
)

grants = Table(
    "grants",
    metadata,
    Column("lease", ForeignKey("leases.id", ondelete="CASCADE"), primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("gpu", NAME, nullable=False, index=True),
    Column("node", NAME, nullable=False, index=True),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("share_permille", Integer, nullable=False),
    Column("lost", Boolean, nullable=False),
    Column("busy_ms", BigInteger, nullable=False),
    Column("leaves", Double),
)

usage = Table(
    "usage",
    metadata,
    Column("tenant", NAME, primary_key=True),
    Column("hour", BigInteger, primary_key=True),
    Column("gpu_seconds", Double, nullable=False),
    Column("memory_byte_seconds", Double, nullable=False),
    Column("compute_seconds", Double, nullable=False),
    Column("busy_seconds", Double, nullable=False),
    Column("leases", BigInteger, nullable=False),
)

answers = Table(
    "answers",
    metadata,
    Column("owner", NAME, primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("etag", String(64)),
    Column("created", Double, nullable=False, index=True),
)

audit = Table(
    "audit",
    metadata,
    Column("id", ROW, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False, index=True),
    Column("actor", NAME, nullable=False),
    Column("action", String(64), nullable=False),
    Column("object", Text, nullable=False),
    Column("tenant", NAME),
    Column("detail", JSON, nullable=False),
    Column("request_id", String(64), nullable=False),
)

notes = Table(
    "notes",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("value", Text, nullable=False),
)

#: In the order in which rows are written, so that what a foreign key names is there first.
TABLES: dict[type[records.Record], Table] = {
    records.Tenant: tenants,
    records.Quota: quotas,
    records.Token: tokens,
    records.Node: nodes,
    records.Admission: admissions,
    records.Gpu: gpus,
    records.Lease: leases,
    records.Reservation: reservations,
    records.Grant: grants,
    records.Usage: usage,
    records.Answer: answers,
    records.AuditEntry: audit,
    records.Note: notes,
}
