"""What an entry says of its stub, beside what travels; emit_stubs.py writes it as C.

========== =====================================================================
word       what the stub answers by itself
========== =====================================================================
gives[E]   what the pointer leads to becomes E; in an alias at once, before anything else
room[N]    the pointer leads to room for N bytes of text
========== =====================================================================

=========== ====================================================================
key         meaning
=========== ====================================================================
its         what `its` stands for, as "kind(argument)", if it is not the first handle or
            device of the parameters, nor (there is none) the current context
fails       { CUDA_ERROR_X = "C", … }: conditions behind the words', in this order
refuses     { "what of it" = "C" }: conditions under which it is not supported; said first
does        the C call that does it, instead of a message (client_lib/calls/shared.h). At
            least two entries use the same function: else it is a body written by hand
then        the C call that notes what a message has done; `made` is the new handle, and
            the caller's outputs are filled behind it. At least two entries, likewise
=========== ====================================================================

E and C are C expressions over the parameters and, but for `refuses`, `its`: what the client
has noted of the object that the call is about (ITS). `does` and `then` may use `op`, the
operation, and `&on`, the route of the call's stream, or of the default one.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .param import Param

if TYPE_CHECKING:
    from .spec import Function

#: What is known here of an object, by kind: the type, and who looks it up or says the error
#: (client_lib/calls/its.h).
ITS = {
    "device": ("const struct gp_device_info", "gpc_device_its({}, &r)"),
    "context": ("const struct gpc_context", "gpc_context_its({}, &r)"),
    "green": ("const struct gpc_context", "gpc_green_its({}, &r)"),
    "stream": ("const struct gpc_stream", "gpc_stream_its({}, &own, &r)"),
    "memory": ("const struct gpc_range", "gpc_memory_its({}, &own, &r)"),
    "pinned": ("const struct gpc_range", "gpc_pinned_its({}, &own, &r)"),
    "function": ("const struct gpc_kernel", "gpc_kernel_its((CUfunction){}, &r)"),
}
_ITS = re.compile(r"\bits\b")
_KIND = re.compile(r"(?P<kind>\w+)\((?P<argument>\w+)\)$")
_CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\)$")


@dataclass(frozen=True)
class Subject:
    """The object that a call is about."""

    kind: str
    argument: str
    param: Param | None = None


def expressions(f: Function) -> list[str]:
    """The C code that the entry says of itself."""
    return [*(p.gives for p in f.params), *f.fails.values(), f.does, f.then]


def mentions_its(f: Function) -> bool:
    return any(_ITS.search(text) for text in expressions(f))


def subject(f: Function) -> Subject | None:
    """What `its` stands for in an entry; None if nothing speaks of it."""
    if match := _KIND.match(f.its):
        return Subject(match["kind"], match["argument"])
    if not mentions_its(f):
        return None
    for p in f.params:
        kind = "device" if p.ctype == "CUdevice" else p.handle or ""
        if kind in ITS and not p.is_pointer:
            return Subject(kind, p.name, p)
    return Subject("context", "gpc_current()")


def target_arguments(f: Function) -> str:
    """What an alias gives the entry that does it."""
    match = _CALL.match(f.alias)
    return match["arguments"] if match else f.arguments


def check(functions: list[Function]) -> None:
    """SpecError at the first entry whose stub cannot be written."""
    by_name = {f.name: f for f in functions}
    for f in functions:
        if f.alias:
            _check_alias(f, by_name)
        elif f.by_hand:
            _check_written(f)
        else:
            _check_answers(f)
        _check_its(f)
    for key in ("does", "then"):
        _check_shared(functions, key)


def _check_alias(f: Function, by_name: dict[str, Function]) -> None:
    target = by_name.get(f.target)
    if target is None or target.mode in ("alias", "refuse"):
        raise f.fail("alias", f"'{f.target}' is no entry that does anything")
    if "(" not in f.alias and [p.ctype for p in f.params] != [p.ctype for p in target.params]:
        raise f.fail("alias", f"'{f.alias}' has other parameters: say which, as a call")
    if "(" in f.alias and not _CALL.match(f.alias):
        raise f.fail("alias", f"'{f.alias}' is no call")
    for key in ("fails", "does", "then", "its"):
        if getattr(f, key):
            raise f.fail(key, f"'{key}' is said by '{f.target}', which does it")


def _check_written(f: Function) -> None:
    """Whoever writes a stub writes all of it."""
    said = [key for key in ("fails", "refuses", "then", "its") if getattr(f, key)]
    said += [p.name for p in f.params if p.gives or p.checks]
    if said:
        raise f.fail("client", f"'{said[0]}' is for a stub that nobody writes by hand")


def _check_answers(f: Function) -> None:
    """A stub that sends nothing fills what it is given to fill."""
    if f.mode != "local" or f.does or f.answers:
        return
    if f.then:
        raise f.fail("then", "a local function sends nothing after which that could be")
    named = subject(f)
    for p in f.params:
        if named and named.argument == p.name:
            continue
        if p.is_filled and not p.gives and not f.fails:
            raise f.fail(
                "params", f"say what '{p.name}' gets: gives[…]; or write it: client = 'custom'"
            )
    if f.params and not f.fails and not any(p.gives for p in f.params):
        raise f.fail("params", "the stub would do nothing: client = 'custom'")


def _check_its(f: Function) -> None:
    if not f.its:
        return
    match = _KIND.match(f.its)
    if not match or match["kind"] not in ITS:
        raise f.fail("its", f"'{f.its}' is no kind(argument); kinds: {', '.join(ITS)}")
    if match["argument"] not in [p.name for p in f.params]:
        raise f.fail("its", f"no parameter '{match['argument']}'")


def _check_shared(functions: list[Function], key: str) -> None:
    """What one entry alone calls is a body that somebody wrote for it."""
    calls: dict[str, str] = {}  # entry -> function
    for f in functions:
        text = getattr(f, key)
        match = _CALL.match(text)
        if text and not match:
            raise f.fail(key, f"'{text}' is no call")
        if match:
            calls[f.name] = match["name"]
    times = Counter(calls.values())
    for f in functions:
        if f.name in calls and times[calls[f.name]] < 2:
            name = calls[f.name]
            raise f.fail(key, f"'{name}' does it for this entry alone: client = 'custom'")
