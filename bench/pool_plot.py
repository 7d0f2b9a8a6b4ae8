"""The plot of bench/pool.py: milliseconds against GPUs, both axes logarithmic, as SVG."""

from __future__ import annotations

import math
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 60, 190, 20, 40
COLOURS = {"sqlite": "#0b6", "postgresql": "#36c"}
LINES = (
    ("list_p99_ms", "list, p99", "2 4"),
    ("placed_p99_ms", "placement, p99", ""),
    ("decided_p99_ms", "decision alone, p99", "8 4"),
)
LOWEST, HIGHEST = 0.1, 200.0


def plot(rows: list[dict[str, Any]]) -> str:
    """One line a database and quantity; the lines of the targets in grey."""
    if not rows:
        return '<svg xmlns="http://www.w3.org/2000/svg"/>\n'
    sizes = sorted({row["gpus"] for row in rows})

    def x(gpus: float) -> float:
        low, high = math.log(sizes[0]), math.log(max(sizes[-1], sizes[0] + 1))
        return LEFT + (math.log(gpus) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(ms: float) -> float:
        low, high = math.log(LOWEST), math.log(HIGHEST)
        part = (math.log(min(max(ms, LOWEST), HIGHEST)) - low) / (high - low)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for ms in (0.1, 1.0, 10.0, 100.0):
        parts.append(
            f'<path d="M{LEFT} {y(ms):.1f}H{WIDTH - RIGHT}" stroke="#ccc"/>'
            f'<text x="{LEFT - 6}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms:g} ms</text>'
        )
    for gpus in sizes:
        parts.append(
            f'<text x="{x(gpus):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{gpus:,}</text>"
        )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">GPUs in the pool</text>')
    height = TOP + 6
    for database in dict.fromkeys(row["database"] for row in rows):
        mine = sorted((r for r in rows if r["database"] == database), key=lambda r: r["gpus"])
        for key, name, dashes in LINES:
            points = " ".join(f"{x(row['gpus']):.1f},{y(row[key]):.1f}" for row in mine)
            style = f'fill="none" stroke="{COLOURS[database]}" stroke-dasharray="{dashes}"'
            legend = WIDTH - RIGHT + 10
            parts.append(f'<polyline points="{points}" {style} stroke-width="2"/>')
            parts.append(f'<path d="M{legend} {height}h28" {style} stroke-width="2"/>')
            parts.append(f'<text x="{legend + 34}" y="{height + 4}">{name}</text>')
            height += 18
        parts.append(f'<text x="{WIDTH - RIGHT + 44}" y="{height + 4}">({database})</text>')
        height += 28
    return "\n".join([*parts, "</svg>"]) + "\n"
