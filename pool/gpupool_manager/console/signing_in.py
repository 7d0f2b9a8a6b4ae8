"""Signing in with a token, and signing out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gpupool_manager.console.api import Api
from gpupool_manager.console.render import go_to, page
from gpupool_manager.console.sessions import SESSION_SECONDS
from gpupool_manager.console.visit import (
    LOGIN,
    Changing,
    Sent,
    cookie_name,
    is_secure,
    own_path,
    session_of,
    sessions_of,
)
from gpupool_manager.pool import Pool
from gpupool_manager.problems import Problem

router = APIRouter(include_in_schema=False)


@router.get(LOGIN)
async def login_page(
    request: Request, next: Annotated[str, Query(max_length=2048)] = "/"
) -> Response:
    return page(request, "login.html", wrong="", next=own_path(next))


@router.post(LOGIN)
async def login(request: Request, form: Sent) -> Response:
    """The token goes to the API, which counts wrong ones by the address they come from."""
    secret = form.text("token")
    if not (secret and secret.isascii() and secret.isprintable()):
        raise Problem(401, "bad-token", "that is no token")
    await Api(request, secret).get("/leases", limit=1)
    return signed_in(request, secret, go_to(own_path(form.text("next"))))


def signed_in(request: Request, secret: str, response: Response, person: str = "") -> Response:
    """A new session for who has shown a good token, in place of the one before.

    ``person``: for whom the token was made.
    """
    pool: Pool = request.app.state.pool
    token = pool.ledger.tokens.check(secret, pool.clock())
    sessions = sessions_of(request)
    sessions.close(request.cookies.get(cookie_name(request)))
    response.set_cookie(
        cookie_name(request),
        sessions.open(secret, token, person),
        max_age=int(SESSION_SECONDS),
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="strict",
    )
    return response


@router.post("/console/logout")
async def logout(request: Request, visit: Changing) -> Response:
    """The session ends; a token that was made for it does, too."""
    session = session_of(request)
    sessions_of(request).close(request.cookies.get(cookie_name(request)))
    if session is not None and session.own_token:
        pool: Pool = request.app.state.pool
        try:
            await pool.commands.do(lambda t: pool.tenancy.revoke_token(t, session.token.id))
        except Problem as problem:  # the last one of an operator stays until it expires
            if problem.code not in ("in-use", "not-found"):
                raise
    response = go_to(LOGIN)
    secure = is_secure(request)
    response.delete_cookie(
        cookie_name(request), path="/", secure=secure, httponly=True, samesite="strict"
    )
    return response
