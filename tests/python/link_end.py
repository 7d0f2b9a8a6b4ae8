"""A server's end of the link with a real member behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from gpupool_common.keys import KeyPairs, Keys, make_keys
from gpupool_server import manager_connection
from gpupool_server.join_token import JoinToken
from gpupool_server.manager_connection import ManagerConnection
from gpupool_server.manager_keys import ManagerKeys
from gpupool_server.node_keys import NodeKeys
from gpupool_server.pool_member import PoolMember
from link_host import Host
from server_harness import MakeOffice


class End:
    """A server's end of the link with a real member behind it."""

    def __init__(self, host: Host, member: PoolMember, token: JoinToken, keys: Keys) -> None:
        self.member = member
        self.keys = NodeKeys(KeyPairs(keys))
        self.manager_keys = ManagerKeys(token)
        self.link = ManagerConnection(
            host.link.url,
            self.manager_keys,
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

    async def make(secret: str | None = None, keys: Keys | None = None, next_key: str = "") -> End:
        office = await make_office()
        member = PoolMember("n", office.run_dir.path, office.gpus, office.supervisor)
        office.handler.join(member)
        secret = secret or (await host.token())[1]
        token = JoinToken(secret, host.keys.public, next_key)
        end = End(host, member, token, keys or make_keys())
        end.link.start()
        office.supervisor.on_change = end.link.wake
        end.office = office  # type: ignore[attr-defined]
        ends.append(end)
        return end

    yield make
    for end in ends:
        await end.link.close()
        end.member.close()
