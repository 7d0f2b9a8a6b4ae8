"""Dashboards and alerts ask for what is exposed, and promtool agrees with all of it."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from exposed import Exposed, asked, of_manager, of_server
from gpupool_common.exposition import render
from gpupool_manager.metrics import Metrics
from manager_rest import Rest
from metrics_harness import metrics_server
from prometheus_tools import MONITORING, tool
from server_harness import MakeOffice, accepted, hello

#: What Prometheus adds to every series, and what histograms have.
ADDED = {"instance", "job", "le"}
SUFFIXES = ("_bucket", "_sum", "_count")


@cache
def board(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


BOARDS = sorted((MONITORING / "dashboards").glob("*.json"))


def queries() -> list[str]:
    """Every query of the dashboards, and of their variables, and of the alerts."""
    found = [
        target["expr"]
        for path in BOARDS
        for panel in board(path)["panels"]
        for target in panel["targets"]
    ]
    variables = [v for path in BOARDS for v in board(path)["templating"]["list"]]
    found += [v["query"]["query"] for v in variables if v["type"] == "query"]
    rules = (MONITORING / "rules.yaml").read_text(encoding="utf-8")
    found += re.findall(r"expr:(?: >-)?\s+((?:.+\n(?:\s{10}.*\n)*))", rules)
    assert len(found) > 40
    return found


async def test_queries_name_what_is_exposed(rest: Rest, make_office: MakeOffice) -> None:
    exposed = await of_manager(rest) | await of_server(await make_office())
    known = {metric.name: metric for metric in exposed}
    for query in queries():
        names = re.findall(r"\bgpupool_\w+", query)
        assert names, query
        metrics = [_find(known, name) for name in names]
        labels = set().union(*(metric.labels for metric in metrics)) | ADDED
        named = set(re.findall(r"[{,]\s*(\w+)\s*[=!]", query))
        named |= {
            label.strip()
            for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query)
            for label in group.split(",")
        }
        assert named <= labels, (query, named - labels)


def _find(known: dict[str, Exposed], name: str) -> Exposed:
    for suffix in ("", *SUFFIXES):
        found = known.get(name.removesuffix(suffix))
        if found is not None and (not suffix or found.kind == "histogram"):
            return found
    raise AssertionError(f"nothing exposes {name}")


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported(path: Path) -> None:
    found = board(path)
    assert found["uid"].startswith("gpupool-") and "id" not in found
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(p["gridPos"]["x"] + p["gridPos"]["w"]) for p in panels]
    assert max(places) <= 24
    uses = {panel["datasource"]["uid"] for panel in panels}
    assert uses == {"${datasource}"}, "whatever Prometheus is called there"
    variables = {each["name"] for each in found["templating"]["list"]}
    named = re.findall(r"\$(\w+)", json.dumps([p["targets"] for p in panels]))
    assert set(named) <= variables


def test_the_alerts_say_what_they_should() -> None:
    promtool = tool("promtool")
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run(
            [promtool, *command], cwd=MONITORING, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    alerts = re.findall(r"- alert: (\w+)", (MONITORING / "rules.yaml").read_text())
    tests = (MONITORING / "rules_test.yaml").read_text()
    fires = re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", tests)
    assert set(alerts) == set(fires)


async def test_promtool_finds_nothing_wrong_with_the_names(
    rest: Rest, make_office: MakeOffice
) -> None:
    promtool = tool("promtool")
    await of_manager(rest)
    office = await make_office()
    accepted(await office.handler.answer(hello()))
    registries = (Metrics(rest.world.pool)._registry, await asked(metrics_server(office)))
    for registry in registries:
        body, _ = render(registry)
        done = subprocess.run(
            [promtool, "check", "metrics"], input=body, capture_output=True, timeout=120
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
