"""Signing in to the console by OpenID Connect, at an issuer of the test's own."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from pathlib import Path
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
from gpupool_common.errors import ConfigError
from gpupool_manager.app import make_app
from gpupool_manager.config import load_settings
from gpupool_manager.console.openid import MOST_BYTES, Issuer, Journey, Rules
from manager_rest import Rest

ISSUER = "https://login.example/staff"
BACK = "http://pool/console/openid/back"


class FakeIssuer:
    """Gives codes to whoever comes, and keeps to the standard; what it says the test may spoil."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.claims: dict[str, Any] = {
            "groups": ["staff", "gpupool-operators"],
            "email": "a@b.example",
        }
        self.spoiled: dict[str, Any] = {}
        #: Other answers than its own, by the end of their path.
        self.answers: dict[str, httpx.Response] = {}
        self.signed: str | None = None
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
            known = {"issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/auth"}
            known |= {"token_endpoint": f"{ISSUER}/token", "jwks_uri": f"{ISSUER}/keys"}
            return httpx.Response(200, json=known)
        if name == "keys":
            shown = json.loads(ECAlgorithm.to_jwk(self.key.public_key()))
            return httpx.Response(200, json={"keys": [{**shown, "kid": "k1", "use": "sig"}]})
        assert name == "token"
        form = {key: values[0] for key, values in parse_qs(request.content.decode()).items()}
        asked = self._codes.pop(form["code"], None)
        proof = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(proof).decode().rstrip("=")
        right = asked is not None and challenge == asked["code_challenge"]
        if asked is None or not right or form["client_secret"] != "s3cret":
            return httpx.Response(400, json={"error": "invalid_grant"})
        return httpx.Response(200, json={"id_token": self.signed or self.sign(asked["nonce"])})

    def sign(self, nonce: str) -> str:
        now = int(time.time())
        claims: dict[str, Any] = {"iss": ISSUER, "aud": "gpupool", "sub": "u1", "nonce": nonce}
        claims |= {"iat": now, "exp": now + 300, **self.claims, **self.spoiled}
        claims = {key: value for key, value in claims.items() if value is not None}
        return jwt.encode(claims, self.signs_with, "ES256", self.header)


@pytest.fixture
def issuer() -> FakeIssuer:
    return FakeIssuer()


def browser(rest: Rest, issuer: FakeIssuer) -> Visitor:
    rules = Rules(ISSUER, "gpupool", "s3cret", BACK)
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


async def test_a_tenant_sees_its_own(rest: Rest, issuer: FakeIssuer) -> None:
    await rest.tenant("red")
    issuer.claims["groups"] = ["gpupool-red", "gpupool-unknown", 7, None]
    someone = browser(rest, issuer)
    assert (await come(someone, await begin(someone, issuer))).status_code == 200
    assert "red" in (await someone.get("/console/leases")).text
    assert (await someone.client.get("/console/join")).status_code == 403


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


@pytest.mark.parametrize("how", ["another key", "unknown", "none", "shared", "no token"])
async def test_a_signature_of_others_signs_nobody_in(
    rest: Rest, issuer: FakeIssuer, how: str
) -> None:
    public = issuer.key.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = {"iss": ISSUER, "aud": "gpupool", "sub": "u", "iat": 1, "exp": 1 << 33, "nonce": "n"}
    if how == "another key":
        issuer.signs_with = ec.generate_private_key(ec.SECP256R1())
    elif how == "unknown":
        issuer.header = {"kid": "k2"}
    elif how == "none":
        issuer.signed = jwt.encode(claims, "", "none", {"kid": "k1"})
    elif how == "shared":  # with the public key as if it were a secret
        head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"k1"}').rstrip(b"=")
        body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
        mac = hashlib.sha256(pem + head + body).digest()
        end = base64.urlsafe_b64encode(mac).rstrip(b"=")
        issuer.signed = b".".join((head, body, end)).decode()
    else:
        issuer.signed = "no token"
    await nobody(rest, issuer, browser(rest, issuer))


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


@pytest.mark.parametrize("cookie", ["", "é", "x", "bnVsbA==", "WzEsMiwzLDRd", "W1tbW1s="])
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
    ],
)
async def test_an_issuer_that_is_none(
    rest: Rest, issuer: FakeIssuer, answer: httpx.Response
) -> None:
    issuer.answers["openid-configuration"] = answer
    someone = browser(rest, issuer)
    assert (await someone.client.get("/console/openid")).status_code == 503


@pytest.mark.parametrize("name", ["token", "keys"])
async def test_an_issuer_that_fails_on_the_way(rest: Rest, issuer: FakeIssuer, name: str) -> None:
    issuer.answers[name] = httpx.Response(500)
    await nobody(rest, issuer, browser(rest, issuer), 503)


async def test_without_an_issuer_there_is_no_way(rest: Rest) -> None:
    someone = Visitor(rest.app)
    assert "openid" not in (await someone.client.get("/console/login")).text
    for path in ("/console/openid", "/console/openid/back?state=x&code=y"):
        assert (await someone.client.get(path)).status_code == 404


def test_settings_go_together(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    given = {"openid_issuer": ISSUER, "openid_client": "gpupool", "console_url": "http://pool"}
    found = load_settings(None, {**given, "openid_secret_file": str(secret)}, {}).openid()
    assert found is not None and found.rules == Rules(ISSUER, "gpupool", "s3cret", BACK)
    assert load_settings(None, {}, {}).openid() is None
    for lacking in ("openid_client", "console_url"):
        with pytest.raises(ConfigError, match=lacking):
            load_settings(None, {k: v for k, v in given.items() if k != lacking}, {})
    for bad in ("http://login.example", "login.example", "ftp://a"):
        with pytest.raises(ConfigError, match="openid-issuer"):
            load_settings(None, {**given, "openid_issuer": bad}, {})
