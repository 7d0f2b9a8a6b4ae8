"""The picture of a run of bench/run.py: how fast each way is against native, as SVG.

    python bench/plot.py RESULTS.json … [--out docs/benchmarks.svg] [--sections "driver calls" …]
                         [--page docs/benchmarks.md]

A row is a figure, a mark is a way's median over the rounds, and the line through it goes from the
round with the least ratio to the one with the most. The axis is logarithmic: right of 1 is faster
than native. What lies beyond its ends is drawn there with its number. The same results give the
same bytes. --page writes the same figures as tables into a page, between two comments. Results of
several runs on one machine, each of other sections, are shown together.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import Figures, Ratio, markdown, ratios
from svg import log_scale, note, picture, text

LEFT, RIGHT, WIDTH, TOP, BOTTOM = 230, 76, 820, 58, 10
LOWEST, HIGHEST = 0.1, 10.0
TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
#: Of a way within its row, of a row beside its ways, and of a section's name.
LANE, ROW, HEAD = 6, 8, 26
#: Each way has a colour, on white and on black, and a form: one of them is enough.
COLOURS = (
    ("#0969da", "#58a6ff"),
    ("#bc4c00", "#f0883e"),
    ("#1a7f37", "#3fb950"),
    ("#8250df", "#bc8cff"),
    ("#bf3989", "#f778ba"),
    ("#57606a", "#b1bac4"),
)
FORMS = (
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "M-3-3h6v6h-6z",
    "M0-4l4 4l-4 4l-4-4z",
    "M0-4l4 7h-8z",
    "M0 4l4-7h-8z",
)

#: What encloses a page's tables.
BEGIN, END = "<!-- bench/plot.py --page writes this -->", "<!-- and this is its end -->"

AXIS = log_scale(LOWEST, HIGHEST, LEFT, WIDTH - RIGHT)


@dataclass(frozen=True)
class Row:
    """A figure that some ways have beside native."""

    section: str
    name: str
    ratios: dict[str, Ratio]

    def said(self) -> str:
        each = self.ratios.items()
        parts = (f"{w} {r.median:.2f} ({r.least:.2f} to {r.most:.2f})" for w, r in each)
        return f"{self.section}, {self.name}: {'; '.join(parts)}"


def rows_of(figures: Figures, sections: list[str]) -> list[Row]:
    rows = []
    for section, names in figures.items():
        if sections and section not in sections:
            continue
        for name, each in names.items():
            found = {way: ratios(name, each, way) for way in each if way != "native"}
            there = {way: ratio for way, ratio in found.items() if ratio is not None}
            rows += [Row(section, name, there)] if there else []
    return rows


def colours(ways: list[str]) -> str:
    """Classes of the ways, w0 and up."""
    light, dark = [], []
    for index, _ in enumerate(ways):
        white, black = COLOURS[index % len(COLOURS)]
        light.append(f".w{index}{{fill:{white};stroke:{white}}}")
        dark.append(f".w{index}{{fill:{black};stroke:{black}}}")
    return "".join([*light, "@media(prefers-color-scheme:dark){", *dark, "}"])


def form(index: int, x: float, y: float) -> str:
    place = f'transform="translate({x:.1f} {y:.1f})"'
    return f'<path class="w{index}" d="{FORMS[index % len(FORMS)]}" {place}/>'


def mark(index: int, ratio: Ratio, y: float) -> list[str]:
    low, high = AXIS(ratio.least), AXIS(ratio.most)
    parts = [form(index, AXIS(ratio.median), y)]
    if high - low >= 0.1:
        parts.append(f'<path class="w{index}" d="M{low:.1f} {y:.1f}H{high:.1f}"/>')
    return parts


def beyond(row: Row, y: float) -> list[str]:
    """The numbers of marks that lie at an end of the axis, in the order of their ways."""
    medians = [ratio.median for ratio in row.ratios.values()]
    low = [f"{value:.2g}" for value in medians if value < LOWEST]
    high = [f"{value:.0f}" for value in medians if value > HIGHEST]
    sides = ((LEFT, low), (WIDTH - RIGHT, high))
    small = ' font-size="10"'
    return [text(x + 8, y, ", ".join(numbers), more=small) for x, numbers in sides if numbers]


def grid(bottom: float) -> list[str]:
    parts = []
    for tick in TICKS:
        heavy = ' stroke-width="2.5"' if tick == 1.0 else ""
        parts.append(f'<path class="rule"{heavy} d="M{AXIS(tick):.1f} {TOP}V{bottom:g}"/>')
        parts.append(text(round(AXIS(tick), 1), TOP - 6, f"{tick:g}", "middle"))
    return parts


def legend(ways: list[str]) -> list[str]:
    parts, x = [], float(LEFT)
    for index, way in enumerate(ways):
        parts += [form(index, x + 4, 30), text(x + 12, 34, way)]
        x += 34 + 7 * len(way)
    return parts


def plot(results: dict[str, Any], sections: list[str] | None = None) -> str:
    rows = rows_of(results["figures"], sections or [])
    ways = list(dict.fromkeys(way for row in rows for way in row.ratios))
    parts: list[str] = []
    y, section = float(TOP), ""
    for row in rows:
        if row.section != section:
            section = row.section
            parts.append(text(8, y + HEAD - 8, section, more=' font-weight="bold"'))
            y += HEAD
        lanes = LANE * max(len(row.ratios), 2)
        parts.append(f"<g>{note(row.said())}")
        parts.append(text(LEFT - 10, y + lanes / 2 + 4, row.name, "end"))
        parts += beyond(row, y + lanes / 2 + 4)
        for lane, (way, ratio) in enumerate(row.ratios.items()):
            parts += mark(ways.index(way), ratio, y + LANE * (lane + 0.5))
        parts.append("</g>")
        y += lanes + ROW
    device = re.split(r" \(|,", results["device"])[0]
    title = f"How fast against native on one {device}: 1 is as fast, 0.5 takes twice as long"
    head = [text(8, 16, title), *legend(ways)]
    size = (WIDTH, int(y + BOTTOM))
    return picture(size, title, summary(rows, ways), [*head, *grid(y), *parts], colours(ways))


def summary(rows: list[Row], ways: list[str]) -> str:
    parts = []
    for way in ways:
        mine = [row.ratios[way].median for row in rows if way in row.ratios]
        least, most = min(mine), max(mine)
        middle = statistics.median(mine)
        parts.append(f"{way}: {len(mine)} figures, {least:.2f} to {most:.2f}, median {middle:.2f}")
    return "; ".join(parts) or "no figures"


def combined(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """As if one run had measured all sections; ValueError where they do not belong together."""
    figures: Figures = {}
    for run in runs:
        if run["device"] != runs[0]["device"]:
            raise ValueError(f"runs of {runs[0]['device']} and of {run['device']}")
        if twice := figures.keys() & run["figures"].keys():
            raise ValueError(f"two runs have the section {min(twice)}")
        figures |= run["figures"]
    rounds = ", ".join(dict.fromkeys(str(run["asked"]["rounds"]) for run in runs))
    return {**runs[0], "figures": figures, "rounds": rounds}


def with_tables(page: str, results: dict[str, Any]) -> str:
    """The page with tables of these results where it has others."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    where = f"{results['device']}, {results['host_cores']} cores, {results['when'][:10]}"
    said = f"{where}; rounds: {results['rounds']}. Medians:"
    lines = [BEGIN, said, "", *markdown(results["figures"]), END]
    return before + "\n".join(lines) + after


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="what bench/run.py has written")
    default = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.svg"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--sections", nargs="+", default=[], help="only these, by their names")
    parser.add_argument("--page", type=Path, help="whose tables are written anew, of all sections")
    given = parser.parse_args()
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in given.results]
    try:
        results = combined(runs)
    except ValueError as error:
        parser.error(str(error))
    if not rows_of(results["figures"], given.sections):
        parser.error("there is no figure with native beside another way")
    given.out.write_text(plot(results, given.sections), encoding="utf-8")
    print(given.out)
    if given.page is not None:
        page = with_tables(given.page.read_text(encoding="utf-8"), results)
        given.page.write_text(page, encoding="utf-8")
        print(given.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
