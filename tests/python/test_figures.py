"""The counting behind `make figures`, on small trees of which the answer is known."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci/figures.py"

#: A tree in which every figure counts something.
SAMPLE = {
    "proto/spec/stream.toml": """
        [cuStreamCreate]
        mode = "async-create"
        [cuStreamQuery]
        mode = "sync"
        [cuStreamIsCapturing]
        mode = "local"
        file = { client = "capture", worker = "capture", softgpu = "capture" }
        [cuStreamGetId]
        mode = "local"
        [cuStreamAttachMemAsync]
        mode = "refuse"
    """,
    "proto/spec/messages/session.toml": """
        [gp_hello]
        mode = "sync"
        [gp_told]
        mode = "notify"
    """,
    "proto/spec/errors.toml": '[CUDA_SUCCESS]\nvalue = 0\ntext = "no error"\n',
    "client_lib/calls/stream.c": """
        /* cuStreamQuery(void) { is only said here } */
        static int ask(void) { return gpc_wire_cuStreamQuery(NULL); }
        GPC_EXPORT CUresult cuStreamGetId(CUstream s) { return ask(); }
        GPC_EXPORT CUresult cuStreamIsCapturing(CUstream s) { return 0; }
    """,
    "server/worker/session.c": """
        static int count;
        static const char *const names[] = {"a", "b"};
        int shared __attribute__((aligned(64)));
        static int declared(int);
        CUresult gpw_cuStreamQuery(struct gpw_session *s)
        {
            static _Thread_local int last[2] = {0};
            switch (s->op) {
            case GP_OP_cuStreamQuery:
            case GP_OP_cuStreamCreate:
                return 0;
            }
            return s->op == GP_OP_gp_hello;
        }
        CUresult gpw_gp_hello(struct gpw_session *s) { return s->op == GP_OP_gp_hello; }
    """,
    "server/softgpu/streams.c": """
        #define MAKE(name, kind) \\
            CUresult cuStream##name(kind s) \\
            { \\
                return 0; \\
            }
        MAKE(Query, CUstream)
        MAKE(Create, CUstream *)

        CUresult cuStreamIsCapturing(CUstream s) { return 0; }
    """,
}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["figures"] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


figures = load()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (line.removeprefix(" " * 8) for line in text.splitlines())
        path.write_text("\n".join(lines).lstrip("\n") + "\n", encoding="utf-8")
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write(tmp_path, SAMPLE)


def counted(root: Path, figure: str) -> int:
    value: int = figures.KINDS[figure].count(figures.Tree(root)).value
    return value


def places(root: Path, figure: str) -> list[str]:
    found = figures.KINDS[figure].count(figures.Tree(root)).places
    return [place.show(root) for place in found]


def test_what_the_tree_does_not_define_is_generated(tree: Path) -> None:
    assert counted(tree, "client_generated") == 50  # two of four that are not refused
    assert counted(tree, "worker_generated") == 33  # one of three that are answered


def test_a_function_belongs_to_its_group_or_where_the_spec_says(tree: Path) -> None:
    assert places(tree, "client_misplaced") == [
        "client_lib/calls/stream.c:4: cuStreamIsCapturing belongs in capture.c"
    ]
    assert places(tree, "worker_misplaced") == [
        "server/worker/session.c:5: cuStreamQuery belongs in stream.c"
    ]  # a message of our own belongs to no group
    assert places(tree, "softgpu_misplaced") == [
        "server/softgpu/streams.c:7: cuStreamCreate belongs in stream.c",
        "server/softgpu/streams.c:6: cuStreamQuery belongs in stream.c",
        "server/softgpu/streams.c:9: cuStreamIsCapturing belongs in capture.c",
    ]


def test_variables_that_may_change_are_counted_wherever_they_are(tree: Path) -> None:
    assert sorted(place.split()[-1] for place in places(tree, "worker_statics")) == [
        "count",
        "last",
        "shared",
    ]


def test_a_list_names_two_operations_in_one_place(tree: Path) -> None:
    assert places(tree, "operation_lists") == [
        "server/worker/session.c:5: gpw_cuStreamQuery names 3 operations"
    ]


def test_a_table_of_operations_is_a_list(tree: Path) -> None:
    table = "static const bool slow[] = {[GP_OP_a] = true, [GP_OP_b] = true};"
    write(tree, {"server/worker/table.c": table})
    assert "server/worker/table.c:1: a table names 2 operations" in places(tree, "operation_lists")


def test_who_sends_through_a_function_of_its_file_sends(tree: Path) -> None:
    assert places(tree, "local_sends") == [
        "client_lib/calls/stream.c:3: cuStreamGetId is local and sends cuStreamQuery"
    ]


def body(name: str, lines: int) -> str:
    return f"int {name}(void)\n{{\n" + "    x();\n" * (lines - 3) + "}"


def test_long_functions_of_both_languages_are_found(tree: Path) -> None:
    assert counted(tree, "long_functions") == 0
    write(tree, {"proto/wire/a.c": "/* { */\n" + body("sixty", 60) + "\n" + body("more", 61)})
    write(tree, {"tests/python/a.py": "async def long():\n" + "    x()\n" * 60})
    write(tree, {"tests/python/golden/a.c": body("generated", 90)})
    assert places(tree, "long_functions") == [
        "proto/wire/a.c:62: more has 61 lines",
        "tests/python/a.py:1: long has 61 lines",
    ]


def test_files_are_counted_in_source_and_tests_apart(tree: Path) -> None:
    write(tree, {"pool/a/long.py": "x = 1\n" * 501, "tests/c/long.c": "int x;\n" * 501})
    write(tree, {"pool/a/short.py": "x = 1\n" * 499})
    assert places(tree, "long_files") == ["pool/a/long.py:501: the file ends here"]
    assert places(tree, "long_test_files") == ["tests/c/long.c:501: the file ends here"]


def test_the_same_words_in_two_files_are_twins(tree: Path) -> None:
    write(tree, {"proto/wire/a.c": body("a", 6), "proto/wire/b.c": "int x;\n" + body("b", 6)})
    assert places(tree, "twin_functions") == ["proto/wire/b.c:2: b is that of proto/wire/a.c:1"]


def test_exceptions_from_formatting_are_counted(tree: Path) -> None:
    skipped = "x = [1,\n  2]  " + "# fmt: skip" + "\n"
    write(tree, {"pool/a/skipped.py": skipped, "proto/wire/off.c": "/* clang-format off */"})
    assert places(tree, "format_exceptions") == [
        "pool/a/skipped.py:2: 2]  " + "# fmt: skip",
        "proto/wire/off.c:1: /* clang-format off */",
    ]


def test_braces_that_do_not_match_are_refused(tree: Path) -> None:
    write(tree, {"proto/wire/odd.c": "#if A\nint f(int a) {\n#else\nint f(void) {\n#endif\n}"})
    with pytest.raises(figures.CSourceError, match=r"odd\.c:2: .*#if"):
        counted(tree, "long_functions")


# The command ----------------------------------------------------------------------


def targets(root: Path, **changed: int) -> None:
    kinds = figures.KINDS
    values = {name: 0 if kinds[name].more_is_better else 99 for name in kinds} | changed
    text = "".join(f"{name} = {value}\n" for name, value in values.items())
    write(root, {".ci/figures.toml": text})


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_figure_that_got_worse_fails_by_name(tree: Path) -> None:
    targets(tree, worker_statics=2, client_generated=51)
    done = run(tree)
    assert done.returncode == 1
    assert "worse than .ci/figures.toml: client_generated, worker_statics" in done.stderr
    marked = [line for line in done.stdout.splitlines() if line.endswith("WORSE")]
    assert len(marked) == 2 and all(len(line) <= 80 for line in done.stdout.splitlines())


def test_figures_at_their_targets_hold(tree: Path) -> None:
    targets(tree, worker_statics=3, client_generated=50)
    done = run(tree, "--json")
    assert done.returncode == 0, done.stderr
    found = {row["figure"]: row for row in json.loads(done.stdout)}
    assert found["worker_statics"]["value"] == found["worker_statics"]["target"] == 3
    assert set(found) == set(figures.KINDS) and all(row["holds"] for row in found.values())


def test_targets_are_tightened_and_never_loosened(tree: Path) -> None:
    targets(tree, worker_statics=9, operation_lists=0)
    done = run(tree, "--tighten")
    assert done.returncode == 1 and "operation_lists" not in done.stdout.splitlines()[0]
    kept = figures.read_targets(tree / ".ci/figures.toml")
    assert kept["worker_statics"] == 3 and kept["operation_lists"] == 0
    assert kept["client_generated"] == 50


def test_a_figure_without_a_target_is_refused(tree: Path) -> None:
    targets(tree, invented=1)
    done = run(tree)
    assert done.returncode != 0 and "look at: invented" in done.stderr


def test_this_tree_has_what_is_counted() -> None:
    """No figure is good only because nothing was found to count in."""
    tree = figures.Tree(ROOT)
    assert len(tree.cuda) > 200 and len(tree.functions("client_lib")) > 500
    assert len(tree.functions("server/worker")) > 500
    assert "cuLaunchKernelEx" in tree.functions("client_lib")
    assert "cuMemAlloc_v2" in tree.functions("server/softgpu")
