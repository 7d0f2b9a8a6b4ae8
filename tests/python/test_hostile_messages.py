"""What strangers, clients, workers and the starter of jails may write, whatever it is: refused in
words of ours, and by no exception that nobody thought of."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import select
import socket
import string
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool_common import protocol
from gpupool_common.errors import ProtocolError
from gpupool_common.relay_wire import MAX_PARTS, Kind, RecordError, Unpacker, pack
from gpupool_manager.api_common import Paging
from gpupool_manager.problems import Problem
from gpupool_server import jail_status
from gpupool_server.admin import AdminHandler
from gpupool_server.worker import Control, WorkerError, parse_ready
from server_harness import TOKEN, MakeOffice, hello_fields

#: Values that numbers, lists, names and addresses are compared with somewhere.
VALUES = (
    *("", "0", "1", "-1", "00", "1e9", "nan", "½", "٣", "0x10", str(1 << 31), str(1 << 64)),
    *("9" * 400, "1,1", "0,99", ",", "a" * 500, "../..", "%s%n", "{}", "[]", "null", "true"),
    *("50%", "-5%", "1000%", "1GiB", "1e400GiB", "GPU-", "high", "[::1]", "tcp://*:1", "ü" * 90),
)
#: Of the questions; those that nobody reads, too.
KEYS = (
    *("token", "wire", "oldest", "pid", "program", "host", "boot-id", "gpus", "memory", "share"),
    *("weight", "ceiling", "priority", "policy", "group", "devices", "tenant", "page", "query"),
    *("request", "what", "uuid", "index", "lease", "version", "spec", "cuda", "fractions"),
)
EXAMPLES = settings(max_examples=300)


@EXAMPLES
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: f"GPUPOOL/1 {t}".encode()))
def test_bytes_are_a_message_or_none(data: bytes) -> None:
    try:
        message = protocol.decode(data)
    except ProtocolError as error:
        assert "\n" not in str(error)
    else:
        assert protocol.decode(protocol.encode(message.word, message.fields)) == message


@EXAMPLES
@given(st.lists(st.binary(max_size=40), max_size=MAX_PARTS), st.data())
def test_records_come_in_any_pieces(parts: list[bytes], data: st.DataObject) -> None:
    sent = pack(Kind.MESSAGE, *parts) * 2
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    unpacker, heard = Unpacker(), []
    for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        heard += unpacker.feed(sent[begin:end])
    assert heard == [(Kind.MESSAGE, parts)] * 2


@EXAMPLES
@given(st.lists(st.binary(max_size=60), max_size=4))
def test_a_relay_that_says_anything(pieces: list[bytes]) -> None:
    unpacker = Unpacker()
    try:
        for piece in pieces:
            for _, parts in unpacker.feed(piece):
                assert len(parts) <= MAX_PARTS
    except RecordError:
        pass


@EXAMPLES
@given(
    st.text(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["shm", "zmq", "x"]), inner, max_size=3)
        ),
        max_leaves=8,
    ).map(lambda said: f"ready {json.dumps(said)}")
)
def test_a_worker_that_says_anything(line: str) -> None:
    try:
        ready = parse_ready(line)
    except WorkerError:
        return
    assert ready.zmq is None or ready.zmq.startswith(("tcp://", "ipc://"))


#: As deep as no reader of JSON goes.
DEEP = "[" * 20_000


def test_a_worker_that_nests_without_end() -> None:
    with pytest.raises(WorkerError):
        parse_ready(f"ready {DEEP}")


async def test_a_worker_s_status_that_nests_without_end(folder: Path) -> None:
    """It was an exception of Python's, which ended the question about all sessions."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(DEEP.encode() + b"\n")
        await writer.drain()

    path = folder / "control.sock"
    async with await asyncio.start_unix_server(answer, path):
        with pytest.raises(WorkerError):
            await Control(path).status()


def test_a_worker_that_ends_with_words_unread(folder: Path) -> None:
    """Its connection was reset then, and the event loop of servers raised an exception of its own
    at the next question, which ended that about all sessions."""

    async def ask(listener: socket.socket) -> None:
        control = Control(folder / "control.sock")
        await control.say("a word")
        worker, _ = listener.accept()
        select.select([worker], [], [], 20)
        worker.close()
        await asyncio.sleep(0.1)  # that the loop sees it
        listener.close()
        for _ in range(2):
            with pytest.raises(WorkerError):
                await control.status()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "control.sock"))
        listener.listen()
        uvloop.run(ask(listener))


def test_a_cursor_that_nests_without_end() -> None:
    """It was a 500."""
    cursor = base64.urlsafe_b64encode(DEEP.encode()).decode()
    with pytest.raises(Problem) as told:
        Paging(10, cursor).after(int)
    assert told.value.status == 422


@EXAMPLES
@given(st.binary(max_size=300) | st.text(string.printable, max_size=300).map(str.encode))
def test_a_starter_that_says_anything(said: bytes) -> None:
    try:
        report = jail_status.parse(said)
    except WorkerError:
        return
    assert report.layers.keys() <= set(jail_status.LAYERS)


def question(choice: random.Random, token: str) -> bytes:
    """Well formed, and with anything in it."""
    word = choice.choice(("hello", "info", "nvml", "bye"))
    fields = dict(hello_fields()) if choice.randrange(2) else {"token": token}
    for key in choice.sample(KEYS, choice.randrange(6)):
        fields[key] = choice.choice(VALUES)
    if choice.randrange(8):
        fields["token"] = token
    return protocol.encode(word, {k: v for k, v in fields.items() if v == v.strip(" ")})


async def test_questions_with_anything_in_them(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool_server.sessions.LEAVING_SECONDS", 0.0)
    office = await make_office(max_sessions=2)
    choice = random.Random(11)
    words = set()
    for _ in range(1500):
        asked = question(choice, TOKEN)
        answer = protocol.decode(await office.handler.answer(asked))
        said = answer.fields.get("message", "")
        assert "the server failed" not in said, asked
        words.add(answer.fields.get("code", answer.word))
    assert {"ok", "bad-request", "full"} <= words, words


def anything(choice: random.Random, depth: int = 2) -> Any:
    plain = (None, True, 0, -1, 1.5, 1e308, 1 << 70, "", "x" * 300, *VALUES[:12])
    how = choice.randrange(6)
    if depth == 0 or how < 4:
        return choice.choice(plain)
    if how == 4:
        return [anything(choice, depth - 1) for _ in range(choice.randrange(3))]
    return {choice.choice(("a", "memory", "")): anything(choice, depth - 1)}


async def test_an_operator_that_asks_anything(make_office: MakeOffice) -> None:
    """Who reaches that socket is the server's own user; its mistakes are told all the same."""
    office = await make_office()
    handler = AdminHandler(office.supervisor, office.gpus)
    assert json.loads(await handler.answer(DEEP.encode()))["code"] == "bad-request"
    choice = random.Random(12)
    keys = (
        "gpu",
        "policy",
        "tenant",
        "group",
        "memory",
        "share",
        "weight",
        "wait",
        "slots",
        "reason",
        "x",
    )
    for _ in range(1000):
        asked: dict[str, Any] = {
            "do": choice.choice(("gpu-set", "gpu-open", "gpu-aside", "tenant-set", "status", None))
        }
        asked |= {key: anything(choice) for key in choice.sample(keys, choice.randrange(5))}
        if isinstance(asked.get("wait"), int | float):
            asked["wait"] = 0
        answer = json.loads(await handler.answer(json.dumps(asked).encode()))
        assert "the server failed" not in answer.get("error", ""), asked
