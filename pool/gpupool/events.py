"""``gpupool events``: what happens in a pool, as it happens."""

from __future__ import annotations

import json
import signal
import time
from typing import Annotated

import typer

from gpupool.options import JsonOption
from gpupool.pool_client import Event, PoolClient
from gpupool.pool_options import pool_command
from gpupool.pool_show import when
from gpupool_common.errors import ConfigError, PoolAwayError
from gpupool_common.protocol import one_line

#: Before asking a manager again that has hung up.
PAUSE_SECONDS = 2.0


def events(
    client: PoolClient,
    kind: Annotated[str | None, typer.Option(help="how its kind begins, e.g. lease.")] = None,
    count: Annotated[int | None, typer.Option(help="end after so many")] = None,
    recent: Annotated[
        int, typer.Option(min=0, max=1000, help="begin with so many of the last ones")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show what happens in a pool, a line for each event."""
    if count is not None and count < 1:
        raise ConfigError(f"--count: {count} is not 1 or more")
    try:
        _follow(client, kind, count, recent, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None


def _follow(
    client: PoolClient, kind: str | None, count: int | None, recent: int, as_json: bool
) -> None:
    last: str | None = None
    shown = 0
    heard = False
    while True:
        try:
            for event in client.events(kind, last, recent if last is None else 0):
                heard = True
                last = event.id or last
                print(_as_json(event) if as_json else _as_line(event), flush=True)
                shown += 1
                if shown == count:
                    return
        except PoolAwayError:
            if not heard:
                raise  # it never was there: the address may be wrong
        heard = True
        time.sleep(PAUSE_SECONDS)


def _as_json(event: Event) -> str:
    return json.dumps({"id": event.id, "kind": event.kind, **event.data})


def _as_line(event: Event) -> str:
    data = dict(event.data)
    at, name, tenant = (data.pop(key, None) for key in ("at", "object", "tenant"))
    words = [when(at), event.kind, str(name or ""), f"tenant={tenant}" if tenant else ""]
    words += [f"{key}={value}" for key, value in data.items()]
    return one_line(" ".join(word for word in words if word))


def add_to(app: typer.Typer) -> None:
    pool_command(app, "events")(events)
