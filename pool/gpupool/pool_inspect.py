"""``gpupool inspect --pool``: whose memory a pool's memory is, a line for each host.

Allocated is what leases hold, whether their programs use it or not.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Protocol
from urllib.parse import urlsplit

from rich.console import Console

from gpupool import show
from gpupool.pool_client import Params
from gpupool.pool_show import cell, terminal_width

Record = dict[str, Any]


class Lists(Protocol):
    """Who has the lists of a pool: its manager, or what shows them."""

    def all(self, path: str, params: Params | None = None) -> list[Any]: ...


def inspect_pool(client: Lists, details: bool, as_json: bool) -> None:
    nodes = client.all("/nodes")
    gpus: dict[str, list[Record]] = defaultdict(list)
    for gpu in client.all("/gpus"):
        gpus[str(cell(gpu, "node"))].append(gpu)
    wanted = details or as_json
    leases = client.all("/leases", {"state": "active"}) if wanted else []
    held = _held(leases)
    if as_json:
        show.print_json(_summary(nodes, gpus, held))
        return
    console = show.wide_console()
    if details:
        for node in nodes:
            _print_details(console, node, gpus[str(cell(node, "name"))], held)
    else:
        _print_nodes(console, nodes, gpus)
    every = [gpu for found in gpus.values() for gpu in found]
    console.print("Allocated/Total GPU Memory In Pool:")
    console.print(_of(sum(map(_used, every)), sum(map(_total, every))) + " GiB")


def _held(leases: list[Record]) -> dict[str, dict[str, int]]:
    """Of each GPU, the bytes of each tenant's leases: ``TENANT/LEASE``."""
    held: dict[str, dict[str, int]] = defaultdict(dict)
    for lease in leases:
        for grant in cell(lease, "grants"):
            name = f"{cell(lease, 'tenant')}/{cell(lease, 'id')}"
            held[cell(grant, "gpu")][name] = int(cell(grant, "memory_bytes"))
    return held


def _used(gpu: Record) -> int:
    return int(cell(gpu, "used_bytes"))


def _total(gpu: Record) -> int:
    return int(cell(gpu, "memory_bytes"))


def _of(used: int, total: int) -> str:
    percent = round(100 * used / total) if total else 0
    return f"{show.gibibytes(used)}/{show.gibibytes(total)} ({percent}%)"


def _address(node: Record) -> str:
    return urlsplit(str(cell(node, "address"))).hostname or "-"


def _label(node: Record) -> str:
    """What is not as usual about a host."""
    odd = [
        cell(node, key)
        for key, usual in (("state", "ready"), ("mode", "open"))
        if cell(node, key) != usual
    ]
    return f"{cell(node, 'name')} ({', '.join(odd)})" if odd else str(cell(node, "name"))


def _print_nodes(console: Console, nodes: list[Record], gpus: dict[str, list[Record]]) -> None:
    most = max((len(gpus[str(cell(node, "name"))]) for node in nodes), default=0)
    heads = [f"GPU{number}(Allocated/Total)" for number in range(most)]
    rows = []
    for node in nodes:
        found = gpus[str(cell(node, "name"))]
        cells = [f"{show.gibibytes(_used(gpu))}/{show.gibibytes(_total(gpu))}" for gpu in found]
        cells += ["-"] * (most - len(cells))
        whole = (
            f"{show.gibibytes(sum(map(_used, found)))}/{show.gibibytes(sum(map(_total, found)))}"
        )
        rows.append((_label(node), _address(node), *cells, whole))
    table = show.plain_table(("NAME", "IPADDRESS", *heads, "GPU Memory(GiB)"), rows)
    width = terminal_width()
    if width is not None and console.measure(table).maximum > width:
        heads = [f"GPU{number}" for number in range(most)]
        table = show.plain_table(("NAME", "IPADDRESS", *heads, "GPU Memory(GiB)"), rows)
    console.print(table)
    console.print("-" * 60)


def _print_details(
    console: Console, node: Record, gpus: list[Record], held: dict[str, dict[str, int]]
) -> None:
    console.print(f"NAME:       {_label(node)}")
    console.print(f"IPADDRESS:  {_address(node)}\n")
    names = sorted({name for gpu in gpus for name in held.get(cell(gpu, "uuid"), {})})
    heads = [f"GPU{cell(gpu, 'index')}(Allocated)" for gpu in gpus]
    rows = [
        (name, *(show.gibibytes(held.get(cell(gpu, "uuid"), {}).get(name, 0)) for gpu in gpus))
        for name in names
    ]
    console.print(show.plain_table(("NAME", *heads), rows))
    for gpu in gpus:
        console.print(f"GPU{cell(gpu, 'index')} Allocated: {_of(_used(gpu), _total(gpu))} GiB")
    console.print("-" * 60)


def _summary(
    nodes: list[Record], gpus: dict[str, list[Record]], held: dict[str, dict[str, int]]
) -> Record:
    """What ``--json`` prints, as of one server."""
    every = [gpu for found in gpus.values() for gpu in found]
    return {
        "nodes": [
            {
                "name": cell(node, "name"),
                "address": _address(node),
                "state": cell(node, "state"),
                "mode": cell(node, "mode"),
                "gpus": [
                    {
                        "index": cell(gpu, "index"),
                        "allocated_bytes": _used(gpu),
                        "total_bytes": _total(gpu),
                        "lease_bytes": held.get(cell(gpu, "uuid"), {}),
                    }
                    for gpu in gpus[str(cell(node, "name"))]
                ],
            }
            for node in nodes
        ],
        "allocated_bytes": sum(map(_used, every)),
        "total_bytes": sum(map(_total, every)),
    }
