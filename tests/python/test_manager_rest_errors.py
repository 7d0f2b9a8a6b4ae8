"""What the REST API refuses: with the right number, a clear reason, and nothing half done."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.quotas import QUANTITIES
from gpupool_manager.tokens import new_secret
from manager_rest import PROBLEM, Rest
from manager_world import gpu

pytestmark = pytest.mark.timeout(60)

LEASE = {"memory_bytes": 1000 * MIB, "share_permille": 100}


# Quotas --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "body", "limit"),
    [
        ({"gpus": 3}, {"gpus": 3}, {"quantity": "gpus", "asked": 3, "in_use": 1, "quota": 3}),
        (
            {"memory_bytes": 1500 * MIB},
            {},
            {
                "quantity": "memory_bytes",
                "asked": 1000 * MIB,
                "in_use": 1000 * MIB,
                "quota": 1500 * MIB,
            },
        ),
        (
            {"compute_permille": 190},
            {},
            {"quantity": "compute_permille", "asked": 100, "in_use": 100, "quota": 190},
        ),
        ({"sessions": 1}, {}, {"quantity": "sessions", "asked": 1, "in_use": 1, "quota": 1}),
    ],
)
async def test_over_quota_is_refused_with_the_numbers(
    rest: Rest, quota: dict[str, int], body: dict[str, int], limit: dict[str, Any]
) -> None:
    await rest.world.join("n1", 4)
    await rest.tenant("a", **quota)
    await rest.lease("a")
    problem = await rest.no(403, "over-quota", "POST", "/leases", {**LEASE, **body}, "a")
    assert problem["limits"] == [{**limit, "queued": 0}]
    _, shown = QUANTITIES[limit["quantity"]]
    for number in (limit["asked"], limit["in_use"], limit["quota"]):
        assert shown(number) in problem["detail"]


async def test_what_waits_counts_for_the_quota(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a", gpus=2)
    await rest.lease("a", share_permille=1000)
    await rest.lease("a", wait_seconds=60)
    problem = await rest.no(403, "over-quota", "POST", "/leases", LEASE, "a")
    assert problem["limits"] == [
        {"quantity": "gpus", "asked": 1, "in_use": 1, "queued": 1, "quota": 2}
    ]


async def test_a_priority_over_the_quota_is_refused(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a", priority=3)
    problem = await rest.no(403, "over-quota", "POST", "/leases", {**LEASE, "priority": 4}, "a")
    assert problem["limits"] == [{"quantity": "priority", "asked": 4, "quota": 3}]


async def test_a_full_pool_without_waiting_is_a_conflict(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    await rest.lease("a", share_permille=1000)
    problem = await rest.no(409, "full", "POST", "/leases", LEASE, "a")
    assert problem["queue_length"] == 0


async def test_what_no_gpu_could_ever_give_is_not_queued(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    body = {**LEASE, "memory_bytes": 10_001 * MIB, "wait_seconds": 60}
    problem = await rest.no(409, "impossible", "POST", "/leases", body, "a")
    there = "no GPU with 10001MiB of memory; the largest of the pool has 10000MiB"
    assert problem["detail"] == there


# Who asks ------------------------------------------------------------------------------

PATHS = """
/tenants               GET POST
/tenants/a             GET PATCH DELETE
/quotas                GET
/tenants/a/quota       GET PUT
/tokens                GET POST
/tokens/t              GET DELETE
/nodes                 GET
/nodes/n               GET PATCH DELETE
/nodes/n/roll-key      POST
/keys                  GET
/keys/roll             POST
/keys/link             GET
/keys/link/roll        POST
/keys/link/retire      POST
/gpus                  GET
/gpus/g                GET PATCH
/sessions              GET
/leases                POST GET
/leases/explain        POST
/leases/l              GET PATCH
/leases/l/renew        POST
/leases/l/release      POST
/leases/l/explain      GET
/queue                 GET
/reservations          GET POST
/reservations/r        GET DELETE
/usage                 GET
/audit                 GET
/events                GET
/metrics               GET
"""
OPERATIONS = [(m, path) for path, *ms in map(str.split, PATHS.split("\n")[1:-1]) for m in ms]


async def test_the_table_of_operations_is_complete(rest: Rest) -> None:
    document = await rest.do("GET", "/openapi.json")
    found = {
        (method.upper(), path.removeprefix("/v1").replace("{name}", "_").replace("{id}", "_"))
        for path, methods in document["paths"].items()
        for method in methods
    }
    ours = set()
    for method, path in OPERATIONS:
        parts = path.split("/")
        if len(parts) > 2 and path != "/leases/explain" and parts[1] != "keys":
            parts[2] = "{uuid}" if parts[1] == "gpus" else "_"
        ours.add((method, "/".join(parts)))
    assert found - ours == {("GET", "/health"), ("GET", "/ready")}
    assert ours <= found


async def test_without_a_valid_token_nothing_is_answered(rest: Rest) -> None:
    await rest.tenant("a")
    before = await rest.everything()
    for method, path in OPERATIONS:
        for token in (None, new_secret("admin"), "", "gpp_", "\xff\xfe", "x" * 5000):
            body: Any = {} if method in ("POST", "PUT", "PATCH") else None
            value = f"Bearer {token}".encode("latin-1")
            headers = [] if token is None else [(b"Authorization", value)]
            answer = await rest.client.request(method, path, json=body, headers=headers)
            assert answer.status_code == 401, f"{method} {path}: {answer.text}"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["content-type"] == PROBLEM
            assert answer.json()["type"] == "urn:gpupool:problem:bad-token"
    assert await rest.everything() == before


async def test_another_scheme_is_no_token(rest: Rest) -> None:
    value = base64.b64encode(f"x:{rest.tokens['admin']}".encode()).decode()
    for given in (f"Basic {value}", rest.tokens["admin"], "Bearer"):
        answer = await rest.client.get("/tenants", headers={"Authorization": given})
        assert answer.status_code == 401


async def test_scopes_allow_what_they_name_only(rest: Rest) -> None:
    await rest.tenant("a")
    made = await rest.do("POST", "/tokens", {"scope": "node", "node": "n1"})
    rest.tokens["node"] = made["secret"]
    for_tenants = {
        "/tenants/a",
        "/tenants/a/quota",
        "/sessions",
        "/leases",
        "/leases/explain",
        "/leases/l",
        "/leases/l/renew",
        "/leases/l/release",
        "/leases/l/explain",
        "/queue",
        "/reservations",
        "/reservations/r",
        "/usage",
        "/events",
    }
    for method, path in OPERATIONS:
        body: Any = {} if method in ("POST", "PUT", "PATCH") else None
        await rest.no(403, "forbidden", method, path, body, "node")
        # Of what it reads, a tenant changes its leases and reservations alone.
        own = path in ("/leases/l", "/reservations/r")
        changes = method in ("PATCH", "PUT", "DELETE") and not own
        if path not in for_tenants or changes:
            await rest.no(403, "forbidden", method, path, body, "a")


async def test_no_node_joins_through_the_api(rest: Rest) -> None:
    """A join token in the wrong hands made a false node here, which took others' leases."""
    made = await rest.do("POST", "/tokens", {"scope": "node", "node": "n1"})
    report = {"address": "tcp://n1:7700", "server_version": "1", "gpus": []}
    for token in (made["secret"], "admin"):
        await rest.no(404, "not-found", "PUT", "/nodes/n1/report", report, token)
        await rest.no(404, "not-found", "POST", "/nodes/n1/heartbeat", {}, token)
        await rest.no(405, "not-allowed", "PUT", "/nodes/n1", report, token)
        await rest.no(405, "not-allowed", "POST", "/nodes", report, token)
    assert not rest.world.pool.ledger.nodes


async def test_a_join_token_has_a_name_and_an_end(rest: Rest) -> None:
    for body, part in (
        ({}, "'node' goes with"),
        ({"node": "n1", "lifetime_seconds": 31 * 86400}, "at most 30 days"),
        ({"node": "n1", "labels": {"a b": "c"}}, "labels"),
    ):
        problem = await rest.no(422, "bad-request", "POST", "/tokens", {"scope": "node", **body})
        assert part in problem["detail"]
    made = await rest.do("POST", "/tokens", {"scope": "node", "node": "n1"})
    assert made["node"] == "n1" and made["expires"] is not None
    tenant = {"scope": "admin", "labels": {"zone": "b"}}
    await rest.no(422, "bad-request", "POST", "/tokens", tenant)


async def test_a_tenant_never_sees_anothers_things(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    for name in ("a", "secretive"):
        await rest.tenant(name, priority=5)
    theirs = await rest.lease("secretive", share_permille=900, label="hidden", ttl_seconds=3600)
    waits = await rest.lease("secretive", share_permille=500, wait_seconds=3600, label="hidden")
    ended = await rest.lease("secretive", label="hidden")
    await rest.do("POST", f"/leases/{ended['id']}/release")
    for lease in (theirs, waits, ended):
        path = f"/leases/{lease['id']}"
        await rest.no(404, "not-found", "GET", path, by="a")
        await rest.no(404, "not-found", "GET", f"{path}/explain", by="a")
        await rest.no(404, "not-found", "POST", f"{path}/renew", by="a")
        await rest.no(404, "not-found", "POST", f"{path}/release", by="a")
    for path in ("/tenants/secretive", "/tenants/secretive/quota"):
        await rest.no(403, "forbidden", "GET", path, by="a")
        # Nor does the answer tell whether there is such a tenant.
        await rest.no(403, "forbidden", "GET", path.replace("secretive", "nobody"), by="a")
    for path in ("/leases", "/queue", "/usage", "/sessions"):
        await rest.no(403, "forbidden", "GET", f"{path}?tenant=secretive", by="a")
        assert await rest.pages(path, by="a") == []
    await rest.no(403, "forbidden", "GET", "/usage?total=true&tenant=secretive", by="a")
    assert await rest.pages("/usage?total=true", by="a") == []
    await rest.no(403, "forbidden", "POST", "/leases", {**LEASE, "tenant": "secretive"}, by="a")
    # Those who have waited long go first; who they are is not said.
    rest.world.clock.now += 120
    mine = await rest.lease("a", share_permille=500, wait_seconds=60)
    why = await rest.ask("GET", f"/leases/{mine['id']}/explain", by="a")
    plan = await rest.ask("POST", "/leases/explain", LEASE, by="a")
    for text in (str(mine), why.text, plan.text):
        for word in ("secretive", "hidden", theirs["id"], waits["id"]):
            assert word not in text


async def test_an_explanation_tells_a_tenant_nothing_of_others(rest: Rest) -> None:
    """GPU by GPU it said what others had taken, and on which hosts."""
    await rest.world.join("n1", 2)
    await rest.world.join("n2", [gpu("n2", 0, model="NVIDIA H100")])
    for name in ("a", "b"):
        await rest.tenant(name)
    await rest.lease("b", memory_bytes=4321 * MIB, share_permille=370, model="*h200")
    asked = {"memory_bytes": 9000 * MIB, "share_permille": 900, "model": "*h200"}
    why = await rest.do("POST", "/leases/explain", asked, "a")
    assert why["decision"].startswith("it would be granted")
    assert why["summary"] == {"fits": 1, "model": 1, "not free": 1} and why["gpus"] == []
    asked["gpus"] = 2
    why = await rest.do("POST", "/leases/explain?limit=1000", asked, "a")
    assert why["decision"].startswith("no room") and why["gpus"] == []
    await rest.do("PATCH", "/nodes/n1", {"mode": "draining"})
    closed = await rest.do(
        "POST", "/leases/explain", {"memory_bytes": 1 * MIB, "share_permille": 10}, "a"
    )
    assert closed["summary"] == {"fits": 1, "not free": 2}
    for text in map(str, (why, closed)):
        for word in ("n1", "GPU-", "5679", "63", "37", "drain"):
            assert word not in text, word
