"""The tables of docs/monitoring.md are what manager and server expose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exposed import Exposed, of_manager, of_server
from manager_rest import Rest
from server_harness import MakeOffice

PAGE = (Path(__file__).resolve().parents[2] / "docs/monitoring.md").read_text(encoding="utf-8")


def told(section: str) -> set[Exposed]:
    """The rows of a section's table."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:4] for row in re.findall(r"^\| `gpupool_.*", text, re.M)]
    return {
        Exposed(name.strip(" `"), kind.strip(), frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in rows
    }


async def test_the_managers(rest: Rest) -> None:
    assert told("The manager's metrics") == await of_manager(rest)


async def test_a_servers(make_office: MakeOffice) -> None:
    assert told("A server's metrics") == await of_server(await make_office())


@pytest.mark.parametrize("section", ["The manager's metrics", "A server's metrics"])
def test_names_are_prometheus_ones(section: str) -> None:
    """What promtool says as well, where it is: base units, and ends that say what grows."""
    for metric in told(section):
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        assert metric.name.endswith("_info") == (metric.kind == "info"), metric
        assert not re.search(r"_(ms|millis|permille|percent|kib|mib|gib|kb|mb|gb)\b", metric.name)
