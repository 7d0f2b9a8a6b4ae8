"""What one change writes: gathered in memory, committed as one transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpupool_manager import records
from gpupool_manager.records import AuditEntry, Record
from gpupool_manager.tables import TABLES

_COLUMNS: dict[type[Record], tuple[str, ...]] = {
    kind: tuple(
        column.name for column in table.columns if column.name != "id" or kind is not AuditEntry
    )
    for kind, table in TABLES.items()
}
_KEYS: dict[type[Record], tuple[str, ...]] = {
    kind: tuple(column.name for column in table.primary_key.columns)
    for kind, table in TABLES.items()
}


Key = tuple[Any, ...]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks for a change, for the audit log."""

    name: str
    request_id: str = ""


#: The manager's own doing: expiry, lost nodes, the queue.
MANAGER = Actor("manager")


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, for those who watch."""

    kind: str
    object: str
    tenant: str | None
    at: float
    detail: dict[str, Any]


def row_of(record: Record) -> Row:
    """The columns of a record."""
    return {name: getattr(record, name) for name in _COLUMNS[type(record)]}


def key_of(record: Record) -> Key:
    """The values of its primary key."""
    return tuple(getattr(record, name) for name in _KEYS[type(record)])


@dataclass(slots=True)
class Transaction:
    """The rows that a change writes. A record put twice is written once, as it is in the end."""

    now: float
    actor: Actor = MANAGER
    puts: dict[type[Record], dict[Key, Record | None]] = field(default_factory=dict)
    #: What :meth:`seal` made of them: rows to be written, None: to be deleted.
    rows: dict[type[Record], dict[Key, Row | None]] = field(default_factory=dict)
    audit: list[AuditEntry] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def put(self, record: Record) -> None:
        """Write this record, new or changed."""
        self.puts.setdefault(type(record), {})[key_of(record)] = record

    def drop(self, record: Record) -> None:
        """Delete this record."""
        self.puts.setdefault(type(record), {})[key_of(record)] = None

    def log(self, action: str, thing: str, tenant: str | None = None, **detail: Any) -> None:
        """Note the change in the audit log and tell those who watch."""
        self.audit.append(
            AuditEntry(
                self.now, self.actor.name, action, thing, tenant, detail, self.actor.request_id
            )
        )
        self.tell(action, thing, tenant, **detail)

    def tell(self, kind: str, thing: str, tenant: str | None = None, **detail: Any) -> None:
        """Tell those who watch, only."""
        self.events.append(Event(kind, thing, tenant, self.now, detail))

    @property
    def empty(self) -> bool:
        return not self.puts and not self.rows and not self.audit

    def seal(self) -> None:
        """Take the rows as they are now: whatever changes the records later is another's doing."""
        for kind, puts in self.puts.items():
            rows = self.rows.setdefault(kind, {})
            for key, record in puts.items():
                rows[key] = None if record is None else row_of(record)
        self.puts.clear()

    def merge(self, other: Transaction) -> None:
        """Let what the other writes come after this."""
        other.seal()
        for kind, rows in other.rows.items():
            self.rows.setdefault(kind, {}).update(rows)
        self.audit.extend(other.audit)
        self.events.extend(other.events)


def columns_of(kind: type[records.Record]) -> tuple[str, ...]:
    return _COLUMNS[kind]


def keys_of(kind: type[records.Record]) -> tuple[str, ...]:
    return _KEYS[kind]
