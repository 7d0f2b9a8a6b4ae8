"""``gpupool session``: who runs, and limits that change while they run."""

from __future__ import annotations

import re
import sys
import time
from typing import Annotated, Any

import typer

from gpupool import show
from gpupool.admin import TIMEOUT, Admin
from gpupool.options import (
    JsonOption,
    RunDirOption,
    one_line_errors,
    read_number,
    read_request,
    read_seconds,
)
from gpupool.pool_address import choose
from gpupool.pool_client import PoolClient
from gpupool.pool_gpu import list_pool_sessions
from gpupool.pool_options import CaOption, PoolOption, TokenFileOption, is_pool
from gpupool.status import Session, Status, ask_status
from gpupool_common import request_variables
from gpupool_common.errors import ConfigError
from gpupool_common.sizes import short_size

#: A wait longer than this is a mistake; an operator can ask again.
MAX_WAIT = 86400.0

_SESSION = re.compile(r"[0-9a-f]{12}")
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}(/[A-Za-z0-9._-]{1,32})?")

app = typer.Typer(no_args_is_help=True, help="Show sessions and change their limits.")


@app.command("list")
def list_sessions(
    node: Annotated[str | None, typer.Option(help="of a pool: those on this host")] = None,
    lease: Annotated[str | None, typer.Option(help="of a pool: those of this lease")] = None,
    tenant: Annotated[str | None, typer.Option(help="of a pool: those of this tenant")] = None,
    run_dir: RunDirOption = None,
    pool: PoolOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the sessions of this machine's server, or of a pool (--pool)."""
    with one_line_errors():
        if is_pool(pool, run_dir):
            with PoolClient(choose(pool, token_file, ca)) as client:
                list_pool_sessions(client, node, lease, tenant, as_json)
            return
        if (node, lease, tenant) != (None, None, None):
            raise ConfigError("--node, --lease and --tenant are for --pool")
        status, answer = ask_status(Admin(run_dir))
    if as_json:
        tenants = {s.session: status.tenant_of(s.session) or None for s in status.sessions}
        sessions = answer.get("sessions", [])
        show.print_json([{"tenant": tenants[s["session"]], **s} for s in sessions])
        return
    columns = ("session", "tenant", "program", "client", "GPUs", "memory", "state", "age")
    rows = [_row(status, session) for session in status.sessions]
    show.wide_console().print(show.plain_table(columns, rows))


def _row(status: Status, session: Session) -> tuple[Any, ...]:
    memory = session.memory_bytes
    return (
        session.session,
        status.tenant_of(session.session) or "?",
        session.program,
        f"{session.client_host}:{session.client_pid}",
        ",".join(map(str, session.devices)),
        "?" if memory is None else short_size(memory),
        session.state,
        show.age(time.time() - session.created),
    )


@app.command("set")
def set_session(
    whom: Annotated[str, typer.Argument(metavar="ID|TENANT/GROUP", help="session or tenant")],
    memory: Annotated[str | None, typer.Option(help="per GPU, e.g. 8GiB")] = None,
    wait: Annotated[
        str | None,
        typer.Option(help="seconds to wait until the memory in use fits under a smaller limit"),
    ] = None,
    weight: Annotated[str | None, typer.Option(help="0..25 of the GPU's slices")] = None,
    share: Annotated[str | None, typer.Option(help="part of the GPU, e.g. 50% or 0.5")] = None,
    ceiling: Annotated[str | None, typer.Option(help="most that it may borrow up to")] = None,
    priority: Annotated[str | None, typer.Option(help="high or normal")] = None,
    gpu: Annotated[str | None, typer.Option(help="on this GPU only")] = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change what a session's group, or a tenant, may have.

    At once, while it runs. Always of this machine's server: what a pool's lease has is changed by
    `gpupool lease resize`.
    """
    with one_line_errors():
        asked = read_request(
            {
                request_variables.MEMORY: memory,
                request_variables.SHARE: share,
                request_variables.CEILING: ceiling,
                request_variables.WEIGHT: weight,
                request_variables.PRIORITY: priority,
            }
        )
        if not asked:
            raise ConfigError(
                "say what to set: --memory, --share, --ceiling, --weight or --priority"
            )
        if wait is not None and memory is None:
            raise ConfigError("--wait is for --memory: nothing else has to wait")
        question = {"do": "tenant-set", **_read_whom(whom), **_values(asked)}
        if gpu is not None:
            question["gpu"] = read_number("--gpu", gpu, 0, 63)
        seconds = 0.0 if wait is None else read_seconds("--wait", wait, MAX_WAIT)
        if wait is not None:
            question["wait"] = seconds
        answer = Admin(run_dir).ask(question, timeout=TIMEOUT + seconds)
    if note := answer.get("note"):
        print(f"gpupool: {note}", file=sys.stderr)
    if as_json:
        show.print_json(answer)


def _read_whom(text: str) -> dict[str, str]:
    if _SESSION.fullmatch(text):
        return {"session": text}
    if _TENANT.fullmatch(text):
        return {"tenant": text}
    raise ConfigError(f"{text!r} is neither a session's ID nor TENANT or TENANT/GROUP")


#: What the admin socket calls a field of a request.
_ADMIN = {
    "memory": "memory_bytes",
    "share": "share_permille",
    "ceiling": "ceiling_permille",
    "priority": "high_priority",
}


def _values(asked: dict[str, str]) -> dict[str, Any]:
    """Fields of a request as the admin socket has them."""
    values: dict[str, Any] = {_ADMIN.get(key, key): int(value) for key, value in asked.items()}
    if "high_priority" in values:
        values["high_priority"] = bool(values["high_priority"])
    return values
