"""What a server makes of orders that take a GPU from a lease which goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gpupool_common.lease_token import TokenGrant
from gpupool_common.node_protocol import LeavingGrant
from gpupool_server.claims import Refusal
from gpupool_server.session_request import SessionRequest
from lease_token_harness import GPUS, MIB, NOW, Node, grant, issued, token_of
from server_harness import MakeOffice, accepted, eventually
from test_lease_claims import restarted

BOTH = token_of(*(TokenGrant(index, GPUS[index], 64 * MIB, 500) for index in range(2)))


@pytest.fixture(autouse=True)
def _soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool_server.pool_resize.RETRY_SECONDS", 0.01)


def leaving(number: int = 2, over: bool = False) -> LeavingGrant:
    """The second GPU of the lease goes."""
    return LeavingGrant(
        lease="lease-1", tenant="red", gpu=GPUS[1], number=number, at=NOW + 60, over=over
    )


def goes(node: Node, number: int = 2, over: bool = False) -> None:
    node.apply(grant(), leaving=[leaving(number, over)], at=NOW + 1)


def said(node: Node) -> list[tuple[str, int, str]]:
    """Of what goes, what the next heartbeat says: GPU, number, what still has it."""
    changes = node.member.heartbeat().changes
    assert not any(each.refused for each in changes)
    return [(each.gpu, each.number, each.reason) for each in changes]


FREE = [(GPUS[1], 2, "")]
TAKEN = [(GPUS[1], 2, "1 session has GPU 1 yet")]


async def running(make_office: MakeOffice, **settings: object) -> tuple[Node, str]:
    """A lease of both GPUs, with a session."""
    node = Node(await make_office(**settings))
    node.apply(grant(), grant(ordinal=1, index=1))
    opened = accepted(await node.hello(issued(BOTH)))
    assert opened["devices"] == "0,1"
    return node, opened["session"]


def sessions(node: Node) -> set[str]:
    return {meta.session for meta in node.office.supervisor.of_leases()}


def has_claim(node: Node, index: int = 1) -> bool:
    return "red/lease-1" in node.office.boards.of(index).grants


async def test_what_no_session_has_is_free_at_once(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(grant(), grant(ordinal=1, index=1))
    goes(node)
    assert said(node) == FREE


async def test_who_has_it_goes_on_and_who_comes_has_the_others(make_office: MakeOffice) -> None:
    node, first = await running(make_office)
    goes(node)
    assert (said(node), has_claim(node)) == (TAKEN, True)
    later = accepted(await node.hello(issued(BOTH)))
    assert later["devices"] == "0", "the token is older than the orders"
    await node.office.supervisor._end(node.office.supervisor._sessions[first], "it ended itself")
    await eventually(lambda: said(node) == FREE)
    assert (has_claim(node), has_claim(node, 0)) == (False, True)
    assert sessions(node) == {later["session"]}


async def test_when_the_time_is_over_what_has_it_ends(make_office: MakeOffice) -> None:
    node, first = await running(make_office)
    goes(node)
    other = accepted(await node.hello(issued(BOTH)))["session"]
    goes(node, over=True)
    assert said(node) == TAKEN
    await eventually(lambda: said(node) == FREE)
    assert (sessions(node), has_claim(node)) == ({other}, False)


async def test_a_session_that_is_just_being_opened_counts(make_office: MakeOffice) -> None:
    node, _ = await running(make_office)
    opening = asyncio.create_task(node.hello(issued(BOTH)))
    await eventually(lambda: node.office.supervisor.users("lease-1", 1) == 2)
    goes(node, over=True)
    assert said(node) == [(GPUS[1], 2, "2 sessions have GPU 1 yet")]
    await opening
    await eventually(lambda: said(node) == FREE)
    assert sessions(node) == set()


async def test_who_was_let_in_before_does_not_begin_with_it(make_office: MakeOffice) -> None:
    """It waited for room meanwhile; the manager may have given the GPU to another by now."""
    node = Node(await make_office())
    node.apply(grant(), grant(ordinal=1, index=1))
    tenant = node.member.admit(issued(BOTH))
    stale = SessionRequest(1, "p", "h", (0, 1), tenant=tenant, group="lease-1")
    goes(node)
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            await node.office.supervisor.open(stale)
        assert (refused.value.code, sessions(node)) == ("busy", set())
        node.apply(grant(), at=NOW + 2)  # and it is gone from the orders, too


async def test_each_is_told_when_it_is_free(make_office: MakeOffice) -> None:
    """And not when all are."""
    node, first = await running(make_office)
    heard: list[list[str]] = []
    supervisor = node.office.supervisor
    supervisor.on_change = lambda: heard.append([each.reason for each in node.member.changes])
    last = leaving().model_copy(update={"gpu": GPUS[0]})
    node.apply(grant("lease-2"), leaving=[last, leaving()], at=NOW + 1)
    assert heard == []
    supervisor._sessions[first].meta = replace(supervisor._sessions[first].meta, devices=(0,))
    await eventually(lambda: heard != [])
    assert heard[-1] == ["1 session has GPU 0 yet", ""]


async def test_who_has_one_left_is_no_gang_any_more(make_office: MakeOffice) -> None:
    node, _ = await running(make_office, gangs=True)
    gpus = [gpu for gpu in node.office.gpus if "red/lease-1" in gpu.gangs]
    assert len(gpus) == 2
    later = node.hello(issued(BOTH))
    goes(node)
    accepted(await later)
    goes(node, over=True)
    await eventually(lambda: said(node) == FREE)
    assert [gpu for gpu in gpus if gpu.gangs] == []


async def test_it_is_the_next_ones_at_once(make_office: MakeOffice) -> None:
    node, _ = await running(make_office)
    goes(node, over=True)
    await eventually(lambda: said(node) == FREE)
    node.apply(grant(), grant("lease-2", index=1), at=NOW + 2)
    token = token_of(TokenGrant(0, GPUS[1], 64 * MIB, 500), lease="lease-2")
    assert accepted(await node.hello(issued(token)))["devices"] == "1"


async def test_the_next_server_goes_on_with_it(make_office: MakeOffice) -> None:
    node, first = await running(make_office, on_stop="leave")
    goes(node)
    after = await restarted(node, make_office)
    assert sessions(after) == {first}
    later = accepted(await after.hello(issued(BOTH)))
    assert later["devices"] == "0"
    after.apply(grant(), leaving=[leaving(over=True)], at=NOW + 1)
    await eventually(lambda: said(after) == FREE)
    assert (sessions(after), has_claim(after)) == ({later["session"]}, False)


async def test_it_may_come_back(make_office: MakeOffice) -> None:
    node, first = await running(make_office)
    goes(node)
    node.apply(grant(), grant(ordinal=1, index=1), at=NOW + 2)
    assert (said(node), sessions(node)) == ([], {first})
    assert accepted(await node.hello(issued(BOTH)))["devices"] == "0,1"


async def test_programs_are_told_once(make_office: MakeOffice) -> None:
    node, _ = await running(make_office)
    told: list[str] = []
    say: Any = lambda chosen, text: told.append(text)  # noqa: E731
    node.office.supervisor.say = say  # type: ignore[method-assign]
    for _ in range(2):
        goes(node)
    assert told == [
        "the lease 'lease-1' is made smaller: the program's session here, which has GPU 1, ends"
        " at 08:01:00Z; save, end, and start again on the others"
    ]
    goes(node, number=3)
    assert len(told) == 2


async def test_a_lease_that_has_nothing_left_here_goes_on(make_office: MakeOffice) -> None:
    node, first = await running(make_office)
    last = leaving().model_copy(update={"gpu": GPUS[0]})
    node.apply(leaving=[last, leaving()], at=NOW + 1)
    assert sessions(node) == {first}
    code, message = await node.refused(issued(BOTH))
    assert (code, "has given its GPUs here back" in message) == ("bad-token", True)


async def test_a_gpu_that_comes_again_is_counted_from_nothing(make_office: MakeOffice) -> None:
    """The manager has counted what was before, and has another grant of it."""
    node, first = await running(make_office)
    board = node.office.boards.of(1)
    board.busy_ns["red/lease-1"] = 5_000_000
    beat = node.member.heartbeat()
    assert [(each.gpu, each.busy_ms) for each in beat.busy] == [(GPUS[1], 5)]
    node.member.heard(beat)
    goes(node, over=True)
    await eventually(lambda: said(node) == FREE)
    node.apply(grant(), at=NOW + 2)
    assert node.member.heartbeat().busy == []
    node.apply(grant(), grant(ordinal=1, index=1), at=NOW + 3)
    board.busy_ns["red/lease-1"] = 0
    accepted(await node.hello(issued(BOTH, issued=NOW + 3)))
    node.member.heartbeat()
    board.busy_ns["red/lease-1"] = 2_000_000
    assert [(each.gpu, each.busy_ms) for each in node.member.heartbeat().busy] == [(GPUS[1], 2)]
