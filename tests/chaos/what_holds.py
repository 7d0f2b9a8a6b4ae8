"""What must hold of a pool after all faults, and what was seen of it meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpupool.admin import Admin
from gpupool_common.quantities import MEBIBYTE as MIB

if TYPE_CHECKING:
    from scenario import Pool

#: What tenants may have at once.
QUOTAS = {
    "red": {"gpus": 4, "memory_bytes": 384 * MIB, "compute_permille": 1500, "sessions": 6},
    "blue": {"gpus": 3, "memory_bytes": 256 * MIB, "compute_permille": 2000, "sessions": 4},
}
#: How long anything may take before it counts as a hang.
PATIENCE = 90.0
#: What the audit log has of changes of limits.
BEGUN, MADE, REFUSED = "lease.resizing", "lease.resized", "lease.resize-refused"

Lease = dict[str, Any]


@dataclass
class Record:
    """What happened, and what should not have."""

    counts: Counter[str] = field(default_factory=Counter)
    leases: dict[str, Lease] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Seconds until another manager led.
    longest: float = 0.0

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def complain(self, what: str) -> None:
        with self.lock:
            self.wrong.append(what)
            print(f"WRONG: {what}", flush=True)


def history(pool: Pool) -> Iterator[Lease]:
    return pages(pool, "/leases")


def pages(pool: Pool, path: str) -> Iterator[dict[str, Any]]:
    cursor = ""
    while True:
        page = pool.manager.do("GET", f"{path}?limit=200{cursor}")
        yield from page["items"]
        if page["next"] is None:
            return
        cursor = f"&cursor={page['next']}"


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def check_history(pool: Pool, record: Record) -> None:
    leases = {lease["id"]: lease for lease in history(pool)}
    labels = Counter(lease["label"] for lease in leases.values())
    for label, times in labels.items():
        if times > 1:
            record.complain(f"the request {label} was granted {times} times")
    for name, lease in record.leases.items():
        known = leases.get(name)
        if known is None:
            record.complain(f"the lease {name} is lost")
        elif [g["gpu"] for g in known["grants"]] != [g["gpu"] for g in lease["grants"]]:
            record.complain(f"the lease {name} has other GPUs than were granted")
    for lease in leases.values():
        if lease["state"] in ("active", "queued"):
            record.complain(f"the lease {lease['id']} is still {lease['state']}")
    changes: dict[str, list[dict[str, Any]]] = {}
    for entry in pages(pool, "/audit"):
        if entry["action"] in (BEGUN, MADE, REFUSED):
            changes.setdefault(entry["object"], []).append(entry)
    if not changes:
        record.complain("no lease was changed")
    check_instants(list(leases.values()), changes, record)
    record.counts["leases granted"] = sum(lease["granted"] is not None for lease in leases.values())


def sizes(lease: Lease, changes: list[dict[str, Any]]) -> Iterator[tuple[float, int, int]]:
    """What each of its GPUs counts, and since when: memory and share. What grows does when it is
    asked for, what shrinks when it is made; what was refused is as it was, at the latest."""
    first = changes[0]["detail"]["before"] if changes else lease["grants"][0]
    memory, share = before = first["memory_bytes"], first["share_permille"]
    yield moment(lease["granted"]), memory, share
    for entry in changes:
        if entry["action"] == REFUSED:
            memory, share = before
        else:
            after = entry["detail"]
            now = after["memory_bytes"], after["share_permille"]
            if entry["action"] == BEGUN:
                before = memory, share
                now = max(memory, now[0]), max(share, now[1])
            memory, share = now
        yield moment(entry["at"]), memory, share
    yield moment(lease["ended"] or lease["granted"]), 0, 0


def steps(lease: Lease, changes: list[dict[str, Any]]) -> Iterator[tuple[float, str, str, int]]:
    """By how much each sum changes that a lease counts for, and when."""
    tenant, has = lease["tenant"], (0, 0)
    for at, *size in sizes(lease, changes):
        memory, share = size[0] - has[0], size[1] - has[1]
        gpus = (size[1] > 0) - (has[1] > 0)
        has = size[0], size[1]
        for grant in lease["grants"]:
            yield at, tenant, "gpus", gpus
            yield at, tenant, "memory_bytes", memory
            yield at, tenant, "compute_permille", share
            yield at, grant["gpu"], "share", share


def check_instants(
    leases: list[Lease], changes: dict[str, list[dict[str, Any]]], record: Record
) -> None:
    """Every sum at every moment at which something was granted or changed."""
    events = [
        step
        for lease in leases
        if lease["granted"] is not None
        for step in steps(lease, sorted(changes.get(lease["id"], ()), key=lambda e: int(e["id"])))
    ]
    now: Counter[tuple[str, str]] = Counter()
    # Of one moment, what goes before what comes.
    for _, who, what, much in sorted(events, key=lambda step: (step[0], step[3] > 0)):
        now[who, what] += much
        most = QUOTAS[who][what] if who in QUOTAS else 1000
        if now[who, what] > most:
            record.complain(f"{who} had {what} {now[who, what]} of {most}")
            return


def check_free(pool: Pool, record: Record) -> None:
    """No session, no tenant on a board, nothing taken."""

    def busy() -> list[str]:
        found = [
            f"lease {lease['id']}"
            for lease in history(pool)
            if lease["state"] in ("active", "queued")
        ]
        for server in pool.servers:
            found += [f"worker {pid}" for pid in server.worker_pids()]
            status = Admin(server.folder / "run").ask({"do": "status"})
            found += [
                f"group {tenant['name']} on a board of {server.url}"
                for gpu in status["gpus"]
                for tenant in gpu["tenants"]
            ]
        return found

    deadline = time.monotonic() + PATIENCE
    while left := busy():
        if time.monotonic() > deadline:
            record.complain(f"not free: {', '.join(left[:5])}")
            return
        time.sleep(0.5)
