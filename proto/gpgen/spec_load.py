"""Reading proto/spec: its entries, and what each of them must be, alone and beside others.

The first line that is wrong ends it (SpecError), with its file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import client_words, worker_words
from .error_codes import load_errors
from .param import SpecError, parse_param
from .spec import CAPTURES, KEYS, MODES, NEEDS, SENDING_MODES, SIDES, WORK, Function, Spec
from .structs import STRUCT_FILE, carried, load_structs
from .toml_lines import Lines, load_toml

MESSAGES = "messages"
ERROR_FILE = "errors.toml"
SET_FILE = "sets.toml"

#: TOML's name of a key -> ours, where that name means something else here.
ATTRIBUTES = {"file": "home"}


def _function(path: Path, name: str, table: dict[str, Any], lines: Lines) -> Function:
    at = {key: lines.keys.get((name, key), lines.tables.get(name, 1)) for key in KEYS}
    here = lines.tables.get(name, 1)
    function = Function(name=name, file=path, line=here, id=0, mode="", api=name, lines=at)
    for key in table:
        if key not in KEYS:
            raise SpecError(
                f"{path}:{lines.keys.get((name, key), here)}: {name}: unknown key '{key}'"
            )
    for key in ("id", "mode"):
        if key not in table:
            raise function.fail(key, f"'{key}' is missing")
    if isinstance(table.get("file"), str):
        table["file"] = dict.fromkeys(SIDES, table["file"])
    for key, value in table.items():
        if key != "params":
            attribute = ATTRIBUTES.get(key, key)
            want = type(getattr(function, attribute))
            if type(value) is not want:
                raise function.fail(key, f"'{key}' must be {want.__name__}")
            setattr(function, attribute, value)
    for index, text in enumerate(table.get("params", [])):
        line = lines.params.get((name, index), at["params"])
        function.params.append(parse_param(text, f"{path}:{line}: {name}", line))
    _check_keys(function)
    if function.has_wire:
        _check_wire(function)
    return function


def _one_of(function: Function, key: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise function.fail(key, f"unknown {key} '{value}'; known: {', '.join(known)}")


def _check_keys(function: Function) -> None:
    """What every entry must be, whatever the others are."""
    mode = function.mode
    if not 0 < function.id < 65536:
        raise function.fail("id", f"id {function.id} is not in 1..65535")
    _one_of(function, "mode", mode, MODES)
    _one_of(function, "needs", function.needs, NEEDS)
    if function.client not in ("", "custom"):
        raise function.fail("client", "client is 'custom' or absent")
    _one_of(function, "worker", function.worker, worker_words.WORKERS)
    for side in function.home:
        _one_of(function, "file", side, SIDES)
    if function.capture:
        _one_of(function, "capture", function.capture, CAPTURES)
        if not function.stream:
            raise function.fail("capture", "no stream is named whose capture that could be")
    if function.work:
        _one_of(function, "work", function.work, WORK)
        if function.work == "move" and not {"dst", "src"} <= {p.name for p in function.params}:
            raise function.fail("work", "a move has two ends: parameters 'dst' and 'src'")
    _check_mode(function)


def _check_mode(function: Function) -> None:
    """Keys that only some modes can have."""
    mode = function.mode
    if function.work and not function.has_wire:
        raise function.fail("work", f"a {mode} function puts no work on the GPU by itself")
    if function.grows and not function.has_wire:
        raise function.fail("grows", f"a {mode} function takes no memory by itself")
    if function.quiet and (not function.has_wire or function.work):
        raise function.fail("quiet", "it is not sent, or puts work on the GPU")
    if function.tidies and not function.has_wire:
        raise function.fail("tidies", f"a {mode} function takes no free memory by itself")
    if function.stalls and not function.has_wire:
        raise function.fail("stalls", f"a {mode} function is not sent to a GPU")
    if not function.blocks and not function.waits:
        raise function.fail("blocks", f"a {mode} function blocks nobody: nothing to take back")
    if function.later and mode != "notify":
        raise function.fail("later", f"a {mode} function is no notice")
    if function.core and not function.has_wire:
        raise function.fail("core", f"a {mode} function is not sent to anybody")
    if function.first_waits and mode != "async":
        raise function.fail("first_waits", f"a {mode} function has no calls to wait for")
    if mode == "refuse" and not function.reason:
        raise function.fail("mode", "a refused function needs a reason")
    if mode in SENDING_MODES and not function.sends:
        raise function.fail("mode", f"a {mode} function says which messages it sends: sends = […]")
    calls = function.client or function.does or function.then
    if function.sends and mode not in SENDING_MODES and not calls:
        raise function.fail("sends", f"a {mode} function that nobody writes by hand sends itself")
    if bool(function.alias) != (mode == "alias"):
        raise function.fail("mode", "an alias says of which entry: alias = …, mode = 'alias'")


def _check_wire(function: Function) -> None:
    """Every pointer of a function that travels must say what it points to."""
    names = [p.name for p in function.params]
    for p in function.params:
        if p.is_pointer and not p.words and p.handle is None:
            raise SpecError(
                f"{function.file}:{p.line}: {function.name}: say what '{p.name}' points to"
            )
        for word in re.findall(r"[A-Za-z_]\w*", p.count):
            if word not in names and not re.match(r"sizeof$|GP_|CU|gp_span_", word):
                raise SpecError(
                    f"{function.file}:{p.line}: {function.name}: no parameter '{word}'"
                    f" for the length of '{p.name}'"
                )
        if p.ctype == "CUdeviceptr" and not p.count and not function.checks_addresses:
            raise SpecError(
                f"{function.file}:{p.line}: {function.name}: say how much of '{p.name}' is used:"
                " span[N]; or the worker's handler is custom and checks it"
            )
    outs = [p for p in function.params if p.is_out]
    if outs and function.mode in ("async", "async-create", "notify"):
        raise function.fail("mode", f"'{outs[0].name}' cannot be filled by a {function.mode} call")
    if function.mode == "async-create" and len(function.creates) != 1:
        raise function.fail("mode", "async-create needs exactly one parameter marked create")


def files(folder: Path) -> list[Path]:
    """Those that have entries: of the driver's functions, then of messages of our own."""
    others = (ERROR_FILE, SET_FILE, STRUCT_FILE)
    functions = [path for path in sorted(folder.glob("*.toml")) if path.name not in others]
    return [*functions, *sorted((folder / MESSAGES).glob("*.toml"))]


def load(folder: Path) -> Spec:
    """Read every file of `folder`. Raises SpecError at the first wrong line."""
    functions: list[Function] = []
    for path in files(folder):
        tables, lines = load_toml(path)
        if "forms" in tables:
            functions += _forms(path, tables, lines)
        else:
            functions += [_function(path, name, table, lines) for name, table in tables.items()]
    by_id: dict[int, Function] = {}
    by_name: dict[str, Function] = {}
    for f in functions:
        if f.id in by_id:
            raise f.fail("id", f"id {f.id} is already that of {by_id[f.id].name}")
        if f.name in by_name:
            raise f.fail("mode", f"already described at {by_name[f.name].file}")
        by_id[f.id] = by_name[f.name] = f
    sets = load_toml(folder / SET_FILE)[0] if (folder / SET_FILE).is_file() else {}
    structs = load_structs(folder / STRUCT_FILE)
    for f in functions:
        f.structs = carried(f.params, structs, str(f.file)) if f.has_wire else []
        _expand(f, sets)
        _check_names(f, by_name)
    client_words.check(functions)
    worker_words.check(functions)
    ordered = sorted(functions, key=lambda f: f.id)
    return Spec(ordered, load_errors(folder / ERROR_FILE), list(structs.values()))


def _expand(f: Function, sets: dict[str, Any]) -> None:
    """Put what sets hold in the place of their names in `sends`."""
    whole: list[str] = []
    for name in f.sends:
        if name.startswith("@"):
            if name[1:] not in sets:
                raise f.fail("sends", f"{SET_FILE} has no set '{name[1:]}'")
            whole += [n for n in sets[name[1:]] if n != f.name]
        else:
            whole.append(name)
    f.sends = whole


def _check_names(f: Function, by_name: dict[str, Function]) -> None:
    """What an entry says of others."""
    for name in f.forgets:
        if name not in by_name or by_name[name].mode != "cached":
            raise f.fail("forgets", f"'{name}' is no cached function")
    for name in f.sends:
        if name not in by_name or not by_name[name].has_wire or by_name[name].mode == "notify":
            raise f.fail("sends", f"'{name}' is no message that a client sends")
        if name == f.name:
            raise f.fail("sends", "its own message goes without saying")


_FORM = re.compile(r"(?P<id>\d+) (?P<name>\w+)\((?P<params>[^()]*)\)$")


def _forms(path: Path, table: dict[str, Any], lines: Lines) -> list[Function]:
    """Entries that give one error for one reason, told as a list."""
    answered = set(table) - {"not_live"} == {"since", "doc", "answers", "forms"}
    if not answered and set(table) != {"since", "reason", "forms"}:
        raise SpecError(
            f"{path}:1: a list of forms has exactly 'since', 'forms' and 'reason', or 'doc' and"
            " 'answers', and perhaps 'not_live'"
        )
    functions = []
    for index, text in enumerate(table["forms"]):
        line = lines.params.get(("", index), 1)
        match = _FORM.match(text)
        if not match:
            raise SpecError(f"{path}:{line}: '{text}' is no id and prototype")
        name, where = match["name"], f"{path}:{line}: {match['name']}"
        params = [parse_param(p.strip(), where, line) for p in match["params"].split(",")]
        mode = "local" if answered else "refuse"
        f = Function(name, path, line, int(match["id"]), mode, name, table["since"])
        f.reason, f.params = table.get("reason", ""), params
        f.doc, f.answers = table.get("doc", ""), table.get("answers", "")
        f.not_live = table.get("not_live", "")
        _check_keys(f)
        functions.append(f)
    return functions
