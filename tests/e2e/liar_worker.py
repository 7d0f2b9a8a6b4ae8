"""A worker that is not ours: liar/liar.c, compiled to do one thing, in a worker's place."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from gpupool_common import paths

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

#: What asks for turns is a worker's own.
SOURCES = (
    HERE / "liar" / "liar.c",
    *(
        ROOT / "server" / "arbiter" / f"{part}.c"
        for part in ("seat", "seat_memory", "page", "clock")
    ),
)
FOLDERS = (ROOT / "server" / "arbiter", ROOT / "proto" / "wire")


class Liar:
    """The worker program of a server: the honest one, or the liar."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)  # a worker's user is another
        self.folder = folder
        worker = paths.find_home().part(paths.WORKER)
        self.worker = folder / "gpupool" / "libexec" / worker.name
        self.worker.parent.mkdir(parents=True, mode=0o755)
        shutil.copy(worker, self.worker)
        beside = worker.parents[2] / "gpupool.libs"  # of an installed wheel
        if beside.is_dir():
            (folder / beside.name).symlink_to(beside)
        self._honest = self.worker.read_bytes()

    def arm(
        self,
        mib: int = 0,
        works: int = 0,
        forks: bool = False,
        asks: bool = False,
        says: bool = False,
    ) -> None:
        """Workers that are started from now on are liars."""
        command: list[str | Path] = [self.worker, "--version"]
        version = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = [f'#define VERSION "{version.stdout.strip()}"', "#define DEVICE 0"]
        lines += [f"#define LIAR_MIB {mib}", f"#define LIAR_WORKS {works}"]
        lines += [f"#define LIAR_FORKS {int(forks)}", "#define LIAR_TURNS 200000"]
        lines += [f"#define LIAR_ASKS {int(asks)}", f"#define LIAR_SAYS {int(says)}"]
        (self.folder / "aim.h").write_text("\n".join(lines) + "\n")
        program = self.folder / "liar"
        flags = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1"]
        flags += [f"-I{folder}" for folder in (self.folder, *FOLDERS)]
        command = ["cc", *flags, "-o", program, *SOURCES, "-ldl", "-pthread"]
        subprocess.run(command, check=True)
        program.chmod(0o755)
        os.replace(program, self.worker)

    def disarm(self) -> None:
        again = self.folder / "honest"
        again.write_bytes(self._honest)
        again.chmod(0o755)
        os.replace(again, self.worker)

    def running(self) -> list[int]:
        """Processes of either program."""
        found = Path("/proc").glob("[0-9]*")
        return [int(each.name) for each in found if self._is_ours(each)]

    def _is_ours(self, process: Path) -> bool:
        try:
            return (process / "cmdline").read_bytes().startswith(bytes(self.worker) + b"\0")
        except OSError:
            return False

    def end_all(self) -> None:
        """A liar hears nobody."""
        for pid in self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
