"""Lease tokens: what is in them, who can make them, and what a server makes of one."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from gpupool_common import lease_token, protocol
from gpupool_common.errors import ProtocolError
from gpupool_common.lease_token import LeaseToken, TokenGrant
from gpupool_common.node_protocol import Apply, OrderedGpu, OrderedGrant, Orders, SendReport, Told
from gpupool_server import claims
from gpupool_server.pool_member import DRAIN_SECONDS, SLACK_SECONDS, PoolMember
from gpupool_server.pool_state import NAME
from server_harness import TOKEN, MakeOffice, Office, accepted, eventually, hello, refused

MIB = 1 << 20
NOW = 1_800_000_000.0
KEY, OTHER_KEY = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
KEYS = {lease_token.key_id(KEY.public_key().public_bytes_raw()): KEY.public_key()}
GPUS = [f"GPU-{uuid.UUID(bytes=bytes([index + 1]) * 16)}" for index in range(2)]


def token_of(*grants: TokenGrant, **changes: Any) -> LeaseToken:
    values: dict[str, Any] = {
        "lease": "lease-1",
        "tenant": "red",
        "issued": NOW,
        "expires": NOW + 600,
        "priority": 0,
        "request_id": "r-1",
        "nodes": {"here": grants or (TokenGrant(0, GPUS[0], 64 * MIB, 500),)},
        **changes,
    }
    return LeaseToken(**values)


def issued(token: LeaseToken | None = None, **changes: Any) -> str:
    token = replace(token or token_of(), **changes)
    return lease_token.issue(token, KEY)


# The text -----------------------------------------------------------------------------------


def test_every_node_reads_what_was_written() -> None:
    token = token_of(
        nodes={
            "here": (TokenGrant(0, GPUS[0], 64 * MIB, 500), TokenGrant(1, "GPU-soft.1", MIB, 1000)),
            "there": (TokenGrant(2, GPUS[1], 1 << 50, 1),),
        }
    )
    assert lease_token.check(lease_token.issue(token, KEY), KEYS) == token


def test_no_key_but_the_managers_signs() -> None:
    forged = lease_token.issue(token_of(tenant="blue"), OTHER_KEY)
    with pytest.raises(lease_token.UnknownKeyError, match="does not know"):
        lease_token.check(forged, KEYS)
    # Not under the manager's name either, nor with a genuine signature of something else.
    (name,) = KEYS
    genuine = issued().removeprefix(lease_token.PREFIX).split(".")
    other = forged.removeprefix(lease_token.PREFIX).split(".")
    for parts in (
        [genuine[0], *other[1:]],
        [genuine[0], genuine[1], other[2]],
        [genuine[0], other[1], genuine[2]],
    ):
        with pytest.raises(ProtocolError, match="not issued by this pool's manager"):
            lease_token.check(lease_token.PREFIX + ".".join(parts), KEYS)


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "none", "kid": "KID"},
        {"alg": "HS256", "kid": "KID"},
        {"alg": "EdDSA"},
        {"alg": "EdDSA", "kid": 7},
        {"alg": "EdDSA", "kid": ["KID"]},
        {"alg": "EdDSA", "kid": "KID", "crit": ["b64"], "b64": False},
        {"alg": "EdDSA", "kid": "KID", "jwk": {"kty": "OKP", "crv": "Ed25519", "x": "AA"}},
        {"alg": "EdDSA", "kid": "KID", "jku": "https://evil.example/keys"},
        ["EdDSA", "KID"],
        "KID",
        None,
    ],
)
def test_a_header_chooses_neither_key_nor_algorithm(header: Any) -> None:
    """What JOSE is known for: signed by the right key even, it is the header that is refused."""
    (name,) = KEYS
    text = json.dumps(header).replace("KID", name).encode()
    parts = [urlsafe(text), urlsafe(msgpack.packb([2]))]
    for key in (KEY.sign(".".join(parts).encode()), hs256(name, parts), bytes(64)):
        with pytest.raises(ProtocolError, match="not issued|not a lease token"):
            lease_token.check(f"{lease_token.PREFIX}{'.'.join(parts)}.{urlsafe(key)}", KEYS)


def hs256(name: str, parts: list[str]) -> bytes:
    """The MAC under the public key, which some decoders took for a signature."""
    secret = KEYS[name].public_bytes_raw()
    return hmac.digest(secret, ".".join(parts).encode(), "sha512")


def urlsafe(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def test_any_other_character_makes_it_worthless() -> None:
    text = issued()
    for place in range(len(lease_token.PREFIX), len(text)):
        other = "B" if text[place] == "A" else "A"
        with pytest.raises(ProtocolError):
            lease_token.check(text[:place] + other + text[place + 1 :], KEYS)
        with pytest.raises(ProtocolError):
            lease_token.check(text[:place], KEYS)
    with pytest.raises(ProtocolError):
        lease_token.check(text + "A", KEYS)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
def test_no_text_is_more_than_refused(text: str) -> None:
    tail = issued().partition(".")[2]
    for tried in (text, f"gpl_{text}", f"gpl_{text}.{text}.{text}", f"gpl_{text}.{tail}"):
        with pytest.raises(ProtocolError):
            lease_token.check(tried, KEYS)


@given(st.integers(0, 2**16), st.binary(min_size=1, max_size=40))
def test_no_mutation_of_a_token_is_more_than_refused(place: int, put: bytes) -> None:
    raw = bytearray(issued().encode())
    at = place % len(raw)
    raw[at : at + len(put)] = put
    text = raw.decode("latin-1")
    if text != issued():
        with pytest.raises(ProtocolError):
            lease_token.check(text, KEYS)


@given(
    st.recursive(
        st.none() | st.integers(-9, 1 << 60) | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=9),
        max_leaves=30,
    )
)
def test_no_signed_payload_is_more_than_refused(content: Any) -> None:
    """Not even the manager's own mistakes get further than the check."""
    try:
        payload = msgpack.packb(content)
    except (ValueError, OverflowError):
        return
    with pytest.raises(ProtocolError):
        lease_token.check(signed(payload), KEYS)


def signed(payload: bytes) -> str:
    return lease_token.sign(payload, KEY)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (1, "a b"),
        (1, ""),
        (1, 7),
        (2, "x" * 65),
        (3, "soon"),
        (4, None),
        (5, 101),
        (5, True),
        (7, [["here", [[0, "GPU 0", 64, 50]]]]),
        (7, [["here", [[0, "GPU-0", 0, 50]]]]),
        (7, [["here", [[0, "GPU-0", 64, 101]]]]),
        (7, [["here", [[0, b"short", 64, 50]]]]),
        (7, [["here", [[0, "GPU-0", 64]]]]),
        (7, 3),
        (3, float("nan")),
        (4, float("inf")),
    ],
)
def test_no_signed_field_is_taken_that_cannot_be(place: int, value: object) -> None:
    fields: list[object] = [2, "lease-1", "red", NOW, NOW + 1, 0, "r", [["here", []]]]
    lease_token.check(signed(msgpack.packb(fields)), KEYS)
    fields[place] = value
    with pytest.raises(ProtocolError, match="it is malformed"):
        lease_token.check(signed(msgpack.packb(fields)), KEYS)


def test_another_version_is_named() -> None:
    with pytest.raises(ProtocolError, match="version 3, this server knows version 2"):
        lease_token.check(signed(msgpack.packb([3, "new"])), KEYS)


@pytest.mark.parametrize(
    ("gpus", "nodes", "most"), [(16, 16, 4096), (64, 8, lease_token.MAX_LENGTH)]
)
def test_a_large_lease_fits_in_a_question(gpus: int, nodes: int, most: int) -> None:
    names = [f"node-with-a-rather-long-name.example.org-{n:02}" for n in range(nodes)]
    each = gpus // nodes
    token = token_of(
        request_id="r" * 32,
        nodes={
            name: tuple(
                TokenGrant(place * each + i, f"GPU-{uuid.uuid4()}", 1 << 40, 1000)
                for i in range(each)
            )
            for place, name in enumerate(names)
        },
    )
    assert len(lease_token.issue(token, KEY)) <= most


# What a server makes of it --------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _plain_logs() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Node:
    """A server's handler that belongs to a pool, without a link."""

    def __init__(self, office: Office, clock: Callable[[], float] | None = None) -> None:
        self.office = office
        self.clock = Clock()
        self.member = PoolMember(
            "here", office.run_dir.path, office.gpus, office.supervisor, clock or self.clock
        )
        office.handler.join(self.member)

    def told(self, *commands: Apply | SendReport) -> bool:
        orders = Orders(next_heartbeat=10, commands=list(commands))
        return self.member.apply(Told(number=1, now=NOW, orders=orders))

    def apply(self, *grants: OrderedGrant, at: float = NOW, **more: Any) -> None:
        values: dict[str, Any] = {
            "generation": "g-1",
            "mode": "open",
            "gpus": [],
            "keys": [KEY.public_key().public_bytes_raw().hex()],
            "offline_seconds": 900.0,
            **more,
        }
        self.told(Apply(at=at, grants=list(grants), **values))

    async def hello(self, token: str, **changes: str | None) -> bytes:
        return await self.office.handler.answer(hello(token=token, **changes))

    async def refused(self, token: str, **changes: str | None) -> tuple[str, str]:
        return refused(await self.hello(token, **changes))


def grant(lease: str = "lease-1", ordinal: int = 0, index: int = 0, **more: Any) -> OrderedGrant:
    values: dict[str, Any] = {
        "tenant": "red",
        "memory_bytes": 64 * MIB,
        "share_permille": 500,
        "priority": 0,
        **more,
    }
    return OrderedGrant(lease=lease, ordinal=ordinal, gpu=GPUS[index], **values)


async def test_a_token_opens_what_it_says(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(
        grant(ordinal=0, index=1),
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
