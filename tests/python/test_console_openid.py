"""Signing in to the console by OpenID Connect, at an issuer of the test's own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from console_visitor import Page, Visitor, database  # noqa: F401
from gpupool_manager.app import make_app
from gpupool_manager.console.openid import (
    MOST_ASKING,
    MOST_ASKING_EACH,
    MOST_BYTES,
    Issuer,
    Journey,
    Rules,
    is_safe,
)
from gpupool_manager.console.openid_pages import SIGN_IN_SECONDS, SIGN_INS
from gpupool_manager.problems import Problem
from manager_rest import Rest

ISSUER = "https://login.example/staff"
BACK = "http://pool/console/openid/back"

#: What an issuer has to say of itself.
KNOWN = {"issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/auth"}
KNOWN |= {"token_endpoint": f"{ISSUER}/token", "jwks_uri": f"{ISSUER}/keys"}


class FakeIssuer:
    """Gives codes to whoever comes, and keeps to the standard; what it says the test may spoil."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.claims: dict[str, Any] = {
            "groups": ["staff", "gpupool-operators"],
            "email": "a@b.example",
        }
        self.spoiled: dict[str, Any] = {}
        #: What else it says of itself, and what it was asked for.
        self.says: dict[str, Any] = {}
        self.scope = ""
        #: Other answers than its own, by the end of their path.
        self.answers: dict[str, httpx.Response] = {}
        #: Another way to sign what it says.
        self.signed: Callable[[dict[str, Any]], str] | None = None
        self.header: dict[str, Any] = {"kid": "k1"}
        self.signs_with = self.key
        self._codes: dict[str, dict[str, str]] = {}

    def authorize(self, url: str) -> dict[str, str]:
        """What a browser that was sent here comes back with."""
        asked = dict(parse_qsl(urlsplit(url).query))
        assert url.startswith(f"{ISSUER}/auth?") and asked["response_type"] == "code"
        assert asked["redirect_uri"] == BACK and asked["code_challenge_method"] == "S256"
        code = f"code-{len(self._codes)}"
        self._codes[code] = asked
        return {"code": code, "state": asked["state"]}

    def answer(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        if name in self.answers:
            return self.answers[name]
        if name == "openid-configuration":
            return httpx.Response(200, json=KNOWN | self.says)
        if name == "keys":
            shown = json.loads(ECAlgorithm.to_jwk(self.key.public_key()))
            return httpx.Response(200, json={"keys": [{**shown, "kid": "k1", "use": "sig"}]})
        assert name == "token"
        form = {key: values[0] for key, values in parse_qs(request.content.decode()).items()}
        asked = self._codes.pop(form["code"], None)
        proof = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(proof).decode().rstrip("=")
        right = asked is not None and challenge == asked["code_challenge"]
        if asked is None or not right or not self.is_proven(request, form):
            return httpx.Response(400, json={"error": "invalid_grant"})
        self.scope = asked["scope"]
        signed = self.sign(self.said(asked["nonce"]))
        return httpx.Response(200, json={"id_token": signed, "access_token": "a1"})

    def is_proven(self, request: httpx.Request, form: dict[str, str]) -> bool:
        """The client has shown its secret in the way that was asked for, and in no other."""
        shown = base64.b64encode(b"gpupool:s+3%2Bcret%3A").decode()
        if self.says.get("token_endpoint_auth_methods_supported") == ["client_secret_post"]:
            return form["client_secret"] == "s 3+cret:" and "Authorization" not in request.headers
        return request.headers["Authorization"] == f"Basic {shown}" and "client_secret" not in form

    def said(self, nonce: str) -> dict[str, Any]:
        now = int(time.time())
        claims: dict[str, Any] = {"iss": ISSUER, "aud": "gpupool", "sub": "u1", "nonce": nonce}
        claims |= {"iat": now, "exp": now + 300, **self.claims, **self.spoiled}
        return {key: value for key, value in claims.items() if value is not None}

    def sign(self, claims: dict[str, Any]) -> str:
        if self.signed is not None:
            return self.signed(claims)
        return jwt.encode(claims, self.signs_with, "ES256", self.header)


@pytest.fixture
def issuer() -> FakeIssuer:
    return FakeIssuer()


def browser(rest: Rest, issuer: FakeIssuer) -> Visitor:
    rules = Rules(ISSUER, "gpupool", "s 3+cret:", BACK)
    asked = Issuer(rules, httpx.MockTransport(issuer.answer))
    return Visitor(make_app(rest.world.pool, openid=asked))


async def begin(someone: Visitor, issuer: FakeIssuer, path: str = "/") -> dict[str, str]:
    answer = await someone.client.get("/console/openid", params={"next": path})
    assert answer.status_code == 303, answer.text
    assert "samesite=lax" in answer.headers["set-cookie"].lower()
    return issuer.authorize(answer.headers["location"])


async def come(someone: Visitor, brought: dict[str, str]) -> httpx.Response:
    """As a browser that follows a link of the issuer's."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    headers["Sec-Fetch-Dest"] = "document"
    return await someone.client.get("/console/openid/back", params=brought, headers=headers)


async def test_an_operator_signs_in_and_out(rest: Rest, issuer: FakeIssuer) -> None:
    someone = browser(rest, issuer)
    page = await someone.get("/console/queue", 401)
    assert "/console/openid?next=/console/queue" in str(page.elements)
    answer = await come(someone, await begin(someone, issuer, "/console/queue"))
    assert answer.status_code == 200
    (refresh,) = [n["content"] for _, n in Page(answer.text).elements if n.get("http-equiv")]
    assert refresh == "0;url=/console/queue"
    assert "Join" in (await someone.get("/console/queue")).text
    (token,) = [t for t in await rest.pages("/tokens") if "OpenID" in t["description"]]
    assert token["scope"] == "admin" and "a@b.example" in token["description"]
    assert token["expires"] is not None
    await someone.send((await someone.get("/")).form("/console/logout"))
    assert (await rest.do("GET", f"/tokens/{token['id']}"))["revoked"] is not None


async def test_an_issuer_may_want_the_secret_in_the_form(rest: Rest, issuer: FakeIssuer) -> None:
    issuer.says = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    someone = browser(rest, issuer)
    assert (await come(someone, await begin(someone, issuer))).status_code == 200
    assert issuer.scope == "openid profile email"


async def test_what_the_token_does_not_say_is_asked_for(rest: Rest, issuer: FakeIssuer) -> None:
    """Most issuers put what scopes ask for there, and not into the token."""
    del issuer.claims["groups"]
    issuer.says = {"userinfo_endpoint": f"{ISSUER}/me", "scopes_supported": ["openid", "groups"]}
    said = {"sub": "u1", "groups": ["gpupool-operators"], "email": "x@y.example"}
    issuer.answers["me"] = httpx.Response(200, json=said)
    someone = browser(rest, issuer)
    assert (await come(someone, await begin(someone, issuer))).status_code == 200
    assert issuer.scope == "openid profile email groups"
    assert "operator" in (await someone.get("/")).text
    # What is signed goes before what is not.
    assert "a@b.example" in str(await rest.do("GET", "/tokens"))


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (httpx.Response(200, json={"sub": "else", "groups": ["gpupool-operators"]}), 403),
        (httpx.Response(200, json={"groups": ["gpupool-operators"]}), 403),
        (httpx.Response(200, text='{"sub": "u1", "groups": ["\\ud800"]}'), 403),
        (httpx.Response(401, json={"error": "invalid_token"}), 403),
        (httpx.Response(200, text="a.b.c"), 503),
    ],
)
async def test_what_is_told_of_somebody_else_signs_nobody_in(
    rest: Rest, issuer: FakeIssuer, said: httpx.Response, status: int
) -> None:
    del issuer.claims["groups"]
    issuer.says = {"userinfo_endpoint": f"{ISSUER}/me"}
    issuer.answers["me"] = said
    await nobody(rest, issuer, browser(rest, issuer), status)


async def test_a_tenant_sees_its_own(rest: Rest, issuer: FakeIssuer) -> None:
    await rest.tenant("red")
    issuer.claims["groups"] = ["gpupool-red", "gpupool-unknown", 7, None]
    someone = browser(rest, issuer)
    assert (await come(someone, await begin(someone, issuer))).status_code == 200
    assert "red" in (await someone.get("/console/leases")).text
    assert (await someone.client.get("/console/join")).status_code == 403


async def test_no_tenants_people_pass_for_operators(rest: Rest, issuer: FakeIssuer) -> None:
    """By the words that are the default, those of a tenant 'operators' did."""
    await rest.tenant("operators")  # from before the issuer was set
    await nobody(rest, issuer, browser(rest, issuer))


@pytest.mark.parametrize(
    "groups",
    [None, [], "gpupool-", ["gpupool-blue"], {"a": 1}, ["gpupool-red", "gpupool-green"], 5],
)
async def test_who_is_nobody_here_is_refused(rest: Rest, issuer: FakeIssuer, groups: Any) -> None:
    await rest.tenant("red")
    await rest.tenant("green")
    issuer.claims["groups"] = groups
    await nobody(rest, issuer, browser(rest, issuer))


async def nobody(rest: Rest, issuer: FakeIssuer, someone: Visitor, status: int = 403) -> None:
    """Who comes back is refused: no session, no token."""
    before = await rest.everything()
    answer = await come(someone, await begin(someone, issuer))
    assert answer.status_code == status, answer.text
    assert not [name for name in someone.client.cookies if name == "gpupool-console"]
    await someone.get("/", 401)
    assert await rest.everything() == before


@pytest.mark.parametrize(
    "spoiled",
    [
        *({"nonce": "another"}, {"nonce": None}, {"nonce": 5}, {"aud": "another"}, {"aud": None}),
        *({"iss": "https://evil.example"}, {"exp": 1}, {"exp": None}, {"iat": None}, {"sub": None}),
        *({"aud": ["gpupool", "another"]}, {"azp": "another"}, {"iat": 1 << 40}),
    ],
)
async def test_what_does_not_hold_signs_nobody_in(
    rest: Rest, issuer: FakeIssuer, spoiled: dict[str, Any]
) -> None:
    issuer.spoiled = spoiled
    await nobody(rest, issuer, browser(rest, issuer))


def unsecured(claims: dict[str, Any], algorithm: str, secret: bytes = b"") -> str:
    """A token that no library would make: signed by nothing, or by what everybody knows."""
    parts = (json.dumps({"alg": algorithm, "kid": "k1"}).encode(), json.dumps(claims).encode())
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    mac = hmac.digest(secret, text, "sha256") if secret else b""
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def shown(issuer: FakeIssuer) -> list[bytes]:
    """The public key as one may take it for a secret."""
    public = issuer.key.public_key()
    kinds = PublicFormat.SubjectPublicKeyInfo, PublicFormat.UncompressedPoint
    jwk = ECAlgorithm.to_jwk(public)
    return [
        public.public_bytes(Encoding.PEM, kinds[0]),
        public.public_bytes(Encoding.PEM, kinds[0]).strip(),
        public.public_bytes(Encoding.DER, kinds[0]),
        public.public_bytes(Encoding.X962, kinds[1]),
        base64.urlsafe_b64decode(json.loads(jwk)["x"] + "=="),
        jwk.encode(),
    ]


@pytest.mark.parametrize("how", ["another key", "unknown", "no token", "none", *map(str, range(6))])
async def test_a_signature_of_others_signs_nobody_in(
    rest: Rest, issuer: FakeIssuer, how: str
) -> None:
    """All that it says is right but for the signature."""
    if how == "another key":
        issuer.signs_with = ec.generate_private_key(ec.SECP256R1())
    elif how == "unknown":
        issuer.header = {"kid": "k2"}
    elif how == "no token":
        issuer.signed = lambda claims: "no token"
    elif how == "none":
        issuer.signed = lambda claims: unsecured(claims, "none")
    else:
        secret = shown(issuer)[int(how)]
        issuer.signed = lambda claims: unsecured(claims, "HS256", secret)
    await nobody(rest, issuer, browser(rest, issuer))


def test_a_key_that_both_would_know_is_none(issuer: FakeIssuer) -> None:
    """An issuer that shows a secret has signed with what everybody knows."""
    key = {"kty": "oct", "kid": "k1", "k": base64.urlsafe_b64encode(b"s" * 32).decode()}
    journey = Journey.begin("/")
    text = unsecured(issuer.said(journey.nonce), "HS256", b"s" * 32)
    asked = Issuer(Rules(ISSUER, "gpupool", "s3cret", BACK))
    with pytest.raises(Problem, match="does not show"):
        asked.check(text, {"keys": [key]}, journey)
    with pytest.raises(Problem, match="does not hold"):
        asked.check(text, {"keys": [{**key, "alg": "ES256"}]}, journey)


KEYS_OF_NONE = [
    *({}, {"keys": None}, {"keys": []}, {"keys": "k"}, {"keys": [5]}, {"keys": [None, []]}),
    *({"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}, {"keys": [{"kty": "RSA", "n": 5}]}),
    *({"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "\ud800"}]}, {"keys": [{"kty": []}]}),
]


@pytest.mark.parametrize("keys", KEYS_OF_NONE)
async def test_keys_that_are_none(rest: Rest, issuer: FakeIssuer, keys: Any) -> None:
    issuer.answers["keys"] = httpx.Response(200, content=json.dumps(keys))
    await nobody(rest, issuer, browser(rest, issuer))


@pytest.mark.parametrize(
    "spoiled", [{"nonce": "\ud800"}, {"email": "\ud800"}, {"groups": "\ud800"}]
)
async def test_half_a_character_is_no_name(
    rest: Rest, issuer: FakeIssuer, spoiled: dict[str, Any]
) -> None:
    issuer.spoiled = spoiled
    await nobody(rest, issuer, browser(rest, issuer))


async def test_a_code_counts_once_and_an_old_cookie_never(rest: Rest, issuer: FakeIssuer) -> None:
    someone = browser(rest, issuer)
    brought = await begin(someone, issuer)
    kept = dict(someone.client.cookies)
    assert (await come(someone, brought)).status_code == 200
    before = await rest.everything()
    assert (await come(someone, brought)).status_code == 403  # the cookie has gone
    thief = browser(rest, issuer)
    thief.client.cookies.update(kept)
    assert (await come(thief, brought)).status_code == 403  # the issuer has forgotten the code
    await thief.get("/", 401)
    assert await rest.everything() == before


async def test_an_issuer_takes_another_key(rest: Rest, issuer: FakeIssuer) -> None:
    someone = browser(rest, issuer)
    assert (await come(someone, await begin(someone, issuer))).status_code == 200
    old, issuer.key = issuer.key, ec.generate_private_key(ec.SECP256R1())
    await nobody(rest, issuer, browser(rest, issuer))  # signed with the one before
    issuer.signs_with = issuer.key
    another = browser(rest, issuer)
    assert (await come(another, await begin(another, issuer))).status_code == 200
    assert old is not issuer.key


@pytest.mark.parametrize(
    ("claim", "seconds", "status"),
    [("exp", -50, 200), ("exp", -70, 403), ("iat", 50, 200), ("iat", 70, 403), ("nbf", 70, 403)],
)
async def test_clocks_differ_by_a_minute(
    rest: Rest, issuer: FakeIssuer, claim: str, seconds: int, status: int
) -> None:
    issuer.spoiled = {claim: int(time.time()) + seconds}
    someone = browser(rest, issuer)
    assert (await come(someone, await begin(someone, issuer))).status_code == status


async def test_a_person_signs_in_so_often(rest: Rest, issuer: FakeIssuer) -> None:
    """Each time is one more token, which is kept."""
    someone = browser(rest, issuer)
    for _ in range(SIGN_INS):
        assert (await come(someone, await begin(someone, issuer))).status_code == 200
    before = await rest.everything()
    assert (await come(someone, await begin(someone, issuer))).status_code == 429
    assert await rest.everything() == before
    issuer.claims["sub"] = "u2"
    assert (await come(someone, await begin(someone, issuer))).status_code == 200
    issuer.claims["sub"] = "u1"
    rest.world.clock.now += SIGN_IN_SECONDS
    assert (await come(someone, await begin(someone, issuer))).status_code == 200


async def test_strangers_have_the_issuer_asked_for_a_few_at_once(
    rest: Rest, issuer: FakeIssuer
) -> None:
    """By codes that they have made up, with a cookie of their own."""
    waiting = asyncio.Event()
    asked = 0

    async def slow(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        await waiting.wait()
        return issuer.answer(request)

    someone = browser(rest, issuer)
    brought = await begin(someone, issuer)
    someone.client._transport.app.state.openid._transport = httpx.MockTransport(slow)  # type: ignore[attr-defined]
    tries = [asyncio.create_task(come(someone, {**brought, "code": "x"})) for _ in range(40)]
    while sum(each.done() for each in tries) < 40 - MOST_ASKING_EACH:
        await asyncio.sleep(0.01)
    assert asked <= MOST_ASKING_EACH
    waiting.set()
    found = Counter([(await each).status_code for each in tries])
    assert found == {429: 40 - MOST_ASKING_EACH, 403: MOST_ASKING_EACH}
    assert (await come(someone, await begin(someone, issuer))).status_code == 200


def test_many_addresses_share_what_is_asked() -> None:
    asked = Issuer(Rules(ISSUER, "gpupool", "", BACK))
    with contextlib.ExitStack() as stack:
        for number in range(MOST_ASKING):
            stack.enter_context(asked.asking(f"10.0.0.{number}"))
        with pytest.raises(Problem, match="too many"), asked.asking("10.0.1.1"):
            pass
    with asked.asking("10.0.1.1"):
        pass


async def test_a_code_counts_in_the_browser_that_asked_for_it(
    rest: Rest, issuer: FakeIssuer
) -> None:
    victim, thief = browser(rest, issuer), browser(rest, issuer)
    brought = await begin(victim, issuer)
    assert (await come(thief, brought)).status_code == 403  # it has no cookie
    own = await begin(thief, issuer)
    assert (await come(thief, brought)).status_code == 403  # another state
    assert (await come(thief, {**brought, "state": own["state"]})).status_code == 403  # PKCE
    for wrong in ({}, {"state": brought["state"]}, {**brought, "state": "é"}, {"code": "x"}):
        assert (await come(victim, wrong)).status_code == 403
    refused = await come(victim, {"state": brought["state"], "error": "<b>denied</b>"})
    assert refused.status_code == 403 and "&lt;b&gt;denied" in refused.text


#: With half a character for the state.
HALF = base64.urlsafe_b64encode(b'["\\ud800","n","v","/"]').decode()


@pytest.mark.parametrize("cookie", ["", "é", "x", "bnVsbA==", "WzEsMiwzLDRd", "W1tbW1s=", HALF])
def test_a_cookie_that_is_none_of_ours(cookie: str) -> None:
    assert Journey.read(cookie) is None
    journey = Journey.begin("/")
    assert Journey.read(journey.cookie()) == journey


@pytest.mark.parametrize(
    "answer",
    [
        *(httpx.Response(500), httpx.Response(200, text="no JSON"), httpx.Response(200, json=[])),
        *(httpx.Response(302, headers={"Location": "http://127.0.0.1/"}),),
        httpx.Response(200, content=b" " * (MOST_BYTES + 1)),
        httpx.Response(200, json={"issuer": "https://evil.example"}),
        httpx.Response(200, json={"issuer": ISSUER, "authorization_endpoint": "http://a/b"}),
        httpx.Response(200, json={**KNOWN, "userinfo_endpoint": "http://a/b"}),
    ],
)
async def test_an_issuer_that_is_none(
    rest: Rest, issuer: FakeIssuer, answer: httpx.Response
) -> None:
    issuer.answers["openid-configuration"] = answer
    someone = browser(rest, issuer)
    assert (await someone.client.get("/console/openid")).status_code == 503


@pytest.mark.parametrize("url", [None, 5, "", "http://a", "https://", "https://[", "file:///x"])
def test_an_address_that_is_none_is_not_asked(url: object) -> None:
    assert not is_safe(url)


@pytest.mark.parametrize("name", ["token", "keys"])
async def test_an_issuer_that_fails_on_the_way(rest: Rest, issuer: FakeIssuer, name: str) -> None:
    issuer.answers[name] = httpx.Response(500)
    await nobody(rest, issuer, browser(rest, issuer), 503)


async def test_without_an_issuer_there_is_no_way(rest: Rest) -> None:
    someone = Visitor(rest.app)
    assert "openid" not in (await someone.client.get("/console/login")).text
    for path in ("/console/openid", "/console/openid/back?state=x&code=y"):
        assert (await someone.client.get(path)).status_code == 404
