"""What all parts of the REST API share: who asks, pages, ETags, idempotent writes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import heapq
import json
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Query, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from gpupool_common import json_text
from gpupool_manager.pool import Pool
from gpupool_manager.problems import Problem, bad_field
from gpupool_manager.records import Answer, Scope, Token
from gpupool_manager.schemas import Page, ProblemOut
from gpupool_manager.transaction import Actor, Transaction

T = TypeVar("T")

bearer = HTTPBearer(auto_error=False, description="a token of the manager")


def pool_of(request: Request) -> Pool:
    pool: Pool = request.app.state.pool
    return pool


ThePool = Annotated[Pool, Depends(pool_of)]


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token it is."""

    token: Token
    actor: Actor

    @property
    def is_admin(self) -> bool:
        return self.token.scope == "admin"

    def tenant(self, asked: str | None) -> str | None:
        """The tenant that the caller may ask for: its own, or for an admin any or all (None)."""
        if self.is_admin or asked in (None, self.token.tenant):
            return asked if self.is_admin else self.token.tenant
        raise Problem(403, "forbidden", f"the token is of the tenant '{self.token.tenant}'")


def need(*scopes: Scope) -> Callable[..., Coroutine[Any, Any, Caller]]:
    """A dependency: who asks, if the token has one of these scopes."""

    async def find(
        request: Request,
        pool: ThePool,
        given: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
    ) -> Caller:
        token = pool.ledger.tokens.check(given.credentials if given else None, pool.clock())
        request.scope["state"].update(actor=token.id, tenant=token.tenant)
        if token.scope not in scopes:
            asked = " or ".join(f"'{scope}'" for scope in scopes)
            raise Problem(
                403, "forbidden", f"this needs the scope {asked}, the token has '{token.scope}'"
            )
        if token.tenant is not None and pool.ledger.tenants[token.tenant].disabled:
            raise Problem(403, "disabled", f"the tenant '{token.tenant}' is disabled")
        return Caller(token, Actor(token.id, request.state.request_id))

    return find


Admin = Annotated[Caller, Depends(need("admin"))]
User = Annotated[Caller, Depends(need("admin", "tenant"))]


# Answers -------------------------------------------------------------------------------

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "model": ProblemOut,
        "description": text,
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemOut"}}
        },
    }
    for status, text in {
        401: "No valid token",
        403: "The token's scope or the tenant's quota does not allow it; `limits` has the numbers",
        404: "Not found",
        405: "Method not allowed",
        409: "The state of the pool does not allow it",
        412: "It was changed since the ETag of If-Match",
        413: "The body is too large",
        422: "A field is wrong; `errors` names it",
        429: "Too many wrong tokens came from this address, or too many requests of one tenant;"
        " Retry-After says when to ask again",
        503: "The database cannot be written now; nothing was changed",
    }.items()
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a write, ready to be sent and to be sent again."""

    body: BaseModel | None = None
    status: int = 200
    version: int | None = None
    #: Whether the answer may be kept: not if there is a secret in it.
    keep: bool = True


def etag(version: int) -> str:
    return f'"{version}"'


def send(body: BaseModel, version: int | None = None, status: int = 200) -> Response:
    return _response(status, body.model_dump_json(), None if version is None else etag(version))


def _response(status: int, body: str, tag: str | None) -> Response:
    response = Response(body, status, media_type="application/json" if body else None)
    if tag is not None:
        response.headers["ETag"] = tag
    return response


@dataclass(frozen=True, slots=True)
class Writing:
    """One request that changes something."""

    pool: Pool
    key: str | None
    if_match: str | None
    fingerprint: str

    def check(self, version: int) -> None:
        """412 unless the caller has seen this version, or did not say."""
        if self.if_match is None or self.if_match.strip() == "*":
            return
        if etag(version) not in (tag.strip() for tag in self.if_match.split(",")):
            raise Problem(412, "changed", f"it is at {etag(version)} now, not {self.if_match}")

    async def do(self, caller: Caller, operation: Callable[[Transaction], Reply]) -> Response:
        """Once, however often it is asked for with the same key."""

        def once(transaction: Transaction) -> Response:
            kept = self._kept(caller)
            if kept is not None:
                return _response(kept.status, kept.body, kept.etag)
            reply = operation(transaction)
            body = "" if reply.body is None else reply.body.model_dump_json()
            tag = None if reply.version is None else etag(reply.version)
            if self.key is not None:
                status = reply.status if reply.keep else 0
                answer = Answer(
                    caller.token.id,
                    self.key,
                    self.fingerprint,
                    status,
                    body if reply.keep else "",
                    tag,
                    transaction.now,
                )
                for old in self.pool.ledger.answers.keep(answer):
                    transaction.drop(old)
                transaction.put(answer)
            return _response(reply.status, body, tag)

        return await self.pool.commands.do(once, caller.actor)

    def _kept(self, caller: Caller) -> Answer | None:
        kept = self.pool.ledger.answers.get(caller.token.id, self.key or "")
        if kept is None:
            return None
        if kept.fingerprint != self.fingerprint:
            raise Problem(
                422,
                "repeated",
                f"Idempotency-Key '{self.key}' was used for another request",
                errors=[{"field": "Idempotency-Key", "message": "was used for another request"}],
            )
        if kept.status == 0:
            raise Problem(409, "exists", "it was done already; its secret is shown only once")
        return kept


async def _writing(
    request: Request,
    pool: ThePool,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            pattern=r"^[\x21-\x7e]{1,64}$",
            description="the same request with the same key is done once; kept for a day",
        ),
    ] = None,
    if_match: Annotated[
        str | None,
        Header(alias="If-Match", max_length=1024, description="the ETag that was read, or *"),
    ] = None,
) -> Writing:
    seen = hashlib.sha256(f"{request.method} {request.url.path}?{request.url.query}\n".encode())
    seen.update(await request.body())
    return Writing(pool, key, if_match, seen.hexdigest())


Write = Annotated[Writing, Depends(_writing)]


# Pages ---------------------------------------------------------------------------------

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Paging:
    """Which part of a list is asked for."""

    limit: int
    cursor: str | None

    def after(self, *kinds: type) -> Key | None:
        """The key after which the page starts; Problem 422 if the cursor is not ours."""
        if self.cursor is None:
            return None
        try:
            found = json_text.parse(base64.urlsafe_b64decode(self.cursor.encode("ascii")))
        except (ValueError, binascii.Error):
            found = None
        if not isinstance(found, list) or [type(part) for part in found] != list(kinds):
            raise bad_field("cursor", "it is not the 'next' of a page of this list")
        for part in found:
            # What no key of ours can hold, a database may not even take as a question.
            if isinstance(part, str) and not (part.isprintable() and len(part) <= 256):
                raise bad_field("cursor", "it is not the 'next' of a page of this list")
            if isinstance(part, int) and abs(part) >= 1 << 62:
                raise bad_field("cursor", "it is not the 'next' of a page of this list")
        return tuple(found)

    def cursor_for(self, key: Key) -> str:
        return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()

    def cut(
        self,
        items: Iterable[T],
        key: Callable[[T], Key],
        show: Callable[[T], BaseModel],
        *kinds: type,
    ) -> Page[Any]:
        """The page of a list in memory, sorted by its key."""
        after = self.after(*kinds)
        keyed = [(key(item), item) for item in items]
        if after is not None:
            keyed = [pair for pair in keyed if pair[0] > after]
        # Of a long list most is not shown, so most need not be sorted.
        rest = heapq.nsmallest(self.limit + 1, keyed, key=itemgetter(0))
        page = rest[: self.limit]
        more = self.cursor_for(page[-1][0]) if len(rest) > self.limit else None
        return Page[Any](items=[show(item) for _, item in page], next=more)


def _paging(
    limit: Annotated[int, Query(ge=1, le=1000, description="the most items of a page")] = 100,
    cursor: Annotated[
        str | None, Query(max_length=1024, description="'next' of the page before")
    ] = None,
) -> Paging:
    return Paging(limit, cursor)


Pages = Annotated[Paging, Depends(_paging)]
