"""Large images: sent once, and loaded from what the server has kept by later sessions."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from harness import DRIVER, PROGRAM_PATIENCE, PoolServer, Result, paths_below, wait_until
from tenants import BLUE, CONFIG, RED, MakeServer, StartTalk
from toolchain import Toolchain

MIB = 1 << 20

pytestmark = pytest.mark.skipif(DRIVER == "cuda", reason="it looks at a server of its own")


def kept(server: PoolServer) -> list[Path]:
    """Whole images, of all tenants."""
    found = paths_below(server.folder / "run" / "images")
    return [path for path in found if path.is_file() and path.suffix != ".new"]


def load(server: PoolServer, toolchain: Toolchain, name: str, **more: str) -> Result:
    program = toolchain.driver_program("large_image")
    result = server.run([str(program), "4", name], "tcp", PROGRAM_PATIENCE, **more)
    assert result.returncode == 0, result.explain()
    return result


def sent(result: Result) -> int:
    return int(result.stats["bytes_sent"])


def sends_whole(server: PoolServer, toolchain: Toolchain, name: str, **more: str) -> None:
    assert sent(load(server, toolchain, name, **more)) > 4 * MIB


def await_short(server: PoolServer, toolchain: Toolchain, name: str, **more: str) -> None:
    """Until it is kept: a server that is very busy may keep it not the first time."""

    def short() -> bool:
        return sent(load(server, toolchain, name, **more)) < MIB / 4

    wait_until(short, f"{name} is kept")


def test_what_a_program_has_loaded_last_is_kept(
    make_server: MakeServer, toolchain: Toolchain, talk: StartTalk
) -> None:
    """It ends while its server is busy: nothing is fetched before the program has gone."""
    server = make_server(**{"soft-gpus": "1"})
    command = [str(toolchain.driver_program("large_image")), "4", "a", "wait"]

    def load_last() -> bool:
        program = talk(command, server.environment("tcp"))
        assert program.line() == "started"
        server.signal(signal.SIGSTOP)
        program.say("go on")
        ended = program.finish()
        time.sleep(0.1)  # in which a worker ends that waits for no server
        server.signal(signal.SIGCONT)
        assert ended.returncode == 0, ended.explain()
        wait_until(lambda: not server.sessions(), "its session is over")
        return bool(kept(server))

    wait_until(load_last, "an image is kept: a worker waits 0.9 s, which a machine may stand still")


def test_a_second_session_sends_the_hash_alone(
    make_server: MakeServer, toolchain: Toolchain, tmp_path: Path
) -> None:
    config = tmp_path / "server.toml"
    config.write_text(CONFIG)
    server = make_server(config=str(config), **{"soft-gpus": "1", "image-cache": "9MiB"})
    first = load(server, toolchain, "a")
    assert sent(first) > 4 * MIB
    await_short(server, toolchain, "a")
    second = load(server, toolchain, "a")
    assert sent(second) < MIB / 4, second.stats
    assert second.stats["round_trips"] < first.stats["round_trips"]

    # another tenant has nothing of it, whose images are its own
    sends_whole(server, toolchain, "a", **RED)
    await_short(server, toolchain, "a", **RED)
    assert len(kept(server)) == 2

    # the next server finds them, and what was damaged meanwhile is sent and kept again
    server.kill()
    for path in kept(server):
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + b"damaged!" + whole[-1:])
    server.start()
    sends_whole(server, toolchain, "a")
    await_short(server, toolchain, "a")
    for path in kept(server):
        os.truncate(path, 2 * MIB)
    sends_whole(server, toolchain, "a")
    await_short(server, toolchain, "a")

    # a third does not fit: of the tenant that has most one goes
    sends_whole(server, toolchain, "b")
    await_short(server, toolchain, "b")
    assert len(kept(server)) == 2
    sends_whole(server, toolchain, "a", **BLUE)
