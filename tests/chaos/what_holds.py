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
#: What the audit log has of a lease's GPUs, and of changes of limits.
GRANTED, GROWN, SHRUNK = "lease.granted", "lease.grown", "lease.shrunk"
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
    for lease in leases.values():
        if lease["state"] in ("active", "queued"):
            record.complain(f"the lease {lease['id']} is still {lease['state']}")
    changes: dict[str, list[dict[str, Any]]] = {}
    for entry in sorted(pages(pool, "/audit"), key=lambda entry: int(entry["id"])):
        if entry["action"] == GRANTED:
            changes[entry["object"]] = []  # one that was moved begins anew
        if entry["action"] in (GRANTED, GROWN, SHRUNK, BEGUN, MADE, REFUSED):
            changes[entry["object"]].append(entry)
            record.count(f"audit: {entry['action']}")
    if not record.counts[f"audit: {BEGUN}"]:
        record.complain("no lease was changed")
    for name, lease in record.leases.items():
        if name not in leases:
            record.complain(f"the lease {name} is lost")
        elif changes[name][0]["detail"]["gpus"] != [g["gpu"] for g in lease["grants"]]:
            record.complain(f"the lease {name} has other GPUs than were granted")
        elif set(last_of(changes[name])) != {g["gpu"] for g in leases[name]["grants"]}:
            record.complain(f"the lease {name} has other GPUs than the audit log says")
    check_instants(list(leases.values()), changes, record)
    record.counts["leases granted"] = sum(lease["granted"] is not None for lease in leases.values())


def last_of(changes: list[dict[str, Any]]) -> list[str]:
    """The GPUs that a lease had last."""
    gpus: list[str] = []
    for entry in changes:
        named = entry["detail"].get("gpus", [])
        if entry["action"] in (GRANTED, GROWN):
            gpus = gpus + named
        elif entry["action"] == SHRUNK:
            gpus = [gpu for gpu in gpus if gpu not in named]
    return gpus


def sizes(lease: Lease, changes: list[dict[str, Any]]) -> Iterator[tuple[float, int, int, int]]:
    """What each of its GPUs counts, since when, and after how many changes: memory and share. What
    grows does when it is asked for, what shrinks when it is made; what was refused is as it was, at
    the latest."""
    first = next((e["detail"]["before"] for e in changes if e["action"] == BEGUN), lease["request"])
    memory, share = before = first["memory_bytes"], first["share_permille"]
    for number, entry in enumerate(changes, 1):
        if entry["action"] == REFUSED:
            memory, share = before
        elif entry["action"] in (BEGUN, MADE):
            after = entry["detail"]
            now = after["memory_bytes"], after["share_permille"]
            if entry["action"] == BEGUN:
                before = memory, share
                now = max(memory, now[0]), max(share, now[1])
            memory, share = now
        yield moment(entry["at"]), memory, share, number
    yield moment(lease["ended"] or lease["granted"]), 0, 0, 0


def steps(lease: Lease, changes: list[dict[str, Any]]) -> Iterator[tuple[float, str, str, int]]:
    """By how much each sum changes that a lease counts for, and when."""
    tenant, has = lease["tenant"], dict[str, tuple[int, int]]()
    for at, memory, share, number in sizes(lease, changes):
        now = dict.fromkeys(last_of(changes[:number]), (memory, share))
        for gpu in has.keys() | now.keys():
            old, new = has.get(gpu, (0, 0)), now.get(gpu, (0, 0))
            yield at, tenant, "gpus", (gpu in now) - (gpu in has)
            yield at, tenant, "memory_bytes", new[0] - old[0]
            yield at, tenant, "compute_permille", new[1] - old[1]
            yield at, gpu, "share", new[1] - old[1]
        has = now


def check_instants(
    leases: list[Lease], changes: dict[str, list[dict[str, Any]]], record: Record
) -> None:
    """Every sum at every moment at which something was granted or changed."""
    events = [
        step
        for lease in leases
        if lease["granted"] is not None
        for step in steps(lease, changes[lease["id"]])
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
