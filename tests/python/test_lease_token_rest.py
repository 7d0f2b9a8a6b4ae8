"""Lease tokens and join tokens as the REST API gives them out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
from sqlalchemy import select

from gpupool_common import lease_token
from gpupool_common.node_protocol import Report, ReportedGpu
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager import tables
from gpupool_manager.app import make_app
from gpupool_manager.pool import Pool
from gpupool_manager.store import Store

ASK = {"memory_bytes": 64 * MIB, "share_permille": 500}


class Api:
    """A pool of two nodes behind its REST API, with two tenants."""

    def __init__(self, folder: Path) -> None:
        self.pool = Pool(Store(f"sqlite:///{folder / 'manager.db'}"))
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(make_app(self.pool)), base_url="http://pool/v1"
        )
        self.secrets: dict[str, str] = {}

    async def open(self) -> None:
        pool = self.pool
        await pool.open()
        await self.token("admin", "admin")
        await self.node("one", "ab" * 32)
        await self.node("two", "")
        for tenant in ("red", "blue"):
            await self.tenant(tenant)
            await self.token(tenant, "tenant", tenant)

    async def node(self, name: str, key: str) -> None:
        token, _ = await self.pool.commands.do(
            lambda transaction: self.pool.tenancy.create_token(transaction, "node", node=name)
        )
        gpu = ReportedGpu(
            uuid=f"GPU-{name}",
            index=0,
            model="a",
            compute_capability="9.0",
            memory_bytes=1024 * MIB,
        )
        report = Report(
            address=f"tcp://{name}:1", server_version="0", gpus=[gpu], front_end_key=key
        )
        fleet = self.pool.fleet
        await self.pool.commands.do(
            lambda transaction: fleet.report(transaction, token, name, report)
        )

    async def tenant(self, name: str) -> None:
        await self.pool.commands.do(
            lambda transaction: self.pool.tenancy.create(transaction, name, "", {})
        )

    async def token(self, name: str, scope: Any, tenant: str | None = None) -> None:
        tenancy = self.pool.tenancy
        _, self.secrets[name] = await self.pool.commands.do(
            lambda transaction: tenancy.create_token(transaction, scope, tenant=tenant)
        )

    async def ask(
        self, method: str, path: str, body: Any = None, who: str = "red", **headers: str
    ) -> httpx.Response:
        bearer = {"Authorization": f"Bearer {self.secrets[who]}"}
        return await self.client.request(method, path, json=body, headers={**bearer, **headers})

    def check(self, token: str, node: str) -> lease_token.LeaseToken:
        keys = self.pool.signer.ring.keys
        found = lease_token.check(token, {key.id: key.private.public_key() for key in keys})
        assert node in found.nodes
        return found


@pytest_asyncio.fixture
async def api(folder: Path) -> AsyncIterator[Api]:
    made = Api(folder)
    await made.open()
    yield made
    await made.client.aclose()
    await made.pool.close()


async def test_a_lease_comes_with_servers_and_token(api: Api) -> None:
    answer = await api.ask("POST", "/leases", {**ASK, "gpus": 2, "hosts": "spread"})
    lease = answer.json()
    assert answer.status_code == 201
    servers = {server["node"]: server for server in lease["servers"]}
    assert sorted(index for each in servers.values() for index in each["devices"]) == [0, 1]
    assert (servers["one"]["address"], servers["one"]["key"]) == ("tcp://one:1", "ab" * 32)
    assert (servers["two"]["address"], servers["two"]["key"]) == ("tcp://two:1", None)
    for node, server in servers.items():
        token = api.check(lease["token"], node)
        assert (token.lease, token.tenant) == (lease["id"], "red")
        assert token.request_id == answer.headers["X-Request-ID"]
        assert [grant.ordinal for grant in token.nodes[node]] == server["devices"]


async def test_a_lease_may_have_so_many_sessions(api: Api) -> None:
    lease = (await api.ask("POST", "/leases", {**ASK, "sessions": 3})).json()
    assert lease["sessions"] == 3
    assert api.check(lease["token"], lease["servers"][0]["node"]).sessions == 3
    renewed = (await api.ask("POST", f"/leases/{lease['id']}/renew")).json()
    assert api.check(renewed["token"], lease["servers"][0]["node"]).sessions == 3
    for wrong in (0, 4097, "3", 1.5):
        refused = await api.ask("POST", "/leases", {**ASK, "sessions": wrong})
        assert refused.status_code == 422 and "sessions" in refused.json()["detail"]


async def test_only_who_may_use_it_sees_it(api: Api) -> None:
    lease = (await api.ask("POST", "/leases", ASK)).json()
    path = f"/leases/{lease['id']}"
    assert (await api.ask("GET", path)).json()["token"]
    assert (await api.ask("GET", path, who="blue")).status_code == 404
    assert (await api.ask("POST", f"{path}/renew", who="blue")).status_code == 404
    for who in ("red", "admin"):
        items = (await api.ask("GET", "/leases", who=who)).json()["items"]
        assert [each["token"] for each in items] == [None]


async def test_every_renewal_gives_another(api: Api) -> None:
    lease = (await api.ask("POST", "/leases", ASK)).json()
    fresh = (await api.ask("POST", f"/leases/{lease['id']}/renew")).json()
    (server,) = fresh["servers"]
    old, new = (api.check(each["token"], server["node"]) for each in (lease, fresh))
    assert new.expires > old.expires and new.issued > old.issued
    ended = (await api.ask("POST", f"/leases/{lease['id']}/release")).json()
    assert (ended["token"], ended["servers"]) == (None, [])
    assert (await api.ask("GET", f"/leases/{lease['id']}")).json()["token"] is None


async def test_who_waits_has_none_yet(api: Api) -> None:
    whole = {"memory_bytes": None, "share_permille": 1000, "gpus": 2}
    first = (await api.ask("POST", "/leases", whole)).json()
    answer = await api.ask("POST", "/leases", {**whole, "wait_seconds": 60})
    assert (answer.status_code, answer.json()["token"], answer.json()["servers"]) == (202, None, [])
    await api.ask("POST", f"/leases/{first['id']}/release")
    granted = (await api.ask("GET", f"/leases/{answer.json()['id']}")).json()
    assert granted["state"] == "active" and granted["token"] and len(granted["servers"]) == 2


async def test_a_repeated_request_has_a_token_that_was_never_kept(api: Api) -> None:
    first, second = [
        await api.ask("POST", "/leases", ASK, **{"Idempotency-Key": "once"}) for _ in range(2)
    ]
    assert first.json()["id"] == second.json()["id"]
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["token"] != second.json()["token"]
    rows = await api.pool.store.fetch(select(tables.answers))
    audit = await api.pool.store.fetch(select(tables.audit))
    assert len(rows) == 1
    assert "gpl_" not in json.dumps([[str(each) for each in row] for row in [*rows, *audit]])
    await api.ask("POST", f"/leases/{first.json()['id']}/release")
    late = await api.ask("POST", "/leases", ASK, **{"Idempotency-Key": "once"})
    assert (late.status_code, late.json()["token"]) == (201, None)


async def test_a_join_token_names_the_manager(api: Api) -> None:
    api.pool.join_url = "tcp://127.0.0.1:7781"
    made = (await api.ask("POST", "/tokens", {"scope": "node", "node": "n"}, who="admin")).json()
    assert made["secret"].startswith("gpn_") and made["secret"].endswith(
        f".{api.pool.link_keys.current.public}"
    )
    assert made["nodes"] == "tcp://127.0.0.1:7781"
    # With and without the key it is the same token.
    for secret in (made["secret"], made["secret"].partition(".")[0]):
        token = api.pool.ledger.tokens.of_secret(secret)
        assert token is not None and token.id == made["id"]
    other = {"scope": "tenant", "tenant": "red"}
    made = (await api.ask("POST", "/tokens", other, who="admin")).json()
    assert made["nodes"] is None and "." not in made["secret"]
