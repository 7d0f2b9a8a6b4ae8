"""What a server makes of a lease token and of its manager's orders."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool_common import protocol
from gpupool_common.lease_token import TokenGrant
from gpupool_common.node_protocol import OrderedGpu, SendReport
from gpupool_server import claims
from gpupool_server.pool_member import DRAIN_SECONDS, SLACK_SECONDS, PoolMember
from gpupool_server.pool_state import NAME
from lease_token_harness import (
    GPUS,
    MIB,
    NOW,
    Node,
    grant,
    issued,
    token_of,
)
from server_harness import TOKEN, MakeOffice, accepted, eventually, hello, refused
from test_tenants import ended

# What a server makes of it --------------------------------------------------------------------


async def test_a_token_opens_what_it_says(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(
        grant(ordinal=0, index=1, priority=7),
        grant(ordinal=1, index=0, memory_bytes=32 * MIB, share_permille=200),
    )
    answer = accepted(await node.hello(issued(priority=7)))
    assert answer["devices"] == "1,0"
    boards = node.office.boards
    first, second = (boards.of(index).grants["red/lease-1"] for index in (1, 0))
    assert (first.memory, first.share, first.high_priority) == (64 * MIB, 500, True)
    assert (second.memory, second.share) == (32 * MIB, 200)
    meta = json.loads((node.office.run_dir.sessions / answer["session"] / "meta.json").read_text())
    assert (meta["lease"], meta["request_id"], meta["tenant"]) == ("lease-1", "r-1", "red")


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        ("0", "1"),
        ("1", "0"),
        ("1,0", "0,1"),
        ("1,7,0", "0"),
        *(
            (text, None)
            for text in ("7", "0,0", "", "GPU-1", "+1", "-1", "0,", "1" * 300, "\u0661")
        ),
    ],
)
async def test_a_session_has_what_its_program_sees(
    make_office: MakeOffice, visible: str, devices: str | None
) -> None:
    """And never more than the lease; of a list that says less than that its library knows more."""
    node = Node(await make_office())
    node.apply(grant(ordinal=0, index=1), grant(ordinal=1, index=0))
    answer = accepted(await node.hello(issued(), visible=visible))
    assert answer["devices"] == (devices or "1,0")
    assert answer.get("visible") == (None if devices is None else "1")


async def test_only_a_lease_is_narrowed(make_office: MakeOffice) -> None:
    answer = accepted(await (await make_office()).handler.answer(hello(visible="1")))
    assert "visible" not in answer


async def test_a_stolen_token_opens_no_more_than_the_lease_has(make_office: MakeOffice) -> None:
    """Shown again and again, at once and by several tokens of one lease: so many, and no more."""
    node = Node(await make_office())
    node.apply(grant(index=0), grant("lease-2", index=1))
    shown = [issued(sessions=2), issued(sessions=2, issued=NOW + 1)] * 3
    answers = await asyncio.gather(*(node.hello(token) for token in shown))
    opened = [protocol.decode(each) for each in answers]
    sessions = [each.fields["session"] for each in opened if each.word == "ok"]
    assert len(sessions) == 2
    codes = {each.fields["code"] for each in opened if each.word != "ok"}
    assert codes == {"over-quota"}
    code, message = await node.refused(shown[0])
    assert code == "over-quota" and "'lease-1' has 2 of 2 sessions on this server" in message
    accepted(await node.hello(issued(lease="lease-2")))  # nobody else's room
    await ended(node.office, sessions[0])
    accepted(await node.hello(shown[1]))
    assert (await node.refused(shown[0]))[0] == "over-quota"


async def test_nvml_shows_the_lease_before_and_in_a_session(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(grant(index=1))
    fields = {"token": issued(), "pid": str(os.getpid()), "host": "here"}
    question = protocol.encode("nvml", fields)
    for _ in range(2):
        answer = accepted(await node.office.handler.answer(question))
        assert answer["devices"] == "1"
        assert f"uuid={GPUS[1]}" in answer["gpu0"]
        assert f"memory-total={64 * MIB}" in answer["gpu0"]
        accepted(await node.hello(issued()))
    others = protocol.encode("info", {"token": issued()})
    (session, _) = json.loads(accepted(await node.office.handler.answer(others))["json"])[
        "sessions"
    ]
    assert (session["lease"], session["devices"]) == ("lease-1", [1])


async def test_before_the_first_join_nothing_is_opened(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    code, message = await node.refused(issued())
    assert (code, "not joined" in message) == ("no-worker", True)


async def test_a_server_in_no_pool_says_so(make_office: MakeOffice) -> None:
    office = await make_office()
    code, message = refused(await office.handler.answer(hello(token=issued())))
    assert (code, "in none" in message) == ("bad-token", True)


async def test_time_is_the_managers(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(grant())
    token = issued()
    node.clock.now = NOW + 600 + SLACK_SECONDS + 1
    code, message = await node.refused(token)
    assert code == "bad-token"
    assert "expired 31 s ago" in message and "renew" in message
    node.member.set_clock(-2.0)  # this host's clock is ahead, and that is known
    accepted(await node.hello(token))
    node.clock.now = NOW - SLACK_SECONDS - 1
    _, message = await node.refused(token)
    assert "future" in message
    node.member.set_clock(+3.0)
    accepted(await node.hello(token))


async def test_a_lease_that_is_not_in_the_orders(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(grant(lease="lease-0"), at=NOW - 1)
    accepted(await node.hello(issued()))  # it is newer than the orders are
    node.apply(grant(lease="lease-0"), at=NOW)
    code, message = await node.refused(issued())
    assert (code, "the lease 'lease-1' has ended" in message) == ("bad-token", True)


async def test_orders_know_better_than_a_token(make_office: MakeOffice) -> None:
    """A grant that was lost since the token was issued is not there any more."""
    node = Node(await make_office())
    node.apply(grant(ordinal=1, index=1))
    both = (TokenGrant(0, GPUS[0], 64 * MIB, 500), TokenGrant(1, GPUS[1], 64 * MIB, 500))
    assert accepted(await node.hello(issued(token_of(*both))))["devices"] == "1"


async def test_only_what_is_here_is_given(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(at=NOW - 1)
    gone = TokenGrant(0, "GPU-gone", 64 * MIB, 500)
    code, message = await node.refused(issued(token_of(gone)))
    assert (code, "GPU-gone, which is not here" in message) == ("bad-token", True)
    elsewhere = token_of(nodes={"there": (gone,), "here": ()})
    assert "no GPU on this server" in (await node.refused(issued(elsewhere)))[1]


async def test_a_drained_node_opens_nothing(make_office: MakeOffice) -> None:
    node = Node(await make_office(own_token=True))
    node.apply(grant(), mode="draining")
    assert (await node.refused(issued()))[0] == "draining"
    assert refused(await node.office.handler.answer(hello()))[0] == "draining"
    node.apply(grant(), mode="cordoned")  # the manager places nothing here; what is here goes on
    accepted(await node.hello(issued()))


async def test_a_tenant_of_the_servers_own_is_not_the_pools(make_office: MakeOffice) -> None:
    node = Node(await make_office(tenants={"red": {"token": "the-token-of-red"}}))
    node.apply(grant())
    code, message = await node.refused(issued())
    assert (code, "of its own" in message) == ("bad-token", True)
    for tenant, lease in (("x" * 33, "lease-1"), ("red", "x" * 33)):
        token = issued(token_of(tenant=tenant, lease=lease), issued=NOW + 1)
        assert "too long" in (await node.refused(token))[1]


@pytest.mark.parametrize(
    "key", ["gpus", "devices", "group", "memory", "share", "ceiling", "weight", "priority"]
)
async def test_a_lease_is_not_asked_for_more(make_office: MakeOffice, key: str) -> None:
    node = Node(await make_office())
    node.apply(grant())
    code, message = await node.refused(issued(), **{key: "1"})
    assert (code, f"'{key}'" in message) == ("bad-request", True)


@pytest.mark.parametrize(
    "variable", ["GPUPOOL_MEMORY", "GPUPOOL_GROUP", "ALIYUN_COM_GPU_VISIBLE_DEVICES"]
)
async def test_the_variable_that_asks_for_more_is_named(
    make_office: MakeOffice, variable: str
) -> None:
    node = Node(await make_office())
    node.apply(grant())
    value = "1GiB" if variable == "GPUPOOL_MEMORY" else "1"
    field = variable.lower().replace("_", "-")
    code, message = await node.refused(issued(), **{field: value})
    assert (code, message.split()[0]) == ("bad-request", variable)


async def test_a_group_of_that_name_is_not_the_lease(make_office: MakeOffice) -> None:
    """Whoever has the server's own token cannot slip into a lease's group."""
    node = Node(await make_office(own_token=True))
    node.apply(grant())
    accepted(await node.hello(issued()))
    accepted(await node.hello("the-token-of-the-tests", group="lease-1"))
    assert set(node.office.boards.of(0).grants) == {"red/lease-1", "default/lease-1"}


async def test_slices_follow_shares(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    settings = OrderedGpu(uuid=GPUS[0], policy="fixed", max_inst=10, prio_ratio=50)
    shares = {"lease-a": 800, "lease-b": 150, "lease-c": 10}
    node.apply(
        *(grant(lease=name, share_permille=share) for name, share in shares.items()),
        gpus=[settings],
    )
    gpu = node.office.gpus.get(0)
    assert gpu is not None and (gpu.settings.policy, gpu.settings.prio_ratio) == ("fixed", 50)
    for name in shares:
        accepted(await node.hello(issued(lease=name)))
    node.office.gpus.look()
    weights = {
        name.removeprefix("red/"): put.weight
        for name, put in node.office.boards.of(0).grants.items()
    }
    assert weights == {"lease-a": 8, "lease-b": 1, "lease-c": 1}


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 1000), max_size=25), st.integers(1, 25))
def test_slices_are_never_more_than_there_are(shares: dict[str, int], number: int) -> None:
    found = claims.slices(shares, number)
    assert set(found) == set(shares)
    assert sum(found.values()) <= max(number, 0)
    if len(shares) <= number and sum(shares.values()) <= 1000:
        assert all(slices >= 1 for slices in found.values())
        ordered = sorted(shares, key=lambda name: shares[name])
        assert all(
            found[less] <= found[more] + 1 for less, more in zip(ordered, ordered[1:], strict=False)
        )


async def test_settings_that_cannot_be_stop_nothing(make_office: MakeOffice) -> None:
    node = Node(await make_office(boards=False))
    settings = OrderedGpu(uuid=GPUS[0], policy="fixed", max_inst=10, prio_ratio=50)
    unknown = OrderedGpu(uuid="GPU-unknown", policy="fixed", max_inst=10, prio_ratio=50)
    node.apply(grant(), gpus=[settings, unknown])
    accepted(await node.hello(issued()))


# Its end ----------------------------------------------------------------------------------------


async def test_the_end_of_a_lease_ends_its_sessions(make_office: MakeOffice) -> None:
    node = Node(await make_office(own_token=True))
    node.apply(grant(), grant(lease="lease-2"))
    accepted(await node.hello(issued()))
    accepted(await node.hello(issued(lease="lease-2")))
    accepted(await node.hello("the-token-of-the-tests"))
    node.apply(grant(lease="lease-2"), at=NOW + 1)
    supervisor = node.office.supervisor
    await eventually(lambda: [meta.lease for meta in supervisor.of_leases()] == ["lease-2"])
    assert len(supervisor) == 2
    assert "red/lease-1" not in node.office.boards.of(0).grants


async def test_older_orders_do_not_end_what_is_newer(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(at=NOW - 2)
    accepted(await node.hello(issued()))
    node.apply(at=NOW - 1)  # they were under way when the lease was granted
    assert [meta.lease for meta in node.office.supervisor.of_leases()] == ["lease-1"]
    node.apply(at=NOW + 1)
    await eventually(lambda: len(node.office.supervisor) == 0)


async def test_what_was_just_being_opened_ends_too(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(grant())
    opening = asyncio.create_task(node.hello(issued()))
    while len(node.office.supervisor) == 0:
        await asyncio.sleep(0)
    assert node.office.supervisor.of_leases() == []
    node.apply(at=NOW + 1)
    accepted(await opening)
    assert len(node.office.supervisor) == 1
    node.member.heartbeat()  # the link asks for one after every change
    await eventually(lambda: len(node.office.supervisor) == 0)


async def test_while_drained_the_end_comes_later(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DRAIN_SECONDS > 1
    monkeypatch.setattr("gpupool_server.pool_member.DRAIN_SECONDS", 0.05)
    node = Node(await make_office())
    node.apply(grant())
    accepted(await node.hello(issued()))
    node.apply(at=NOW + 1, mode="draining")
    node.member.heartbeat()
    assert len(node.office.supervisor.of_leases()) == 1
    await eventually(lambda: len(node.office.supervisor) == 0)


async def test_idle_is_said_until_it_is_heard(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(grant(), grant(lease="lease-2"))
    heard: list[str] = []
    node.office.supervisor.on_change = lambda: heard.append("change")
    session = accepted(await node.hello(issued()))["session"]
    beat = node.member.heartbeat()
    assert [(s.id, s.lease) for s in beat.sessions] == [(session, "lease-1")]
    assert (beat.idle, beat.applied, heard) == ([], "g-1", ["change"])
    node.office.supervisor._sessions[session].process.kill()
    await eventually(lambda: len(heard) == 2)
    assert node.member.heartbeat().idle == node.member.heartbeat().idle == ["lease-1"]
    node.apply(grant(lease="lease-2"), at=NOW + 1)
    assert node.member.heartbeat().idle == []


# The next server ----------------------------------------------------------------------------------


async def restarted(node: Node, make_office: MakeOffice) -> Node:
    node.member.close()
    await node.office.supervisor.close()
    node.office.run_dir.close()
    office = await make_office(on_stop="end")
    office.supervisor.adopt()
    return Node(office, node.clock)


async def test_the_next_server_knows_what_was_ordered(make_office: MakeOffice) -> None:
    node = Node(await make_office(on_stop="leave"))
    node.apply(grant(), grant(lease="lease-2"))
    accepted(await node.hello(issued()))
    node.member.heartbeat()
    after = await restarted(node, make_office)
    assert [meta.lease for meta in after.office.supervisor.of_leases()] == ["lease-1"]
    assert after.office.boards.of(0).grants["red/lease-1"].memory == 64 * MIB
    accepted(await after.hello(issued(lease="lease-2")))
    assert after.member.heartbeat().applied == "g-1"
    assert "has ended" in (await after.refused(issued(lease="lease-3")))[1]
    after.apply(grant(lease="lease-2"), at=NOW + 1)
    await eventually(lambda: [m.lease for m in after.office.supervisor.of_leases()] == ["lease-2"])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"node": "here"}', '{"node": "other", "orders": null}', "\udcff"]
)
async def test_what_cannot_be_read_is_not_known(
    make_office: MakeOffice, folder: Path, text: str
) -> None:
    office = await make_office()
    (folder / "run" / NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    node = Node(office)
    assert (await node.refused(issued()))[0] == "no-worker"
    node.apply(grant())
    accepted(await node.hello(issued()))
    assert (folder / "run" / NAME).stat().st_mode & 0o777 == 0o600


async def test_its_report(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    report = node.member.report("tcp://here:7700", "", {"rack": "7"})
    assert [(gpu.uuid, gpu.index, gpu.memory_bytes) for gpu in report.gpus] == [
        (GPUS[0], 0, 1024 * MIB),
        (GPUS[1], 1, 1024 * MIB),
    ]
    assert (report.labels, report.gpus[0].policy) == ({"rack": "7"}, "share")
    assert node.told(SendReport()) and not node.told()


# Who else gets in ---------------------------------------------------------------------------


@pytest.mark.parametrize("own_token", [False, True])
async def test_in_a_pool_the_servers_own_token_opens_nothing_unless_it_is_said(
    make_office: MakeOffice, own_token: bool
) -> None:
    """It has no limits, and whoever had it took GPUs from the pool's leases."""
    office = await make_office(own_token=own_token)
    accepted(await office.handler.answer(hello()))  # in no pool it is what clients have
    office.handler.join(PoolMember("here", office.run_dir.path, office.gpus, office.supervisor))
    answer = await office.handler.answer(hello())
    code, message = "", ""
    if own_token:
        accepted(answer)
    else:
        code, message = refused(answer)
        assert code == "bad-token" and "only leases open sessions" in message
        assert "--own-token" in message
    info = protocol.decode(await office.handler.answer(protocol.encode("info", {"token": TOKEN})))
    assert info.word == "ok"  # operators may look
    # `gpupool run` reads it there, and starts no program that would get no session.
    assert json.loads(info.fields["json"])["refused"] == message


async def test_tenants_that_are_configured_beside_a_pool_get_in(make_office: MakeOffice) -> None:
    office = await make_office(tenants={"lab": {"token": "lab-token"}})
    office.handler.join(PoolMember("here", office.run_dir.path, office.gpus, office.supervisor))
    accepted(await office.handler.answer(hello(token="lab-token")))
