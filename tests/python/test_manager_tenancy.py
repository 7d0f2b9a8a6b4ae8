"""Tenants and tokens: made, changed, refused and forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
import pytest_asyncio
from sqlalchemy import text

from gpupool_manager.problems import Problem
from gpupool_manager.tokens import digest, join_token
from gpupool_manager.transaction import Transaction
from manager_rest import Rest
from manager_world import ACTOR, World

T = TypeVar("T")


@pytest_asyncio.fixture
async def world(database: str) -> AsyncIterator[World]:
    opened = await World(database).open()
    await opened.tenant("a", gpus=5)
    yield opened
    await opened.close()


async def do(world: World, operation: Callable[[Transaction], T]) -> T:
    return await world.pool.commands.do(operation, ACTOR)


async def refused(world: World, operation: Callable[[Transaction], object]) -> tuple[int, str]:
    with pytest.raises(Problem) as refusal:
        await do(world, operation)
    return refusal.value.status, refusal.value.code


async def test_a_tenant_is_made_once(world: World) -> None:
    tenancy = world.pool.tenancy
    assert await refused(world, lambda transaction: tenancy.create(transaction, "a", "", {})) == (
        409,
        "exists",
    )
    assert world.pool.ledger.quotas["a"].gpus == 5


async def test_a_tenant_with_leases_stays(world: World) -> None:
    await world.join("node-1")
    lease = await world.ask("a")
    remove = world.pool.tenancy.remove
    assert await refused(world, lambda transaction: remove(transaction, "a")) == (409, "in-use")
    await world.end(lease)
    await do(world, lambda transaction: remove(transaction, "a"))
    assert await refused(world, lambda transaction: remove(transaction, "a")) == (404, "not-found")


async def test_a_tenant_goes_with_its_tokens(world: World) -> None:
    tenancy = world.pool.tenancy
    _, secret = await do(
        world, lambda transaction: tenancy.create_token(transaction, "tenant", "a")
    )
    await do(world, lambda transaction: tenancy.remove(transaction, "a"))
    with pytest.raises(Problem, match="unknown"):
        world.pool.ledger.tokens.check(secret, world.clock.now)
    await world.restart()
    assert "a" not in world.pool.ledger.tenants
    assert {token.scope for token in world.pool.ledger.tokens.by_id.values()} == set()


async def test_every_change_gives_another_version(world: World) -> None:
    tenancy = world.pool.tenancy
    await do(world, lambda transaction: tenancy.change(transaction, "a", {"description": "x"}))
    await world.quota("a", gpus=1)
    await world.quota("a", gpus=2)
    await world.restart()
    ledger = world.pool.ledger
    assert (ledger.tenants["a"].version, ledger.quotas["a"].version) == (2, 3)


async def test_a_token_is_good_until_it_expires_or_is_revoked(world: World) -> None:
    tenancy, now = world.pool.tenancy, world.clock.now
    token, secret = await do(
        world,
        lambda transaction: tenancy.create_token(transaction, "tenant", "a", expires=now + 60),
    )
    for restarted in (False, True):
        if restarted:
            await world.restart()
        tokens = world.pool.ledger.tokens
        assert tokens.check(secret, now + 59.9).id == token.id
        with pytest.raises(Problem, match="expired"):
            tokens.check(secret, now + 60)
    await do(world, lambda transaction: world.pool.tenancy.revoke_token(transaction, token.id))
    await do(world, lambda transaction: world.pool.tenancy.revoke_token(transaction, token.id))
    with pytest.raises(Problem, match="revoked") as refusal:
        world.pool.ledger.tokens.check(secret, now)
    assert refusal.value.status == 401


@pytest.mark.parametrize("secret", [None, "", "gpp_", "gpp_" + "x" * 43, "\udc80", "x" * 100_000])
async def test_what_is_no_token_is_refused_alike(world: World, secret: str | None) -> None:
    with pytest.raises(Problem) as refusal:
        world.pool.ledger.tokens.check(secret, world.clock.now)
    assert (refusal.value.status, refusal.value.code) == (401, "bad-token")


async def test_a_node_may_show_its_token_with_the_managers_key(world: World) -> None:
    tenancy = world.pool.tenancy
    token, secret = await do(
        world, lambda transaction: tenancy.create_token(transaction, "node", node="n")
    )
    shown = join_token(secret, ["ab" * 32])
    assert shown != secret
    assert world.pool.ledger.tokens.check(shown, world.clock.now) is token


async def test_the_last_admin_token_cannot_be_revoked(world: World) -> None:
    pool, tenancy = world.pool, world.pool.tenancy
    assert pool.needs_admin()
    first, _ = await do(world, lambda transaction: tenancy.create_token(transaction, "admin"))
    short, _ = await do(
        world,
        lambda transaction: tenancy.create_token(transaction, "admin", expires=world.clock.now + 1),
    )
    assert not pool.needs_admin()
    world.clock.now += 2
    assert await refused(
        world, lambda transaction: tenancy.revoke_token(transaction, first.id)
    ) == (
        409,
        "in-use",
    )
    await do(world, lambda transaction: tenancy.create_token(transaction, "admin"))
    await do(world, lambda transaction: tenancy.revoke_token(transaction, first.id))
    assert short.revoked is None


async def test_no_secret_is_in_the_database(world: World) -> None:
    tenancy = world.pool.tenancy
    _, secret = await do(
        world, lambda transaction: tenancy.create_token(transaction, "tenant", "a")
    )
    found = ""
    async with world.pool.store.engine.connect() as connection:
        for table in ("tokens", "audit", "notes", "tenants", "answers"):
            found += repr((await connection.execute(text(f"SELECT * FROM {table}"))).all())
    assert digest(secret) in found
    assert secret not in found and secret.removeprefix("gpp_") not in found


async def test_tokens_that_have_ended_are_forgotten_in_time(rest: Rest) -> None:
    """Each time that somebody signs in by OpenID Connect is one."""
    day = 86400
    made = {
        "short": await rest.do("POST", "/tokens", {"scope": "admin", "lifetime_seconds": 3600}),
        "long": await rest.do("POST", "/tokens", {"scope": "admin", "lifetime_seconds": 9 * day}),
        "revoked": await rest.do("POST", "/tokens", {"scope": "metrics"}),
        "for ever": await rest.do("POST", "/tokens", {"scope": "metrics"}),
        "node": await rest.do("POST", "/tokens", {"scope": "node", "node": "n1"}),
    }
    await rest.do("DELETE", f"/tokens/{made['revoked']['id']}")

    async def left() -> set[str]:
        await rest.world.pool._purge()
        there = {token["id"] for token in await rest.pages("/tokens")}
        return {name for name, token in made.items() if token["id"] in there}

    rest.world.clock.now += day + 3599
    assert await left() == set(made)
    rest.world.clock.now += 2
    assert await left() == set(made) - {"short"}
    rest.world.clock.now += 17 * day
    assert await left() == {"revoked", "for ever", "node"}
    await rest.world.restart()
    rest.app.state.pool = rest.world.pool
    assert await left() == {"revoked", "for ever", "node"}
    rest.world.clock.now += 365 * day
    assert await left() == {"for ever", "node"}
