"""How the demo runs commands and shows what they print."""

from __future__ import annotations

import subprocess
import sys
from typing import NoReturn


def fail(message: str) -> NoReturn:
    print(f"demo: FAILED: {message}")
    sys.exit(1)


def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command to its end; what it printed on both streams, in the order of time."""
    return subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def show(
    title: str, command: list[str], env: dict[str, str], prompt: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command and print what it printed, indented. ``prompt``: instead of how it begins."""
    shown = f"{prompt} {' '.join(command[3:])}" if prompt else f"$ {' '.join(command)}"
    print(f"\n{title}\n  {shown}", flush=True)
    done = run(command, env)
    for line in done.stdout.splitlines():
        print(f"    {line}".rstrip())
    print(f"    (exit code {done.returncode})", flush=True)
    return done
