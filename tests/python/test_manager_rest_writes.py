"""The REST API: a write happens once, and on what was read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager import tables
from manager_rest import ADMIN, Rest

pytestmark = pytest.mark.timeout(60)


async def test_a_write_with_a_key_is_done_once(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    ask = ("POST", "/leases", {"memory_bytes": 10 * MIB, "share_permille": 10}, "a")
    first = await rest.ask(*ask, Idempotency_Key="k1")
    again = await rest.ask(*ask, Idempotency_Key="k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    other = await rest.ask(*ask, Idempotency_Key="k2")
    assert other.json()["id"] != first.json()["id"]
    assert len(await rest.pages("/leases")) == 2
    wrong = {"memory_bytes": 11 * MIB, "share_permille": 10}
    problem = await rest.no(422, "repeated", "POST", "/leases", wrong, "a", Idempotency_Key="k1")
    assert problem["errors"][0]["field"] == "Idempotency-Key"
    await rest.world.restart()
    rest.app.state.pool = rest.world.pool
    after = await rest.ask(*ask, Idempotency_Key="k1")
    assert after.json()["id"] == first.json()["id"], "a restart forgets no key"


async def test_keys_are_each_callers_own_and_forgotten_after_a_day(rest: Rest) -> None:
    await rest.world.join("n1")
    for name in ("a", "b"):
        await rest.tenant(name)
    body = {"memory_bytes": 10 * MIB, "share_permille": 10, "ttl_seconds": 86400}
    made = [
        (await rest.ask("POST", "/leases", body, name, Idempotency_Key="k")).json()
        for name in ("a", "b")
    ]
    assert [lease["tenant"] for lease in made] == ["a", "b"]
    rest.world.clock.now += 86401
    await rest.world.pool._purge()
    again = (await rest.ask("POST", "/leases", body, "a", Idempotency_Key="k")).json()
    assert again["id"] != made[0]["id"]


async def test_a_refusal_is_not_kept_under_its_key(rest: Rest) -> None:
    await rest.tenant("a")
    ask = ("POST", "/leases", {"memory_bytes": 10 * MIB}, "a")
    await rest.no(409, "impossible", *ask, Idempotency_Key="k")
    await rest.world.join("n1")
    assert (await rest.ask(*ask, Idempotency_Key="k")).status_code == 201


async def test_a_secret_is_not_kept_under_its_key(rest: Rest) -> None:
    body = {"scope": "admin"}
    made = await rest.ask("POST", "/tokens", body, Idempotency_Key="k")
    assert made.json()["secret"]
    await rest.no(409, "exists", "POST", "/tokens", body, Idempotency_Key="k")
    assert made.json()["secret"] not in str(await rest.everything())
    assert len(await rest.pages("/tokens?scope=admin")) == 2


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        ("/tenants/a", "PATCH", {"description": "new"}),
        ("/tenants/a/quota", "PUT", {"gpus": 3}),
        ("/nodes/n1", "PATCH", {"labels": {"a": "b"}}),
        ("/gpus/GPU-n1-0", "PATCH", {"prio_ratio": 33}),
    ],
)
async def test_a_change_can_be_of_what_was_read_only(
    rest: Rest, path: str, method: str, body: dict[str, Any]
) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    seen = (await rest.ask("GET", path)).headers["etag"]
    changed = await rest.ask(method, path, body, If_Match=f'"99", {seen}')
    assert changed.is_success and changed.headers["etag"] != seen
    problem = await rest.no(412, "changed", method, path, body, If_Match=seen)
    assert changed.headers["etag"] in problem["detail"]
    again = await rest.ask(method, path, body, If_Match="*")
    assert again.is_success
    assert (await rest.ask("GET", path)).headers["etag"] == again.headers["etag"]


async def test_a_removal_can_be_of_what_was_read_only(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    for path in ("/tenants/a", "/nodes/n1"):
        await rest.no(412, "changed", "DELETE", path, If_Match='"77"')
        seen = (await rest.ask("GET", path)).headers["etag"]
        await rest.do("DELETE", path, If_Match=seen)


async def test_many_at_once_get_no_more_than_there_is(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a", gpus=3)
    ask = ("POST", "/leases", {"memory_bytes": 10 * MIB, "share_permille": 500}, "a")
    answers = await asyncio.gather(*(rest.ask(*ask) for _ in range(12)))
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [201] * 3 + [403] * 9
    assert ADMIN not in "".join(answer.text for answer in answers)


async def test_answers_are_not_kept_in_any_number(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant filled the manager's memory, and its database, with keys that it made up."""
    monkeypatch.setattr("gpupool_manager.answers.MOST", 3)
    await rest.world.join("n1", 1)
    for name in ("a", "b"):
        await rest.tenant(name)
    first = await rest.ask(
        "POST",
        "/leases",
        {"memory_bytes": 1 * MIB, "share_permille": 10},
        "b",
        Idempotency_Key="theirs",
    )
    for number in range(7):
        body = {"memory_bytes": 1 * MIB, "share_permille": 10}
        answer = await rest.ask("POST", "/leases", body, "a", Idempotency_Key=f"k-{number}")
        assert answer.status_code == 201
        await rest.do("POST", f"/leases/{answer.json()['id']}/release", by="a")
    kept = {key for _, key in rest.world.pool.ledger.answers}
    assert kept == {"theirs", "k-4", "k-5", "k-6"}
    rows = await rest.world.pool.store.fetch(select(tables.answers.c.key))
    assert {row[0] for row in rows} == kept
    again = await rest.ask(
        "POST",
        "/leases",
        {"memory_bytes": 1 * MIB, "share_permille": 10},
        "b",
        Idempotency_Key="theirs",
    )
    assert again.json()["id"] == first.json()["id"]
