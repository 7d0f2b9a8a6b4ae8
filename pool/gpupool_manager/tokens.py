"""Tokens: 256 random bits, of which only the SHA-256 is kept."""

from __future__ import annotations

import hashlib
import secrets

from gpupool_manager.problems import Problem
from gpupool_manager.records import Scope, Token

PREFIX = "gpp_"
#: Of tokens with which servers join. These carry the manager's public key, too.
NODE_PREFIX = "gpn_"


def new_secret(scope: Scope = "admin") -> str:
    """A token as its owner gets it, once."""
    return (NODE_PREFIX if scope == "node" else PREFIX) + secrets.token_urlsafe(32)


def join_token(secret: str, keys: list[str]) -> str:
    """What a server is given: the token, and the keys of the manager that it may trust."""
    return ".".join([secret, *keys]) if secret.startswith(NODE_PREFIX) else secret


def digest(secret: str) -> str:
    """What is kept of it. So much chance needs neither salt nor a slow hash."""
    if secret.startswith(NODE_PREFIX):
        secret = secret.partition(".")[0]
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def refuse(reason: str) -> Problem:
    """401; never says which tokens exist."""
    return Problem(401, "bad-token", reason)


def is_valid(token: Token, now: float) -> bool:
    return token.revoked is None and (token.expires is None or now < token.expires)


class TokenBook:
    """All tokens, by their digests."""

    def __init__(self) -> None:
        self.by_id: dict[str, Token] = {}
        self._by_digest: dict[str, Token] = {}

    def add(self, token: Token) -> None:
        self.by_id[token.id] = token
        self._by_digest[token.digest] = token

    def remove(self, token: Token) -> None:
        del self.by_id[token.id]
        del self._by_digest[token.digest]

    def of_secret(self, secret: str) -> Token | None:
        """Whose it is, even if it is no longer valid."""
        return self._by_digest.get(digest(secret))

    def check(self, secret: str | None, now: float) -> Token:
        """Whose it is; Problem 401 if nobody's, or no longer."""
        if not secret:
            raise refuse("a token is needed: send 'Authorization: Bearer TOKEN'")
        token = self._by_digest.get(digest(secret))
        if token is None:
            raise refuse("the token is unknown")
        if token.revoked is not None:
            raise refuse("the token was revoked")
        if not is_valid(token, now):
            raise refuse("the token has expired")
        return token
