"""A real Prometheus scrapes a manager and a server by TLS and a token, and an alert fires."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpupool_common import paths
from harness import PATIENCE, PoolServer, wait_until
from manager_process import ManagerProcess
from pool_harness import PoolManager
from ports import free_port
from prometheus_tools import MONITORING, Prometheus, running_prometheus, tool

PAGE = MONITORING.parents[1] / "docs" / "monitoring.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prometheus")


@pytest.fixture(scope="module")
def pool(home: paths.Home) -> Iterator[PoolManager]:
    tool("prometheus")
    manager = PoolManager()
    manager.listen = f"https://127.0.0.1:{free_port()}"
    try:
        manager.start()
        manager.tls = ssl.create_default_context(cafile=str(manager.state / "tls.crt"))
        yield manager
    finally:
        manager.close()


@pytest.fixture(scope="module")
def server(pool: PoolManager) -> Iterator[PoolServer]:
    metrics: dict[str, Any] = {"metrics-listen": f"https://127.0.0.1:{free_port()}"}
    made = pool.server("one", **metrics)
    try:
        made.start()
        pool.wait_for("one")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def prometheus(pool: ManagerProcess, server: PoolServer, folder: Path) -> Iterator[Prometheus]:
    """With the configuration of docs/monitoring.md, at these addresses."""
    secret = pool.do("POST", "/tokens", {"scope": "metrics"})["secret"]
    (folder / "gpupool-manager.token").write_text(secret)
    state = server.folder / "run"
    shutil.copy(state / "metrics.token", folder / "gpupool-server.token")
    shutil.copy(pool.state / "tls.crt", folder / "gpupool-manager.crt")
    shutil.copy(state / "metrics" / "tls.crt", folder / "gpupool-server.crt")
    (text,) = re.findall(r"```yaml\n(scrape_configs:\n.*?)```", PAGE.read_text(), re.S)
    text = text.replace("/etc/prometheus", str(folder))
    text = text.replace("10.0.0.1:7780", pool.listen.removeprefix("https://"))
    listen = server.settings["metrics-listen"].removeprefix("https://")
    text = text.replace("10.0.0.7:9117", listen)
    shutil.copy(MONITORING / "rules.yaml", folder)
    every = "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}"
    with running_prometheus(folder, f"{every}\nrule_files: [rules.yaml]\n{text}") as found:
        yield found


def test_both_are_scraped(prometheus: Prometheus) -> None:
    for found in prometheus.until("targets", state="active"):
        health = {target["labels"]["job"]: target["health"] for target in found["activeTargets"]}
        if health == {"gpupool-manager": "up", "gpupool-server": "up"}:
            break
    for query, value in (
        ('gpupool_manager_node_up{node="one"}', "1"),
        ("count(gpupool_gpu_info)", "2"),
        ("gpupool_sessions_start", "1"),
    ):
        for found in prometheus.until("query", query=query):
            if [series["value"][1] for series in found["result"]] == [value]:
                break


@pytest.mark.parametrize("name", ["pool", "gpus"])
def test_every_query_of_a_dashboard_is_one(prometheus: Prometheus, name: str) -> None:
    board = json.loads((MONITORING / "dashboards" / f"{name}.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) >= 16
    for query in queries:
        for _ in prometheus.until("query", query=re.sub(r"\$\w+", ".*", query)):
            break


def test_a_sick_gpu_fires_an_alert_until_it_is_opened(
    prometheus: Prometheus, pool: ManagerProcess, server: PoolServer
) -> None:
    gpu = [sys.executable, "-m", "gpupool", "gpu"]
    here = ["--run-dir", str(server.folder / "run")]
    done = [*gpu, "aside", "1", "--reason", "a fan has stopped", *here]
    subprocess.run(done, check=True, timeout=PATIENCE, env=pool.env)
    for found in prometheus.until("alerts"):
        firing = [alert for alert in found["alerts"] if alert["state"] == "firing"]
        if firing:
            break
    (alert,) = firing
    assert alert["labels"]["alertname"] == "GpupoolGpuSick" and alert["labels"]["gpu"] == "1"
    for found in prometheus.until("query", query='gpupool_manager_gpus{state="aside"}'):
        if [series["value"][1] for series in found["result"]] == ["1"]:
            break
    # The operator is elsewhere: the manager tells the server.
    (one,) = [g for g in pool.do("GET", "/gpus")["items"] if g["index"] == 1]
    assert one["aside"].startswith("a fan has stopped at ")
    pool.do("PATCH", f"/gpus/{one['uuid']}", {"aside": False})
    for found in prometheus.until("alerts"):
        if not found["alerts"]:
            break
    state = server.folder / "run" / "gpus" / "1.json"
    wait_until(lambda: not json.loads(state.read_text())["sick"], "its server knew of it")


def test_nothing_without_a_token(prometheus: Prometheus, server: PoolServer) -> None:
    listen = server.settings["metrics-listen"]
    asked = ["curl", "--silent", "--insecure", "--output", "/dev/null", "--write-out"]
    done = subprocess.run(
        [*asked, "%{http_code}", f"{listen}/metrics"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "401"
