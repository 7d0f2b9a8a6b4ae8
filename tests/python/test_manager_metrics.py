"""The manager's metrics: what they say, and to whom."""

from __future__ import annotations

import re

from gpupool_common.quantities import MEBIBYTE as MIB
from manager_rest import Rest


async def test_metrics_for_who_may_look(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a", gpus=5)
    await rest.lease("a", gpus=2, memory_bytes=100 * MIB)
    await rest.no(401, "bad-token", "GET", "/metrics", by=None)
    await rest.no(403, "forbidden", "GET", "/metrics", by="a")
    answer = await rest.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    for line in (
        'gpupool_manager_nodes{state="open"} 1.0',
        'gpupool_manager_gpus{state="usable"} 2.0',
        'gpupool_manager_leases{state="active"} 1.0',
        'gpupool_manager_nodes{state="lost"} 0.0',
        'gpupool_manager_node_up{node="n1"} 1.0',
        "gpupool_manager_gpu_memory_granted_bytes 2.097152e+08",
        "gpupool_manager_compute_granted_gpus 0.2",
        'gpupool_manager_tenant_gpus{state="in_use",tenant="a"} 2.0',
        'gpupool_manager_tenant_compute_gpus{state="in_use",tenant="a"} 0.2',
        'gpupool_manager_tenant_quota_gpus{tenant="a"} 5.0',
        'gpupool_manager_queue_wait_seconds_count{outcome="granted"} 1.0',
        'gpupool_manager_requests_total{method="GET",status="401"} 1.0',
    ):
        assert line in lines
    assert 'quota_memory_bytes{tenant="a"}' not in answer.text, "no limit has no series"
    accept = "application/openmetrics-text;version=1.0.0"
    answer = await rest.ask("GET", "/metrics", accept=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    rest.app.state.open_metrics = True
    assert (await rest.ask("GET", "/metrics", by=None)).status_code == 200


async def test_how_long_requests_wait(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    first = await rest.lease("a", share_permille=1000)
    second = await rest.lease("a", share_permille=1000, wait_seconds=600)
    third = await rest.lease("a", share_permille=1000, wait_seconds=600)
    rest.world.clock.now += 120
    assert "gpupool_manager_queue_oldest_seconds 120.0" in await metrics(rest)
    await rest.do("POST", f"/leases/{first['id']}/release", by="a")
    await rest.do("POST", f"/leases/{third['id']}/release", by="a")
    lines = await metrics(rest)
    for line in (
        "gpupool_manager_queue_oldest_seconds 0.0",
        'gpupool_manager_queue_wait_seconds_count{outcome="granted"} 2.0',
        'gpupool_manager_queue_wait_seconds_sum{outcome="granted"} 120.0',
        'gpupool_manager_queue_wait_seconds_count{outcome="ended"} 1.0',
    ):
        assert line in lines
    (entry,) = await rest.pages(f"/audit?action=lease.granted&object={second['id']}")
    assert entry["detail"]["waited_seconds"] == 120.0


async def metrics(rest: Rest) -> list[str]:
    return (await rest.ask("GET", "/metrics")).text.splitlines()


async def test_a_scrapers_token_is_worth_nothing_else(rest: Rest) -> None:
    made = await rest.do("POST", "/tokens", {"scope": "metrics"})
    secret = made["secret"]
    assert (await rest.ask("GET", "/metrics", by=secret)).status_code == 200
    document = await rest.do("GET", "/openapi.json")
    for path, methods in document["paths"].items():
        if path in ("/v1/metrics", "/v1/health", "/v1/ready"):
            continue
        place = re.sub(r"{[^}]*}", "x", path.removeprefix("/v1"))
        for method in methods:
            answer = await rest.ask(method.upper(), place, {}, by=secret)
            assert answer.status_code == 403, f"{method} {path}: {answer.text}"
    await rest.do("DELETE", f"/tokens/{made['id']}")
    await rest.no(401, "bad-token", "GET", "/metrics", by=secret)
