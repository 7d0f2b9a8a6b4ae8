"""How commands that ask a pool's manager are written: their options, and how they are made."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from gpupool import contexts
from gpupool.options import one_line_errors
from gpupool.pool_address import POOL, choose
from gpupool_common.errors import ConfigError

if TYPE_CHECKING:
    from gpupool.pool_client import PoolClient

P = ParamSpec("P")

# No envvar here: an option that is given must be told from a variable that is set.
PoolOption = Annotated[
    str | None,
    typer.Option("--pool", metavar="URL", help=f"the pool, http://HOST:7780 or https://… ({POOL})"),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", help="a file with the token, instead of GPUPOOL_POOL_TOKEN"),
]
CaOption = Annotated[
    Path | None,
    typer.Option("--ca", help="whom to trust at https://, a PEM file (GPUPOOL_POOL_CA)"),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]

_COMMON: dict[str, Any] = {"pool": PoolOption, "token_file": TokenFileOption, "ca": CaOption}


def pool_command(
    app: typer.Typer, name: str
) -> Callable[
    [Callable[Concatenate[PoolClient, P], None]], Callable[Concatenate[PoolClient, P], None]
]:
    """A command that is given a connection to the pool, and has the options that choose it."""

    def add(
        function: Callable[Concatenate[PoolClient, P], None],
    ) -> Callable[Concatenate[PoolClient, P], None]:
        app.command(name)(_with_pool(function))
        return function

    return add


def _with_pool(function: Callable[..., None]) -> Callable[..., None]:
    def command(**given: Any) -> None:
        from gpupool.pool_client import PoolClient

        chosen = [given.pop(key) for key in _COMMON]
        with one_line_errors(), PoolClient(choose(*chosen)) as client:
            function(client, **given)

    # typer reads a command's parameters from its signature and from its annotations.
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [each.replace(annotation=hints[each.name], kind=kind) for each in own]
    parameters += [
        inspect.Parameter(key, kind, default=None, annotation=option)
        for key, option in _COMMON.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return command


def is_pool(pool: str | None, run_dir: Path | None) -> bool:
    """Whether a command that both a server and a pool understand is for a pool."""
    return pool is not None or (run_dir is None and _pool_is_known())


def _pool_is_known() -> bool:
    return bool(os.environ.get(POOL)) or contexts.of_pool() is not None


def on_command_line(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def goes_to_pool(context: typer.Context, pool: str | None, local: bool = False) -> bool:
    """Which of the places it is where a program is to run; options come before variables."""
    given = (("--local", local), ("--server", on_command_line(context, "server")))
    chosen = [flag for flag, is_given in given if is_given]
    chosen += ["--pool"] if pool is not None else []
    if len(chosen) > 1:
        raise ConfigError(f"{chosen[0]} and {chosen[1]} exclude each other")
    return pool is not None or (not chosen and _pool_is_known())
