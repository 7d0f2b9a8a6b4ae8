"""What ``gpupool gpu`` and ``gpupool session`` do with a pool instead of this machine's server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpupool import show
from gpupool.pool_client import PoolClient, at
from gpupool.pool_show import cell, compute, memory, sheet, table
from gpupool_common.errors import ConfigError


def find_gpu(client: PoolClient, name: str) -> dict[str, Any]:
    """A GPU by its UUID, or by its node and index: ``host/0``."""
    node, slash, index = name.partition("/")
    if not slash:
        if name.isdecimal():
            raise ConfigError(
                f"{name!r}: a pool's GPU is named by NODE/INDEX or UUID"
                " (this machine's: unset GPUPOOL_POOL, or give --run-dir)"
            )
        return client.get(at("gpus", name))
    for gpu in client.all("/gpus", {"node": node}):
        if str(cell(gpu, "index")) == index:
            return dict(gpu)
    raise ConfigError(f"{name!r}: the pool has no such GPU; see gpupool gpu list")


def list_pool_gpus(client: PoolClient, node: str | None, as_json: bool) -> None:
    gpus = client.all("/gpus", {"node": node})
    if as_json:
        show.print_json(gpus)
        return
    columns = ("GPU", "MODEL", "MEMORY", "COMPUTE", "LEASES", "POLICY", "CLOSED")
    rows = [
        (
            f"{cell(gpu, 'node')}/{cell(gpu, 'index')}",
            cell(gpu, "model"),
            f"{memory(cell(gpu, 'used_bytes'))}/{memory(cell(gpu, 'memory_bytes'))}",
            compute(cell(gpu, "used_permille")),
            f"{cell(gpu, 'grants')}/{cell(gpu, 'max_inst')}",
            cell(gpu, "policy"),
            cell(gpu, "closed"),
        )
        for gpu in gpus
    ]
    table(columns, rows, "no GPU; `gpupool node join` says how a host joins")


def print_gpu(gpu: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(gpu)
        return
    keys = ("uuid", "node", "index", "model", "compute_capability", "pci", "policy", "max_inst")
    rows: list[tuple[str, Any]] = [(key.replace("_", " "), cell(gpu, key)) for key in keys]
    rows += [
        ("prio ratio", f"{cell(gpu, 'prio_ratio')}%"),
        ("memory", f"{memory(cell(gpu, 'used_bytes'))} of {memory(cell(gpu, 'memory_bytes'))}"),
        ("compute", f"{compute(cell(gpu, 'used_permille'))} granted"),
        ("leases", cell(gpu, "grants")),
        ("closed", cell(gpu, "closed")),
    ]
    sheet(rows)


def change_gpu(client: PoolClient, name: str, changes: Mapping[str, Any], as_json: bool) -> None:
    gpu = find_gpu(client, name)
    changed = client.do("PATCH", at("gpus", str(cell(gpu, "uuid"))), dict(changes))
    print_gpu(changed, as_json)


def open_gpu(client: PoolClient, name: str, as_json: bool) -> None:
    """It is well again, as an operator says."""
    change_gpu(client, name, {"aside": False}, as_json)


def list_pool_sessions(
    client: PoolClient, node: str | None, lease: str | None, tenant: str | None, as_json: bool
) -> None:
    sessions = client.all("/sessions", {"node": node, "lease": lease, "tenant": tenant})
    if as_json:
        show.print_json(sessions)
        return
    columns = ("ID", "NODE", "TENANT", "PROGRAM", "STATE", "LEASE")
    rows = [
        tuple(cell(session, key) for key in ("id", "node", "tenant", "program", "state", "lease"))
        for session in sessions
    ]
    table(columns, rows, "no session")
