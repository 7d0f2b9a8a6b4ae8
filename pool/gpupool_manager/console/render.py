"""Pages from templates; everything in them that is not ours is escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from gpupool_common import __version__
from gpupool_common.sizes import format_part, short_size
from gpupool_manager.console.sessions import Session
from gpupool_manager.extras import not_installed
from gpupool_manager.problems import TITLES, Problem

HERE = Path(__file__).resolve().parent

#: Scripts and styles are our own files, and no page of anybody shows ours in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With "no-referrer" browsers would not say of forms that they are our own.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

#: Suffixes of the files that pages may ask for.
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
KINDS |= {".svg": "image/svg+xml"}


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """By their names: nothing else is ever read for a request."""
    found = sorted((HERE / "static").iterdir())
    return {p.name: (p.read_bytes(), KINDS[p.suffix]) for p in found if p.suffix in KINDS}


@cache
def _environment() -> Any:
    try:
        import jinja2  # a manager is there before anybody wants a page
    except ModuleNotFoundError:
        raise Problem(503, "unavailable", f"the console: {not_installed('jinja2')}") from None
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"size": _size, "part": _part, "moment": moment, "span": span, "hours": _hours}
    found.filters["count"] = _count
    found.globals["version"] = __version__
    return found


def _size(value: int | None) -> str:
    return "–" if value is None else short_size(value)


def _part(value: int | None) -> str:
    return "–" if value is None else format_part(value)


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _hours(value: float) -> str:
    return "< 0.1" if 0 < value < 0.1 else f"{value:.1f}"


def moment(text: str | None) -> str:
    """A time of the API as people read it."""
    if text is None:
        return "–"
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(text: str | None, now: float) -> str:
    """How long ago, or how long until then."""
    if text is None:
        return "–"
    seconds = int(abs(datetime.fromisoformat(text).timestamp() - now))
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"


def page(
    request: Request,
    template: str,
    session: Session | None = None,
    status: int = 200,
    **values: Any,
) -> HTMLResponse:
    """A page, with what all of them show."""
    text: str = (
        _environment()
        .get_template(template)
        .render(
            values
            | {
                "session": session,
                "csrf": "" if session is None else session.csrf,
                "news": [] if session is None else session.take_news(),
                "path": request.url.path,
                "openid": request.app.state.openid is not None,
                "now": request.app.state.pool.clock(),
            }
        )
    )
    return HTMLResponse(text, status, HEADERS)


def go_to(path: str) -> Response:
    """After a change: the page that shows it."""
    return RedirectResponse(path, 303, HEADERS)


def refused(request: Request, problem: Problem, session: Session | None) -> Response:
    """A problem as a page."""
    shown = {"title": TITLES[problem.code], "detail": problem.detail, "number": problem.status}
    try:
        return page(request, "problem.html", session, problem.status, **shown)
    except Problem as lacking:  # no templates either
        return PlainTextResponse(lacking.detail, lacking.status, HEADERS)
