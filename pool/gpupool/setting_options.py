"""Settings as options of a command, with what they allow as their help."""

from __future__ import annotations

from typing import Any

import typer
from pydantic import BaseModel


def setting_help(settings: type[BaseModel], key: str) -> str:
    """What is allowed, and what it is when nobody says."""
    field = settings.model_fields[key]
    default = f" (default: {field.default})" if field.default is not None else ""
    return f"{field.description}{default}"


def setting_option(settings: type[BaseModel], key: str) -> Any:
    """The option of the setting's own name, checked with all other sources later."""
    name = f"--{key.replace('_', '-')}"
    return typer.Option(name, help=setting_help(settings, key), show_default=False)
