"""Every no of the manager, as an application/problem+json document (RFC 9457)."""

from __future__ import annotations

from typing import Any


class Problem(Exception):
    """A request that is refused; nothing has been changed by it."""

    def __init__(self, status: int, code: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.more = more

    def document(self, request: str) -> dict[str, Any]:
        """The body of the answer."""
        return {
            "type": f"urn:gpupool:problem:{self.code}",
            "title": TITLES[self.code],
            "status": self.status,
            "detail": self.detail,
            "instance": f"urn:gpupool:request:{request}",
            **self.more,
        }


TITLES = {
    "bad-token": "No valid token",
    "forbidden": "The token does not allow this",
    "over-quota": "More than the quota allows",
    "not-found": "Not found",
    "exists": "It is there already",
    "in-use": "It is in use",
    "disabled": "The tenant is disabled",
    "full": "No room now",
    "impossible": "The pool has no such GPUs",
    "ended": "The lease has ended",
    "changed": "It was changed in the meantime",
    "bad-request": "The request is not as it must be",
    "too-large": "The request is too large",
    "repeated": "The idempotency key was used for another request",
    "too-many": "Too many requests",
    "unavailable": "The manager cannot answer now",
    "standby": "Another manager leads",
    "not-allowed": "Method not allowed",
    "failed": "The manager failed",
}


def not_found(kind: str, name: str) -> Problem:
    return Problem(404, "not-found", f"there is no {kind} '{name}'")


def bad_field(field: str, message: str) -> Problem:
    """422, naming the field."""
    return Problem(
        422, "bad-request", f"{field}: {message}", errors=[{"field": field, "message": message}]
    )


def unavailable(detail: str) -> Problem:
    return Problem(503, "unavailable", detail)
