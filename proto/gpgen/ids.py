"""What must never change of an operation: its number, its name and how it travels.

An operation's *signature* is a hash of that, with the members of the structures of ours
that it carries (structs.toml). Two releases may talk about the operations
whose numbers and signatures are the same in both.

``ids.lock`` beside the spec is the ledger: one line ``ID NAME SIGNATURE RELEASE`` for each
operation that there ever was (``-`` for a signature: it does not travel; for a release: none
has it yet), and one line ``kind NUMBER NAME RELEASE`` for each kind of handle. Lines that a
release has are never changed or removed, so no number gets a second meaning. ``gpgen --lock``
adds what is new, ``gpgen --release VERSION`` marks it as released.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from .layout import reply, request, tails_in, tails_out
from .param import HANDLE_KINDS, Param, SpecError
from .spec import Function, Spec

LEDGER = "ids.lock"
NONE = "-"

HEAD = """\
# Which number and which form each operation has, for ever. Lines of a release are never
# changed or removed; `gpgen --lock` adds what is new. See proto/gpgen/ids.py.
"""

#: Words that decide what travels; the others are checks of one side.
_TRAVELS = ("out", "inout", "in", "optional", "string", "address", "create", "destroy")


def signature(f: Function) -> str:
    """Eight hexadecimal digits over everything of an operation that both sides must know."""
    if not f.has_wire:
        return NONE
    direction = "notify" if f.mode == "notify" else "waits" if f.waits else "posts"
    lines = [f"{f.id} {f.name} {direction}", *(struct.form for struct in f.structs)]
    lines += [f"request {field.decl}" for field in request(f)]
    lines += [_tail(p) for p in tails_in(f)]
    if f.waits:
        lines += [f"reply {field.decl}" for field in reply(f)]
        lines += [_tail(p) for p in tails_out(f)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def _tail(p: Param) -> str:
    words = " ".join(word for word in _TRAVELS if p.has(word))
    return f"tail {p.decl} {words} [{p.count}]"


def short(f: Function) -> int:
    """The signature as it travels: 16 bits, never 0 for what travels."""
    return int(signature(f)[4:], 16) or 1 if f.has_wire else 0


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    id: int
    name: str
    signature: str  # of a kind of handle: "kind"
    release: str

    @property
    def is_kind(self) -> bool:
        return self.signature == "kind"

    @property
    def released(self) -> bool:
        return self.release != NONE

    @property
    def text(self) -> str:
        if self.is_kind:
            return f"kind {self.id} {self.name} {self.release}"
        return f"{self.id} {self.name} {self.signature} {self.release}"


def read(path: Path) -> list[Entry]:
    """The ledger; SpecError at the first line that is none of it."""
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "kind" and len(words) == 4:
            words = [words[1], words[2], "kind", words[3]]
        if len(words) != 4 or not words[0].isdecimal():
            raise SpecError(f"{path}:{number}: cannot be read; must be ID NAME SIGNATURE RELEASE")
        entries.append(Entry(int(words[0]), *words[1:]))
    return entries


def write(path: Path, entries: list[Entry]) -> None:
    """The ledger, in the order of the numbers."""
    ordered = sorted(entries, key=lambda e: (not e.is_kind, e.id))
    path.write_text(HEAD + "".join(f"{e.text}\n" for e in ordered), encoding="utf-8")


def present(spec: Spec) -> list[Entry]:
    """What the ledger would say of this spec alone."""
    kinds = [Entry(i, kind, "kind", NONE) for i, kind in enumerate(HANDLE_KINDS, 1)]
    return kinds + [Entry(f.id, f.name, signature(f), NONE) for f in spec.functions]


def check(spec: Spec, path: Path) -> list[Entry]:
    """SpecError if anything that a release has is another thing now; else the ledger as it has
    to be for this spec."""
    kept = {(e.is_kind, e.id): e for e in read(path)} if path.is_file() else {}
    by_id = {f.id: f for f in spec.functions}
    found = {(e.is_kind, e.id): e for e in present(spec)}
    for key, new in found.items():
        old = kept.get(key)
        if old is not None and old.released:
            found[key] = _released(path, old, new, by_id)
    retired = {key: e for key, e in kept.items() if e.released and key not in found}
    return list((found | retired).values())


def _released(path: Path, old: Entry, new: Entry, by_id: dict[int, Function]) -> Entry:
    """The line of something that a release has."""
    if new.is_kind and new.name != old.name:
        raise SpecError(
            f"{path}: handles of kind {old.id} are '{old.name}' since {old.release}, not"
            f" '{new.name}'; new kinds come last (HANDLES in proto/gpgen/spec.py)"
        )
    if new.is_kind or new.signature == old.signature:
        return _named(old, new, by_id)
    _named(old, new, by_id)
    if old.signature == NONE:
        return new  # it travels from now on
    if new.signature == NONE:
        return old  # no longer, and its number stays its own
    raise by_id[new.id].fail(
        "id",
        f"has another form than in {old.release}; older releases know the number {new.id} by"
        " that: give the new form a number of its own",
    )


def _named(old: Entry, new: Entry, by_id: dict[int, Function]) -> Entry:
    if old.name != new.name:
        raise by_id[new.id].fail("id", f"the number {new.id} is {old.name}'s since {old.release}")
    return old


def lock(spec: Spec, path: Path, release: str = NONE) -> None:
    """Write down what is new; as part of a release if one is named."""
    entries = check(spec, path)
    write(path, [e if e.released else replace(e, release=release) for e in entries])


def is_complete(spec: Spec, path: Path) -> bool:
    """Whether the ledger has everything of the spec as it is."""
    return path.is_file() and set(check(spec, path)) == set(read(path))
