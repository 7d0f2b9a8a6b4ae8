"""The REST API: routes, errors as problems, request ids, one log line a request."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpupool_common import __version__, logs, tracing
from gpupool_common.browser import FROM_A_PAGE, is_from_a_page
from gpupool_manager import (
    api_docs,
    api_keys,
    api_leases,
    api_looking,
    api_nodes,
    api_reservations,
    api_system,
    api_tenants,
    api_tokens,
)
from gpupool_manager.api_common import PROBLEMS
from gpupool_manager.attempts import Attempts
from gpupool_manager.console import console, visit
from gpupool_manager.console.openid import Issuer
from gpupool_manager.console.openid_pages import SIGN_IN_SECONDS, SIGN_INS
from gpupool_manager.console.sessions import Sessions
from gpupool_manager.console.site import FROM_ELSEWHERE, is_console, is_from_elsewhere
from gpupool_manager.metrics import Metrics
from gpupool_manager.pool import Pool
from gpupool_manager.problems import Problem, bad_field, unavailable
from gpupool_manager.records import Token
from gpupool_manager.request_budgets import RequestBudgets
from gpupool_manager.schemas import ALLOWED
from gpupool_manager.store import StoreError
from gpupool_manager.tokens import is_valid

MOST_BODY = 1 << 20

#: When to ask again after a 503 or a 429.
RETRY_SECONDS = "5"

#: A flood of refused requests is told of so often.
TELL_A_SECOND = 0.1

#: What a span's name may have of a path.
_RESOURCES = frozenset(("leases", "nodes", "gpus", "tenants", "quotas", "tokens", "queue", "usage"))

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

_log = logs.get("rest")


def make_app(
    pool: Pool,
    open_metrics: bool = False,
    attempts: Attempts | None = None,
    budgets: RequestBudgets | None = None,
    plain: bool = True,
    host_names: Collection[str] = (),
    console_url: str = "",
    openid: Issuer | None = None,
) -> FastAPI:
    """The REST API of an open pool. Without ``attempts`` and ``budgets`` nobody is slowed down.

    ``plain``: it is served without a certificate. By ``host_names`` open metrics may be asked for.
    ``console_url``: where browsers find the console, if that is another address than they see.
    ``openid``: who else signs people in there.
    """
    app = FastAPI(
        title="gpupool manager",
        version=__version__,
        description="Tenants, quotas, nodes, GPUs and leases of a gpupool.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=_routes(),
    )
    app.state.pool = pool
    app.state.open_metrics = open_metrics
    app.state.plain = plain
    app.state.host_names = host_names
    app.state.console_url = console_url
    app.state.openid = openid
    app.state.sessions = Sessions(pool.clock)
    app.state.reservation_changes = Attempts(
        api_reservations.CHANGES, api_reservations.CHANGE_SECONDS, pool.clock
    )
    app.state.sign_ins = Attempts(SIGN_INS, SIGN_IN_SECONDS, pool.clock)
    app.state.metrics = Metrics(pool, budgets)
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_wrong_field)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(StoreError, _on_store)
    app.add_middleware(
        RequestGuard,
        metrics=app.state.metrics,
        pool=pool,
        attempts=attempts,
        budgets=budgets,
        console_url=console_url,
    )
    return app


@cache
def _routes() -> list[BaseRoute]:
    """Of every app of this process: what is prepared for them is most of what an app costs."""
    router = APIRouter()
    for part in (
        api_system,
        api_tenants,
        api_tokens,
        api_nodes,
        api_keys,
        api_leases,
        api_reservations,
        api_looking,
    ):
        router.include_router(part.router, prefix="/v1", responses=PROBLEMS)
    router.include_router(api_docs.router)
    router.include_router(console.make_router())
    return router.routes


# Errors --------------------------------------------------------------------------------


def _answer(request: Request, problem: Problem) -> Response:
    if is_console(request.url.path):
        return visit.answer(request, problem)
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    if problem.status in (429, 503):
        headers["Retry-After"] = RETRY_SECONDS
    return JSONResponse(
        problem.document(request.state.request_id),
        problem.status,
        headers,
        media_type="application/problem+json",
    )


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _answer(request, error)


async def _on_store(request: Request, error: Exception) -> Response:
    _log.error("the database did not answer", reason=str(error))
    return _answer(request, unavailable("the database does not answer"))


async def _on_wrong_field(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [
        {"field": ".".join(map(str, wrong["loc"])), "message": _message(wrong)}
        for wrong in error.errors()
    ]
    detail = "; ".join(f"{wrong['field']}: {wrong['message']}" for wrong in errors[:5])
    return _answer(request, Problem(422, "bad-request", detail, errors=errors))


def _message(wrong: dict[str, Any]) -> str:
    if wrong["type"] == "string_pattern_mismatch":
        return ALLOWED.get(str(wrong["ctx"]["pattern"]), str(wrong["msg"]))
    return str(wrong["msg"]).removeprefix("Value error, ")


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not-found", 405: "not-allowed", 413: "too-large"}.get(
        error.status_code, "bad-request"
    )
    detail = f"{request.method} {request.url.path}: {error.detail}"
    if error.status_code == 400:  # a body that is not JSON at all
        return _answer(request, bad_field("body", "it is not JSON, or nested too deeply"))
    response = _answer(request, Problem(error.status_code, code, detail))
    response.headers.update(error.headers or {})
    if error.status_code == 405 and (allowed := _allowed(request)):
        response.headers["Allow"] = ", ".join(sorted(allowed))
    return response


def _allowed(request: Request) -> set[str]:
    """All methods of a path: the framework names those of the first route only."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    return {
        method.upper()
        for path, methods in paths.items()
        if re.fullmatch(re.sub(r"{[^}]*}", "[^/]+", path), request.url.path)
        for method in methods
    }


# What is around every request ----------------------------------------------------------


class RequestGuard:
    """Gives each request an id, a limit of its size, a log line and a place in the metrics."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        pool: Pool,
        attempts: Attempts | None,
        budgets: RequestBudgets | None,
        console_url: str,
    ) -> None:
        self._app = app
        self._console_url = console_url
        self._metrics = metrics
        self._pool = pool
        self._attempts = attempts
        self._budgets = budgets
        #: Of refusals that cost nothing: who is refused may go on asking.
        self._lines = logs.Meter()
        #: Of saying that some had no line, while there is never room for that.
        self._telling = logs.Meter(burst=1, rate=TELL_A_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parent = _headers(scope).get(tracing.HEADER, "")
        # Strangers have no traces here: each span is one more for the collector.
        if not tracing.is_traceparent(parent) or self._valid_token(scope) is None:
            await self._serve(scope, receive, send, "")
            return
        with tracing.span(_operation(scope), parent, is_server=True) as span:
            span.set(http__request__method=scope["method"], url__path=scope["path"])
            status = await self._serve(scope, receive, send, span.traceparent)
            span.set(http__response__status_code=status)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, trace: str) -> int:
        """Answer a request, which belongs to a trace or (empty) to none; the status."""
        started = time.perf_counter()
        request_id = _request_id(scope) or trace or secrets.token_hex(8)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status, is_refused, sent = 0, False, 0

        async def send_named(message: Message) -> None:
            nonlocal status, sent
            sent += len(message.get("body", b""))
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", request_id.encode()))
            await send(message)

        try:
            problem = self._refusal(scope)
            if problem is not None:
                is_refused = True
                await _answer(Request(scope), problem)(scope, receive, send_named)
                return status
            await self._app(scope, _limited(receive), send_named)
        except Exception:
            _log.exception("a request failed", request=request_id, path=scope["path"])
            if status:
                raise
            request = Request(scope)
            problem = Problem(500, "failed", "the manager failed; its log says why")
            await _answer(request, problem)(scope, receive, send_named)
        finally:
            if status == 401 and self._attempts is not None and _authorization(scope):
                self._attempts.count(_address(scope))
            if self._budgets is not None and state.get("tenant") is not None:
                self._budgets.answered(state["tenant"], sent, state.get("looked", 0))
            seconds = time.perf_counter() - started
            self._metrics.count(scope["method"], status, seconds)
            if not is_refused or self._may_log():
                # What a page asks for has the page's own line.
                say = _log.debug if state.get("of_console") else _log.info
                say(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    ms=round(seconds * 1000, 2),
                    actor=state.get("actor", ""),
                    request=request_id,
                )
        return status

    def _may_log(self) -> bool:
        """Whether another refusal has a line; says how many had none, also while they come."""
        left_out = self._lines.left_out()
        admitted = self._lines.admit() > 0
        if not admitted and self._telling.admit():
            left_out += self._lines.untold()
        if left_out:
            _log.warning("too many requests are refused to log them all", count=left_out)
        return admitted

    def _refusal(self, scope: Scope) -> Problem | None:
        """Before anything of the request is done."""
        if is_console(scope["path"]):
            if is_from_elsewhere(scope["method"], _headers(scope), self._console_url):
                return Problem(403, "forbidden", FROM_ELSEWHERE)
        elif is_from_a_page(_headers(scope)):
            return Problem(403, "forbidden", FROM_A_PAGE)
        if self._is_to_wait(scope):
            return Problem(429, "too-many", "too many wrong tokens came from this address")
        return self._over_budget(scope)

    def _over_budget(self, scope: Scope) -> Problem | None:
        """A tenant may ask so often; whatever its token may do."""
        token = self._valid_token(scope) if self._budgets is not None else None
        if self._budgets is None or token is None or token.tenant is None:
            return None
        if self._budgets.spend(token.tenant):
            return None
        return Problem(
            429,
            "too-many",
            f"tenant '{token.tenant}' makes more than {self._budgets.rate:g} requests a second;"
            " ask less often (the manager's setting 'tenant_requests')",
        )

    def _is_to_wait(self, scope: Scope) -> bool:
        """Before anything else of a request is read. Who has a token is not held up by others."""
        if self._attempts is None or not self._attempts.too_many(_address(scope)):
            return False
        if _authorization(scope) is None:
            return False  # it is refused anyway, or open to all
        return self._valid_token(scope) is None

    def _valid_token(self, scope: Scope) -> Token | None:
        """The token that is shown, if it is one and valid."""
        kind, _, secret = (_authorization(scope) or "").partition(" ")
        token = self._pool.ledger.tokens.of_secret(secret.strip())
        valid = token is not None and is_valid(token, self._pool.clock())
        return token if valid and kind.lower() == "bearer" else None


def _headers(scope: Scope) -> dict[str, str]:
    """By their names, which are in lower case here."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _authorization(scope: Scope) -> str | None:
    return _headers(scope).get("authorization")


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _request_id(scope: Scope) -> str:
    """The client's own X-Request-ID, if it is safe to log."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(text):
                return str(text)
    return ""


def _operation(scope: Scope) -> str:
    """The name of a span: without what is in a path, of which there is no end."""
    first = scope["path"].removeprefix("/v1/").partition("/")[0]
    known = first if first in _RESOURCES else "other"
    return f"{scope['method']} /v1/{known}"


def _limited(receive: Receive) -> Callable[[], Awaitable[Message]]:
    got = 0

    async def receive_limited() -> Message:
        nonlocal got
        message = await receive()
        got += len(message.get("body", b""))
        if got > MOST_BODY:
            raise HTTPException(413, f"a body has at most {MOST_BODY} bytes")
        return message

    return receive_limited
