"""Settings as options of a command, with what they allow as their help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from gpupool_common.sizes import format_size

#: How descriptions of settings in bytes begin.
SIZE = "a size"


def setting_help(settings: type[BaseModel], key: str) -> str:
    """What is allowed, and what it is when nobody says."""
    field = settings.model_fields[key]
    default = field.get_default(call_default_factory=True)
    if default is None or default in ({}, ()) or isinstance(default, bool | BaseModel):
        return f"{field.description}"
    is_size = (field.description or "").startswith(SIZE)
    return f"{field.description} (default: {format_size(default) if is_size else default})"


def _option(settings: type[BaseModel], key: str) -> Any:
    """The option of a setting's own name; all sources are checked later, together."""
    name = key.replace("_", "-")
    is_switch = settings.model_fields[key].annotation is bool
    names = f"--{name}/--no-{name}" if is_switch else f"--{name}"
    option = typer.Option(names, help=setting_help(settings, key), show_default=False)
    return Annotated[(bool if is_switch else str) | None, option]


def with_settings(
    settings: type[BaseModel], command: Callable[..., None], leave_out: Collection[str] = ()
) -> Callable[..., None]:
    """``command`` with an option for every setting, which come to it as keywords.

    Its own options come first. Settings that only a file can have are in ``leave_out``.
    """
    own = inspect.signature(command, eval_str=True)
    parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(
            key,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_option(settings, key),
        )
        for key in settings.model_fields
        if key not in leave_out
    ]

    def run(**given: Any) -> None:
        command(**given)

    run.__doc__ = command.__doc__
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
