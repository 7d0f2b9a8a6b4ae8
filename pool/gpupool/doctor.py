"""``gpupool doctor``: what a program started from here would get, and what would go wrong."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpupool import doctor_machine, doctor_server, show
from gpupool.options import (
    JsonOption,
    ServerOption,
    ServerTokenOption,
    need_server,
    need_token,
    one_line_errors,
    token_file,
)
from gpupool.pool_address import choose
from gpupool.pool_options import CaOption, PoolOption, TokenFileOption, goes_to_pool
from gpupool.run import check_servers
from gpupool_common import __version__, paths
from gpupool_common.errors import GpupoolError
from gpupool_common.findings import Finding, lines
from gpupool_common.protocol import one_line

if TYPE_CHECKING:
    from gpupool.pool_client import PoolClient
#: How a manager begins to say that a request would get its GPUs at once.
GRANTED = "it would be "


def doctor(
    context: typer.Context,
    server: ServerOption = None,
    token: ServerTokenOption = None,
    pool: PoolOption = None,
    pool_token_file: TokenFileOption = None,
    ca: CaOption = None,
    no_session: Annotated[
        bool, typer.Option("--no-session", help="start no program that measures, on each GPU")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what programs get that are started here, and what is wrong.

    It looks at the driver library and who loads it, variables, limits, the server or the pool,
    the network, and measures a session. The exit code is 0 if nothing is wrong, else 1.
    """
    measured: doctor_server.Measured = {}
    with one_line_errors():
        home = paths.find_home()
        here = [
            doctor_machine.check_library(home),
            *(doctor_machine.check_loader(home) if _is_whole(home) else ()),
            doctor_machine.check_variables(os.environ),
            *doctor_machine.check_limits(),
        ]
        if goes_to_pool(context, pool):
            there = _check_pool(pool, pool_token_file, ca)
        else:
            there = _check_server(None if no_session else home, server, token, measured)
    if as_json:
        show.print_json(_as_json(here, there, measured))
    else:
        print("\n".join(["this machine", *lines(here), "GPUs", *lines(there)]))
    if not all(finding.good for finding in (*here, *there)):
        raise typer.Exit(1)


def _is_whole(home: paths.Home) -> bool:
    return (home.root / paths.CLIENT_LIBRARY).is_file()


def _check_server(
    home: paths.Home | None, server: str | None, token: str | None, measured: dict[str, Any]
) -> list[Finding]:
    """``home``: whose library opens a session; None: no session is wanted."""
    try:
        urls = check_servers(need_server(server, "; gpupool run --local needs none"))
        secret = need_token(token, urls)
    except GpupoolError as error:
        return [Finding("server", False, str(error))]
    found = doctor_server.check_servers(urls, secret, os.environ)
    if not all(each.good for each in found):
        return found
    found += doctor_server.check_network(urls, measured)
    if home is not None and _is_whole(home):
        shown = secret if token else token_file() or secret
        found += doctor_server.check_session(home, urls, shown, measured)
    return found


def _check_pool(pool: str | None, file: Path | None, ca: Path | None) -> list[Finding]:
    """A session wants a lease: it is measured where there is one."""
    from gpupool.pool_client import PoolClient

    try:
        with PoolClient(choose(pool, file, ca)) as client:
            release = one_line(str(client.get("/health").get("version", "?")))
            gpus = one_line(str(client.get("/ready").get("gpus", "?")))
            client.all("/leases", most=1)  # what everybody with a good token may ask
            request = _check_request(client)
    except GpupoolError as error:
        return [Finding("pool", False, str(error))]
    other = "" if release == __version__ else f" (here it is {__version__})"
    text = f"{client.url}: gpupool {release}{other}, {gpus} GPUs; the token is taken"
    more = "gpupool run -- gpupool doctor looks at the GPUs of a lease"
    return [Finding("pool", True, text), request, Finding("session", True, f"none: {more}")]


def _check_request(client: PoolClient) -> Finding:
    """What would come of a request with these variables now."""
    from gpupool.pool_request import PoolChoices, lease_body, pool_fields

    try:
        asked = lease_body(pool_fields(os.environ, {})[1], PoolChoices())
        decision = one_line(str(client.do("POST", "/leases/explain", asked).get("decision", "?")))
    except GpupoolError as error:
        return Finding("request", False, one_line(str(error)))
    return Finding("request", decision.startswith(GRANTED), decision)


def _as_json(here: list[Finding], there: list[Finding], measured: dict[str, Any]) -> dict[str, Any]:
    checks = [*here, *there]
    return {
        "healthy": all(check.good for check in checks),
        "checks": [asdict(check) for check in checks],
        "measured": measured,
    }


def add_to(app: typer.Typer) -> None:
    app.command("doctor")(doctor)
