"""A server behind a network that takes its time, for one way of the benchmark."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

from harness import PoolServer, Result

SOURCE = Path(__file__).resolve().parent / "far.c"

#: This host's end of a link that bench_far makes.
HERE = "198.18.{}.1"


def build(folder: Path) -> Path:
    """The program that makes such a network."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "bench_far"
    command = [
        "gcc",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(program),
    ]
    subprocess.run([*command, str(SOURCE), "-lpthread"], check=True, timeout=60)
    return program


class Far:
    """The network and a server at this end of it; programs run at the other.

    RuntimeError, with the reason, where the machine cannot have such a network.
    """

    def __init__(
        self,
        program: Path,
        delay_us: int,
        driver: str,
        link: int = 0,
        gbit: float = 0.0,
        **settings: str,
    ) -> None:
        here = HERE.format(link)
        self._link = subprocess.Popen(
            [str(program), str(delay_us), str(gbit), str(link)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._link.stdout is not None and self._link.stderr is not None
        word, _, pid = self._link.stdout.readline().partition(" ")
        if word != "ready":
            raise RuntimeError(self._link.stderr.read().strip())
        #: What a program is run by to be at the other end.
        self.enter = ("nsenter", f"--net=/proc/{int(pid)}/ns/net")
        listen = {"data-listen": f"tcp://{here}:*", "insecure-plain": ""}
        self.server = PoolServer(driver, **listen, **settings)
        self.server.url = self.server.url.replace("127.0.0.1", here)

    def __enter__(self) -> Far:
        try:
            self.server.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self.server.close()
        self._link.communicate(timeout=10)

    def run(self, command: list[str], limit: float) -> Result:
        return self.server.run([*self.enter, *command], "tcp", limit)
