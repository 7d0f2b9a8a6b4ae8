"""Who asks for a page, and what a form of ours has sent."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, Response

from gpupool_manager.console.api import Api
from gpupool_manager.console.render import go_to, page, refused
from gpupool_manager.console.sessions import Session, Sessions
from gpupool_manager.console.site import is_console
from gpupool_manager.problems import Problem, bad_field

#: More fields than any form of ours has.
MOST_FIELDS = 64

LOGIN = "/console/login"


def sessions_of(request: Request) -> Sessions:
    found: Sessions = request.app.state.sessions
    return found


def is_secure(request: Request) -> bool:
    """Whether browsers come by TLS: ours, or that of a proxy before us."""
    public: str = request.app.state.console_url
    return request.url.scheme == "https" or public.startswith("https://")


def cookie_name(request: Request) -> str:
    """With this prefix browsers take it from no other host and in clear from nobody."""
    return "__Host-gpupool" if is_secure(request) else "gpupool-console"


def session_of(request: Request) -> Session | None:
    return sessions_of(request).find(request.cookies.get(cookie_name(request)))


def own_path(text: str) -> str:
    """A page of ours to go on with; the first one if it is none."""
    fine = text.isprintable() and "\\" not in text and is_console(text.partition("?")[0])
    return text if fine and not text.startswith(LOGIN) else "/"


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of who is signed in."""

    request: Request
    session: Session
    api: Api

    def page(self, template: str, **values: Any) -> HTMLResponse:
        return page(self.request, template, self.session, **values)

    def done(self, path: str, text: str) -> Response:
        """A change was made: the next page says so."""
        self.session.news.append(text)
        return go_to(own_path(path))


async def visit(request: Request) -> Visit:
    session = session_of(request)
    if session is None:
        raise Problem(401, "bad-token", "sign in first")
    request.scope["state"].update(actor=session.token.id, tenant=session.token.tenant)
    return Visit(request, session, Api(request, session.secret))


Visiting = Annotated[Visit, Depends(visit)]


class Form:
    """The fields of a form."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        return self._values.get(name, "").strip()

    def has(self, name: str) -> bool:
        return name in self._values

    def whole(self, name: str) -> int | None:
        """A whole number; None if nothing was filled in."""
        text = self.text(name)
        if text and not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise bad_field(name, f"{text[:40]!r} is no whole number")
        return int(text) if text else None


async def read_form(request: Request) -> Form:
    """What a form has sent; Problem if it is none."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise bad_field("Content-Type", "it must be application/x-www-form-urlencoded")
    try:
        text = (await request.body()).decode("ascii")
        pairs = parse_qsl(text, True, True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:
        raise bad_field("body", "it is no form of these pages") from None
    return Form(dict(pairs))


Sent = Annotated[Form, Depends(read_form)]


async def changing(visit: Visiting, form: Sent) -> Visit:
    """Who asks for a change, by a form that we gave to that one."""
    if not hmac.compare_digest(form.text("csrf").encode(), visit.session.csrf.encode()):
        raise Problem(403, "forbidden", "the form is not of this session: go back and reload it")
    return visit


Changing = Annotated[Visit, Depends(changing)]


def answer(request: Request, problem: Problem) -> Response:
    """What is refused, as a page; who is not signed in is asked to, and comes back then."""
    session = session_of(request)
    if problem.status != 401:
        return refused(request, problem, session)
    if session is not None:  # its token was revoked, or has expired
        sessions_of(request).close(request.cookies.get(cookie_name(request)))
    if request.method == "POST" and request.url.path == LOGIN:
        return page(request, "login.html", status=401, wrong=problem.detail, next=None)
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    why = problem.detail if session is not None else ""
    target = own_path(here) if request.method == "GET" else "/"
    return page(request, "login.html", status=401, wrong=why, next=target)
