"""Server-sent events: as they happen, to whom they concern, and after a gap."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager import api_looking
from gpupool_manager.config import load_settings
from gpupool_manager.events import KEPT, MOST_BEHIND, Bus
from gpupool_manager.service import Manager
from gpupool_manager.state_dir import TOKEN_FILE
from gpupool_manager.transaction import Event
from manager_node import FakeNode, join
from manager_rest import bearer
from manager_world import report

pytestmark = pytest.mark.timeout(60)

SECONDS = 30.0


class Api:
    """A manager with a real api in this process: a stream needs one."""

    def __init__(self, manager: Manager, admin: str) -> None:
        self.manager = manager
        self.admin = admin
        self.nodes: list[FakeNode] = []
        self.client = httpx.AsyncClient(
            base_url=f"{manager.url}/v1", trust_env=False, timeout=SECONDS
        )

    async def do(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        answer = await self.client.request(
            method, path, json=body, headers=bearer(token or self.admin)
        )
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def node(self, name: str) -> None:
        """A node of one GPU joins and stays."""
        node = asyncio.to_thread(join, self.manager.url, self.admin, name, report(name, 1))
        self.nodes.append(await node)

    async def tenant(self, name: str) -> Any:
        """A new tenant; the token made for it."""
        await self.do("POST", "/tenants", {"name": name})
        return await self.do("POST", "/tokens", {"scope": "tenant", "tenant": name})

    @contextlib.asynccontextmanager
    async def watch(
        self, token: str | None = None, query: str = "", last: str | None = None
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events, once watching has begun."""
        headers = bearer(token or self.admin)
        if last is not None:
            headers["Last-Event-ID"] = last
        async with self.client.stream("GET", f"/events{query}", headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.aiter_lines()
            assert await anext(lines) == ": watching"
            yield _events(lines)


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    async for line in lines:
        name, _, value = line.partition(": ")
        if name in ("id", "event"):
            event[name] = value
        elif name == "data":
            event["data"] = json.loads(value)
        elif not line and event:
            yield event
            event = {}


async def first(events: AsyncIterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return [await asyncio.wait_for(anext(events), SECONDS) for _ in range(count)]


@pytest_asyncio.fixture
async def api(folder: Path) -> AsyncIterator[Api]:
    state = folder / "state"
    flags = {"state_dir": str(state), "listen": "http://127.0.0.1:0"}
    flags["nodes"] = "tcp://127.0.0.1:*"
    manager = Manager(load_settings(None, flags, {}))
    await manager.start()
    api = Api(manager, (state / TOKEN_FILE).read_text().strip())
    yield api
    await api.client.aclose()
    for node in api.nodes:
        await asyncio.to_thread(node.close)
    await manager.close()


async def test_what_happens_is_told_as_it_happens(api: Api) -> None:
    async with api.watch() as events:
        await api.do("POST", "/tenants", {"name": "a"})
        await api.node("n1")
        asked = {"tenant": "a", "memory_bytes": 10 * MIB, "share_permille": 100}
        lease = await api.do("POST", "/leases", asked)
        await api.do("POST", f"/leases/{lease['id']}/release")
        found = await first(events, 6)
    token = found.pop(1)
    assert (token["event"], token["data"]["node"]) == ("token.created", "n1")
    assert [(one["event"], one["data"]["object"]) for one in found] == [
        ("tenant.created", "a"),
        ("node.joined", "n1"),
        ("gpu.added", "GPU-n1-0"),
        ("lease.granted", lease["id"]),
        ("lease.released", lease["id"]),
    ]
    assert found[3]["data"]["tenant"] == "a" and found[3]["data"]["gpus"] == ["GPU-n1-0"]


async def test_a_kind_can_be_asked_for(api: Api) -> None:
    async with api.watch(query="?kind=node.") as events:
        await api.do("POST", "/tenants", {"name": "a"})
        await api.node("n1")
        await api.do("PATCH", "/nodes/n1", {"mode": "draining"})
        found = await first(events, 2)
    assert [one["event"] for one in found] == ["node.joined", "node.changed"]
    assert found[1]["data"]["mode"] == "draining"


async def test_a_tenant_sees_what_concerns_it(api: Api) -> None:
    mine, theirs = await api.tenant("a"), await api.tenant("b")
    await api.node("n1")
    asked = {"memory_bytes": 10 * MIB, "share_permille": 100}
    async with api.watch(mine["secret"]) as events:
        await api.do("POST", "/leases", asked, theirs["secret"])
        lease = await api.do("POST", "/leases", asked, mine["secret"])
        [found] = await first(events, 1)
    assert (found["event"], found["data"]["object"]) == ("lease.granted", lease["id"])


async def test_who_comes_back_gets_what_was_missed(api: Api) -> None:
    async with api.watch() as events:
        await api.do("POST", "/tenants", {"name": "a"})
        [seen] = await first(events, 1)
    for name in ("b", "c"):
        await api.do("POST", "/tenants", {"name": name})
    async with api.watch(last=seen["id"]) as events:
        await api.do("POST", "/tenants", {"name": "d"})
        found = await first(events, 3)
    assert [one["data"]["object"] for one in found] == ["b", "c", "d"]


@pytest.mark.parametrize("last", ["", "x", "x-1", "0123456789ab-1", "-1", "x-99999999999999999999"])
async def test_what_cannot_be_known_any_more_is_a_gap(api: Api, last: str) -> None:
    async with api.watch(last=last) as events:
        await api.do("POST", "/tenants", {"name": "a"})
        gap, found = await first(events, 2)
    assert (gap["event"], gap["data"]) == ("gap", {})
    assert found["event"] == "tenant.created"


async def test_a_stream_ends_with_its_token(api: Api) -> None:
    made = await api.tenant("a")
    async with api.watch(made["secret"]) as events:
        await api.do("DELETE", f"/tokens/{made['id']}")
        with pytest.raises(StopAsyncIteration):
            await first(events, 1)


async def test_a_stream_ends_with_its_tenants_disabling(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_looking, "KEEPALIVE_SECONDS", 0.05)
    made = await api.tenant("a")
    async with api.watch(made["secret"]) as events:
        await api.do("PATCH", "/tenants/a", {"disabled": True})
        with pytest.raises(StopAsyncIteration):
            await first(events, 1)


async def test_a_silent_stream_says_that_it_is_there(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_looking, "KEEPALIVE_SECONDS", 0.05)
    async with api.client.stream("GET", "/events", headers=bearer(api.admin)) as stream:
        lines = (line async for line in stream.aiter_lines() if line)
        assert [await anext(lines) for _ in range(3)] == [
            ": watching",
            ": still here",
            ": still here",
        ]


def _event(number: int) -> Event:
    return Event("test", str(number), None, 0.0, {})


async def test_a_watcher_that_is_too_slow_is_sent_away() -> None:
    bus = Bus("e")
    watcher = bus.watch()
    bus.watch()  # nobody ever read that one's answer
    assert len(bus._watchers) == 1
    bus.publish(_event(number) for number in range(MOST_BEHIND + 5))
    found = [await watcher.next(1) for _ in range(MOST_BEHIND + 1)]
    assert found[-1] is None
    assert [one.event.object for one in found[:-1] if one] == [str(n) for n in range(MOST_BEHIND)]
    with pytest.raises(TimeoutError):
        await watcher.next(0.01)  # no more than one word of it is kept, whatever comes


async def test_the_bus_knows_what_it_has_kept() -> None:
    bus = Bus("e")
    assert bus.since("e-0") == []
    assert bus.since("e-1") is None, "it has not happened yet"
    bus.publish(_event(number) for number in range(KEPT + 10))
    assert bus.since("e-9") is None
    kept = bus.since("e-10")
    assert kept is not None and len(kept) == KEPT
    assert bus.since(f"e-{KEPT + 10}") == []
    assert bus.since(f"f-{KEPT + 10}") is None
