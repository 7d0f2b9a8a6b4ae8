"""gpupool-jail by itself: described by a test, started, and what it has said."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupool_common import paths
from gpupool_server import jail, jail_status
from gpupool_server.jail_status import Report

UID = 250001

#: What Python needs inside, to look around.
PYTHON = os.path.realpath(sys.executable)
FILES = [
    path
    for path in (os.path.realpath(sys.base_prefix), "/usr/lib", "/lib", "/lib64")
    if os.path.exists(path)
]

ALTERNATIVE = f"off user-namespace {jail.ALTERNATIVE}"


@dataclass
class Started:
    """A program in a jail, and the starter's report."""

    report: Report
    starter: int
    output: Path
    errors: str = ""
    ended: bool = False
    own: list[int] = field(default_factory=list)

    def wait(self) -> int:
        """The program's exit code; below 0 the signal that ended it."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.report.pid, 0)[1])
        self.ended = True
        return code

    def seen(self) -> Any:
        """What the program has printed, as JSON."""
        code, said = self.wait(), self.output.read_text()
        assert code == 0, f"exit code {code}: {said}"
        return json.loads(said)

    def close(self) -> None:
        for pid in [0 if self.ended else self.report.pid, self.report.holder]:
            if pid:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


class Starter:
    """Starts programs in jails, all in one folder; ends them at last."""

    def __init__(self, folder: Path, home: paths.Home) -> None:
        self.program = home.part(jail.PROGRAM)
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()
        self.started: list[Started] = []

    def lines(self, *more: str) -> list[str]:
        """A description with everything in it, for Python."""
        own = [f"root {self.root}", f"uid {UID}", f"gid {UID}", ALTERNATIVE]
        own += ["hostname inside", "tmpfs /tmp 1048576", "env HOME=/tmp"]
        return [*own, *(f"library {path}" for path in FILES), *more]

    def run(
        self,
        lines: Sequence[str] | bytes,
        command: Sequence[str],
        keep: Sequence[int] = (),
        user: int | None = None,
        prefix: Sequence[str] = (),
    ) -> Started:
        text = lines if isinstance(lines, bytes) else "".join(f"{x}\n" for x in lines).encode()
        said, theirs = os.pipe()
        with (
            tempfile.TemporaryFile() as description,
            tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as output,
        ):
            description.write(text)
            description.seek(0)
            number = description.fileno()
            starter = subprocess.run(
                [
                    *prefix,
                    str(self.program),
                    *("--description", str(number), "--status", str(theirs), "--", *command),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"SECRET": "of the server"},
                pass_fds=[number, theirs, *keep],
                timeout=60,
                check=False,
                user=user,
            )
            os.close(theirs)
            heard = b"".join(iter(lambda: os.read(said, 4096), b""))
            os.close(said)
        one = Started(jail_status.parse(heard), starter.returncode, Path(output.name))
        self.started.append(one)
        return one

    def look(self, code: str, *more: str, keep: Sequence[int] = ()) -> Started:
        """Run Python code inside, which prints JSON."""
        return self.run(self.lines(*more), [PYTHON, "-IS", "-c", code], keep)

    def close(self) -> None:
        for one in self.started:
            one.close()


def holder_line(one: Started) -> tuple[str, int]:
    """To join the lease of another: the line, and the descriptor to hand over."""
    fd = os.pidfd_open(one.report.holder)
    return f"holder {fd}", fd
