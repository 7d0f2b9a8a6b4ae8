"""The REST API: what is wrong about a question is named, and changes nothing."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.app import MOST_BODY
from manager_rest import PROBLEM, Rest, bearer

pytestmark = pytest.mark.timeout(60)

LEASE = {"memory_bytes": 1000 * MIB, "share_permille": 100}


async def test_a_wrong_name_is_told_what_names_hold(rest: Rest) -> None:
    asked = {"scope": "node", "node": "a b"}
    problem = await rest.no(422, "bad-request", "POST", "/tokens", asked)
    assert (
        problem["detail"]
        == "body.node: a node's name has 1 to 64 of A-Z a-z 0-9 . _ -, but no . or - first"
    )
    problem = await rest.no(422, "bad-request", "POST", "/tenants", {"name": "a b"})
    assert "a tenant's name has 1 to 32 of A-Z" in problem["detail"]


WRONG: list[tuple[str, Any, str]] = [
    ("/leases", {"gpus": 0}, "body.gpus"),
    ("/leases", {"gpus": 65}, "body.gpus"),
    ("/leases", {"gpus": "2"}, "body.gpus"),
    ("/leases", {"gpus": 1.5}, "body.gpus"),
    ("/leases", {"gpus": True}, "body.gpus"),
    ("/leases", {"memory_bytes": (1 << 20) - 1}, "body.memory_bytes"),
    ("/leases", {"memory_bytes": (1 << 50) + 1}, "body.memory_bytes"),
    ("/leases", {"share_permille": 500}, "body.memory_bytes"),
    ("/leases", {"share_permille": 1001}, "body.share_permille"),
    ("/leases", {"share_permille": 0}, "body.share_permille"),
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
    ("/tenants", {"name": ".."}, "body.name"),  # it could be made, and then no more be removed
    ("/tenants", {"name": "-x"}, "body.name"),
    ("/tokens", {"scope": "node", "node": ".."}, "body.node"),
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
        ("/gpus?free_bytes=-1", "query.free_bytes"),
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
