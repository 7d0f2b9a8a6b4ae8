"""The front end under a key: who has it is answered, and nobody else holds it up."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpupool_common.ask import ask, ask_info, with_key
from gpupool_common.errors import RefusedError, UnreachableError
from gpupool_common.keys import load_keys
from gpupool_common.protocol import Message
from gpupool_server.config import Settings
from gpupool_server.server import Server
from gpupool_server.worker import Ready, WorkerError, parse_ready, stream_url
from ports import free_port
from server_harness import TOKEN, MakeServer, eventually, hello_fields

OTHER = "00112233445566778899aabbccddeeff00112233445566778899aabbccddee0f"


async def started(make_server: MakeServer, **changes: object) -> Server:
    listen = f"tcp://127.0.0.1:{free_port()}"
    return await make_server(listen=listen, curve=True, **changes)


async def asked(url: str, word: str = "hello", **changes: str | None) -> Message:
    return await asyncio.to_thread(ask, url, word, hello_fields(**changes), 60.0)


async def test_who_has_the_key_is_answered(make_server: MakeServer, folder: Path) -> None:
    server = await started(make_server)
    assert server.front_end_key == load_keys(folder / "run").public
    url = with_key(server.url, server.front_end_key)
    info = await asyncio.to_thread(ask_info, url, TOKEN)
    assert len(info["devices"]) == 2
    with pytest.raises(RefusedError, match="token"):
        await asked(url, token="wrong")


async def test_nobody_else_is(make_server: MakeServer) -> None:
    server = await started(make_server)
    with pytest.raises(UnreachableError, match="the address has no key"):
        await asked(server.url)
    with pytest.raises(UnreachableError, match="does not have this key"):
        await asked(with_key(server.url, OTHER))
    assert (await asked(with_key(server.url, server.front_end_key), "info")).word == "ok"


async def test_the_log_says_what_was_wrong_and_not_too_often(make_server: MakeServer) -> None:
    server = await started(make_server)
    with capture_logs() as logged:
        for _ in range(5):
            with pytest.raises(UnreachableError):
                await asked(with_key(server.url, OTHER))
        await eventually(lambda: any(e["event"] == "a connection was refused" for e in logged))
    (said,) = [e for e in logged if e["event"] == "a connection was refused"]
    assert "is not this server's" in said["reason"]


async def test_a_server_without_a_key_needs_none(make_server: MakeServer) -> None:
    server = await make_server(listen=f"tcp://127.0.0.1:{free_port()}")
    assert server.front_end_key == ""
    assert (await asked(server.url, "info")).word == "ok"
    with pytest.raises(UnreachableError, match="does not encrypt"):
        await asked(with_key(server.url, OTHER))


async def test_the_key_outlasts_the_server(make_server: MakeServer, folder: Path) -> None:
    server = await started(make_server, state_dir=folder / "state")
    first = server.front_end_key
    await server.close()
    assert (await started(make_server, state_dir=folder / "state")).front_end_key == first
    assert (folder / "state" / "curve.key").exists()
    assert not (folder / "run" / "curve.key").exists()


async def test_noise_ends_no_service(make_server: MakeServer) -> None:
    server = await started(make_server)
    host, _, port = server.url.removeprefix("tcp://").rpartition(":")
    dice = random.Random(4)
    greeting = bytes((255, 0, 0, 0, 0, 0, 0, 0, 1, 127, 3, 1)) + b"CURVE".ljust(20, b"\0")
    command = greeting + bytes(32) + b"\x04\xc8"
    begins = (b"", b"\xff", greeting, greeting + bytes(32), command, command + b"\x05HELLO\x01\x00")
    for number in range(60):
        noise = begins[number % len(begins)] + dice.randbytes(dice.randrange(400))
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(noise)
        await writer.drain()
        writer.close()
    assert (await asked(with_key(server.url, server.front_end_key), "info")).word == "ok"


def test_show_key(folder: Path) -> None:
    command = [sys.executable, "-m", "gpupool_server", "--show-key", "--run-dir", f"{folder}/run"]
    shown = [
        subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        for _ in range(2)
    ]
    assert re.fullmatch(r"[0-9a-f]{64}\n", shown[0])
    assert shown[0] == shown[1]
    assert load_keys(folder / "run").public == shown[0].strip()


def test_workers_are_told_to_encrypt() -> None:
    def told(**values: object) -> str | None:
        return Settings.model_validate(values).data_url

    assert told() == "tcp://127.0.0.1:*"
    assert told(curve=True) == "tcp://127.0.0.1:*?key=own"
    assert told(curve=True, listen="tcp://*:7700") == "tcp://0.0.0.0:*?key=own"
    assert told(curve=True, data_listen="tcp://10.0.0.1:*") == "tcp://10.0.0.1:*?key=own"
    assert told(curve=True, data_listen="none") is None


def test_a_workers_ready_line_may_have_a_key() -> None:
    url = f"tcp://0.0.0.0:4?key={OTHER}&door={OTHER[:32]}"
    line = f'ready {{"shm": "shm://handed", "zmq": "{url}"}}'
    assert parse_ready(line) == Ready(True, url)
    for bad in (f"{url}0", url[:-1], url.replace("?key=", "?"), f"{url}?key={OTHER}", url[:-38]):
        with pytest.raises(WorkerError, match="zmq address"):
            parse_ready(f'ready {{"shm": "shm://handed", "zmq": "{bad}"}}')


def test_a_workers_ready_line_may_have_tcp() -> None:
    url = f"tls://[::]:4?door={OTHER[:32]}"
    assert parse_ready(f'ready {{"tcp": "{url}"}}') == Ready(False, None, url)
    plain = url.replace("tls", "plain")
    assert parse_ready(f'ready {{"tcp": "{plain}"}}').tcp == plain
    for bad in (f"{url}0", url[:-1], url.replace("tls", "tcp"), f"{url}&key={OTHER}", url[:-38]):
        with pytest.raises(WorkerError, match="tcp address"):
            parse_ready(f'ready {{"tcp": "{bad}"}}')


def test_a_workers_ready_line_may_have_ucx() -> None:
    url = f"ucx://[::]:4?door={OTHER[:32]}"
    assert parse_ready(f'ready {{"ucx": "{url}"}}') == Ready(False, None, None, url)
    for bad in (f"{url}0", url[:-1], url.replace("ucx", "tcp"), url[:-38]):
        with pytest.raises(WorkerError, match="ucx address"):
            parse_ready(f'ready {{"ucx": "{bad}"}}')


def test_what_workers_are_told_to_listen_at_by_tcp() -> None:
    def told(**values: object) -> str | None:
        return stream_url(Settings.model_validate(values).data_url)

    assert told() == "plain://127.0.0.1:*"
    assert told(curve=True, listen="tcp://*:7700") == "tls://0.0.0.0:*"
    assert told(curve=True, data_listen="tcp://[::1]:*") == "tls://[::1]:*"
    assert told(listen="ipc:///run/x") is None
    assert told(data_listen="none") is None
