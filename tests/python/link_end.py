"""A server's end of the link with a real member behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from gpupool_common.keys import Keys
from gpupool_server import manager_connection
from gpupool_server.manager_connection import JoinToken, ManagerConnection
from gpupool_server.node_keys import NodeKeys
from gpupool_server.pool_member import PoolMember
from link_host import Host, new_keys
from server_harness import MakeOffice


class End:
    """A server's end of the link with a real member behind it."""

    def __init__(self, host: Host, member: PoolMember, secret: str, keys: Keys) -> None:
        token = JoinToken(secret, host.keys.public)
        self.member = member
        self.keys = NodeKeys(keys)
        self.link = ManagerConnection(
            host.link.url,
            token,
            self.keys,
            member,
            lambda: member.report("tcp://h:7700", "", {}),
        )


MakeEnd = Callable[..., Awaitable[End]]


@pytest_asyncio.fixture
async def make_end(
    host: Host, make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeEnd]:
    monkeypatch.setattr(manager_connection, "FIRST_RETRY", 0.02)
    monkeypatch.setattr(manager_connection, "LAST_RETRY", 0.1)
    ends: list[End] = []

    async def make(secret: str | None = None, keys: Keys | None = None) -> End:
        office = await make_office()
        member = PoolMember("n", office.run_dir.path, office.gpus, office.supervisor)
        office.handler.join(member)
        end = End(host, member, secret or (await host.token())[1], keys or new_keys())
        end.link.start()
        office.supervisor.on_change = end.link.wake
        end.office = office  # type: ignore[attr-defined]
        ends.append(end)
        return end

    yield make
    for end in ends:
        await end.link.close()
        end.member.close()
