"""The REST API of a pool to test, and everything that a refused request must leave as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import httpx
import pytest_asyncio
from sqlalchemy import select
from structlog.testing import capture_logs
from structlog.typing import EventDict

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.app import make_app
from gpupool_manager.tables import TABLES
from gpupool_manager.tokens import new_secret
from manager_world import World

ADMIN = new_secret("admin")

PROBLEM = "application/problem+json"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Rest:
    """Short ways to send requests."""

    def __init__(self, world: World, logged: list[EventDict]) -> None:
        self.world = world
        #: What the manager has logged so far.
        self.logged = logged
        self.tokens: dict[str, str] = {"admin": ADMIN}
        self.app = make_app(world.pool)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://pool/v1"
        )

    async def ask(
        self, method: str, path: str, body: Any = None, by: str | None = "admin", **headers: str
    ) -> httpx.Response:
        """One request; ``by`` is whose token goes with it, None: no token."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        if by is not None:
            named |= bearer(self.tokens.get(by, by))
        if isinstance(body, str | bytes):
            named = {"Content-Type": "application/json", **named}
            return await self.client.request(method, path, content=body, headers=named)
        return await self.client.request(method, path, json=body, headers=named)

    async def do(
        self, method: str, path: str, body: Any = None, by: str = "admin", **headers: str
    ) -> Any:
        """The document that answers what must succeed."""
        answer = await self.ask(method, path, body, by, **headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def no(
        self,
        status: int,
        code: str,
        method: str,
        path: str,
        body: Any = None,
        by: str | None = "admin",
        **headers: str,
    ) -> dict[str, Any]:
        """The problem with which something is refused; it must have changed nothing."""
        before = await self.everything()
        answer = await self.ask(method, path, body, by, **headers)
        assert answer.status_code == status, f"{method} {path}: {answer.text}"
        assert answer.headers["content-type"] == PROBLEM
        problem: dict[str, Any] = answer.json()
        assert problem["type"] == f"urn:gpupool:problem:{code}", problem
        assert problem["status"] == status
        assert problem["title"]
        assert problem["instance"] == f"urn:gpupool:request:{answer.headers['x-request-id']}"
        assert await self.everything() == before
        return problem

    async def tenant(self, name: str, **quota: Any) -> None:
        """A tenant with a token, by the name of which it asks from now on."""
        await self.do("POST", "/tenants", {"name": name, "quota": quota})
        made = await self.do("POST", "/tokens", {"scope": "tenant", "tenant": name})
        self.tokens[name] = made["secret"]

    async def lease(self, by: str = "admin", **body: Any) -> dict[str, Any]:
        """A lease, granted or queued."""
        body = {"memory_bytes": 1000 * MIB, "share_permille": 100, **body}
        found: dict[str, Any] = await self.do("POST", "/leases", body, by)
        return found

    async def pages(self, path: str, by: str = "admin", limit: int = 2) -> list[dict[str, Any]]:
        """All items of a list, page by page."""
        items: list[dict[str, Any]] = []
        cursor = ""
        for _ in range(1000):
            mark = "&" if "?" in path else "?"
            page = await self.do("GET", f"{path}{mark}limit={limit}{cursor}", by=by)
            assert len(page["items"]) <= limit
            items += page["items"]
            if page["next"] is None:
                return items
            assert len(page["items"]) == limit
            cursor = f"&cursor={page['next']}"
        raise AssertionError("the pages have no end")

    async def everything(self) -> dict[str, Any]:
        """The whole state: every row of the database, and what the manager has in memory."""
        pool = self.world.pool
        await pool.commands.settle()
        found: dict[str, Any] = {}
        async with pool.store.engine.connect() as connection:  # one for all: this is asked often
            for table in TABLES.values():
                question = select(table).order_by(*table.primary_key.columns)
                rows = await connection.execute(question)
                found[table.name] = [dict(row._mapping) for row in rows]
        ledger = pool.ledger
        found["memory"] = {
            "tenants": [asdict(tenant) for tenant in ledger.tenants.values()],
            "quotas": [asdict(quota) for quota in ledger.quotas.values()],
            "tokens": [asdict(token) for token in ledger.tokens.by_id.values()],
            "nodes": [asdict(node) for node in ledger.nodes.values()],
            "gpus": [asdict(gpu) for gpu in ledger.gpus.values()],
            "leases": [asdict(lease) for lease in ledger.leases.values()],
            "queue": self.world.queue(),
            "taken": {
                slot.uuid: (slot.used_bytes, slot.used_permille, slot.holders, slot.closed)
                for slot in ledger.index.slots.values()
            },
            "use": {
                name: (
                    asdict(ledger.use(ledger.active, name)),
                    asdict(ledger.use(ledger.queued, name)),
                )
                for name in ledger.tenants
            },
            "answers": sorted(ledger.answers),
        }
        return found

    async def close(self) -> None:
        await self.client.aclose()


@pytest_asyncio.fixture
async def rest(database: str) -> AsyncIterator[Rest]:
    """The REST API of an empty pool, on each kind of database."""
    with capture_logs() as logged:
        world = await World(database).open()
        await world.pool.add_admin(ADMIN)
        server = Rest(world, logged)
        yield server
        await server.close()
        await world.close()
