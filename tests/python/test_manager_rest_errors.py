"""What the REST API refuses: with the right number, a clear reason, and nothing half done."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gpupool_manager.app import MOST_BODY
from gpupool_manager.tokens import new_secret
from manager_rest import PROBLEM, Rest, bearer
from manager_world import gpu

pytestmark = pytest.mark.timeout(60)

LEASE = {"memory_mib": 1000, "share": 10}


# Quotas --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "body", "limit"),
    [
        ({"gpus": 3}, {"gpus": 3}, {"quantity": "gpus", "asked": 3, "in_use": 1, "quota": 3}),
        (
            {"memory_mib": 1500},
            {},
            {"quantity": "memory_mib", "asked": 1000, "in_use": 1000, "quota": 1500},
        ),
        ({"compute": 19}, {}, {"quantity": "compute", "asked": 10, "in_use": 10, "quota": 19}),
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
    for number in (limit["asked"], limit["in_use"], limit["quota"]):
        assert str(number) in problem["detail"]


async def test_what_waits_counts_for_the_quota(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a", gpus=2)
    await rest.lease("a", share=100)
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
    await rest.lease("a", share=100)
    problem = await rest.no(409, "full", "POST", "/leases", LEASE, "a")
    assert problem["queue_length"] == 0


async def test_what_no_gpu_could_ever_give_is_not_queued(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    body = {**LEASE, "memory_mib": 10_001, "wait_seconds": 60}
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
/gpus                  GET
/gpus/g                GET PATCH
/sessions              GET
/leases                POST GET
/leases/explain        POST
/leases/l              GET
/leases/l/renew        POST
/leases/l/release      POST
/leases/l/explain      GET
/queue                 GET
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
        if len(parts) > 2 and path != "/leases/explain":
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
        "/usage",
        "/events",
    }
    for method, path in OPERATIONS:
        body: Any = {} if method in ("POST", "PUT", "PATCH") else None
        await rest.no(403, "forbidden", method, path, body, "node")
        if path not in for_tenants or (method in ("PATCH", "PUT", "DELETE")):
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
    theirs = await rest.lease("secretive", share=90, label="hidden", ttl_seconds=3600)
    waits = await rest.lease("secretive", share=50, wait_seconds=3600, label="hidden")
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
    await rest.no(403, "forbidden", "POST", "/leases", {**LEASE, "tenant": "secretive"}, by="a")
    # Those who have waited long go first; who they are is not said.
    rest.world.clock.now += 120
    mine = await rest.lease("a", share=50, wait_seconds=60)
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
    await rest.lease("b", memory_mib=4321, share=37, model="*h200")
    asked = {"memory_mib": 9000, "share": 90, "model": "*h200"}
    why = await rest.do("POST", "/leases/explain", asked, "a")
    assert why["decision"].startswith("it would be granted")
    assert why["summary"] == {"fits": 1, "model": 1, "not free": 1} and why["gpus"] == []
    asked["gpus"] = 2
    why = await rest.do("POST", "/leases/explain?limit=1000", asked, "a")
    assert why["decision"].startswith("no room") and why["gpus"] == []
    await rest.do("PATCH", "/nodes/n1", {"mode": "draining"})
    closed = await rest.do("POST", "/leases/explain", {"memory_mib": 1, "share": 1}, "a")
    assert closed["summary"] == {"fits": 1, "not free": 2}
    for text in map(str, (why, closed)):
        for word in ("n1", "GPU-", "5679", "63", "37", "drain"):
            assert word not in text, word


# Wrong input ---------------------------------------------------------------------------

WRONG: list[tuple[str, Any, str]] = [
    ("/leases", {"gpus": 0}, "body.gpus"),
    ("/leases", {"gpus": 65}, "body.gpus"),
    ("/leases", {"gpus": "2"}, "body.gpus"),
    ("/leases", {"gpus": 1.5}, "body.gpus"),
    ("/leases", {"gpus": True}, "body.gpus"),
    ("/leases", {"memory_mib": 0}, "body.memory_mib"),
    ("/leases", {"memory_mib": 1 << 31}, "body.memory_mib"),
    ("/leases", {"share": 50}, "body.memory_mib"),
    ("/leases", {"share": 101}, "body.share"),
    ("/leases", {"share": 0}, "body.share"),
    ("/leases", {"policy": "best"}, "body.policy"),
    ("/leases", {"hosts": "mine"}, "body.hosts"),
    ("/leases", {"model": ""}, "body.model"),
    ("/leases", {"model": "a\nb"}, "body.model"),
    ("/leases", {"capability": "nine"}, "body.capability"),
    ("/leases", {"min_driver": "12"}, "body.min_driver"),
    ("/leases", {"labels": {"a b": "c"}}, "body.labels.a b.[key]"),
    ("/leases", {"priority": 101}, "body.priority"),
    ("/leases", {"wait_seconds": -1}, "body.wait_seconds"),
    ("/leases", {"ttl_seconds": 4}, "body.ttl_seconds"),
    ("/leases", {"tenant": "no such name"}, "body.tenant"),
    ("/leases", {"gpu": 1}, "body.gpu"),
    ("/leases", [], "body"),
    ("/leases", "null", "body"),
    ("/leases", None, "body"),
    ("/leases", "", "body"),
    ("/leases", "{", "body.1"),
    ("/leases", b"\xff\xfe", "body"),
    ("/leases", "[" * 100_000, "body"),
    ("/leases", '{"gpus": ' + "9" * 5000 + "}", "body"),
    ("/leases", '{"gpus": NaN}', "body.gpus"),
    ("/leases", '{"\\ud800": 1}', "body"),
    ("/leases", '{"label": "\\ud800"}', "body.label"),
    ("/leases", '{"labels": {"\\ud800": "x"}}', "body.labels"),
    ("/leases", '{"label": "a\\u0000b"}', "body.label"),
    ("/tenants", {"name": "a/b"}, "body.name"),
    ("/tenants", {"name": "x" * 33}, "body.name"),
    ("/tenants", {"name": "x", "quota": {"gpus": -1}}, "body.quota.gpus"),
    ("/tenants", {"name": "x", "quota": {"models": [""]}}, "body.quota.models.0"),
    ("/tokens", {"scope": "root"}, "body.scope"),
    ("/tokens", {"scope": "tenant"}, "body"),
    ("/tokens", {"scope": "admin", "tenant": "a"}, "body"),
    ("/tokens", {"scope": "admin", "node": "n"}, "body"),
    ("/tokens", {"scope": "admin", "lifetime_seconds": 0}, "body.lifetime_seconds"),
]


async def test_a_wrong_field_is_named(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    for path, body, field in WRONG:
        by = "a" if path == "/leases" else "admin"
        problem = await rest.no(422, "bad-request", "POST", path, body, by)
        names = [error["field"] for error in problem["errors"]]
        assert any(name.startswith(field) for name in names), (path, body, problem)
        assert names[0].split(".")[0] in problem["detail"]


async def test_an_admin_must_say_for_whom(rest: Rest) -> None:
    problem = await rest.no(422, "bad-request", "POST", "/leases", {})
    assert problem["errors"][0]["field"] == "body.tenant"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/leases?limit=0", "query.limit"),
        ("/leases?limit=1001", "query.limit"),
        ("/leases?state=gone", "query.state"),
        ("/leases?tenant=a/b", "query.tenant"),
        ("/leases?cursor=!", "cursor"),
        ("/nodes?label=x", "query.label"),
        ("/gpus?free_mib=-1", "query.free_mib"),
        ("/usage?since=yesterday", "query.since"),
        ("/usage?step=week", "query.step"),
        ("/audit?action=%00", "query.action"),
        ("/tenants/%00", "path.name"),
        ("/leases/%0a", "path.id"),
        ("/leases/x?wait=61", "query.wait"),
    ],
)
async def test_a_wrong_parameter_is_named(rest: Rest, path: str, field: str) -> None:
    problem = await rest.no(422, "bad-request", "GET", path)
    assert [error["field"].startswith(field) for error in problem["errors"]] == [True]


@pytest.mark.parametrize(
    "path", ["/leases", "/usage", "/audit", "/tenants", "/gpus", "/queue", "/usage?step=day"]
)
async def test_a_cursor_of_no_page_is_refused(rest: Rest, path: str) -> None:
    keys: list[Any] = [
        None,
        {},
        [],
        [[]],
        [1],
        ["a"],
        [1, "a"],
        [True],
        ["a", 1],
        [1.5],
        ["\x00"],
        [1, "\x00"],
        [1 << 62],
        [1 << 70],
        [-(1 << 70), "a"],
        [(1 << 62) - 1],
        [(1 << 62) - 1, "a"],
        ["x" * 300],
        [1 << 40],
        [1 << 40, "a"],
        [-1],
        [-1, "a"],
        ["a", 0, "b"],
        ["a", 1 << 40, "b"],
        ["\ud800"],
    ]
    cursors = [base64.urlsafe_b64encode(json.dumps(key).encode()).decode() for key in keys]
    deep = base64.urlsafe_b64encode(b"[" * 768).decode()
    for cursor in [*cursors, deep, "", "A", "====", "\u00e4", "AAAA"]:
        answer = await rest.client.get(
            path, params={"cursor": cursor}, headers=bearer(rest.tokens["admin"])
        )
        assert answer.status_code in (200, 422), answer.text
        if answer.status_code == 422:
            assert answer.json()["errors"][0]["field"] == "cursor"


@pytest.mark.parametrize(
    "time",
    [
        "0001-01-01T00:00:00%2B14:00",
        "9999-12-31T23:59:59-14:00",
        "0001-01-01T00:00:00",
        "9999-12-31T23:59:59Z",
        "1969-12-31T00:00:00Z",
        "2026-01-01",
        "0",
    ],
)
async def test_every_time_of_the_calendar_is_taken(rest: Rest, time: str) -> None:
    for path in (f"/usage?since={time}&until={time}", f"/audit?since={time}&until={time}"):
        assert (await rest.do("GET", path))["items"] == []


async def test_a_wrong_header_is_named(rest: Rest) -> None:
    for name, value in (("Idempotency-Key", "a b"), ("If-Match", "x" * 1025)):
        problem = await rest.no(
            422, "bad-request", "PATCH", "/nodes/n1", {}, **{name.replace("-", "_"): value}
        )
        assert problem["errors"][0]["field"].lower() == f"header.{name.lower()}"


async def test_a_request_id_that_may_not_stand_in_a_log_is_replaced(rest: Rest) -> None:
    for given in ("a b", "x" * 65, "", "\x1b[31m"):
        answer = await rest.ask("GET", "/health", by=None, X_Request_ID=given)
        assert answer.headers["x-request-id"] != given
        assert answer.headers["x-request-id"].isalnum()


async def test_a_body_that_is_too_large_is_refused(rest: Rest) -> None:
    await rest.no(413, "too-large", "POST", "/tenants", " " * (MOST_BODY + 1))


async def test_there_is_nothing_else(rest: Rest) -> None:
    await rest.no(404, "not-found", "GET", "/nothing")
    await rest.no(404, "not-found", "GET", "/tenants/")
    await rest.no(405, "not-allowed", "DELETE", "/tenants")
    answer = await rest.ask("PUT", "/leases", {})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


async def test_what_is_there_already_is_not_made_again(rest: Rest) -> None:
    await rest.tenant("a", gpus=3)
    await rest.no(409, "exists", "POST", "/tenants", {"name": "a", "quota": {"gpus": 5}})


async def test_what_is_not_there_is_named(rest: Rest) -> None:
    for method, path, body in (
        ("GET", "/tenants/x", None),
        ("PATCH", "/tenants/x", {}),
        ("PUT", "/tenants/x/quota", {}),
        ("GET", "/tokens/x", None),
        ("DELETE", "/tokens/x", None),
        ("GET", "/nodes/x", None),
        ("PATCH", "/nodes/x", {}),
        ("GET", "/gpus/x", None),
        ("GET", "/leases/x", None),
        ("POST", "/leases/x/renew", None),
        ("POST", "/leases/x/release", None),
        ("POST", "/leases", {**LEASE, "tenant": "x"}),
        ("POST", "/tokens", {"scope": "tenant", "tenant": "x"}),
    ):
        problem = await rest.no(404, "not-found", method, path, body)
        assert "'x'" in problem["detail"]


async def test_an_operation_that_breaks_halfway_is_undone(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    before = await rest.everything()

    def breaks(*_: Any) -> None:
        raise ZeroDivisionError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr("gpupool_manager.ledger.Ledger.track", breaks)
        answer = await rest.ask("POST", "/leases", LEASE, "a")
    assert answer.status_code == 500
    assert "purpose" not in answer.text
    assert answer.headers["content-type"] == PROBLEM
    assert await rest.everything() == before
    await rest.lease("a")


async def test_a_database_that_cannot_be_written_is_503_and_nothing_is_done(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpupool_manager.store import StoreError

    await rest.world.join("n1")
    await rest.tenant("a")
    before = await rest.everything()

    async def fails(*_: Any) -> None:
        raise StoreError("postgresql://user:hunter2@host is away")

    with monkeypatch.context() as patched:
        patched.setattr(rest.world.pool.store, "commit", fails)
        answer = await rest.ask("POST", "/leases", LEASE, "a")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:gpupool:problem:unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert "hunter2" not in answer.text
    assert await rest.everything() == before
