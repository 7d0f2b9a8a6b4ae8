"""Settings as options of a command, with what they allow as their help."""

from __future__ import annotations

from typing import Any

import typer
from pydantic import BaseModel

from gpupool_common.sizes import format_size

#: How descriptions of settings in bytes begin.
SIZE = "a size"


def setting_help(settings: type[BaseModel], key: str) -> str:
    """What is allowed, and what it is when nobody says."""
    field = settings.model_fields[key]
    default = field.get_default(call_default_factory=True)
    if default is None or default == {} or default == ():
        return f"{field.description}"
    is_size = (field.description or "").startswith(SIZE)
    return f"{field.description} (default: {format_size(default) if is_size else default})"


def setting_option(settings: type[BaseModel], key: str) -> Any:
    """The option of the setting's own name, checked with all other sources later."""
    name = f"--{key.replace('_', '-')}"
    return typer.Option(name, help=setting_help(settings, key), show_default=False)
