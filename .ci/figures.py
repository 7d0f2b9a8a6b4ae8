"""Count what the code is held to, and fail where a figure is worse than .ci/figures.toml.

    figures.py [--json] [--show FIGURE] [--tighten]

`--show` lists what a figure counts, one place a line. `--tighten` writes today's figures
into the file wherever they are better than what stands there. Python standard library only.

A function is what stands in a hand-written file under its name, or under the name of its
handler; what the tree does not define is generated. Lines of a function are all from its
first to its last. Generated files, golden files and the build folder count nowhere.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from c_source import CFunction, CSource, CSourceError

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ".ci/figures.toml"

FUNCTION_LINES = 60
FILE_LINES = 500
TWIN_LINES = 6  # what is shorter may be the same by chance

#: The source and the tests, and where the parts of the source are.
SOURCE = ("client_lib", "server", "proto", "pool", "bench", ".ci")
TESTS = ("tests",)
CLIENT, WORKER, SOFTGPU = "client_lib", "server/worker", "server/softgpu"
NOT_OURS = {"golden", "build", "__pycache__"}

#: Modes of entries whose message the worker answers, with a handler.
SENT = {"cached", "async", "async-create", "sync"}


@dataclass(frozen=True)
class Entry:
    """What the spec says of one entry point or message."""

    name: str
    group: str  # its file's stem, which is the name of its C file on each side
    mode: str
    files: dict[str, str]  # by side, where the spec names another file

    def home(self, side: str) -> str:
        """The stem of the file that its function belongs to."""
        return self.files.get(side, self.group)


@dataclass(frozen=True)
class Place:
    """One thing that a figure counts."""

    path: Path
    line: int
    text: str

    def show(self, root: Path) -> str:
        return f"{self.path.relative_to(root)}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Figure:
    """One number, and what it counts. Of a share the places are what is missing."""

    value: int
    places: list[Place]


class Tree:
    """The hand-written files below a root, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, CSource] = {}

    def files(self, folders: Iterable[str], *endings: str) -> list[Path]:
        found = [
            path
            for folder in folders
            for ending in endings
            for path in (self.root / folder).rglob(f"*{ending}")
            if not NOT_OURS & set(path.relative_to(self.root).parts)
        ]
        return sorted(found)

    def sources(self, *folders: str) -> list[CSource]:
        paths = self.files(folders, ".c", ".h")
        return [self._read.setdefault(path, CSource.read(path)) for path in paths]

    def functions(self, folder: str) -> dict[str, tuple[CSource, CFunction]]:
        return {f.name: (source, f) for source in self.sources(folder) for f in source.functions}

    @cached_property
    def spec(self) -> list[Entry]:
        """Every entry that has a body on some side."""
        found = []
        for path in sorted((self.root / "proto/spec").rglob("*.toml")):
            for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
                if isinstance(table, dict) and table.get("mode", "refuse") != "refuse":
                    found.append(Entry(name, path.stem, table["mode"], _files(table)))
        return found

    @cached_property
    def cuda(self) -> list[Entry]:
        return [e for e in self.spec if not e.name.startswith("gp_")]


def _files(table: dict[str, Any]) -> dict[str, str]:
    """`file = "copy"` is for all sides, `file.worker = "copy"` for one."""
    named = table.get("file", {})
    if isinstance(named, str):
        return dict.fromkeys(("client", "worker", "softgpu"), named)
    return {str(side): str(stem) for side, stem in named.items()}


# What is counted ------------------------------------------------------------------


def _generated(entries: list[Entry], by_hand: dict[str, tuple[CSource, CFunction]]) -> Figure:
    """The share of entries, in percent, whose function nobody wrote."""
    places = [
        Place(by_hand[e.name][0].path, by_hand[e.name][1].line, e.name)
        for e in entries
        if e.name in by_hand
    ]
    return Figure(100 * (len(entries) - len(places)) // max(len(entries), 1), places)


def _handlers(tree: Tree) -> dict[str, tuple[CSource, CFunction]]:
    found = tree.functions(WORKER)
    return {name.removeprefix("gpw_"): f for name, f in found.items() if name.startswith("gpw_")}


def _stubs(tree: Tree) -> dict[str, tuple[CSource, CFunction]]:
    """Exported functions, and what one shares with its aliases: gpc_as_NAME."""
    return {name.removeprefix("gpc_as_"): f for name, f in tree.functions(CLIENT).items()}


def client_generated(tree: Tree) -> Figure:
    return _generated(tree.cuda, _stubs(tree))


def worker_generated(tree: Tree) -> Figure:
    return _generated([e for e in tree.spec if e.mode in SENT], _handlers(tree))


def _misplaced(
    entries: list[Entry], side: str, by_hand: dict[str, tuple[CSource, CFunction]]
) -> Figure:
    """Functions of entries in a file that is not their group's, nor named by the spec."""
    places = []
    for entry in entries:
        source, function = by_hand.get(entry.name, (None, None))
        home = entry.home(side)
        if source and function and source.path.stem != home:
            text = f"{entry.name} belongs in {home}.c"
            places.append(Place(source.path, function.line, text))
    return Figure(len(places), places)


def client_misplaced(tree: Tree) -> Figure:
    return _misplaced(tree.spec, "client", _stubs(tree))


def worker_misplaced(tree: Tree) -> Figure:
    return _misplaced(tree.spec, "worker", _handlers(tree))


def softgpu_misplaced(tree: Tree) -> Figure:
    return _misplaced(tree.spec, "softgpu", tree.functions(SOFTGPU))


def _python_functions(path: Path) -> Iterable[tuple[str, int, int]]:
    """Name, line and number of lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def long_functions(tree: Tree) -> Figure:
    """C and Python, tests too."""
    places = []
    for source in tree.sources(*SOURCE, *TESTS):
        for f in source.functions:
            if f.lines > FUNCTION_LINES:
                places.append(Place(source.path, f.line, f"{f.name} has {f.lines} lines"))
    for path in tree.files([*SOURCE, *TESTS], ".py"):
        for name, line, lines in _python_functions(path):
            if lines > FUNCTION_LINES:
                places.append(Place(path, line, f"{name} has {lines} lines"))
    return Figure(len(places), places)


def _long_files(tree: Tree, folders: Iterable[str]) -> Figure:
    places = []
    for path in tree.files(folders, ".c", ".h", ".py"):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > FILE_LINES:
            places.append(Place(path, lines, "the file ends here"))
    return Figure(len(places), places)


def long_files(tree: Tree) -> Figure:
    return _long_files(tree, SOURCE)


def long_test_files(tree: Tree) -> Figure:
    return _long_files(tree, TESTS)


_LISTED = re.compile(r"(?:\bcase|[=!]=)\s*(GP_OP_\w+)|\[\s*(GP_OP_\w+)\s*\]\s*=")


def _listed(code: str) -> set[str]:
    return {name for match in _LISTED.finditer(code) for name in match.groups() if name}


def operation_lists(tree: Tree) -> Figure:
    """Functions and tables that tell two or more operations from the others: what they know
    of them belongs into the spec."""
    places = []
    for source in tree.sources("client_lib", "server", "proto"):
        code = [(f.line, f.name, f.body) for f in source.functions]
        code += [(line, "a table", body) for line, body in source.constants]
        for line, name, body in code:
            if len(listed := _listed(body)) > 1:
                text = f"{name} names {len(listed)} operations"
                places.append(Place(source.path, line, text))
    return Figure(len(places), places)


def worker_statics(tree: Tree) -> Figure:
    """Variables of the worker that belong to no session: of files, and of functions."""
    places = [
        Place(source.path, static.line, static.name)
        for source in tree.sources(WORKER)
        for static in source.statics
    ]
    return Figure(len(places), places)


def _sends(source: CSource, function: CFunction) -> set[str]:
    """The messages that a function sends, by itself or by others of its file."""
    inside = {f.name: f for f in source.functions}
    seen, todo, sent = {function.name}, [function], set()
    while todo:
        for word in set(re.findall(r"[A-Za-z_]\w*", todo.pop().body)):
            if word.startswith("gpc_wire_"):
                sent.add(word.removeprefix("gpc_wire_").removesuffix("_on"))
            elif word in inside and word not in seen:
                seen.add(word)
                todo.append(inside[word])
    return sent


def local_sends(tree: Tree) -> Figure:
    """Entries that send in their own file, though the spec says that the client answers."""
    by_hand, places = _stubs(tree), []
    for entry in tree.cuda:
        if entry.mode == "local" and entry.name in by_hand:
            source, function = by_hand[entry.name]
            if sent := _sends(source, function):
                text = f"{entry.name} is local and sends {', '.join(sorted(sent))}"
                places.append(Place(source.path, function.line, text))
    return Figure(len(places), places)


def twin_functions(tree: Tree) -> Figure:
    """C functions of the source that say word for word what an earlier one says."""
    first: dict[str, str] = {}
    places = []
    for source in tree.sources("client_lib", "server", "proto"):
        for f in source.functions:
            if f.lines >= TWIN_LINES:
                body = " ".join(f.body.split())
                here = f"{source.path.relative_to(tree.root)}:{f.line}"
                other = first.setdefault(body, here)
                if other != here:
                    places.append(Place(source.path, f.line, f"{f.name} is that of {other}"))
    return Figure(len(places), places)


_UNFORMATTED = re.compile(r"# fmt: (?:skip|off)$|/[*/] clang-format off")


def format_exceptions(tree: Tree) -> Figure:
    """Places that ask the formatter to leave them alone."""
    places = [
        Place(path, number, line.strip())
        for path in tree.files([*SOURCE, *TESTS], ".c", ".h", ".py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _UNFORMATTED.search(line)
    ]
    return Figure(len(places), places)


@dataclass(frozen=True)
class Kind:
    """One row of the table."""

    count: Callable[[Tree], Figure]
    title: str
    more_is_better: bool = False

    def worse(self, value: int, target: int) -> bool:
        return value < target if self.more_is_better else value > target


KINDS = {
    "client_generated": Kind(client_generated, "client bodies generated, percent", True),
    "worker_generated": Kind(worker_generated, "worker bodies generated, percent", True),
    "client_misplaced": Kind(client_misplaced, "client functions out of place"),
    "worker_misplaced": Kind(worker_misplaced, "worker functions out of place"),
    "softgpu_misplaced": Kind(softgpu_misplaced, "soft GPU functions out of place"),
    "long_functions": Kind(long_functions, f"functions over {FUNCTION_LINES} lines"),
    "long_files": Kind(long_files, f"source files over {FILE_LINES} lines"),
    "long_test_files": Kind(long_test_files, f"test files over {FILE_LINES} lines"),
    "twin_functions": Kind(twin_functions, "C functions that stand twice"),
    "format_exceptions": Kind(format_exceptions, "exceptions from formatting"),
    "operation_lists": Kind(operation_lists, "lists of operations in C"),
    "worker_statics": Kind(worker_statics, "variables of the worker in no session"),
    "local_sends": Kind(local_sends, "local entries that send"),
}


# Targets --------------------------------------------------------------------------


def read_targets(path: Path) -> dict[str, int]:
    """Every figure needs one, so that none is left out by a slip."""
    targets = tomllib.loads(path.read_text(encoding="utf-8"))
    if set(targets) != set(KINDS):
        odd = ", ".join(sorted(set(targets) ^ set(KINDS)))
        sys.exit(f"{path}: has to name every figure once, and no other; look at: {odd}")
    return {name: int(value) for name, value in targets.items()}


def tighten(path: Path, figures: dict[str, Figure], targets: dict[str, int]) -> list[str]:
    """Write what is better than its target as the target; the names of those."""
    better = [n for n, k in KINDS.items() if k.worse(targets[n], figures[n].value)]
    text = path.read_text(encoding="utf-8")
    for name in better:
        text = re.sub(rf"(?m)^({name}\s*=\s*)\d+", rf"\g<1>{figures[name].value}", text)
    path.write_text(text, encoding="utf-8")
    return better


# What is shown --------------------------------------------------------------------


def rows(figures: dict[str, Figure], targets: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "figure": name,
            "what": kind.title,
            "value": figures[name].value,
            "target": targets[name],
            "holds": not kind.worse(figures[name].value, targets[name]),
        }
        for name, kind in KINDS.items()
    ]


def table(found: list[dict[str, Any]]) -> str:
    lines = [f"{'figure':18} {'what it counts':38} {'now':>5} {'target':>7}"]
    for row in found:
        limit = (">=" if KINDS[row["figure"]].more_is_better else "<=") + f"{row['target']:>4}"
        mark = "" if row["holds"] else " WORSE"
        lines.append(f"{row['figure']:18} {row['what']:38} {row['value']:>5} {limit:>7}{mark}")
    return "\n".join(lines)


def advice(found: list[dict[str, Any]]) -> str:
    worse = [row["figure"] for row in found if not row["holds"]]
    return f"figures: worse than {TARGETS}: {', '.join(worse)}; see them with --show FIGURE"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--show", choices=KINDS, metavar="FIGURE", help="list what it counts")
    parser.add_argument("--tighten", action="store_true", help=f"write {TARGETS}")
    args = parser.parse_args()
    tree, path = Tree(args.root), args.root / TARGETS
    try:
        if args.show:
            places = KINDS[args.show].count(tree).places
            print(*(place.show(args.root) for place in places), sep="\n")
            return 0
        figures = {name: kind.count(tree) for name, kind in KINDS.items()}
    except CSourceError as error:
        sys.exit(f"figures: {error}")
    targets = read_targets(path)
    if args.tighten:
        print("tightened:", ", ".join(tighten(path, figures, targets)) or "nothing")
        targets = read_targets(path)
    found = rows(figures, targets)
    print(json.dumps(found, indent=1) if args.json else table(found))
    if all(row["holds"] for row in found):
        return 0
    print(advice(found), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
