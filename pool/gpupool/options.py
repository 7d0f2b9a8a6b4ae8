"""Options that several commands share, and how a command fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gpupool import contexts, request_options
from gpupool_common import request
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.sizes import parse_part, parse_size
from gpupool_common.text_file import read_text

#: What a program shows to servers, or the file that has it.
TOKEN, TOKEN_FILE = "GPUPOOL_TOKEN", "GPUPOOL_TOKEN_FILE"

RunDirOption = Annotated[
    Path | None,
    typer.Option("--run-dir", help="the server's run directory, if it is not the usual one"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of a table")]


ServerOption = Annotated[
    str | None,
    typer.Option(envvar="GPUPOOL_SERVER", help="tcp://HOST:PORT or unix:///PATH of the server"),
]
ServerTokenOption = Annotated[
    str | None,
    typer.Option(
        envvar=TOKEN,
        show_envvar=True,
        help="the server's token (seen by ps; prefer the variable)",
    ),
]


def need_server(server: str | None, more: str = "") -> str:
    """The server of an option or a variable, else of the context."""
    if not server and (saved := contexts.of_server()) is not None:
        return saved.server
    if not server:
        how = f"do it with --server, GPUPOOL_SERVER or gpupool login{more}"
        raise ConfigError(f"no server is named; {contexts.instead_of_a_server() or how}")
    return server


def token_file() -> Path | None:
    """Where the environment says that the token is, as the library reads it."""
    text = os.environ.get(TOKEN_FILE)
    return Path(text) if text and not os.environ.get(TOKEN) else None


def need_token(token: str | None, server: str) -> str:
    """The token of an option or a variable, else what the context has for this very server."""
    path = token_file()
    token = token.strip() if token else None
    if not token and path is not None:
        try:
            token = read_text(path).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{TOKEN_FILE}: {path} cannot be read: {error}") from None
    if not token and (saved := contexts.of_server()) is not None and saved.server == server:
        token = saved.token
    if not token:
        raise ConfigError("no token for the server is given; set GPUPOOL_TOKEN, or use --token")
    if any(len(one.split()) > 1 for one in token.split(",")):
        raise ConfigError(f"{TOKEN}: a token has no blank and no line's end within")
    return token


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Every error of ours is one line on stderr and its exit code: 2 if the user must change
    the command, what a shell gives for a program that cannot be started, see errors.py."""
    try:
        yield
    except GpupoolError as error:
        print(f"gpupool: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None


def read_size(option: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def read_compute(option: str, text: str) -> int:
    """Compute over several GPUs in thousandths of one: 2500 of ``250%``, ``250``, ``2.5``."""
    try:
        return parse_part(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def read_number(option: str, text: str, low: int, high: int) -> int:
    if not text.isascii() or not text.isdecimal() or not low <= int(text[:10]) <= high:
        raise ConfigError(f"{option}: {text!r} is not a whole number {low}..{high}")
    return int(text)


def read_seconds(option: str, text: str, most: float) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= most:
        raise ConfigError(f"{option}: {text!r} is not a number of seconds 0..{most:g}")
    return seconds


def read_request(options: Mapping[str, str | None]) -> dict[str, str]:
    """Options as fields of a request, by the rules that hold for programs' requests."""
    return request.fields(request_options.given_options(options), request_options.OPTIONS)
