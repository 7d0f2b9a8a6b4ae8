"""The way to the issuer of OpenID Connect, and back."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from gpupool_common.protocol import one_line
from gpupool_manager.attempts import Attempts
from gpupool_manager.console.openid import Issuer, Journey, refused
from gpupool_manager.console.render import HEADERS, page
from gpupool_manager.console.sessions import SESSION_SECONDS
from gpupool_manager.console.signing_in import signed_in
from gpupool_manager.console.visit import is_secure, own_path
from gpupool_manager.pool import Pool
from gpupool_manager.problems import Problem, not_found
from gpupool_manager.transaction import Actor, Transaction

router = APIRouter(include_in_schema=False)

#: So long one may take to come back.
JOURNEY_SECONDS = 600

#: So often one person may sign in, as each time makes a token: at once, and then how many seconds
#: there are between two.
SIGN_INS, SIGN_IN_SECONDS = 16, 225.0

Word = Annotated[str, Query(max_length=4096)]


def _issuer(request: Request) -> Issuer:
    found: Issuer | None = request.app.state.openid
    if found is None:
        raise not_found("issuer", "openid_issuer")
    return found


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _cookie(request: Request) -> str:
    return "__Host-gpupool-openid" if is_secure(request) else "gpupool-openid"


@router.get("/console/openid")
async def leave(request: Request, next: Word = "/") -> Response:
    """To the issuer. The cookie comes back with its link (Lax), and is good for that alone."""
    journey, issuer = Journey.begin(own_path(next)), _issuer(request)
    with issuer.asking(_address(request)):
        target = await issuer.address(journey)
    response = RedirectResponse(target, 303, HEADERS)
    response.set_cookie(
        _cookie(request),
        journey.cookie(),
        max_age=JOURNEY_SECONDS,
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return response


@router.get("/console/openid/back")
async def come_back(
    request: Request, state: Word = "", code: Word = "", error: Word = ""
) -> Response:
    """From the issuer, with a code that it gave to this browser."""
    issuer = _issuer(request)
    journey = Journey.read(request.cookies.get(_cookie(request)))
    if journey is None or not hmac.compare_digest(state.encode(), journey.state.encode()):
        raise refused("this browser has not begun to sign in, or too long ago; begin again")
    if error or not code:
        raise refused(f"the issuer has not signed you in: {one_line(error)[:100] or 'no code'}")
    with issuer.asking(_address(request)):
        claims = await issuer.claims(journey, code)
    pool: Pool = request.app.state.pool
    scope, tenant = issuer.who(claims, set(pool.ledger.tenants))
    name = claims.get("email") or claims.get("preferred_username") or claims["sub"]
    person = str(claims["sub"])
    sign_ins: Attempts = request.app.state.sign_ins
    if sign_ins.too_many(person):
        raise Problem(429, "too-many", "you have signed in too often; try again in some minutes")
    sign_ins.count(person)

    def make(transaction: Transaction) -> str:
        return pool.tenancy.create_token(
            transaction,
            scope,
            tenant=tenant,
            description=f"console, by OpenID Connect: {one_line(str(name))}"[:256],
            expires=transaction.now + SESSION_SECONDS,
        )[1]

    secret = await pool.commands.do(make, Actor("openid", request.state.request_id))
    # A page and no redirect: what the issuer's link leads to is not sent cookies of our own pages.
    response = page(request, "welcome.html", next=own_path(journey.next))
    response.delete_cookie(
        _cookie(request), path="/", secure=is_secure(request), httponly=True, samesite="lax"
    )
    return signed_in(request, secret, response, person)
