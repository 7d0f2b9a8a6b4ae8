"""bench/: what ratios, the table and the pictures say of rounds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import plot
import pool_plot
from compare import Figures, Ratio, Rounds, ratios, table
from run import LARGE, WAYS, Bench, crowds, expand

from harness import Result

SVG = "{http://www.w3.org/2000/svg}"


def figures(**each: dict[str, Rounds]) -> Figures:
    return {"calls": dict(each)}


# Ratios ---------------------------------------------------------------------------------------


def test_a_ratio_is_of_one_round() -> None:
    """A machine that is slow in a round is so for both: medians of each would say 0.5 and 2."""
    found = ratios("a_us", {"native": [10, 40, 20], "tcp": [20, 40, 80]}, "tcp")
    assert found == Ratio(median=0.5, least=0.25, most=1.0, rounds=3)


def test_more_of_a_rate_is_better() -> None:
    for name, expected in (("a_gb_s", 0.5), ("a_k_per_s", 0.5), ("fair_4_least", 0.5), ("a_ms", 2)):
        found = ratios(name, {"native": [8], "shm": [4]}, "shm")
        assert found is not None and found.median == expected


@pytest.mark.parametrize(
    ("native", "way"),
    [([], [1.0]), ([1.0], []), ([None, 1.0], [1.0]), ([0.0], [1.0]), ([1.0], [None])],
)
def test_rounds_that_lack_one_of_both_have_no_ratio(native: Rounds, way: Rounds) -> None:
    assert ratios("a_us", {"native": native, "tcp": way}, "tcp") is None


def test_a_gap_does_not_shift_the_rounds_behind_it() -> None:
    found = ratios("a_us", {"native": [1, 10, 100], "tcp": [None, 10, 100]}, "tcp")
    assert found == Ratio(median=1.0, least=1.0, most=1.0, rounds=2)


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (Ratio(0.96, 0.93, 0.99, 3), "0.96 ±0.03"),
        (Ratio(12.34, 11.0, 13.0, 3), "12.3 ±1.0"),
        (Ratio(123.4, 120.0, 130.0, 3), "123 ±5"),
        (Ratio(0.96, 0.96, 0.96, 1), "0.96"),
    ],
)
def test_how_a_ratio_is_shown(ratio: Ratio, said: str) -> None:
    assert str(ratio) == said


# The table ------------------------------------------------------------------------------------


def test_a_figure_has_its_ratios_and_their_spread_below_it() -> None:
    shown = table(figures(launch_us={"native": [4, 4, 4], "shm": [8, 4, 5]}), ["native", "shm"])
    assert [line.split() for line in shown] == [
        ["figure", "native", "shm"],
        ["--", "calls"],
        ["launch_us", "4", "5"],
        ["0.80", "±0.25"],
    ]


@pytest.mark.parametrize("count", range(1, 12))
def test_any_number_of_ways_is_in_80_columns(count: int) -> None:
    """With the six that it shows unless told otherwise, the first table had no room for names."""
    ways = [*WAYS, "ucx", "far50", "far200", "far1000", "more"][:count]
    name = "from_device_pageable_256_mib_gb_s"
    each: dict[str, Rounds] = {way: [1e6, 1.5e6] for way in ways}
    shown = table(figures(**{name: each}), ways)
    assert max(map(len, shown)) < 80
    heads = [line.split()[1:] for line in shown if line.startswith("figure")]
    assert list(dict.fromkeys(sum(heads, []))) == ways
    assert all(head[0] == "native" for head in heads)
    rows = [line.split()[0] for line in shown[2:4]]
    assert rows == ["from_device_pageable_", "256_mib_gb_s"]


def test_a_way_that_has_no_figure_shows_so() -> None:
    shown = table(figures(idle_worker_mib={"tcp": [1.5]}), ["native", "shm", "tcp"])
    assert shown[2].split() == ["idle_worker_mib", "-", "-", "1.5"]
    assert len(shown) == 3


def test_what_programs_say_is_kept_by_round(tmp_path: Path) -> None:
    server: Any = SimpleNamespace()
    bench = Bench(server, server, soft=False, scratch=tmp_path, lanes="")
    saved: list[int] = []
    bench.save = lambda: saved.append(bench.turn)
    for turn, said in enumerate(({"figures": {"a_ms": 1}}, None, {"a_ms": 3, "b_ms": 4})):
        bench.turn = turn
        result = Result(1 if said is None else 0, f"a line\n{json.dumps(said)}\n", "it broke")
        bench.take("calls", "later_", "tcp", result)
    assert bench.figures == {
        "calls": {"later_a_ms": {"tcp": [1.0, None, 3.0]}, "later_b_ms": {"tcp": [None, None, 4.0]}}
    }
    assert bench.troubles == ["later_ tcp: exit code 1 ['it broke']"]
    assert saved == [0, 2]  # so that a run that is ended later has them


def test_answers_that_differ_and_programs_that_fail_are_troubles(tmp_path: Path) -> None:
    server: Any = SimpleNamespace()
    bench = Bench(server, server, soft=False, scratch=tmp_path, lanes="")
    said = {"figures": {}, "results": {"loss": [0.5]}, "skipped": {"two": "needs 2 GPUs"}}
    other = {**said, "results": {"loss": [0.6]}, "troubles": {"llama": "it is lost"}}
    for way, each in (("native", said), ("shm", other)):
        bench.take("applications", "", way, Result(0, json.dumps(each), ""))
    assert bench.troubles == ["llama shm: it is lost", "loss shm: [0.6] is not [0.5]"]
    assert bench.skipped == {"two": "needs 2 GPUs"}


def test_each_delay_is_a_way() -> None:
    assert expand(["native", "far", "tcp"], [50, 200]) == ["native", "far50", "far200", "tcp"]
    assert expand(["native"], [50]) == ["native"]


def test_the_largest_crowd_needs_cores() -> None:
    assert max(crowds(2)) == 16 and max(crowds(15)) == 16 and max(crowds(16)) == LARGE == 64


# Pictures -------------------------------------------------------------------------------------

RESULTS: dict[str, Any] = {
    "device": "NVIDIA H200, 580.159",
    "host_cores": 16,
    "when": "2026-11-29T06:00:00Z",
    "asked": {"rounds": 3},
    "figures": {
        "driver calls": {
            "launch_us": {
                "native": [4.0, 4.0, 4.0],
                "shm": [8.0, 4.0, 5.0],
                "tcp": [4.0, 4.0, 4.0],
            },
            "free_us": {"native": [75.0], "shm": [1.0]},
            "event_us": {"native": [1.0], "tcp": [50.0]},
        },
        "idle": {"idle_worker_mib": {"shm": [1.0]}},
        "a < b & c": {"x_gb_s": {"native": [1.0, 1.0], "tcp": [0.2, 0.3]}},
    },
}


def drawn(results: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(plot.plot(results))


def words(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def test_the_picture_has_a_row_for_each_figure_with_a_ratio() -> None:
    picture = drawn(RESULTS)
    rows = [row.findtext(f"{SVG}title") for row in picture.iter(f"{SVG}g")]
    assert rows == [
        "driver calls, launch_us: shm 0.80 (0.50 to 1.00); tcp 1.00 (1.00 to 1.00)",
        "driver calls, free_us: shm 75.00 (75.00 to 75.00)",
        "driver calls, event_us: tcp 0.02 (0.02 to 0.02)",
        "a < b & c, x_gb_s: tcp 0.25 (0.20 to 0.30)",
    ]
    assert {"driver calls", "a < b & c", "launch_us", "shm", "tcp", "1"} <= set(words(picture))
    assert "idle" not in words(picture)


def places(row: ElementTree.Element, way: int) -> tuple[float, list[float]]:
    """Where its mark is, and where the line of its spread begins and ends."""
    paths = [path for path in row.iter(f"{SVG}path") if path.get("class") == f"w{way}"]
    at = float(paths[0].attrib["transform"].partition("(")[2].split()[0])
    line = paths[1].attrib["d"] if len(paths) > 1 else ""
    return at, [float(part) for part in line.replace("M", "").replace("H", " ").split()][::2]


def test_marks_lie_where_their_ratios_are() -> None:
    launch, free, event, bulk = drawn(RESULTS).iter(f"{SVG}g")
    at, spread = places(launch, 0)
    assert at == pytest.approx(plot.AXIS(0.8), abs=0.1)
    assert spread == pytest.approx([plot.AXIS(0.5), plot.AXIS(1.0)], abs=0.1)
    assert places(launch, 1)[0] == pytest.approx(plot.AXIS(1.0), abs=0.1)
    assert places(launch, 1)[1] == []
    # Beyond an end of the axis, the number stands beside it.
    assert places(free, 0)[0] == plot.WIDTH - plot.RIGHT and "75" in words(free)
    assert places(event, 1)[0] == plot.LEFT and "0.02" in words(event)
    assert places(bulk, 1)[1] == pytest.approx([plot.AXIS(0.2), plot.AXIS(0.3)], abs=0.1)
    assert plot.AXIS(1.0) == pytest.approx((plot.LEFT + plot.WIDTH - plot.RIGHT) / 2)


@pytest.mark.parametrize(
    "text",
    [
        plot.plot(RESULTS),
        pool_plot.plot(
            [
                {"database": name, "gpus": gpus, **{key: 3.0 for key, *_ in pool_plot.LINES}}
                for name in pool_plot.COLOURS
                for gpus in (1000, 10000)
            ]
        ),
        pool_plot.plot([]),
    ],
    ids=["ratios", "pool", "nothing"],
)
def test_pictures_are_their_own_background_and_say_what_they_show(text: str) -> None:
    picture = ElementTree.fromstring(text)
    assert picture.get("role") == "img"
    named = {element.get("id"): element.text for element in picture if element.get("id")}
    assert set(named) == set(picture.attrib["aria-labelledby"].split()) and named["title"]
    size = picture.attrib["viewBox"].split()[2:]
    paper = next(element for element in picture if element.get("class") == "paper")
    assert [paper.get("width"), paper.get("height")] == size
    assert "prefers-color-scheme:dark" in text and "#fff" in text
    assert all(
        float(element.attrib["y"]) <= float(size[1]) for element in picture.iter(f"{SVG}text")
    )


def test_a_picture_is_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No date and no other order: the same results give the same bytes."""
    results, out = tmp_path / "results.json", tmp_path / "plot.svg"
    results.write_text(json.dumps(RESULTS))
    monkeypatch.setattr(sys, "argv", ["plot.py", str(results), "--out", str(out)])
    assert plot.main() == 0
    assert out.read_text() == plot.plot({**RESULTS, "when": "2031-01-01T00:00:00Z"})
    assert "2026" not in out.read_text()
    assert "shm: 2 figures, 0.80 to 75.00, median 37.90" in out.read_text()
    some = [*sys.argv, "--sections", "driver calls"]
    monkeypatch.setattr(sys, "argv", some)
    assert plot.main() == 0 and "a &lt; b" not in out.read_text()


def test_results_without_a_ratio_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    results.write_text(json.dumps({**RESULTS, "figures": {"idle": RESULTS["figures"]["idle"]}}))
    monkeypatch.setattr(sys, "argv", ["plot.py", str(results), "--out", str(tmp_path / "no.svg")])
    with pytest.raises(SystemExit):
        plot.main()
    assert "no figure with native" in capsys.readouterr().err
    assert not (tmp_path / "no.svg").exists()


# The page -------------------------------------------------------------------------------------

TABLES = """\
before
<!-- bench/plot.py --page writes this -->
NVIDIA H200, 580.159, 16 cores, 2026-11-29; rounds: 3. Medians:

| driver calls | native | shm | ratio | tcp | ratio |
| --- | ---: | ---: | ---: | ---: | ---: |
| `launch_us` | 4 | 5 | 0.80 ±0.25 | 4 | 1.00 ±0.00 |
| `free_us` | 75 | 1 | 75.0 |  |  |
| `event_us` | 1 |  |  | 50 | 0.02 |

| idle | shm |
| --- | ---: |
| `idle_worker_mib` | 1 |

| a < b & c | native | tcp | ratio |
| --- | ---: | ---: | ---: |
| `x_gb_s` | 1 | 0.25 | 0.25 ±0.05 |
<!-- and this is its end -->
after
"""


def test_a_page_gets_new_tables_between_its_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, out, page = (tmp_path / name for name in ("r.json", "r.svg", "page.md"))
    results.write_text(json.dumps(RESULTS))
    page.write_text(f"before\n{plot.BEGIN}\n| old | table |\n{plot.END}\nafter\n")
    given = ["plot.py", str(results), "--out", str(out), "--page", str(page)]
    monkeypatch.setattr(sys, "argv", given)
    for _ in range(2):
        assert plot.main() == 0
        assert page.read_text() == TABLES


def test_runs_of_other_sections_are_shown_together() -> None:
    start = {"start": {"first_ms": {"native": [1.0], "shm": [2.0]}}}
    more = {**RESULTS, "asked": {"rounds": 1}, "figures": start}
    both = plot.combined([RESULTS, more])
    assert list(both["figures"]) == [*RESULTS["figures"], "start"]
    assert both["rounds"] == "3, 1"
    assert plot.combined([RESULTS, {**more, "asked": {"rounds": 3}}])["rounds"] == "3"
    for other, part in ((RESULTS, "two runs have"), ({**more, "device": "H100"}, "runs of")):
        with pytest.raises(ValueError, match=part):
            plot.combined([RESULTS, other])


def test_our_page_has_a_place_for_them() -> None:
    docs = Path(plot.__file__).resolve().parents[1] / "docs"
    assert "| driver calls | native" in plot.with_tables(
        (docs / "benchmarks.md").read_text(encoding="utf-8"), plot.combined([RESULTS])
    )
    with pytest.raises(ValueError, match="lacks"):
        plot.with_tables("a page of others", plot.combined([RESULTS]))
