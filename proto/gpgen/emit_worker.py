"""The worker's half: one function for each message, and the dispatch to them."""

from __future__ import annotations

import re

from .emit_wire import NOTE
from .layout import OVERALIGNED, tails_in, tails_out, values_out
from .param import OBJECTS, OF_CONTEXT, PARENTS, Param
from .spec import LOCATIONS, Function, Spec
from .worker_words import answer_prepared, memory_asked, own_call

ACCESS = "CUmemAccessDesc"


def _handler_params(f: Function) -> list[str]:
    params = ["struct gpw_session *s"]
    if f.is_deferred:
        params.append("struct gpw_token token")
    for p in f.params:
        if p.is_out and f.is_deferred:
            continue
        params.append(p.decl)
        if p in tails_out(f):
            params.append(f"uint32_t *n_{p.name}")
    return params


def handlers(spec: Spec) -> str:
    lines = [NOTE, "#ifndef GPW_HANDLERS_H\n#define GPW_HANDLERS_H\n"]
    lines.append('#include "gp_decode.h"\n#include "session.h"\n')
    lines.append(
        "/*\n * Hand-written handlers. Handles are the driver's; a handle to create is left in\n"
        " * the pointer given; out[N] buffers hold *n_x bytes and *n_x says how many are used.\n"
        " * A deferred handler returns GPW_DEFERRED and answers its token later, or an error\n"
        " * that is answered at once. What is noted is told of a call of the driver that\n"
        " * went well, and may still make it fail. Anything that no client of ours would send is\n"
        " * gpw_session_broken().\n */"
    )
    for f in spec.wire:
        if f.worker == "noted":
            params = ", ".join(_noted_params(f))
            lines.append(f"CUresult gpw_noted_{f.name}(struct gpw_session *s, {params});")
        elif f.worker:
            lines.append(f"CUresult gpw_{f.name}({', '.join(_handler_params(f))});")
        if f.is_deferred:
            outs = ", ".join(f"const void *{p.name}, uint32_t n_{p.name}" for p in tails_out(f))
            comma = ", " if outs else ""
            lines.append(
                f"int gpw_answer_{f.name}(struct gpw_session *s, struct gpw_token token,"
                f" CUresult result{comma}{outs});"
            )
        if f.mode == "notify":
            lines.append(f"{_notify_prototype(f)};")
    lines.append("\n#endif\n")
    return "\n".join(lines)


def _noted_params(f: Function) -> list[str]:
    """A handle that was made comes as it is; all else as in the call."""
    params = []
    for p in f.params:
        params.append(f"{p.pointee} {p.name}" if p.has("create") else p.decl)
        if p in tails_out(f):
            params.append(f"uint32_t *n_{p.name}")
    return params


def _notify_prototype(f: Function) -> str:
    return f"int gpw_notify_{f.name}(struct gpw_session *s, {f.prototype})"


#: What generated handlers use of the worker.
_HEADERS = """
    answer array_extent batch function gpw_handlers graph graph_node green growth handles ipc later
    loop mapped_array memory module nccl peer place pool quota span texture
"""


def dispatch(spec: Spec) -> str:
    lines = [NOTE, '#include "dispatch.h"\n\n#include <string.h>\n']
    lines += [f'#include "{name}.h"' for name in _HEADERS.split()]
    lines.append("")
    # ends come first: what is made may have to be undone
    for f in sorted(spec.wire, key=lambda f: not f.idle):
        if f.mode == "notify":
            lines += _notify(f)
        else:
            lines += [*(_idle(f) if f.idle else []), *_dispatcher(spec, f)]
    lines.append("int gpw_dispatch(struct gpw_session *s, const struct gp_header *h)\n{")
    lines.append("    switch (h->op) {")
    for f in spec.wire:
        if f.mode != "notify":
            lines.append(f"    case GP_OP_{f.name}:\n        return do_{f.name}(s, h);")
    lines.append(
        '    default:\n        return gpw_session_broken(s, "no operation has this number");'
    )
    lines.append("    }\n}\n")
    return "\n".join(lines)


def _notify(f: Function) -> list[str]:
    lines = [
        _notify_prototype(f),
        "{",
        f"    struct gp_req_{f.name} q;",
        "    memset(&q, 0, sizeof q);",
    ]
    lines.append(f"    q.h.op = GP_OP_{f.name};")
    for p in f.params:
        if p not in tails_in(f):
            lines.append(f"    q.{p.name} = {p.name};")
    lines.append(f"    if (!gp_shared_has(&s->shared, GP_OP_{f.name}))")
    lines.append("        return 0; /* the client is of another release */")
    flags = ", .flags = GP_SEND_LATER" if f.later else ""
    lines.append(f"    struct gpw_message m = {{.head = &q.h, .head_size = sizeof q{flags}}};")
    for p in tails_in(f):
        lines.append(f"    q.n_{p.name} = (uint32_t)(sizeof({p.element}) * ({p.count}));")
        lines.append(f"    gpw_message_tail(&m, {p.name}, q.n_{p.name});")
    lines.append("    return gpw_session_send(s, &m);\n}\n")
    return lines


#: What the worker lets go of before the driver ends an object of a kind.
_ENDING = {
    **dict.fromkeys(("module", "library"), "gpw_functions_forget(s)"),
    **dict.fromkeys(("array", "mipmap"), "gpw_mapped_arrays_forget(s)"),
    "graph": "gpw_graph_ending(s, {})",
}
#: Who may keep an object that the client destroys, and ends it later.
_KEEPING = {"event": "gpw_event_ending(s, {})"}


def _kind(p: Param) -> str:
    return f"GP_HANDLE_{(p.handle or '').upper()}"


def _ended(f: Function) -> list[Param]:
    return [p for p in f.params if p.has("destroy")]


def _endings(f: Function) -> list[str]:
    return [_ENDING[p.handle].format(p.name) for p in _ended(f) if p.handle in _ENDING]


# --- ends that wait until no stream is blocked ----------------------------------------


def _idle(f: Function) -> list[str]:
    """The driver would wait in it for streams that a message may have to set going."""
    p = _ended(f)[0]
    lines = [f"static void now_{f.name}(struct gpw_session *s, void *arg)\n{{"]
    lines.append(f"    s->driver->{f.name}(arg);\n}}\n")
    lines.append(f"static CUresult idle_{f.name}(struct gpw_session *s, {p.ctype} {p.name})\n{{")
    lines += [f"    {ending};" for ending in _endings(f)]
    when = "gpw_end_when_none_blocked" if p.handle in OF_CONTEXT else "gpw_when_none_blocked"
    lines.append(f"    {when}(s, now_{f.name}, {p.name});")
    lines.append("    return CUDA_SUCCESS;\n}\n")
    return lines


def _undo(spec: Spec, kind: str, name: str) -> str:
    """How to get rid of an object whose making took more memory than there may be."""
    for f in spec.wire:
        if any(p.handle == kind for p in _ended(f)):
            return f"idle_{f.name}(s, {name})" if f.idle else f"s->driver->{f.name}({name})"
    return ""


def _undo_growth(spec: Spec, f: Function) -> list[str]:
    """What the driver took by itself is more than the tenant may have."""
    if _ended(f):
        return ["    if (r == CUDA_SUCCESS)\n        gpw_growth_over(s, &growth);"]
    lines = ["    if (r == CUDA_SUCCESS && gpw_growth_over(s, &growth)) {"]
    holder = next((p for p in f.params if p.handle in ("module", "library")), None)
    if holder is not None and not holder.has("create"):
        # Its variables came with the first use. Whatever is asked of it later fails, too.
        kind = _kind(holder)
        lines.append("        if (gpw_growth_far(&growth)) {\n            uint64_t real;")
        lines.append(f"            gpw_handle_take(s, {kind}, a.q->{holder.name}, false, &real);")
        lines.append(f"            {_undo(spec, holder.handle or '', holder.name)};")
        lines.append(
            f"            gpw_handle_put(s, {kind}, a.q->{holder.name}, 0,"
            " CUDA_ERROR_OUT_OF_MEMORY);\n        }"
        )
    else:
        kinds = ["module", "library", "graph_exec", "array", "mipmap"]
        made = [p for p in f.creates if p.handle in kinds]
        lines += [f"        {_undo(spec, p.handle or '', p.name)};" for p in made]
    lines.append("        gpw_growth_undone(s, &growth);")
    lines.append("        r = CUDA_ERROR_OUT_OF_MEMORY;\n    }")
    return lines


# --- arguments ------------------------------------------------------------------------


def _argument(f: Function, p: Param) -> str:
    if any(p.has(word) for word in _MEMORIES):
        return f"at_{p.name}"
    if p.has("create"):
        return f"&{p.name}"
    if p.handle or p.has("inout"):
        return p.name if p.handle else f"&{p.name}"
    if _takes_locations(f, p):
        return f"own_{p.name}"
    if p in tails_in(f):
        # some of CUDA's prototypes lack a const
        return f"a.{p.name}" if "const" in p.ctype else f"({p.ctype})(uintptr_t)a.{p.name}"
    if p in tails_out(f):
        return p.name
    if _takes_device(f, p):
        return p.name
    if p.has("address"):
        return f"({p.ctype})(uintptr_t)a.q->{p.name}"
    if p.has("in"):
        return f"&{p.name}"
    if p.is_out:
        return f"a.q->has_{p.name} ? &{p.name} : NULL" if p.has("optional") else f"&{p.name}"
    return f"a.q->{p.name}"


def _over_arguments(f: Function, text: str) -> str:
    """An expression over the parameters, over what stands for them here."""
    named = {p.name: _argument(f, p) for p in f.params}
    given = re.sub(r"[A-Za-z_]\w*", lambda m: named.get(m[0], m[0]), text)
    return re.sub(r"&(\w+)->", r"\1.", given)


#: What holds the worker against what a client says of an address: word -> function.
_REACHES = {
    "span": "gpw_memory_reach",
    "device": "gpw_memory_is_device",
    "own": "gpw_memory_is_clients",
    "aim": "gpw_memory_aim",
}


#: Who knows memory by the client's name of it.
_MEMORIES = {"captured": "gpw_captured_find", "arena": "gpw_arena_at"}


def _length(f: Function, p: Param) -> str:
    """The length of a parameter, of what the message says."""
    names = {other.name for other in f.params}
    return re.sub(r"[A-Za-z_]\w*", lambda m: f"a.q->{m[0]}" if m[0] in names else m[0], p.count)


def _reach(f: Function, p: Param, function: str) -> str:
    """The check that an address may be used as far as the call uses it."""
    reach = f"{function}(s, a.q->{p.name}, {_length(f, p)})"
    return f"{reach} ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE"


def _among(p: Param, values: str) -> str:
    """The check that a value is one of those that have a meaning here."""
    one = " || ".join(f"a.q->{p.name} == {value}" for value in values.split("|"))
    return f"{one} ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE"


def _takes_device(f: Function, p: Param) -> bool:
    """Numbers of devices are the client's: hand-written handlers look them up by themselves."""
    return p.ctype == "CUdevice" and f.worker != "custom"


def _takes_location(f: Function, p: Param) -> bool:
    return p.pointee in LOCATIONS and p.is_in_pointer and not p.count and f.worker != "custom"


def _takes_locations(f: Function, p: Param) -> bool:
    return p.pointee == ACCESS and p.has("in") and bool(p.count) and f.worker != "custom"


def _look_up(p: Param) -> tuple[str, str]:
    """The declaration of a handle, and the check that finds it."""
    ctype = p.ctype.replace("const ", "")
    null = "true" if p.has("null") else "false"
    get, what = "gpw_handle_take" if p.has("destroy") else "gpw_handle_get", f"s, {_kind(p)}, "
    if ctype == "CUkernel":
        get, what = "gpw_handle_get_kernel", "s, "
    check = f"{get}({what}a.q->{p.name}, {null}, (uint64_t *)&{p.name})"
    return f"    {ctype} {p.name} = 0;", check


def _anew(f: Function, p: Param) -> str:
    """Who waits for an event that is recorded anew: in the context that the call names, or in
    the current one, which is its stream's."""
    context = next((o.name for o in f.params if o.handle == "context"), "")
    if context:
        return f"gpw_event_anew_in(s, {context}, {p.name})"
    return f"gpw_event_anew(s, {p.name})"


def _take(f: Function, p: Param) -> tuple[list[str], list[str]]:
    """What a parameter declares, and what is checked before the call."""
    n = p.name
    if p.has("create"):
        return [
            f"    {p.pointee} {n} = 0;",
            f"    if (!gpw_handle_free(s, {_kind(p)}, a.q->{n}))",
            f'        return gpw_session_broken(s, "{f.name}: the new handle is not free");',
        ], []
    if p.handle:
        line, check = _look_up(p)
        return [line], [check, *([_anew(f, p)] if p.has("anew") else [])]
    word = next((w for w in OBJECTS if p.has(w)), "")
    if word:
        return [], [f"gpw_{word}_check(s, a.q->{n})"]
    word = next((w for w in _MEMORIES if p.has(w)), "")
    if word:
        at = f"at_{n} = {_MEMORIES[word]}(s, a.q->{n}, {_length(f, p)})"
        return [f"    void *at_{n} = NULL;"], [f"({at}) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE"]
    word = next((w for w in _REACHES if p.has(w)), "")
    if word:
        return [], [_reach(f, p, _REACHES[word])]
    if _takes_device(f, p):
        return [f"    CUdevice {n} = 0;"], [f"gpw_device_take(s, a.q->{n}, &{n})"]
    if _takes_locations(f, p):
        count = f"sizeof own_{n} / sizeof own_{n}[0]"
        return [f"    {ACCESS} own_{n}[GPW_ACCESS_MAX];"], [
            f"gpw_access_take(s, a.{n}, a.q->n_{n} / sizeof *a.{n}, own_{n}, {count})"
        ]
    if p in tails_out(f) and not f.is_deferred:
        index = tails_out(f).index(p)
        return [
            f"    uint32_t n_{n} = a.room_{n};",
            f"    {p.pointee} *{n} = gpw_scratch(s, {index}, n_{n});",
        ], []
    if p.has("in") and not p.count or p.has("inout"):
        lines = [f"    {p.pointee} {n};", f"    memcpy(&{n}, &a.q->{n}, sizeof {n});"]
        location = f"gpw_location_check(s, &{n}{LOCATIONS.get(p.pointee, '')})"
        return lines, [location] if _takes_location(f, p) else []
    if p.is_out and not p.count and not f.is_deferred:
        return [f"    {p.pointee} {n};\n    memset(&{n}, 0, sizeof {n});"], []
    return [], [_among(p, c.expression) for c in p.checks if c.word == "among"]


# --- one message ------------------------------------------------------------------------


def _head(f: Function) -> list[str]:
    """Decode, look up, check."""
    lines = [f"static int do_{f.name}(struct gpw_session *s, const struct gp_header *h)\n{{"]
    lines.append(f"    struct gp_args_{f.name} a;\n    if (!gp_decode_{f.name}(h, &a))")
    lines.append(
        f'        return gpw_session_broken(s, "{f.name}: the arguments do not fit the message");'
    )
    checks: list[str] = []
    for p in f.params:
        declared, checked = _take(f, p)
        lines += declared
        checks += checked
    if f.capture == "refuses":
        checks.append(f"gpw_not_capturing(s, {f.stream})")
    lines.append("    CUresult r = CUDA_SUCCESS;")
    for check in checks:
        lines.append(f"    if (r == CUDA_SUCCESS)\n        r = {check};")
    if f.work and f.needs == "context":
        lines.append("    if (r == CUDA_SUCCESS && !gpw_place_known(s))")
        lines.append("        r = CUDA_ERROR_INVALID_CONTEXT;")
    return lines


def _call(f: Function) -> str:
    """The call itself: the driver's, or what is written by hand."""
    if f.waits_for == "context":
        context = next((p.name for p in f.params if p.handle == "context"), "NULL")
        return f"gpw_answer_after_context(s, gpw_token_of(h), {context}, gpw_answer_{f.name})"
    if f.waits_for and not f.calls:
        return f"gpw_answer_after_stream(s, gpw_token_of(h), {f.waits_for}, gpw_answer_{f.name})"
    if f.idle:
        return f"idle_{f.name}(s, {_ended(f)[0].name})"
    by_hand = f.worker in ("custom", "deferred")
    args = []
    for p in f.params:
        if f.is_deferred and p.is_out:
            continue
        args.append(_argument(f, p))
        if p in tails_out(f) and by_hand:
            args.append(f"&n_{p.name}")
    if f.is_deferred:
        args.insert(0, "gpw_token_of(h)")
    if by_hand:
        return f"gpw_{f.name}({', '.join(['s', *args])})"
    if f.calls:
        name, _, rest = f.calls.partition("(")
        given = _over_arguments(f, rest)
        return f"{name}(s, {given}" if own_call(f) else f"s->driver->{name}({given}"
    return f"s->driver->{f.name}({', '.join(args)})"


def _behind(spec: Spec, f: Function) -> list[str]:
    """What the worker does when the call is over."""
    lines = []
    if (f.worker == "custom" or own_call(f) or f.takes or f.freed) and f.waits:
        lines.append("    if (r == GPW_AGAIN)\n        return gpw_put_off(s, h);")
    if f.worker == "noted":
        args = ", ".join(["s", *(a for p in f.params for a in _noted(f, p))])
        lines.append(f"    if (r == CUDA_SUCCESS)\n        r = gpw_noted_{f.name}({args});")
    if f.tells:
        # success may only be told behind what older waits have to send
        lines.append("    if (r == CUDA_SUCCESS)\n        gpw_waits_poll(s);")
    if f.capture == "begins":
        lines.append("    gpw_capture_begun(s, r);")
    if f.capture == "ends":
        made = next((p.name for p in f.creates if p.handle == "graph"), "NULL")
        lines.append(f"    gpw_capture_ended(s, r, {made});")
    if f.grows:
        lines += _undo_growth(spec, f)
    for p in values_out(f):
        if p.pointee in LOCATIONS and f.worker != "custom":
            lines.append(f"    gpw_location_give(s, &{p.name}{LOCATIONS[p.pointee]});")
    for p in f.creates:
        lines += _put(f, p)
    return lines


def _noted(f: Function, p: Param) -> list[str]:
    """What is noted of a parameter: values as the driver took or gave them."""
    room = [f"&n_{p.name}"] if p in tails_out(f) else []
    return [p.name if p.has("create") else _argument(f, p), *room]


def _put(f: Function, p: Param) -> list[str]:
    """Name what was made, and what it goes with."""
    lines = [f"    gpw_handle_put(s, {_kind(p)}, a.q->{p.name}, (uint64_t){p.name}, r);"]
    parent = f.parent(p)
    of = f"a.q->{parent.name}" if parent else "0"
    context = "true" if f.of_context(p) else "false"
    tag = "GPW_TAG_KERNEL" if p.pointee == "CUkernel" else "0"
    if p.handle in PARENTS or f.of_context(p):
        lines.append(f"    gpw_handle_bind(s, {_kind(p)}, a.q->{p.name}, {of}, {context}, {tag});")
    return lines


def _dispatcher(spec: Spec, f: Function) -> list[str]:
    lines = _head(f)
    for name, said in memory_asked(f):
        asked = f"{name}(s, {_over_arguments(f, said)})"
        lines.append(f"    if (r == CUDA_SUCCESS)\n        r = {asked};")
    if f.grows:
        lines.append(
            f"    struct gpw_growth growth;\n    gpw_growth_begin(s, GP_OP_{f.name}, &growth);"
        )
    if not f.idle:
        lines += [f"    if (r == CUDA_SUCCESS)\n        {ending};" for ending in _endings(f)]
    call = _call(f)
    if f.waits_for and f.calls:
        lines.append(f"    struct gpw_answer_wait *answer = NULL;\n    {answer_prepared(f)}")
        if not own_call(f):
            call = f"gpw_answer_submitted(s, answer, {f.waits_for}, {call})"
    kept = [_KEEPING[p.handle].format(p.name) for p in _ended(f) if p.handle in _KEEPING]
    may = " && ".join(["r == CUDA_SUCCESS", *(f"!{keeps}" for keeps in kept)])
    lines.append(f"    if ({may})\n        r = {call};")
    lines += _behind(spec, f)
    if not f.waits:
        return [*lines, "    return gpw_async_result(s, h, r);\n}\n"]
    if f.is_deferred:
        lines.append("    if (r == GPW_DEFERRED)\n        return 0;")
        zero = "".join(", NULL, 0" for _ in tails_out(f))
        lines.append(f"    return gpw_answer_{f.name}(s, gpw_token_of(h), r{zero});\n}}\n")
        return lines + _answer(f)
    return lines + _reply(f)


def _reply(f: Function) -> list[str]:
    lines = [f"    struct gp_rep_{f.name} rep;\n    memset(&rep, 0, sizeof rep);"]
    lines.append("    struct gpw_message m = {.head = &rep.r.h, .head_size = sizeof rep};")
    outs = values_out(f) + tails_out(f)
    if outs:
        lines.append("    if (r == CUDA_SUCCESS) {")
    for p in values_out(f):
        target = f"rep.{p.name}" if p.pointee in OVERALIGNED else f"&rep.{p.name}"
        lines.append(f"        memcpy({target}, &{p.name}, sizeof {p.name});")
    for p in tails_out(f):
        lines.append(f"        rep.n_{p.name} = n_{p.name};")
        lines.append(f"        gpw_message_tail(&m, {p.name}, n_{p.name});")
    if outs:
        lines.append("    }")
    lines.append("    return gpw_reply(s, h, r, &m);\n}\n")
    return lines


def _answer(f: Function) -> list[str]:
    """Declared in gpw_handlers.h, so it may follow its use."""
    outs = tails_out(f)
    args = "".join(f", const void *{p.name}, uint32_t n_{p.name}" for p in outs)
    lines = [
        f"int gpw_answer_{f.name}(struct gpw_session *s, struct gpw_token token,"
        f" CUresult result{args})"
    ]
    lines.append(f"{{\n    struct gp_rep_{f.name} rep;\n    memset(&rep, 0, sizeof rep);")
    lines.append("    struct gpw_message m = {.head = &rep.r.h, .head_size = sizeof rep};")
    for p in outs:
        lines.append(
            f"    rep.n_{p.name} = n_{p.name};\n    gpw_message_tail(&m, {p.name}, n_{p.name});"
        )
    lines.append("    return gpw_reply_token(s, token, result, &m);\n}\n")
    return lines
