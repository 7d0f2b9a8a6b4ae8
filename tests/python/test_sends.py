"""What hand-written stubs send is what the spec says that they send, no more and no less."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from c_graph import Definition, Program

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import spec, spec_load  # noqa: E402

#: What any call passes on its way, or may have to repair on it (a session to open, a retained
#: context, a library's replica on another host, the stream of a thread that has
#: ended), and managed or mapped memory that goes over before it or comes back. The messages behind
#: these are nobody's in particular.
PASSAGE = {
    "gpc_enter",
    "gpc_enter_stream",
    "gpc_enter_event",
    "gpc_leave",
    "gpc_faults_watch",
    "gpc_managed_before",
    "gpc_managed_variable",
    "gpc_managed_variables_ended",
    "gpc_managed_view",
    "gpc_mapped_open_named",
    "gpc_mapped_waited",
    "gpc_mapped_watch",
    "gpc_registered_give_back",
    "gpc_thread_make",
    "gpc_thread_stream",
    "gpc_route_stream",
    "gpc_stream_wire",
    "gpc_handle_wire",
}
#: Messages of the session itself.
SESSION = {"gp_hello", "gp_goodbye", "gp_arena_open", "gp_context_set", "gp_capture_mode_set"}
SESSION |= {"gp_activity_ask"}  # with GPUPOOL_TIMELINE alone
#: It hands out tables of functions and calls none of them.
TABLES = "cuGetExportTable"

REAL = spec_load.load(ROOT / "proto" / "spec")
PROGRAM = Program(sorted((ROOT / "client_lib").rglob("*.c")))


def body(program: Program, name: str) -> Definition | None:
    """What somebody wrote for an entry: its function, or what its aliases share with it."""
    return program.public(name) or program.public(f"gpc_as_{name}")


def called(f: spec.Function) -> Definition | None:
    """A generated stub that calls what somebody wrote."""
    names = frozenset(re.findall(r"\w+", f"{f.does} {f.then}"))
    return Definition(f.file, f.name, False, names) if names else None


BY_HAND = [f for f in REAL.cuda if body(PROGRAM, f.name) and f.name != TABLES]
BY_HAND += [f for f in REAL.cuda if called(f)]
MESSAGES = {f.name for f in REAL.wire if f.mode != "notify"}


def message(name: str) -> str:
    """The message whose encoder or number is called `name`; "" if none is."""
    for prefix in ("gpc_wire_", "GP_OP_gp_"):
        if name.startswith(prefix):
            found = name.removeprefix("gpc_wire_").removeprefix("GP_OP_").removesuffix("_on")
            return found if found in MESSAGES else ""
    return ""


def sent(program: Program, name: str) -> set[str]:
    """The messages that the C code of `name` reaches, but for its own."""
    start = body(program, name) or called(REAL.named(name))
    assert start is not None, f"{name} is not in the C code"
    names = program.reach(start, lambda n: n in PASSAGE or n.startswith("gpc_wire_"))
    return {message(n) for n in names} - {"", name} - SESSION


@pytest.mark.parametrize("name", [f.name for f in BY_HAND])
def test_sends(name: str) -> None:
    said = set(REAL.named(name).sends)
    found = sent(PROGRAM, name)
    assert said == found, (
        f"{name} in {REAL.named(name).file.name}: sends = {sorted(found)} is what its C code does"
    )


def test_what_is_called_is_there() -> None:
    for f in REAL.cuda:
        for call in (f.does, f.then):
            assert not call or PROGRAM.public(call.partition("(")[0]), f"{f.name}: {call}"


def test_what_is_written_by_hand_is_said_to_be() -> None:
    written = {f.name for f in REAL.cuda if body(PROGRAM, f.name)}
    assert written <= {f.name for f in REAL.cuda if f.by_hand}


def test_most_of_the_hand_written_stubs_are_looked_at() -> None:
    assert sum(bool(f.sends) for f in BY_HAND) > 40
    for name in PASSAGE:
        assert PROGRAM.public(name), f"{name}: no such function any more"


def test_what_the_code_reader_sees(tmp_path: Path) -> None:
    """A table, a macro and a static helper of the same name in two files."""
    (tmp_path / "a.c").write_text(
        "static int helper(void)\n{\n    return gpc_wire_gp_htod(1);\n}\n\n"
        "static const struct way ways[] = {\n    {helper},\n};\n\n"
        "CUresult cuOne(int x)\n{\n    return ways[x].go(x); /* not gpc_wire_gp_dtoh */\n}\n\n"
        "#define GO(x)                 \\\n    return gpc_wire_gp_fence(x)\n\n"
        "CUresult cuTwo(int x)\n{\n    GO(x);\n}\n"
    )
    (tmp_path / "b.c").write_text(
        "static int helper(void)\n{\n    return 0;\n}\n\n"
        "CUresult cuThree(int x)\n{\n    return helper() + cuOther(x);\n}\n\n"
        'CUresult cuOther(int x)\n{\n    return call(GP_OP_gp_copy, x, "gpc_wire_gp_launch");\n}\n'
    )
    program = Program([tmp_path / "a.c", tmp_path / "b.c"])
    assert sent(program, "cuOne") == {"gp_htod"}
    assert sent(program, "cuTwo") == {"gp_fence"}
    assert sent(program, "cuThree") == {"gp_copy"}
