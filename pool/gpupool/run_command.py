"""``gpupool run``: where a program's GPUs are to come from, and what it asks for."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gpupool import request_options
from gpupool.options import (
    ServerOption,
    ServerTokenOption,
    need_server,
    need_token,
    one_line_errors,
)
from gpupool.options import (
    token_file as environment_token_file,
)
from gpupool.pool_address import Where, choose, read_token
from gpupool.pool_options import (
    CaOption,
    PoolOption,
    TokenFileOption,
    goes_to_pool,
    on_command_line,
)
from gpupool.pool_request import FOREVER, PoolChoices, lease_body, pool_fields
from gpupool.run import (
    FORWARDED,
    LocalOptions,
    check_answers,
    check_servers,
    client_environment,
    local_server,
    replace_process,
    run_child,
    with_timeline,
)
from gpupool_common import paths, request_variables
from gpupool_common.errors import ConfigError

#: By what a program may be warned: what comes to the launcher and goes on to it.
WARNINGS = {number.name.removeprefix("SIG"): number for number in FORWARDED[:6]}

LOG_LEVELS = ("debug", "info", "warning", "error")


def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="what to run")],
    local: Annotated[
        bool, typer.Option("--local", help="start a server for this program alone, on this machine")
    ] = False,
    server: ServerOption = None,
    token: ServerTokenOption = None,
    pool: PoolOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    gpus: Annotated[str | None, typer.Option(help="how many GPUs it gets, 1..64")] = None,
    memory: Annotated[str | None, typer.Option(help="of each GPU, e.g. 8GiB")] = None,
    share: Annotated[str | None, typer.Option(help="of each GPU, e.g. 50% or 0.5")] = None,
    ceiling: Annotated[
        str | None, typer.Option(help="up to what it borrows idle compute, e.g. 90%")
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="0..25 slices, where the GPU's policy has weights")
    ] = None,
    priority: Annotated[
        str | None, typer.Option(help="high or normal; of a pool: 0..100, the highest first")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="share one request with others of this name; else a new one")
    ] = None,
    vcuda_core: Annotated[
        str | None, typer.Option(help="as vCUDA: percent of a GPU, or a multiple of 100")
    ] = None,
    vcuda_memory: Annotated[str | None, typer.Option(help="as vCUDA: units of 256 MiB")] = None,
    policy: Annotated[
        str | None, typer.Option(help="of a pool: binpack, spread or fragmentation")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="of a pool: a pattern of GPU models, e.g. 'NVIDIA H100*'")
    ] = None,
    capability: Annotated[
        str | None, typer.Option(help="of a pool: at least this compute capability, e.g. 8.0")
    ] = None,
    min_driver: Annotated[
        str | None, typer.Option(help="of a pool: hosts whose driver knows this CUDA, e.g. 12.4")
    ] = None,
    same_host: Annotated[
        bool, typer.Option("--same-host", help="of a pool: all GPUs on one host")
    ] = False,
    spread: Annotated[
        bool, typer.Option("--spread", help="of a pool: each GPU on another host")
    ] = False,
    label: Annotated[
        list[str] | None, typer.Option(help="of a pool: KEY=VALUE that its hosts must have")
    ] = None,
    uuid: Annotated[
        list[str] | None,
        typer.Option(help="of a pool: this GPU and no other; as `gpu list` has it"),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(help="of a pool: the longest time in its queue, e.g. 0, 30, 2h (forever)"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="of a pool: what the lease is shown as (the program's name)")
    ] = None,
    sessions: Annotated[
        str | None,
        typer.Option(help="of a pool: how many of its processes a host serves at once (any)"),
    ] = None,
    beyond_quota: Annotated[
        str | None,
        typer.Option(help="of a pool: what comes over the quota: refuse, wait, borrow (refuse)"),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="of a pool: the lease ends after so long, e.g. 30m, 2h (no limit)"),
    ] = None,
    soft: Annotated[
        bool, typer.Option("--soft", help="with --local: soft GPUs even where a real one is")
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="what the program does when, for ui.perfetto.dev"),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="of a pool: for whom, with an admin's token")
    ] = None,
    lease: Annotated[
        str | None, typer.Option(help="of a pool: join this lease, which somebody else keeps")
    ] = None,
    warn_signal: Annotated[
        str | None,
        typer.Option(help="of a pool: sent when a host is drained, or GPUs go back, e.g. USR1"),
    ] = None,
    log: Annotated[str | None, typer.Option(help="debug, info, warning or error")] = None,
) -> None:
    """Run a program on GPUs of a pool, a server or this machine."""
    options = {
        request_variables.GROUP: group,
        request_variables.GPUS: gpus,
        request_variables.MEMORY: memory,
        request_variables.SHARE: share,
        request_variables.CEILING: ceiling,
        request_variables.WEIGHT: weight,
        request_variables.VCUDA_CORE: vcuda_core,
        request_variables.VCUDA_MEMORY: vcuda_memory,
    }
    choices = PoolChoices(
        policy,
        model,
        capability,
        min_driver,
        same_host,
        spread,
        tuple(label or ()),
        None,
        wait,
        name,
        tenant=tenant,
        sessions=sessions,
        uuids=tuple(uuid or ()),
        lease=lease,
        warn_signal=warn_signal,
        beyond_quota=beyond_quota,
        time=time,
    )
    with one_line_errors():
        if log is not None and log not in LOG_LEVELS:
            raise ConfigError(f"--log: {log!r} is not one of {', '.join(LOG_LEVELS)}")
        if soft and not local:
            raise ConfigError("--soft is for --local; a server chooses its driver itself")
        if token_file is not None:
            token = read_token(token_file)
        given_env = with_timeline(os.environ, timeline)
        if goes_to_pool(context, pool, local):
            given = token_file is not None or on_command_line(context, "token")
            where = choose(pool, None, ca, token if given else None)
            code = _run_pool(
                command, where, replace(choices, priority=priority), options, given_env, log
            )
        else:
            _refuse(choices)
            env, asked = request_options.with_options(
                given_env, {**options, request_variables.PRIORITY: priority}
            )
            if local:
                count = int(asked["gpus"]) if "gpus" in asked else None
                code = _run_local(command, LocalOptions(soft, count, log or "warning"), env, log)
            else:
                code = _run_remote(command, server, token, env, log)
    raise typer.Exit(code)


def _name(command: list[str]) -> str:
    """A program's name, as far as a pool can show it."""
    return "".join(char for char in Path(command[0]).name if char.isprintable())[:64]


def _refuse(choices: PoolChoices) -> None:
    """What only a pool can do; to take it and do nothing would be a lie."""
    if choices.policy is not None:
        raise ConfigError(
            "--policy is for --pool: a GPU's policy is its operator's (gpupool gpu set);"
            " leave it out"
        )
    for option in choices.given():
        raise ConfigError(f"{option} is for --pool; a server has its own GPUs only")


def _run_pool(
    command: list[str],
    where: Where,
    choices: PoolChoices,
    options: Mapping[str, str | None],
    given: Mapping[str, str],
    log: str | None,
) -> int:
    from gpupool.pool_run import Run, run_in_lease, run_in_pool

    how = Run(log, _signal(choices.warn_signal))
    if choices.lease is not None:
        asked_too = [name for name in choices.given() if name not in ("--lease", "--warn-signal")]
        if asked_too or choices.priority or any(options.values()):
            raise ConfigError("--lease joins what a lease has; nothing can be asked for beside it")
        return run_in_lease(command, where, choices.lease, given, how)
    env, asked = pool_fields(given, options)
    body = lease_body(asked, replace(choices, name=choices.name or _name(command)))
    return run_in_pool(command, where, body, env, how, choices.wait in (None, FOREVER))


def _signal(name: str | None) -> signal.Signals | None:
    if name is None:
        return None
    if (found := WARNINGS.get(name.upper().removeprefix("SIG"))) is None:
        raise ConfigError(f"--warn-signal: {name!r} is not one of {', '.join(WARNINGS)}")
    return found


def _run_local(
    command: list[str], options: LocalOptions, env: Mapping[str, str], log: str | None
) -> int:
    home = paths.find_home()
    home.part(paths.CLIENT_LIBRARY)
    with local_server(options) as (url, token):
        return run_child(command, client_environment(home, url, token, env, log))


def _run_remote(
    command: list[str],
    server: str | None,
    token: str | None,
    env: Mapping[str, str],
    log: str | None,
) -> int:
    url = check_servers(need_server(server, ", or use --pool or --local"))
    secret = need_token(token, url)
    check_answers(url, secret, env)
    shown = secret if token else environment_token_file() or secret
    replace_process(command, client_environment(paths.find_home(), url, shown, env, log))
    raise AssertionError("execvpe returned")


def add_to(app: typer.Typer) -> None:
    app.command("run", context_settings={"allow_interspersed_args": False})(run)
