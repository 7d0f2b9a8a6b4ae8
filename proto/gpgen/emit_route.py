"""Where a call is made (client_lib/session/route.h): what names it, resolved and handed down."""

from __future__ import annotations

from .layout import tails_out
from .param import Param
from .spec import Function


def order(p: Param) -> int:
    """Arguments are encoded in the order in which they say where the call goes: what
    belongs to one session, what several may have, what has to be made in it."""
    if p.has("create"):
        return 2
    several = p.handle in ("function", "library")
    return 1 if several or p.has("address") or p.ctype == "CUdeviceptr" else 0


def _got(f: Function) -> list[str]:
    return [f"got_{p.name}" for p in tails_out(f)] if f.is_message else []


def _parameters(f: Function) -> list[str]:
    """Messages also hand back how much of each out[N] came."""
    return [*(p.decl for p in f.params), *(f"uint32_t *{got}" for got in _got(f))]


def prototype(f: Function) -> str:
    """Encodes a call that is made `on` a route; NULL: where its arguments say."""
    params = ", ".join(["const struct gpc_route *on", *_parameters(f)])
    return f"CUresult gpc_wire_{f.name}_on({params})"


def unrouted(f: Function) -> str:
    """The same for who has no route: its arguments are all that names one."""
    arguments = ", ".join(["NULL", *(p.name for p in f.params), *_got(f)])
    return (
        f"static inline CUresult gpc_wire_{f.name}({', '.join(_parameters(f)) or 'void'})\n"
        f"{{\n    return gpc_wire_{f.name}_on({arguments});\n}}"
    )


def start() -> list[str]:
    """The call of an encoder, on its way."""
    return [
        "    struct gpc_call call = {.request = &q.h, .request_size = sizeof q};",
        "    call.route = on ? *on : gpc_route_here();",
    ]


def enter(f: Function, op: str, needs: str) -> list[str]:
    """How an exported function begins: `on` is the route where a stream names it."""
    if f.place is None:
        return [f"    CUresult r = gpc_enter({op}, {needs});"]
    if f.place.handle == "event":
        return [f"    CUresult r = gpc_enter_event({op}, {f.place.name});"]
    return [
        "    struct gpc_route on;",
        f"    CUresult r = gpc_enter_stream(&on, {op}, {f.place.name});",
    ]


def send(f: Function, arguments: str) -> str:
    """The expression that sends for an exported function that has begun with enter()."""
    if f.place is None or f.place.handle == "event":
        return f"gpc_wire_{f.name}({arguments})"
    return f"gpc_wire_{f.name}_on({', '.join(['&on', arguments])})"
