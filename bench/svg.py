"""What the plots have in common: pictures that are their own background, light or dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from html import escape

#: A viewer that is dark says so; without one that does, it is as on paper.
STYLE = (
    ":root{--paper:#fff;--ink:#1f2328;--rule:#d0d7de}"
    "@media(prefers-color-scheme:dark){:root{--paper:#0d1117;--ink:#e6edf3;--rule:#3d444d}}"
    ".paper{fill:var(--paper)}text{fill:var(--ink)}.rule{stroke:var(--rule);fill:none}"
)


def log_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Where a value lies between two ends of an axis; what is beyond them lies at them."""
    first, last = math.log(low), math.log(high)

    def place(value: float) -> float:
        part = (math.log(min(max(value, low), high)) - first) / (last - first)
        return start + part * (end - start)

    return place


def text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}"{at}{more}>{escape(words)}</text>'


def note(words: str) -> str:
    """What a pointer that rests on its group is shown."""
    return f"<title>{escape(words)}</title>"


def picture(
    size: tuple[int, int], title: str, said: str, parts: Iterable[str], style: str = ""
) -> str:
    """The whole file. Who cannot see it hears the title, and what is `said` of it."""
    width, height = size
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' aria-labelledby="title said" font-family="sans-serif" font-size="12">'
    )
    about = f'<title id="title">{escape(title)}</title><desc id="said">{escape(said)}</desc>'
    paper = f'<rect class="paper" width="{width}" height="{height}"/>'
    lines = [head, about, f"<style>{STYLE}{style}</style>", paper, *parts, "</svg>"]
    return "\n".join(lines) + "\n"
