"""The messages of the link: what was encoded is decoded, and nothing else is."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool_common.errors import ProtocolError
from gpupool_common.node_protocol import (
    MAX_BYTES,
    Again,
    Applied,
    Apply,
    Beat,
    GrantChange,
    Heartbeat,
    Join,
    Leave,
    Message,
    OrderedGpu,
    OrderedGrant,
    Orders,
    Refused,
    Rekey,
    Report,
    ReportedGpu,
    ReportedSession,
    RollKey,
    SendReport,
    Told,
    VersionError,
    decode_from_manager,
    decode_from_node,
    encode,
)
from gpupool_common.quantities import MEBIBYTE as MIB

GPU = ReportedGpu(
    uuid="GPU-1", index=0, model="a", compute_capability="9.0", memory_bytes=1024 * MIB
)
REPORT = Report(
    address="tcp://a:1", server_version="0", driver="12.4", labels={"a": "b"}, gpus=[GPU]
)
SESSION = ReportedSession(id="s", lease="lease-1", program="python")
FROM_NODES: list[Message] = [
    Join(number=1, node="n", token="gpn_x", report=REPORT),
    Again(number=2, report=REPORT),
    Beat(number=3, heartbeat=Heartbeat(applied="g", sessions=[SESSION], idle=["lease-2"])),
    Applied(
        generation="g",
        keys=["0a1b"],
        changes=[GrantChange(lease="l", gpu="GPU-1", number=2, reason="in use", refused=True)],
    ),
    Leave(number=9),
    Rekey(number=10, key="0b" * 32),
]
APPLY = Apply(
    generation="g",
    at=1.5,
    mode="draining",
    grants=[
        OrderedGrant(
            lease="l",
            tenant="t",
            ordinal=0,
            gpu="GPU-1",
            memory_bytes=1 * MIB,
            share_permille=1000,
            priority=0,
            request_id="r",
        )
    ],
    gpus=[OrderedGpu(uuid="GPU-1", policy="weak", max_inst=3, prio_ratio=50)],
    keys=["0a" * 32],
    offline_seconds=900.0,
)
ROLL = RollKey(key="0c" * 32)
FROM_MANAGERS = [
    Told(number=0, now=2.5, orders=Orders(next_heartbeat=1, commands=[APPLY, SendReport(), ROLL])),
    Told(number=1, now=0, orders=Orders(next_heartbeat=0.5)),
    Refused(number=1, code="bad-token", message="no"),
]


@pytest.mark.parametrize("message", FROM_NODES, ids=lambda m: m.do)
def test_nodes_messages_travel(message: Message) -> None:
    assert decode_from_node(encode(message)) == message


@pytest.mark.parametrize("message", FROM_MANAGERS, ids=lambda m: m.do)
def test_managers_messages_travel(message: Told | Refused) -> None:
    assert decode_from_manager(encode(message)) == message


def changed(message: Message, path: str, value: object) -> bytes:
    """A message's bytes with one field set, or (...) taken away."""
    raw: Any = message.model_dump()
    inner: Any = raw
    *parents, last = path.split(".")
    for part in parents:
        inner = inner[int(part) if part.isdecimal() else part]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    packed: bytes = msgpack.packb(raw)
    return packed


BIG = 1 << 62
BAD_FROM_NODES: list[tuple[int, str, object]] = [
    (0, "do", "rejoin"),
    (0, "do", ...),
    (0, "number", -1),
    (0, "number", 1 << 63),
    (0, "number", "1"),
    (0, "number", 1.0),
    (0, "number", True),
    (0, "number", ...),
    (0, "node", "a b"),
    (0, "node", ""),
    (0, "node", "x" * 65),
    (0, "node", b"n"),
    (0, "node", "n\n"),
    (0, "node", "ñ"),
    (0, "token", "a\nb"),
    (0, "token", "x" * 257),
    (0, "report", None),
    (0, "report", []),
    (0, "report.driver", "12"),
    (0, "report.driver", "CUDA 12.4"),
    (0, "report.driver", None),
    (0, "report.gpus", {}),
    (0, "report.gpus", [GPU.model_dump()] * 65),
    (0, "report.gpus.0.index", 64),
    (0, "report.gpus.0.index", -1),
    (0, "report.gpus.0.memory_bytes", 0),
    (0, "report.gpus.0.memory_bytes", BIG),
    (0, "report.gpus.0.policy", "mine"),
    (0, "report.gpus.0.max_inst", 26),
    (0, "report.gpus.0.compute_capability", "9"),
    (0, "report.gpus.0.uuid", "GPU 1"),
    (0, "report.labels", {"a b": "c"}),
    (0, "report.labels", {"a": 1}),
    (0, "report.address", ""),
    (0, "report.labels", {f"l{i}": "" for i in range(65)}),
    (0, "report.front_end_key", "ab"),
    (0, "report.front_end_key", "G" * 64),
    (0, "report.protocol", 1),
    (2, "heartbeat.sessions.0.lease", "a/b"),
    (2, "heartbeat.sessions.0.program", "a\0"),
    (2, "heartbeat.sessions", [SESSION.model_dump()] * 4097),
    (2, "heartbeat.idle", [1]),
    (2, "heartbeat.applied", None),
    (2, "heartbeat.keys", ["a b"]),
    (2, "heartbeat.keys", ["k"] * 9),
    (3, "generation", "a\0"),
    (3, "keys", ["k"] * 9),
    (3, "keys", "k"),
    (3, "keys", [b"k"]),
    (3, "changes.0.number", -1),
    (3, "changes.0.number", True),
    (3, "changes.0.number", (1 << 31) + 1),
    (3, "changes.0.lease", "../x"),
    (3, "changes.0.gpu", ...),
    (3, "changes.0.reason", "a\nb"),
    (3, "changes.0.reason", "a" * 257),
    (3, "changes.0.refused", 1),
    (3, "changes", [{"lease": "l", "gpu": "g", "number": 1}] * 4097),
    (4, "number", None),
    (5, "key", ""),
    (5, "key", "0b" * 31),
    (5, "key", "0B" * 32),
    (5, "key", bytes(32)),
    (5, "number", ...),
]


@pytest.mark.parametrize(("which", "path", "value"), BAD_FROM_NODES)
def test_no_node_says_what_cannot_be(which: int, path: str, value: object) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_from_node(changed(FROM_NODES[which], path, value))
    text = str(caught.value)
    assert len(text) <= 300 and text.isprintable()
    assert path.rpartition(".")[2] in text


BAD_FROM_MANAGERS: list[tuple[int, str, object]] = [
    (0, "now", float("nan")),
    (0, "now", -1.0),
    (0, "now", "0"),
    (0, "orders", None),
    (0, "orders.next_heartbeat", 0),
    (0, "orders.next_heartbeat", float("inf")),
    (0, "orders.commands", [{"do": "report"}] * 9),
    (0, "orders.commands.0.mode", "shut"),
    (0, "orders.commands.0.do", "format"),
    (0, "orders.commands.0.at", float("nan")),
    (0, "orders.commands.0.grants.0.ordinal", -1),
    (0, "orders.commands.0.grants.0.share_permille", 0),
    (0, "orders.commands.0.grants.0.share_permille", 1001),
    (0, "orders.commands.0.grants.0.share_permille", True),
    (0, "orders.commands.0.grants.0.memory_bytes", BIG),
    (0, "orders.commands.0.grants.0.lease", "../x"),
    (0, "orders.commands.0.grants.0.ceiling_permille", 0),
    (0, "orders.commands.0.grants.0.number", -1),
    (0, "orders.commands.0.grants.0.force", 1),
    (0, "orders.commands.0.gpus.0.max_inst", 0),
    (0, "orders.commands.0.gpus.0.policy", 1),
    (0, "orders.commands.2.key", ""),
    (0, "orders.commands.2.key", "0c" * 33),
    (0, "orders.commands.2.key", ...),
    (0, "orders.commands.0.keys", []),
    (0, "orders.commands.0.keys", ["0a" * 31]),
    (0, "orders.commands.0.keys", ["0A" * 32]),
    (0, "orders.commands.0.keys", ["0a" * 32 + "\n"]),
    (0, "orders.commands.0.keys", [bytes(32)]),
    (0, "orders.commands.0.keys", ["0a" * 32] * 9),
    (0, "orders.commands.0.keys", ...),
    (0, "orders.commands.0.offline_seconds", 0),
    (0, "orders.commands.0.offline_seconds", float("inf")),
    (0, "orders.commands.0.offline_seconds", float("nan")),
    (0, "orders.commands.0.offline_seconds", ...),
    (2, "code", "a b"),
    (2, "message", "x" * 1025),
]


@pytest.mark.parametrize(("which", "path", "value"), BAD_FROM_MANAGERS)
def test_no_manager_says_what_cannot_be(which: int, path: str, value: object) -> None:
    with pytest.raises(ProtocolError):
        decode_from_manager(changed(FROM_MANAGERS[which], path, value))


def test_directions_are_not_mixed() -> None:
    for message in FROM_NODES:
        with pytest.raises(ProtocolError):
            decode_from_manager(encode(message))
    for other in FROM_MANAGERS:
        with pytest.raises(ProtocolError):
            decode_from_node(encode(other))


@pytest.mark.parametrize(
    ("which", "path"), [(0, "report.of_a_later_release"), (0, "later"), (2, "heartbeat.later")]
)
def test_fields_of_a_later_release_are_ignored(which: int, path: str) -> None:
    assert decode_from_node(changed(FROM_NODES[which], path, 1)) == FROM_NODES[which]


def test_a_report_of_the_release_before() -> None:
    """It has no driver."""
    before = FROM_NODES[0]
    assert isinstance(before, Join)
    unknown = before.report.model_copy(update={"driver": ""})
    read = decode_from_node(changed(before, "report.driver", ...))
    assert read == before.model_copy(update={"report": unknown})


@pytest.mark.parametrize("decode", [decode_from_node, decode_from_manager])
@pytest.mark.parametrize("version", [0, 1, -1, 1 << 60])
def test_another_version_is_named_beside_ours(decode: Any, version: int) -> None:
    payload = msgpack.packb({"protocol": version, "do": "something new"})
    with pytest.raises(VersionError, match=rf"protocol {version} .* protocol 2; install the same"):
        decode(payload)


@pytest.mark.parametrize("version", [None, "1", 1.0, True, [1]])
def test_a_version_is_a_number(version: object) -> None:
    with pytest.raises(ProtocolError, match="protocol"):
        decode_from_node(msgpack.packb({"protocol": version}))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x80",
        b"\x93\x01",
        b"\x81\xa1",
        b"\x01\x01",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\xa1\xff\x01",
        b"\x81\xc0\xc0",
        b"\x81\x90\xc0",
        b"\x91" * 5000,
        b"\x81\x01" * 5000,
        b"\xd6\xff\0\0\0\0",
        b"\xc7\x00\x05",
    ],
)
def test_no_bytes_are_more_than_refused(payload: bytes) -> None:
    for decode in (decode_from_node, decode_from_manager):
        with pytest.raises(ProtocolError):
            decode(payload)


def test_size_is_bounded_both_ways() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        decode_from_node(bytes(MAX_BYTES + 1))
    sessions = [SESSION.model_copy(update={"program": "ü" * 256}) for _ in range(4096)]
    with pytest.raises(ProtocolError, match="at most"):
        encode(Beat(number=1, heartbeat=Heartbeat(sessions=sessions)))


def test_the_largest_orders_fit() -> None:
    grant = OrderedGrant(
        lease="l" * 64,
        tenant="t" * 32,
        ordinal=1023,
        gpu="g" * 64,
        memory_bytes=1 << 50,
        share_permille=1000,
        priority=100,
        request_id="r" * 64,
        peer_key="f" * 64,
    )
    gpu = OrderedGpu(uuid="g" * 64, policy="preemptive", max_inst=25, prio_ratio=99)
    orders = Apply(
        generation="g",
        mode="open",
        grants=[grant] * 64 * 25,
        gpus=[gpu] * 64,
        keys=["0a" * 32] * 8,
        offline_seconds=1.0,
    )
    told = Told(number=0, now=1, orders=Orders(next_heartbeat=1, commands=[orders]))
    assert len(encode(told)) * 2 < MAX_BYTES


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 63) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
KEYS = ("do", "number", "node", "token", "report", "heartbeat", "now", "orders", "code")
MORE_KEYS = ("message", "key", "keys", "generation")


@given(st.binary(max_size=300))
def test_random_bytes(payload: bytes) -> None:
    for decode in (decode_from_node, decode_from_manager):
        with pytest.raises(ProtocolError):
            decode(payload)


@given(
    st.dictionaries(st.sampled_from(KEYS + MORE_KEYS), ANYTHING, max_size=8),
    st.sampled_from(
        ["join", "report", "heartbeat", "applied", "rekey", "leave", "orders", "refused"]
    ),
)
def test_random_fields(fields: dict[str, object], do: str) -> None:
    payload = msgpack.packb({"protocol": 2, **fields, "do": do})
    for decode in (decode_from_node, decode_from_manager):
        try:
            message = decode(payload)
        except ProtocolError:
            continue
        # What is taken means the same when it is said again.
        assert decode(encode(message)) == message


@given(st.sampled_from(FROM_NODES + FROM_MANAGERS), st.data())
def test_bits_that_flip(message: Message, data: st.DataObject) -> None:
    payload = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(payload) - 1))
        payload[place] ^= 1 << data.draw(st.integers(0, 7))
    for decode in (decode_from_node, decode_from_manager):
        try:
            decode(bytes(payload))
        except ProtocolError:
            continue
