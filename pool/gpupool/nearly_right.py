"""What people who come from other tools type, and what they mean by it."""

from __future__ import annotations

import shutil
from typing import Any

from typer.core import TyperGroup

from gpupool_common import nearly

ELSEWHERE = {
    "auth": "login",
    "config": "context",
    "check": "doctor",
    "describe": "lease show",
    "devices": "info",
    "exec": "run",
    "hosts": "node list",
    "jobs": "lease list",
    "list": "info",
    "ls": "info",
    "monitor": "top",
    "nvidia-smi": "smi",
    "nvtop": "top",
    "ps": "session list",
    "sacct": "usage",
    "salloc": "lease create",
    "sbatch": "run",
    "scancel": "lease release",
    "sinfo": "node list",
    "squeue": "queue list",
    "srun": "run",
    "start": "run",
    "status": "info",
    "submit": "run",
    "users": "tenant list",
    "version": "--version",
}


class Helpful(TyperGroup):
    """The commands of ``gpupool``: a word that is none is answered with the one that is meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        word = args[0]
        if not ctx.resilient_parsing and word not in self.commands and not word.startswith("-"):
            other = nearly.meant(word, self.commands, ELSEWHERE)
            if other is None and shutil.which(word):
                other = f"run -- {word}"
            ctx.fail(nearly.refusal(ctx.command_path, word, other))
        found: tuple[Any, Any, list[str]] = super().resolve_command(ctx, args)
        return found
