"""What a server makes of orders that change a lease's limits while its programs run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpupool_common.node_protocol import GrantChange
from gpupool_server.board import Grant, Member
from gpupool_server.claims import Claim, LimitsRequest
from lease_token_harness import GPUS, MIB, NOW, Node, grant, issued
from server_harness import MakeOffice, accepted, eventually
from test_lease_claims import restarted


def on_board(node: Node, index: int = 0) -> Grant:
    return node.office.boards.of(index).grants["red/lease-1"]


def claim_of(node: Node) -> Claim:
    return next(iter(node.office.gpus)).claims["red/lease-1"]


def use(node: Node, mib: int, index: int = 0) -> None:
    """Its programs have so much in use on a GPU."""
    member = Member(1, "red/lease-1", mib * MIB, 0)
    node.office.boards.of(index).members[1] = member


def said(node: Node) -> list[tuple[str, int, str, bool]]:
    """Of each change in the next heartbeat: GPU, number, reason, whether it is refused."""
    changes: list[GrantChange] = node.member.heartbeat().changes
    assert changes == node.member.changes
    return [(each.gpu, each.number, each.reason, each.refused) for each in changes]


async def running(make_office: MakeOffice, **settings: str) -> Node:
    node = Node(await make_office(**settings))
    node.apply(grant())
    accepted(await node.hello(issued()))
    assert said(node) == []
    return node


async def test_what_runs_has_other_limits_at_once(make_office: MakeOffice) -> None:
    node = await running(make_office)
    node.apply(
        grant(
            memory_bytes=128 * MIB, share_permille=300, ceiling_permille=600, priority=1, number=2
        )
    )
    assert said(node) == [(GPUS[0], 2, "", False)]
    now = on_board(node)
    assert (now.memory, now.share, now.ceiling, now.high_priority) == (128 * MIB, 300, 600, True)
    node.apply(grant(memory_bytes=128 * MIB, share_permille=300))
    assert said(node) == []


async def test_a_change_that_no_session_needs_is_made(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(grant(memory_bytes=32 * MIB, number=7))
    assert said(node) == [(GPUS[0], 7, "", False)]
    # Its token is older than the orders, and does not count.
    accepted(await node.hello(issued()))
    assert on_board(node).memory == 32 * MIB


async def test_a_session_that_was_let_in_before_begins_with_what_holds(
    make_office: MakeOffice,
) -> None:
    node = Node(await make_office())
    node.apply(grant())
    tenant = node.member.admit(issued())
    node.apply(grant(memory_bytes=16 * MIB, number=2))
    node.office.gpus.allocate("s-1", tenant, "lease-1", LimitsRequest(), (0,))
    assert on_board(node).memory == 16 * MIB


async def test_less_than_is_in_use_is_refused_with_the_figure(make_office: MakeOffice) -> None:
    node = await running(make_office)
    use(node, 48)
    node.apply(grant(memory_bytes=32 * MIB, share_permille=100, number=2))
    ((_, number, reason, refused),) = said(node)
    assert (number, refused) == (2, True)
    assert reason == "'red/lease-1' on GPU 0 has 48MiB in use, more than 32MiB"
    assert (on_board(node).memory, on_board(node).share) == (64 * MIB, 500)
    use(node, 8)  # it is not tried again: the manager has heard of it
    assert said(node)[0][3]


async def test_forced_it_holds_for_what_is_new(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool_server.pool_resize.RETRY_SECONDS", 0.01)
    node = await running(make_office)
    heard: list[str] = []
    node.office.supervisor.on_change = lambda: heard.append("change")
    use(node, 48)
    node.apply(grant(memory_bytes=32 * MIB, number=2, force=True))
    ((_, _, reason, refused),) = said(node)
    assert (refused, "has 48MiB in use" in reason) == (False, True)
    assert (on_board(node).memory, on_board(node).forced) == (32 * MIB, True)
    node.apply(grant(memory_bytes=16 * MIB, number=3, force=True))
    assert claim_of(node).before == 64 * MIB  # what it may keep
    node.apply(grant(memory_bytes=32 * MIB, number=2, force=True))
    use(node, 32)
    await eventually(lambda: heard != [])
    assert said(node) == [(GPUS[0], 2, "", False)]
    assert (on_board(node).memory, on_board(node).forced) == (32 * MIB, False)


async def test_all_or_nothing_is_the_managers_to_see(make_office: MakeOffice) -> None:
    """One GPU has made the change and says so, the other has not."""
    node = Node(await make_office())
    both = [grant(ordinal=0, index=0), grant(ordinal=1, index=1)]
    node.apply(*both)
    accepted(await node.hello(issued()))
    use(node, 48, index=1)
    node.apply(*(each.model_copy(update={"memory_bytes": 32 * MIB, "number": 2}) for each in both))
    assert [refused for _, _, _, refused in said(node)] == [False, True]
    assert [on_board(node, index).memory // MIB for index in (0, 1)] == [32, 64]
    node.apply(*(each.model_copy(update={"number": 3, "force": True}) for each in both))
    assert [reason for _, _, reason, _ in said(node)] == ["", ""]
    assert [on_board(node, index).memory // MIB for index in (0, 1)] == [64, 64]


async def test_an_arbiter_that_is_away_is_waited_for(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool_server.pool_resize.RETRY_SECONDS", 0.01)
    node = await running(make_office)
    gpu = node.office.gpus.get(0)
    assert gpu is not None
    board, gpu.board = gpu.board, None
    node.apply(grant(memory_bytes=32 * MIB, number=2))
    ((_, _, reason, refused),) = said(node)
    assert (refused, "is being started again" in reason) == (False, True)
    gpu.board = board
    await eventually(lambda: said(node) == [(GPUS[0], 2, "", False)])
    assert on_board(node).memory == 32 * MIB


async def test_the_next_server_keeps_what_was_changed(make_office: MakeOffice) -> None:
    node = await running(make_office, on_stop="leave")
    node.apply(grant(memory_bytes=32 * MIB, number=2))
    after = await restarted(node, make_office)
    assert on_board(after).memory == 32 * MIB
    after.apply(grant(memory_bytes=48 * MIB, number=3), at=NOW + 1)
    assert on_board(after).memory == 48 * MIB


async def test_programs_are_told(make_office: MakeOffice) -> None:
    node = await running(make_office)
    told: list[str] = []
    node.office.supervisor.say = lambda chosen, text: told.append(text)  # type: ignore[method-assign]
    for _ in range(2):
        node.apply(grant(memory_bytes=32 * MIB, number=2))
    assert told == [
        "the limits of the lease 'lease-1' were changed: memory 32MiB, share 50%; the program"
        " continues under them"
    ]


async def test_what_an_operator_set_here_stays_until_the_pool_changes_it(
    make_office: MakeOffice,
) -> None:
    node = await running(make_office)
    gpu = node.office.gpus.get(0)
    assert gpu is not None
    claim = gpu.claims["red/lease-1"]
    gpu.claims["red/lease-1"] = replace(claim, memory=16 * MIB)
    node.apply(grant())
    assert gpu.claims["red/lease-1"].memory == 16 * MIB
    node.apply(grant(number=2))
    assert gpu.claims["red/lease-1"].memory == 64 * MIB
