"""``gpupool login``: a place and its token, kept for the commands that follow."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gpupool import contexts
from gpupool.contexts import Context
from gpupool.options import one_line_errors
from gpupool.pool_address import Where, check_plain, check_url, read_token
from gpupool.pool_client import PoolClient
from gpupool.run import check_answers, check_servers
from gpupool_common import fingerprint as fingerprints
from gpupool_common.ask import Address, split_tcp
from gpupool_common.errors import ConfigError


def login(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="a pool, https://HOST[:7780], or servers, tcp://HOST:PORT[?key=…]"
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="what it is to be called (the host's name)")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="a file with the token; else it is asked for, or on stdin")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="whom to trust at https://, a PEM file; its path is kept")
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(help="of the pool's certificate: gpupool-manager certificate fingerprint"),
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="do not ask there whether the token is taken")
    ] = False,
) -> None:
    """Keep a pool or a server and its token for all commands.

    They go into ~/.config/gpupool/config.toml (mode 0600; GPUPOOL_CONFIG names another file).
    Options of a command come before variables, and variables before this file.
    """
    with one_line_errors():
        is_pool = url.startswith(("http://", "https://"))
        context = _of_pool(url, ca, fingerprint) if is_pool else _of_server(url, ca, fingerprint)
        called = name or _host(context)
        if contexts.NAME.fullmatch(called) is None:
            raise ConfigError(
                f"--name: {called!r} is not of letters, digits, '.', '_' and '-', 64 at most"
            )
        path = contexts.default_path()
        contexts.load(path)  # one that is wrong is said before anybody types a token
        token = read_token(token_file) if token_file is not None else _ask(context.place)
        context = contexts.with_token(context, token)
        if not no_check:
            _try(context)
        contexts.change(path, lambda known: known.with_one(called, context))
    print(f"{called} is the current context now ({path})")


def _of_pool(url: str, ca: Path | None, fingerprint: str | None) -> Context:
    checked = check_url("URL", url)
    check_plain("URL", checked)
    try:
        pinned = fingerprints.parse(fingerprint) if fingerprint else ""
    except ValueError:
        raise ConfigError(
            "--fingerprint: is not sha256: and 64 hexadecimal digits, as this prints it:"
            " gpupool-manager certificate fingerprint"
        ) from None
    return Context(pool=checked, ca=str(ca.absolute()) if ca else "", fingerprint=pinned)


def _of_server(url: str, ca: Path | None, fingerprint: str | None) -> Context:
    if ca is not None or fingerprint:
        raise ConfigError("--ca and --fingerprint are for a pool; a server's key is in its URL")
    return Context(server=check_servers(url))


def _host(context: Context) -> str:
    """What a context is called whom nobody gave a name."""
    if context.pool:
        return urlsplit(context.pool).hostname or ""
    endpoint = Address.parse(context.server.split(",")[0]).endpoint
    return split_tcp(endpoint)[0] if endpoint.startswith("tcp://") else "local"


def _ask(place: str) -> str:
    """The token, from a terminal without showing it, else the first line of stdin."""
    if sys.stdin.isatty():
        text = getpass.getpass(f"Token for {place}: ")
    else:
        text = sys.stdin.readline(8192)
    token = text.strip()
    if not token:
        raise ConfigError("no token was given; type it, write it to stdin, or use --token-file")
    if not all("!" <= char <= "~" for char in token):
        raise ConfigError("that is no token (one word of printable ASCII)")
    return token


def _try(context: Context) -> None:
    """An exception where commands would fail, too."""
    if context.server:
        check_answers(context.server, context.token, {})
        return
    ca = Path(context.ca) if context.ca else None
    with PoolClient(Where(context.pool, context.token, ca, context.fingerprint or None)) as client:
        client.all("/leases", most=1)


def add_to(app: typer.Typer) -> None:
    app.command("login")(login)
