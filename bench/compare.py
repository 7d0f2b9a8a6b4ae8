"""What rounds of figures say about each way: ratios to native, round by round, and a table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

#: A figure of each round; None: that round has none.
Rounds = list[float | None]
#: section -> figure -> way -> rounds
Figures = dict[str, dict[str, dict[str, Rounds]]]

#: More of these is better; of all others, less.
RATES = ("_gb_s", "_tflops", "_k_per_s", "_least", "_jain")

#: Columns of the table, which has 79 with native and four ways beside it.
LABEL, CELL, WAYS_BESIDE = 24, 11, 5


@dataclass(frozen=True)
class Ratio:
    """How fast against native in rounds that have both: 1 is as fast, 0.5 takes twice as long."""

    median: float
    least: float
    most: float
    rounds: int

    def __str__(self) -> str:
        """±: half of what lies between the rounds."""
        digits = 2 if self.median < 9.995 else 1 if self.median < 99.95 else 0
        half = (self.most - self.least) / 2
        spread = f" ±{half:.{digits}f}" if self.rounds > 1 else ""
        return f"{self.median:.{digits}f}{spread}"


def is_rate(name: str) -> bool:
    return name.endswith(RATES)


def ratio(name: str, native: float, pooled: float) -> float | None:
    """None, where there is nothing to compare with."""
    if native <= 0 or pooled <= 0:
        return None
    return pooled / native if is_rate(name) else native / pooled


def ratios(name: str, each: dict[str, Rounds], way: str) -> Ratio | None:
    """Each round's own ratio: what disturbs a machine for a while disturbs both ways of a round."""
    pairs = zip(each.get("native", []), each.get(way, []), strict=False)
    both = [ratio(name, n, p) for n, p in pairs if n is not None and p is not None]
    found = [value for value in both if value is not None]
    if not found:
        return None
    return Ratio(statistics.median(found), min(found), max(found), len(found))


def middle(rounds: Rounds) -> float | None:
    there = [value for value in rounds if value is not None]
    return statistics.median(there) if there else None


def table(figures: Figures, ways: list[str]) -> list[str]:
    """Lines of at most 80 columns; many ways are several tables, each with native beside them."""
    native = [way for way in ways if way == "native"]
    pooled = [way for way in ways if way != "native"]
    most = WAYS_BESIDE - len(native)
    parts = [native + pooled[i : i + most] for i in range(0, len(pooled), most)] or [native]
    lines: list[str] = []
    for part in parts:
        lines += ([""] if lines else []) + _one_table(figures, part)
    return lines


def _one_table(figures: Figures, ways: list[str]) -> list[str]:
    lines = [f"{'figure':{LABEL}}" + "".join(f"{way:>{CELL}}" for way in ways)]
    for section, names in figures.items():
        shown = {name: each for name, each in names.items() if set(each) & set(ways)}
        lines += [f"-- {section}"] if shown else []
        for name, each in shown.items():
            lines += _rows(name, each, ways)
    return lines


def _rows(name: str, each: dict[str, Rounds], ways: list[str]) -> list[str]:
    """The medians, and the ratios to native below them."""
    first, rest = _halves(name)
    medians = [middle(each.get(way, [])) for way in ways]
    cells = [f"{m:.4g}" if m is not None else "-" for m in medians]
    found = [ratios(name, each, way) if way != "native" else None for way in ways]
    below = ["" if r is None else str(r) for r in found]
    rows = [(first, cells), (rest, below)]
    lines = [f"{head:{LABEL}}" + "".join(f"{c:>{CELL}}" for c in row) for head, row in rows]
    return [line.rstrip() for line in lines if line.strip()]


def _halves(name: str) -> tuple[str, str]:
    """A long name goes on in the second line, so that its unit is seen."""
    if len(name) < LABEL:
        return name, ""
    at = name.rfind("_", 1, LABEL - 2) + 1 or LABEL - 1
    return name[:at], f"  {name[at:]}"


def markdown(figures: Figures) -> list[str]:
    """A table of each section; a ratio stands behind its way's median, where native is there."""
    lines: list[str] = []
    for section, names in figures.items():
        ways = list(dict.fromkeys(way for each in names.values() for way in each))
        ways.sort(key=lambda way: way != "native")
        columns = [(way, False) for way in ways]
        if "native" in ways:
            columns = [
                (way, of) for way in ways for of in (False, True) if not of or way != ways[0]
            ]
        heads = [section, *("ratio" if of else way for way, of in columns)]
        lines += ["", f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * len(columns)}"]
        for name, each in names.items():
            cells = (_ratio(name, each, way) if of else _median(each, way) for way, of in columns)
            lines.append(f"| {' | '.join([f'`{name}`', *cells])} |")
    return lines[1:]


def _median(each: dict[str, Rounds], way: str) -> str:
    median = middle(each.get(way, []))
    return "" if median is None else f"{median:,.0f}" if median >= 999.5 else f"{median:.3g}"


def _ratio(name: str, each: dict[str, Rounds], way: str) -> str:
    found = ratios(name, each, way)
    return "" if found is None else str(found)
