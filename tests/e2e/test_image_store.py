"""Large images: sent once, and loaded from what the server has kept by later sessions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import DRIVER, PATIENCE, PoolServer, Result, wait_until
from tenants import BLUE, CONFIG, RED, MakeServer
from toolchain import Toolchain

MIB = 1 << 20

pytestmark = pytest.mark.skipif(DRIVER == "cuda", reason="it looks at a server of its own")


def kept(server: PoolServer) -> list[Path]:
    """Whole images, of all tenants."""
    found = (server.folder / "run" / "images").glob("*/*")
    return [path for path in found if path.suffix != ".new"]


def load(server: PoolServer, toolchain: Toolchain, name: str, **more: str) -> Result:
    program = toolchain.driver_program("large_image")
    result = server.run([str(program), "4", name], "tcp", PATIENCE, **more)
    assert result.returncode == 0, result.explain()
    return result


def sent(result: Result) -> int:
    return int(result.stats["bytes_sent"])


def await_kept(server: PoolServer, count: int) -> None:
    wait_until(lambda: len(kept(server)) == count, f"{count} images are kept")


def await_any(server: PoolServer, holds: Callable[[Path], bool]) -> None:
    """Until one file is so; one that is damaged goes before it is written again."""

    def found() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return any(holds(path) for path in kept(server))
        return False

    wait_until(found, "an image is kept again")


def test_a_second_session_sends_the_hash_alone(
    make_server: MakeServer, toolchain: Toolchain, tmp_path: Path
) -> None:
    config = tmp_path / "server.toml"
    config.write_text(CONFIG)
    server = make_server(config=str(config), **{"soft-gpus": "1", "image-cache": "9MiB"})
    first = load(server, toolchain, "a")
    assert sent(first) > 4 * MIB
    await_kept(server, 1)
    second = load(server, toolchain, "a")
    assert sent(second) < MIB / 4, second.stats
    assert second.stats["round_trips"] < first.stats["round_trips"]

    # another tenant has nothing of it, whose images are its own
    assert sent(load(server, toolchain, "a", **RED)) > 4 * MIB
    await_kept(server, 2)
    assert sent(load(server, toolchain, "a", **RED)) < MIB / 4

    # the next server finds them, and what was damaged meanwhile is sent and kept again
    server.kill()
    for path in kept(server):
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + b"damaged!" + whole[-1:])
    server.start()
    assert sent(load(server, toolchain, "a")) > 4 * MIB
    await_any(server, lambda path: b"damaged!" not in path.read_bytes())
    for path in kept(server):
        os.truncate(path, 2 * MIB)
    assert sent(load(server, toolchain, "a")) > 4 * MIB
    await_any(server, lambda path: path.stat().st_size == 4 * MIB + 1)
    assert sent(load(server, toolchain, "a")) < MIB / 4

    # a third does not fit: of the tenant that has most one goes
    assert sent(load(server, toolchain, "b")) > 4 * MIB
    wait_until(lambda: sent(load(server, toolchain, "b")) < MIB / 4, "the third is kept")
    assert len(kept(server)) == 2
    assert sent(load(server, toolchain, "a", **BLUE)) > 4 * MIB
