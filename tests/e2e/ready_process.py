"""Start one of our daemons, and wait until it says that it is ready."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from warm_start import Popen

Daemon = subprocess.Popen[bytes]


def start_ready(
    command: Sequence[str],
    log: Path,
    patience: float,
    env: Mapping[str, str] | None = None,
    preexec: Callable[[], None] | None = None,
) -> tuple[Daemon, str]:
    """The process and what it says when it is ready: its address.

    What it writes comes behind what ``log`` has. AssertionError if it ends, or says nothing.
    """
    ready, theirs = os.pipe()
    with open(ready, "rb", buffering=0) as heard:
        with open(theirs, "wb"), log.open("ab") as file:
            process: Daemon = Popen(
                [*command, "--ready-fd", str(theirs)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[theirs],
                preexec_fn=preexec,
            )
        readable, _, _ = select.select([heard], [], [], patience)
        said = heard.read(512) if readable else b""
    if not said:
        process.kill()
        process.wait()
        text = log.read_text(encoding="utf-8", errors="replace")
        raise AssertionError(f"{' '.join(command)}\ndid not start:\n{text[-8000:]}")
    return process, said.decode().strip()
