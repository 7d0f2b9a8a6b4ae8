"""Two workers of one lease that are ranks of ours (ranks/rank.c): they copy from each other's GPU
and make an all-reduce by the libnccl that they are given."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from gpupool_common import paths
from harness import PoolServer
from raw_client import ask_for_session

SOURCES = Path(__file__).resolve().parent / "ranks"
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1")
STEPS = ("driver", "peer-copy", "all-reduce")
PATIENCE = 300.0

_SAID = re.compile(r"rank ([01]) ([a-z-]+) ((?:ok|absent|failed|said).*?) +part=worker")


def fake_nccl(folder: Path) -> Path:
    """For soft GPUs."""
    library = folder / "libnccl.so"
    command: list[str | Path] = [
        "cc",
        *FLAGS,
        "-shared",
        "-fPIC",
        "-o",
        library,
        SOURCES / "fake_nccl.c",
        "-ldl",
    ]
    subprocess.run(command, check=True)
    library.chmod(0o755)
    return library


class Ranks:
    """An installation of its own, whose workers can be made ranks."""

    def __init__(self, folder: Path, nccl: Path) -> None:
        folder.chmod(0o755)  # a worker's user is another
        self._folder = folder
        #: To be GPUPOOL_HOME of a server.
        self.home = folder / "home"
        shutil.copytree(paths.find_home().root, self.home)
        (self.home / paths.PLUGINS / "libnccl.so").symlink_to(nccl.resolve())
        self.worker = folder / "gpupool-worker"
        shutil.copy(paths.find_home().part(paths.WORKER), self.worker)
        self._honest = self.worker.read_bytes()

    def disarm(self) -> None:
        """For a server's start, which looks at the honest worker."""
        again = self._folder / "honest"
        again.write_bytes(self._honest)
        again.chmod(0o755)
        os.replace(again, self.worker)

    def arm(self) -> None:
        """Workers that a running server starts from now on are ranks."""
        command: list[str | Path] = [self.worker, "--version"]
        version = subprocess.run(command, capture_output=True, text=True, check=True)
        (self._folder / "aim.h").write_text(f'#define VERSION "{version.stdout.strip()}"\n')
        program = self._folder / "rank"
        command = ["cc", *FLAGS, f"-I{self._folder}", "-o", program, SOURCES / "rank.c", "-ldl"]
        subprocess.run(command, check=True)
        program.chmod(0o755)
        os.replace(program, self.worker)

    def run(
        self, server: PoolServer, devices: tuple[str, str], patience: float = PATIENCE
    ) -> dict[tuple[int, str], str]:
        """What each rank says of each step, by the end of ``patience`` seconds at the latest.

        ``devices`` are those of its session.
        """
        from_here = len(server.log.read_text())
        for chosen in devices:
            answer = ask_for_session(server, devices=chosen)
            assert answer["word"] == "ok", answer

        def said() -> list[tuple[str, str, str]]:
            return _SAID.findall(server.log.read_text()[from_here:])

        def over() -> bool:
            text = server.log.read_text()[from_here:]
            ended = text.count("session ended") >= len(devices)
            return ended or sum(step == "over" for _, step, _ in said()) == len(devices)

        ends = time.monotonic() + patience
        while not over() and time.monotonic() < ends:
            time.sleep(0.1)
        return {(int(rank), step): words for rank, step, words in said() if step in STEPS}
