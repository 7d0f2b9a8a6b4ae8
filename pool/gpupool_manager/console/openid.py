"""Signing in by OpenID Connect: an authorization code with PKCE.

What a browser has to remember between going to the issuer and coming back is in a cookie of its
own, and nothing of it here: whoever begins a thousand times takes nobody's place. Who the issuer
vouches for gets a token of the manager's, which ends with the session.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import secrets
import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

from gpupool_common import logs
from gpupool_common.hosts import is_loopback, limited_as
from gpupool_common.protocol import one_line
from gpupool_manager.problems import Problem
from gpupool_manager.records import Scope

#: Of what an issuer answers.
MOST_BYTES = 1 << 20
SECONDS = 10.0

#: So many may be on their way back at once, and of one address: strangers, too, have codes to show.
MOST_ASKING = 16
MOST_ASKING_EACH = 4

#: How far its clock may be from ours.
LEEWAY_SECONDS = 60

#: Signatures that a public key checks; never one with a secret that both know, and never none.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]

#: What holds of an issuer that says nothing of it.
_UNSAID = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}

_log = logs.get("openid")


def refused(text: str) -> Problem:
    return Problem(403, "forbidden", text)


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator has set."""

    issuer: str
    client: str
    #: Empty: the issuer knows the client as a public one.
    secret: str
    #: Where browsers come back to.
    back: str
    #: Which claim says who somebody is in the pool, its value of operators, and what comes before
    #: the name of a tenant.
    claim: str = "groups"
    operators: str = "gpupool-operators"
    tenants: str = "gpupool-"

    @property
    def barred(self) -> str | None:
        """The tenant's name whose people the issuer would not tell from operators."""
        mixed = _is_of(self.operators, self.tenants)
        return self.operators.removeprefix(self.tenants) if mixed else None


@dataclass(frozen=True, slots=True)
class Journey:
    """What a browser remembers meanwhile."""

    state: str
    nonce: str
    verifier: str
    next: str

    @classmethod
    def begin(cls, next: str) -> Journey:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, next)

    def cookie(self) -> str:
        text = json.dumps([self.state, self.nonce, self.verifier, self.next])
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def read(cls, cookie: str | None) -> Journey | None:
        try:
            found = json.loads(base64.urlsafe_b64decode((cookie or "").encode("ascii")))
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, list) or len(found) != 4:
            return None
        if not all(isinstance(each, str) and each.isascii() and each for each in found[:3]):
            return None
        return cls(*found) if isinstance(found[3], str) else None


class Issuer:
    """Who vouches for people."""

    def __init__(self, rules: Rules, transport: Any = None) -> None:
        self.rules = rules
        self._transport = transport
        self._known: dict[str, Any] | None = None
        self._asking: Counter[str] = Counter()
        self._trust: ssl.SSLContext | None = None

    @contextlib.contextmanager
    def asking(self, address: str) -> Iterator[None]:
        """Around what is asked for a browser; Problem while too many are."""
        address = limited_as(address)
        if self._asking[address] >= MOST_ASKING_EACH or self._asking.total() >= MOST_ASKING:
            raise Problem(429, "too-many", "too many are signing in at this moment; try again")
        self._asking[address] += 1
        try:
            yield
        finally:
            self._asking -= Counter({address: 1})

    async def address(self, journey: Journey) -> str:
        """Where a browser begins."""
        known = await self._metadata()
        proof = hashlib.sha256(journey.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.rules.client,
            "redirect_uri": self.rules.back,
            "scope": " ".join(["openid", "profile", "email", *self._more_scopes(known)]),
            "state": journey.state,
            "nonce": journey.nonce,
            "code_challenge": base64.urlsafe_b64encode(proof).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        start = known["authorization_endpoint"]
        return f"{start}{'&' if urlsplit(start).query else '?'}{urlencode(query)}"

    def _more_scopes(self, known: dict[str, Any]) -> list[str]:
        """Of some issuers one has to ask for the claim."""
        return [self.rules.claim] if self.rules.claim in _words(known, "scopes_supported") else []

    async def claims(self, journey: Journey, code: str) -> dict[str, Any]:
        """What it says of who has come back with this code."""
        known = await self._metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.rules.back,
            "client_id": self.rules.client,
            "code_verifier": journey.verifier,
        }
        secret, headers = self._proof(known)
        answer = await self._ask("POST", known["token_endpoint"], form | secret, headers)
        keys = await self._ask("GET", known["jwks_uri"])
        claims = self.check(str(answer.get("id_token", "")), keys, journey)
        if self.rules.claim in claims or "userinfo_endpoint" not in known:
            return claims
        # By the standard it is there that what scopes ask for is said.
        headers = {"Authorization": f"Bearer {answer.get('access_token', '')}"}
        more = await self._ask("GET", known["userinfo_endpoint"], headers=headers)
        if more.get("sub") != claims["sub"]:
            raise refused("the issuer tells of somebody else than it has signed in")
        _check_text(more)
        return more | claims

    def _proof(self, known: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
        """Fields and headers that show that we are its client, in a way that it takes."""
        client, secret = self.rules.client, self.rules.secret
        if not secret:
            return {}, {}
        if "client_secret_basic" in _words(known, "token_endpoint_auth_methods_supported"):
            shown = f"{quote_plus(client)}:{quote_plus(secret)}".encode()
            return {}, {"Authorization": f"Basic {base64.b64encode(shown).decode()}"}
        return {"client_secret": secret}, {}

    def check(self, text: str, keys: dict[str, Any], journey: Journey) -> dict[str, Any]:
        """What an ID token says, if one of these keys has signed it for us and this journey."""
        try:
            claims = self._signed(text, keys)
            _check_text(claims)
        except Problem:
            raise
        except Exception as error:  # whatever a library makes of what an issuer says
            reason = one_line(str(error))[:200]
            raise refused(f"what the issuer says does not hold: {reason}") from None
        nonce = str(claims.get("nonce", "")).encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(nonce, journey.nonce.encode()):
            raise refused("what the issuer says is of another attempt to sign in")
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", "" if several else self.rules.client) != self.rules.client:
            raise refused("what the issuer says is for another client")
        return claims

    def _signed(self, text: str, keys: dict[str, Any]) -> dict[str, Any]:
        import jwt

        header = jwt.get_unverified_header(text)
        known = [
            key
            for key in jwt.PyJWKSet.from_dict(keys).keys
            if key.public_key_use in (None, "sig") and key.algorithm_name in ALGORITHMS
        ]
        fitting = [key for key in known if header.get("kid") in (None, key.key_id)]
        if len(fitting) != 1:
            raise refused("the issuer has signed with a key that it does not show")
        claims: dict[str, Any] = jwt.decode(
            text,
            fitting[0],
            algorithms=[str(fitting[0].algorithm_name)],
            audience=self.rules.client,
            issuer=self.rules.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
        return claims

    def who(self, claims: dict[str, Any], tenants: set[str]) -> tuple[Scope, str | None]:
        """Who that is in the pool; Problem if nobody."""
        rules = self.rules
        said = claims.get(rules.claim)
        words = [said] if isinstance(said, str) else said if isinstance(said, list) else []
        if rules.operators in words:
            if rules.barred in tenants:
                raise refused(
                    f"'{rules.operators}' is the operators and the tenant '{rules.barred}':"
                    " the manager needs another 'openid_operators'; sign in by a token until then"
                )
            return "admin", None
        names = {w.removeprefix(rules.tenants) for w in words if _is_of(w, rules.tenants)} & tenants
        if len(names) == 1:
            return "tenant", names.pop()
        if names:
            raise refused(f"you are of several tenants: {', '.join(sorted(names))}; use a token")
        raise refused(
            f"the issuer's claim '{rules.claim}' makes you neither an operator nor of a tenant;"
            " ask an operator of the pool"
        )

    async def _metadata(self) -> dict[str, Any]:
        """What it says of itself, once it has said something that can be."""
        if self._known is None:
            issuer = self.rules.issuer
            found = await self._ask("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != issuer:
                raise _broken("it calls itself by another name")
            needed = {"authorization_endpoint", "token_endpoint", "jwks_uri"}
            for name in sorted(needed | ({"userinfo_endpoint"} & set(found))):
                if not is_safe(found.get(name)):
                    raise _broken(f"its {name} is no address by https")
            self._known = found
        return self._known

    async def _ask(
        self,
        method: str,
        url: str,
        form: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        import httpx

        body = b""
        if self._trust is None:  # which takes its time to read
            self._trust = await asyncio.to_thread(httpx.create_ssl_context)
        try:
            async with (
                httpx.AsyncClient(
                    verify=self._trust, transport=self._transport, timeout=SECONDS
                ) as client,
                client.stream(method, url, data=form, headers=headers) as answer,
            ):
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > MOST_BYTES:
                        raise _broken("its answer is too large")
            if answer.status_code in (400, 401, 403):
                _log.warning(
                    "the issuer refuses", url=url, said=one_line(body[:300].decode("latin-1"))
                )
                raise refused("the issuer does not take what the browser has brought; try again")
            found = json.loads(body) if answer.status_code == 200 else None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
            raise _broken(repr(error)) from None
        if not isinstance(found, dict):
            raise _broken(f"{url} answers {answer.status_code}, or no object")
        return found


def _check_text(claims: dict[str, Any]) -> None:
    """Problem where a text has half a character, which is in no name."""
    try:
        json.dumps(claims, ensure_ascii=False).encode()
    except ValueError:
        raise refused("what the issuer says holds half a character") from None


def _words(known: dict[str, Any], name: str) -> list[Any]:
    """A list of what an issuer can; what it does not say is the standard's."""
    found = known.get(name, _UNSAID.get(name))
    return found if isinstance(found, list) else []


def _is_of(word: object, prefix: str) -> bool:
    return isinstance(word, str) and word.startswith(prefix)


def is_safe(url: object) -> bool:
    """By https, or on this machine."""
    try:
        found = urlsplit(url) if isinstance(url, str) else urlsplit("")
    except ValueError:
        return False
    local = found.scheme == "http" and is_loopback(found.hostname or "")
    return bool(found.hostname) and (found.scheme == "https" or local)


def _broken(reason: str) -> Problem:
    _log.error("the issuer of OpenID Connect cannot be used", reason=one_line(reason)[:300])
    return Problem(503, "unavailable", "the issuer cannot be asked; the manager's log says why")
