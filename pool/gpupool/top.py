"""``gpupool top``: who uses the GPUs, as bars that move."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpupool import show
from gpupool.admin import Admin
from gpupool.options import JsonOption, RunDirOption, one_line_errors
from gpupool.smi import limit
from gpupool.status import Budget, Gpu, Status, Tenant, ask_status
from gpupool_common.errors import UnreachableError

PERIOD = 1.0
_COMPUTE, _MEMORY = "green", "cyan"


def top(
    once: Annotated[bool, typer.Option("--once", help="show one frame and end")] = False,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch the GPUs of this machine's server; q or Ctrl-C ends it."""
    with one_line_errors(), contextlib.suppress(KeyboardInterrupt):
        admin = Admin(run_dir)
        status, answer = ask_status(admin)
        if as_json:
            _stream(admin, answer, once)
            return
        console = show.console()
        if once or not console.is_terminal:
            console.print(frame(status, console.width))
            return
        _watch(admin, status)


def _stream(admin: Admin, answer: dict[str, Any], once: bool) -> None:
    """A line of JSON a second."""
    print(json.dumps(answer), flush=True)
    while not once:
        time.sleep(PERIOD)
        print(json.dumps(ask_status(admin)[1]), flush=True)


def _watch(admin: Admin, status: Status) -> None:
    console = show.console()
    trouble = ""
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(frame(status, console.width, trouble), refresh=True)
            if keys.wait(PERIOD) == "q":
                return
            try:
                status, trouble = ask_status(admin)[0], ""
            except UnreachableError as error:
                # A server that restarts ends no session: what it says next is worth waiting for.
                trouble = str(error)


class _Keys:
    """The keyboard, where there is one."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def wait(self, seconds: float) -> str:
        """A key pressed within the time, or nothing."""
        if self._fd is None:
            time.sleep(seconds)
            return ""
        if not select.select([self._fd], [], [], seconds)[0]:
            return ""
        pressed = os.read(self._fd, 16).decode(errors="replace").lower()
        if not pressed:
            self._fd = None  # hung up: without this it would be ready for ever
        return "q" if "q" in pressed else pressed[:1]


@contextlib.contextmanager
def _keys() -> Iterator[_Keys]:
    if not sys.stdin.isatty():
        yield _Keys(None)
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield _Keys(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def frame(status: Status, width: int, trouble: str = "") -> Group:
    """Everything that is shown at one time."""
    sessions = f"{len(status.sessions)} session{'' if len(status.sessions) == 1 else 's'}"
    head = f"gpupool {status.version} on {status.host}, {sessions}"
    parts: list[Text | Table] = [Text(f"{head}, {time.strftime('%T')}", style="bold")]
    if trouble:
        parts.append(Text(trouble, style="bold red"))
    for gpu in status.gpus:
        parts += [Text(), _gpu(gpu, width)]
    if status.budgets:
        parts += [Text(), Text("Of this host, by tenant (sizes in GiB)"), _budgets(status)]
    return Group(*parts)


def _number(value: int) -> str:
    return str(value)


#: Heading, the budget's name, how an amount of it is written.
_BUDGETS: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("sessions", "sessions", _number),
    ("waiting", "pending", _number),
    ("host", "host_memory", show.gibibytes),
    ("pinned", "pinned_memory", show.gibibytes),
    ("disk", "disk", show.gibibytes),
    ("shares", "shares", _number),
    ("files", "open_files", _number),
    ("log", "log_lines", _number),
)


def _budgets(status: Status) -> Table:
    """What tenants have of the host: a line each, used and, where there is one, the limit."""
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=True, pad_edge=False)
    table.add_column("tenant", no_wrap=True, overflow="ellipsis", max_width=16)
    for heading, _, _ in _BUDGETS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("refused", justify="right", no_wrap=True)
    for tenant, budgets in sorted(status.budgets.items()):
        refused = sum(each.refused for each in budgets.values())
        cells = [_of_budget(budgets.get(name, Budget()), write) for _, name, write in _BUDGETS]
        table.add_row(Text(tenant), *cells, Text(str(refused), style="red" if refused else ""))
    return table


def _of_budget(budget: Budget, write: Callable[[int], str]) -> Text:
    full = budget.limit is not None and budget.used >= budget.limit
    limit = "" if budget.limit is None else f"/{write(budget.limit)}"
    return Text(write(budget.used) + limit, style="red" if full else "")


def _gpu(gpu: Gpu, width: int) -> Table:
    """A heading line, a line of the whole GPU, a line a tenant: name, compute, memory."""
    numbers = 2 * len("66.7% preemptive")
    name = min(24, max(10, width // 4))
    bars = max(4, (width - name - numbers - 4) // 2)
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False, pad_edge=False)
    table.add_column(width=name, no_wrap=True, overflow="ellipsis")
    for _ in range(2):
        table.add_column(width=bars, no_wrap=True)
        table.add_column(width=numbers // 2, no_wrap=True, overflow="ellipsis")
    table.add_row(
        Text(f"GPU {gpu.index} {gpu.name}", style="bold"),
        *_cells(
            gpu.utilisation_permille,
            gpu.policy,
            gpu.memory_used_bytes,
            gpu.memory_total_bytes,
            bars,
        ),
    )
    for tenant in gpu.tenants:
        table.add_row(
            Text(f"  {tenant.name}"),
            *_cells(
                tenant.utilisation_permille,
                f"of {limit(gpu, tenant)}",
                tenant.memory_used_bytes,
                gpu.allotted(tenant),
                bars,
                _alarm(gpu, tenant),
            ),
        )
    return table


def _alarm(gpu: Gpu, tenant: Tenant) -> str:
    """Red where nothing is left to allocate."""
    return "red" if tenant.memory_used_bytes >= gpu.allotted(tenant) else _MEMORY


def _cells(
    busy: int | None, beside: str, used: int, total: int, bars: int, style: str = _MEMORY
) -> tuple[Text, Text, Text, Text]:
    return (
        show.bar((busy or 0) / 1000, bars, _COMPUTE),
        Text(f"{show.part(busy)} {beside}"),
        show.bar(used / total if total else 0.0, bars, style),
        Text(f"{show.gibibytes(used)}/{show.gibibytes(total)} GiB"),
    )


def add_to(app: typer.Typer) -> None:
    app.command("top")(top)
