"""The front end: what it answers, and what a bad or slow asker cannot do to it."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from gpupool_common import protocol
from gpupool_common.ask import ask, ask_info
from gpupool_server.front_end import MAX_FRAME, _paginate
from gpupool_server.server import Server
from ports import free_port
from server_harness import (
    TOKEN,
    MakeOffice,
    MakeServer,
    accepted,
    hello,
    hello_fields,
    refused,
    write_worker,
)

NO_UUID = "GPU-00000000-0000-0000-0000-000000000000"


async def test_hello_opens_a_session(make_office: MakeOffice) -> None:
    office = await make_office()
    fields = accepted(await office.handler.answer(hello()))
    assert fields["devices"] == "0,1"
    path, _, word = fields["shm"].partition("?door=")
    assert path == f"shm://{office.run_dir.path}/shm.sock"
    assert len(bytes.fromhex(word)) == 16
    assert fields["zmq"].startswith("tcp://127.0.0.1:")
    assert len(bytes.fromhex(fields["secret"])) == 16
    assert fields["boot-id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    again = accepted(await office.handler.answer(hello()))
    assert again["session"] != fields["session"]
    assert again["secret"] != fields["secret"]
    assert again["shm"] != fields["shm"]


async def test_a_wildcard_address_is_left_to_the_client(make_office: MakeOffice) -> None:
    office = await make_office(data_listen="tcp://0.0.0.0:*", tcp=True)
    fields = accepted(await office.handler.answer(hello()))
    assert fields["zmq"].startswith("tcp://*:")
    assert fields["tcp"].startswith("plain://*:")


async def test_no_network_address_where_none_is_served(make_office: MakeOffice) -> None:
    office = await make_office(data_listen="none")
    assert not {"tcp", "zmq"} & accepted(await office.handler.answer(hello())).keys()


@pytest.mark.parametrize(
    ("settings", "ways", "offered"),
    [
        ({}, None, {"tcp", "zmq"}),  # an earlier release
        ({}, "shm tcp zmq", {"tcp"}),
        ({}, "shm zmq", {"tcp", "zmq"}),
        ({"zmq": False}, None, {"tcp"}),
        ({"tcp": False}, "shm tcp zmq", {"zmq"}),
    ],
)
async def test_what_is_offered_over_a_network(
    make_office: MakeOffice, settings: dict[str, bool], ways: str | None, offered: set[str]
) -> None:
    office = await make_office(**settings)
    fields = accepted(await office.handler.answer(hello(ways=ways)))
    assert {"tcp", "zmq"} & fields.keys() == offered


async def test_no_shared_memory_where_none_is_served(make_office: MakeOffice) -> None:
    office = await make_office(shm_listen="none")
    fields = accepted(await office.handler.answer(hello()))
    assert "shm" not in fields and "zmq" in fields


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"token": "wrong"}, "bad-token", "in GPUPOOL_TOKEN"),
        ({"token": None}, "bad-token", "missing"),
        ({"token": "the-token-of-the-test\u00df"}, "bad-token", "in GPUPOOL_TOKEN"),
        ({"wire": "1"}, "version", "protocol 1, this server (gpupool"),
        ({"wire": "1"}, "version", ") 2 to 3; upgrade gpupool on the client"),
        ({"wire": "5", "wire-oldest": "4"}, "version", "upgrade gpupool on the server"),
        ({"wire": "3", "wire-oldest": "4"}, "bad-request", "'wire-oldest' must be"),
        ({"wire": None}, "bad-request", "'wire: …' is missing"),
        ({"gpupool-memory": "much"}, "bad-request", "GPUPOOL_MEMORY: 'much' is not a size"),
        ({"gpupool-gpus": "1", "gpus": "1"}, "bad-request", "'gpus' is requested twice"),
        ({"gpupool-devices": "0,7"}, "bad-request", "device 7 is not served here"),
        ({"gpupool-devices": "0,0"}, "bad-request", "GPUPOOL_DEVICES: a list of device"),
        ({"gpupool-devices": NO_UUID}, "bad-request", f"GPUPOOL_DEVICES: '{NO_UUID}' is not a GPU"),
        ({"wire": "one"}, "bad-request", "'wire' must be a whole number"),
        ({"wire": "99999999999999999999"}, "bad-request", "'wire' must be a whole number"),
        ({"pid": "0"}, "bad-request", "'pid' must be 1.."),
        ({"pid": "-4"}, "bad-request", "'pid' must be a whole number"),
        ({"pid": "\u0664"}, "bad-request", "'pid' must be a whole number"),
        ({"program": None}, "bad-request", "'program: …' is missing"),
        ({"devices": "2"}, "bad-request", "device 2 is not served here; the server has 0, 1"),
        ({"devices": "0,0"}, "bad-request", "names each once"),
        ({"devices": "0,,1"}, "bad-request", "not a list of device indexes"),
        ({"devices": "99999999999"}, "bad-request", "not a list of device indexes"),
        ({"gpus": "3"}, "bad-request", "3 GPUs are requested and the server has 2"),
        ({"gpus": "0"}, "bad-request", "'gpus' must be 1.."),
        ({"gpus": "2", "devices": "0"}, "bad-request", "one or the other"),
    ],
)
async def test_refusals(
    make_office: MakeOffice, changes: dict[str, str | None], code: str, says: str
) -> None:
    office = await make_office()
    got, message = refused(await office.handler.answer(hello(**changes)))
    assert got == code
    assert says in message
    assert len(office.supervisor) == 0


@pytest.mark.parametrize(
    "spoken",
    [
        {"wire": "2"},
        {"wire": "3", "wire-oldest": "3"},
        {"wire": "9", "wire-oldest": "3"},
        {"wire": "2", "wire-oldest": "1", "of-a-later-release": "what nobody knows"},
    ],
)
async def test_releases_that_have_a_protocol_in_common(
    make_office: MakeOffice, spoken: dict[str, str]
) -> None:
    office = await make_office()
    question = protocol.encode("hello", hello_fields() | spoken)
    accepted(await office.handler.answer(question))


async def test_no_refusal_repeats_the_token(make_office: MakeOffice) -> None:
    office = await make_office()
    for question in (hello(token="wrong-secret"), hello(wire="9"), hello(devices="9")):
        _, message = refused(await office.handler.answer(question))
        assert "wrong-secret" not in message
        assert TOKEN not in message


async def test_other_words_are_no_questions(make_office: MakeOffice) -> None:
    office = await make_office()
    code, message = refused(await office.handler.answer(b"GPUPOOL/1 goodbye\n"))
    assert (code, "ask 'hello' or 'info'" in message) == ("bad-request", True)


async def test_a_token_is_asked_for_before_anything_is_told(make_office: MakeOffice) -> None:
    office = await make_office()
    code, _ = refused(await office.handler.answer(b"GPUPOOL/1 info\n"))
    assert code == "bad-token"
    code, _ = refused(await office.handler.answer(hello(token="x", wire="7")))
    assert code == "bad-token"


async def test_full_says_the_numbers(make_office: MakeOffice) -> None:
    office = await make_office(max_sessions=2)
    answers = await asyncio.gather(*(office.handler.answer(hello()) for _ in range(5)))
    words = sorted(protocol.decode(answer).word for answer in answers)
    assert words == ["ok", "ok", "refused", "refused", "refused"]
    code, message = refused(await office.handler.answer(hello()))
    assert code == "full"
    assert "2 of 2 sessions" in message


async def test_gpus_are_spread_over_the_devices(make_office: MakeOffice) -> None:
    office = await make_office(soft_gpus=3)
    answers = [accepted(await office.handler.answer(hello(gpus="1"))) for _ in range(3)]
    assert sorted(answer["devices"] for answer in answers) == ["0", "1", "2"]
    named = accepted(await office.handler.answer(hello(devices="2,0")))
    assert named["devices"] == "2,0"


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("exit", "ended before it was ready (exit code 3): the driver has a headache"),
        ("garbage", "first line is not 'ready"),
        ("badurl", "another shm address than shm://handed"),
    ],
)
async def test_workers_that_fail_are_no_sessions(
    make_office: MakeOffice, folder: Path, mode: str, says: str
) -> None:
    office = await make_office(worker=write_worker(folder / "worker", mode))
    code, message = refused(await office.handler.answer(hello()))
    assert code == "no-worker"
    assert says in message
    assert len(office.supervisor) == 0
    assert list(office.run_dir.sessions.iterdir()) == []


async def test_a_worker_that_is_never_ready_is_ended(make_office: MakeOffice, folder: Path) -> None:
    worker = write_worker(folder / "worker", "silent")
    office = await make_office(worker=worker, worker_start_seconds=0.2)
    code, message = refused(await office.handler.answer(hello()))
    assert code == "no-worker"
    assert "not ready within 0.2 s" in message
    assert list(office.run_dir.sessions.iterdir()) == []


async def test_a_worker_that_cannot_be_run(make_office: MakeOffice, folder: Path) -> None:
    office = await make_office(worker=folder / "none")
    code, message = refused(await office.handler.answer(hello()))
    assert code == "no-worker"
    assert "cannot be run: No such file" in message
    assert list(office.run_dir.sessions.iterdir()) == []


async def test_draining(make_office: MakeOffice) -> None:
    office = await make_office()
    office.handler.draining = True
    assert refused(await office.handler.answer(hello()))[0] == "draining"
    accepted(await office.handler.answer(protocol.encode("info", {"token": TOKEN})))


async def test_info_lists_devices_and_sessions(make_office: MakeOffice) -> None:
    office = await make_office()
    session = accepted(await office.handler.answer(hello(program="prog")))["session"]
    fields = accepted(await office.handler.answer(protocol.encode("info", {"token": TOKEN})))
    info = json.loads(fields["json"])
    assert [device["name"] for device in info["devices"]] == ["fake GPU 0", "fake GPU 1"]
    (listed,) = info["sessions"]
    assert listed["session"] == session
    assert listed["program"] == "prog"
    assert listed["memory_bytes"] == 4096
    assert listed["calls"] == 7
    assert "secret" not in fields["json"]
    late = accepted(
        await office.handler.answer(protocol.encode("info", {"token": TOKEN, "page": "9"}))
    )
    assert json.loads(late["json"]) == {"devices": [], "sessions": []}


def test_pages_hold_everything_once_and_fit() -> None:
    items = [("sessions", {"session": f"{n:012x}", "program": "ü" * 100}) for n in range(200)]
    pages = _paginate({"server": "x"}, items)
    assert len(pages) > 1
    assert all(len(page) < 7400 for page in pages)
    listed = [entry for page in pages for entry in json.loads(page)["sessions"]]
    assert listed == [item for _, item in items]
    for page in pages:
        protocol.encode("ok", {"pages": "99", "json": page})


async def test_mangled_questions_are_refused_or_answered(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool_server.sessions.LEAVING_SECONDS", 0.0)  # nobody leaves
    office = await make_office(max_sessions=4)
    choice = random.Random(7)
    for _ in range(2000):
        question = bytearray(hello())
        for _ in range(choice.randint(1, 4)):
            at = choice.randrange(len(question))
            question[at : at + choice.randint(0, 3)] = choice.randbytes(choice.randint(0, 3))
        answer = protocol.decode(await office.handler.answer(bytes(question)))
        assert answer.word in ("ok", "refused")
    assert len(office.supervisor) <= 4


# Over the socket ---------------------------------------------------------------


class Asker:
    """A client's socket that can misbehave."""

    def __init__(self, context: zmq.asyncio.Context, url: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(url)

    async def ask(self, *frames: bytes) -> list[bytes]:
        await self.socket.send_multipart(list(frames))
        answer: list[bytes] = await self.socket.recv_multipart()
        return answer


@pytest_asyncio.fixture
async def server(make_server: MakeServer) -> Server:
    return await make_server(listen="tcp://127.0.0.1:*".replace("*", str(free_port())))


@pytest_asyncio.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def test_both_framings_are_answered_alike(
    server: Server, context: zmq.asyncio.Context
) -> None:
    asker = Asker(context, server.url)
    (answer,) = await asker.ask(hello())
    accepted(answer)
    empty, answer = await asker.ask(b"", hello())
    assert empty == b""
    accepted(answer)


@pytest.mark.parametrize(
    "frames",
    [
        [b"\x00" * 16],
        [b""],
        [b"", b""],
        [b"one", b"two"],
        [b"", b"a", b"b"],
        [b"GPUPOOL/1 hello\n" + b"x" * 20_000],
        [bytes(range(256))],
    ],
    ids=["zeros", "empty", "two-empty", "two", "three", "too-long", "binary"],
)
async def test_garbage_is_refused(
    server: Server, context: zmq.asyncio.Context, frames: list[bytes]
) -> None:
    answer = (await Asker(context, server.url).ask(*frames))[-1]
    assert refused(answer)[0] == "bad-request"


async def test_absurd_sizes_end_the_connection_and_nothing_else(
    server: Server, context: zmq.asyncio.Context
) -> None:
    rude = Asker(context, server.url)
    await rude.socket.send(b"x" * (MAX_FRAME + 1))
    accepted((await Asker(context, server.url).ask(hello()))[-1])
    assert not await rude.socket.poll(0)


async def test_junk_on_the_port_harms_nobody(server: Server, context: zmq.asyncio.Context) -> None:
    host, _, port = server.url.removeprefix("tcp://").rpartition(":")
    for junk in (b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 4096, b"\x00"):
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(junk)
    accepted((await Asker(context, server.url).ask(hello()))[-1])


async def test_a_client_that_never_reads_holds_up_nobody(
    server: Server, context: zmq.asyncio.Context
) -> None:
    slow = Asker(context, server.url)
    slow.socket.setsockopt(zmq.RCVHWM, 1)
    question = protocol.encode("info", {"token": TOKEN})
    for _ in range(500):
        await slow.socket.send(question)
    for _ in range(20):
        answer = await asyncio.to_thread(ask, server.url, "info", {"token": TOKEN}, 60.0)
        assert answer.word == "ok"


async def test_more_ask_at_once_than_are_answered(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `mpirun -n 300`: all get an answer, some of them later."""
    monkeypatch.setattr("gpupool_server.front_end.MAX_ASKING", 1)
    fields = [hello_fields(program=f"rank {rank}") for rank in range(20)]
    answers = await asyncio.gather(
        *(asyncio.to_thread(ask, server.url, "hello", each, 60.0) for each in fields)
    )
    assert len({answer.require("session") for answer in answers}) == 20


async def test_the_address_in_use_is_one_clear_error(
    server: Server, make_server: MakeServer, folder: Path
) -> None:
    from gpupool_common.errors import GpupoolError

    with pytest.raises(GpupoolError, match="cannot listen at .*Address already in use.*--listen"):
        await make_server(listen=server.url, run_dir=folder / "other")


async def test_the_blocking_client_gets_all_pages(server: Server) -> None:
    await asyncio.to_thread(ask, server.url, "hello", hello_fields())
    info = await asyncio.to_thread(ask_info, server.url, TOKEN)
    assert len(info["sessions"]) == 1
    assert len(info["devices"]) == 2
