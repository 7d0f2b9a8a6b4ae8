"""What an entry says of its handler, beside what travels; emit_worker.py writes it as C.

=========== ====================================================================
key         meaning
=========== ====================================================================
worker      "custom": the handler is hand-written; "deferred": and answers later; "noted":
            it is generated, and tells a hand-written function of calls that went well
calls       the call that does it, over the parameters, if it is not the driver's function
            of the same name: another one of the driver's, "cuX(a, b)", or one of the
            worker's, "gpw_x(a, b)", which at least two entries use
waits_for   answered when a stream parameter's work is over, or the context's ("context");
            with `calls`, the work that the call has put there; one of the worker's is handed
            the `answer`, which is sent as gpw_answer_submitted or gpw_answer_written say
idle        made when no stream is blocked by what a message must end; never fails
tells       success says that work is over: told behind what older waits have to send
takes       how many bytes of the current device's memory the driver takes at least, a call
            over the parameters: refused if fewer are left, before the driver is asked
freed       when it says how much memory is in use, over the parameters: put off then until
            the frees before it are over
=========== ====================================================================
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .spec import Function

WORKERS = ("", "custom", "deferred", "noted")
_CALL = re.compile(r"(?P<name>(cu|gpw_)\w+)\(.*\)$")


def own_call(f: Function) -> str:
    """The worker's function that does it, "" if none is said."""
    return f.calls.partition("(")[0] if f.calls.startswith("gpw_") else ""


def answer_prepared(f: Function) -> str:
    """The answer is there before the work is; a call of the worker's own asks the stream itself."""
    how, of = ("_unasked", "") if own_call(f) else ("", f" {f.waits_for},")
    call = f"gpw_answer_prepare{how}(s, gpw_token_of(h),{of} gpw_answer_{f.name}, &answer)"
    return f"if (r == CUDA_SUCCESS)\n        r = {call};"


def memory_asked(f: Function) -> list[tuple[str, str]]:
    """What is asked before the driver is, which may put the call off, and what of."""
    asked = (("gpw_memory_room", f.takes), ("gpw_memory_freed", f.freed))
    return [(name, said) for name, said in asked if said]


def check(functions: list[Function]) -> None:
    """SpecError at the first entry whose handler cannot be written."""
    for f in functions:
        _check_keys(f)
    times = Counter(own_call(f) for f in functions)
    for f in functions:
        name = own_call(f)
        if name and times[name] < 2:
            raise f.fail("calls", f"'{name}' does it for this entry alone: worker = 'custom'")


def _check_keys(f: Function) -> None:
    said = next((key for key in ("calls", "waits_for", "idle") if getattr(f, key)), "")
    if f.worker and said and (f.worker, said) != ("noted", "calls"):
        raise f.fail(said, f"a {f.worker} handler does that itself")
    if f.calls and not _CALL.match(f.calls):
        raise f.fail("calls", f"'{f.calls}' is no call of the driver's or the worker's")
    if f.waits_for and f.mode != "sync":
        raise f.fail("waits_for", f"nobody waits for a {f.mode} function")
    if f.waits_for and any(p.is_out for p in f.params):
        raise f.fail("waits_for", "what is answered later has nothing to fill")
    if f.waits_for not in ("", "context", f.stream):
        raise f.fail("waits_for", f"'{f.waits_for}' is neither a stream nor 'context'")
    if f.idle and (f.waits or [p.has("destroy") for p in f.params] != [True]):
        raise f.fail("idle", "only what ends one object, and is not waited for, can wait itself")
    if f.takes and (not f.waits or not re.match(r"\w+\(.*\)$", f.takes)):
        raise f.fail("takes", "needs a call that says how much, and somebody who waits")
    if f.freed and not f.waits:
        raise f.fail("freed", f"nobody waits for a {f.mode} function")
    if (f.calls or f.tells) and not f.has_wire:
        raise f.fail("calls" if f.calls else "tells", f"the worker sees no {f.mode} function")
