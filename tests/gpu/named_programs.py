"""The command of a file of programs: `FILE NAME [--steps N]` prints one line of JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any


def run(
    description: str, programs: Mapping[str, Callable[[int], Any]], steps: int, least: int
) -> int:
    """Run the program that the command names, of `steps` steps if it does not say how many."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name", choices=list(programs))
    parser.add_argument("--steps", type=int, default=steps)
    arguments = parser.parse_args()
    if arguments.steps < least:
        parser.error(f"--steps must be at least {least}")
    print(json.dumps(programs[arguments.name](arguments.steps)), flush=True)
    return 0
