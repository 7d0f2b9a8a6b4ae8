"""The plot of bench/pool.py: milliseconds against GPUs, both axes logarithmic, as SVG."""

from __future__ import annotations

from typing import Any

from svg import log_scale, picture, text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 60, 190, 20, 40
COLOURS = {"sqlite": "#0a6", "postgresql": "#47d"}
LINES = (
    ("list_p99_ms", "list, p99", "2 4"),
    ("placed_p99_ms", "placement, p99", ""),
    ("decided_p99_ms", "decision alone, p99", "8 4"),
)
LOWEST, HIGHEST = 0.1, 200.0
TITLE = "What placement and lists take, by the GPUs in the pool"


def plot(rows: list[dict[str, Any]]) -> str:
    """One line a database and quantity, on a grid of round times."""
    sizes = sorted({row["gpus"] for row in rows}) or [1]
    x = log_scale(sizes[0], max(sizes[-1], sizes[0] + 1), LEFT, WIDTH - RIGHT)
    y = log_scale(LOWEST, HIGHEST, HEIGHT - BOTTOM, TOP)
    parts = []
    for ms in (0.1, 1.0, 10.0, 100.0):
        parts.append(f'<path class="rule" d="M{LEFT} {y(ms):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(text(LEFT - 6, round(y(ms) + 4, 1), f"{ms:g} ms", "end"))
    for gpus in sizes:
        parts.append(text(round(x(gpus), 1), HEIGHT - BOTTOM + 18, f"{gpus:,}", "middle"))
    parts.append(text(LEFT, HEIGHT - 6, "GPUs in the pool"))
    height, said = TOP + 6, []
    for database in dict.fromkeys(row["database"] for row in rows):
        mine = sorted((r for r in rows if r["database"] == database), key=lambda r: r["gpus"])
        for key, name, dashes in LINES:
            points = " ".join(f"{x(row['gpus']):.1f},{y(row[key]):.1f}" for row in mine)
            style = f'fill="none" stroke="{COLOURS[database]}" stroke-dasharray="{dashes}"'
            legend = WIDTH - RIGHT + 10
            parts.append(f'<polyline points="{points}" {style} stroke-width="2"/>')
            parts.append(f'<path d="M{legend} {height}h28" {style} stroke-width="2"/>')
            parts.append(text(legend + 34, height + 4, name))
            said.append(f"{database}, {name}: {mine[-1][key]:.3g} ms at {mine[-1]['gpus']:,}")
            height += 18
        parts.append(text(WIDTH - RIGHT + 44, height + 4, f"({database})"))
        height += 28
    return picture((WIDTH, HEIGHT), TITLE, "; ".join(said), parts)
