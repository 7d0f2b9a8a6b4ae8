"""What the console reads of browsers and of who vouches for people, as functions of bytes.

They are among TARGETS of decoders.py.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi import Request
from jwt.algorithms import ECAlgorithm

from gpupool_manager.console import trial
from gpupool_manager.console.openid import Issuer, Journey, Rules
from gpupool_manager.console.site import is_console, is_from_elsewhere
from gpupool_manager.console.visit import LOGIN, Form, own_path, read_form
from gpupool_manager.problems import Problem

ISSUER = "https://login.example"
TENANTS = {"red", "green"}

#: The same in each run, so that what was found is found again.
_KEY = ec.derive_private_key(12345, ec.SECP256R1())
_SHOWN = {**json.loads(ECAlgorithm.to_jwk(_KEY.public_key())), "kid": "k1", "use": "sig"}
_KEYS = {"keys": [_SHOWN]}
_JOURNEY = Journey("state", "nonce", "verifier", "/console/queue")
_ISSUER = Issuer(Rules(ISSUER, "gpupool", "", "http://pool/console/openid/back"))
_LOOP = asyncio.new_event_loop()


def _claims() -> dict[str, Any]:
    now = int(time.time())
    about = {
        "iss": ISSUER,
        "aud": "gpupool",
        "sub": "u1",
        "nonce": "nonce",
        "groups": ["gpupool-red"],
    }
    return about | {"iat": now - 5, "exp": now + (1 << 30)}


def signed(payload: bytes) -> str:
    return jwt.PyJWS().encode(payload, _KEY, "ES256", {"kid": "k1"})


_GOOD = signed(json.dumps(_claims()).encode())


def check(text: str, keys: Any = _KEYS) -> dict[str, Any] | None:
    try:
        return _ISSUER.check(text, keys, _JOURNEY)
    except Problem as problem:
        assert "\n" not in problem.detail
        return None


def vouched(data: bytes) -> None:
    """An ID token of anybody, one that the issuer has signed, and the keys that it shows."""
    assert check(data.decode("latin-1")) is None
    found = check(signed(data))
    if found is not None:
        assert (found["iss"], str(found["nonce"])) == (ISSUER, "nonce")
        with contextlib.suppress(Problem):
            scope, tenant = _ISSUER.who(found, TENANTS)
            assert (scope, tenant) == ("admin", None) or tenant in TENANTS
        json.dumps(found, ensure_ascii=False).encode()
    try:
        keys = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(keys, dict):
        check(_GOOD, keys)


def browser(data: bytes) -> None:
    """A cookie, a path to go on with, an origin."""
    text = data.decode("utf-8", "surrogateescape")
    found = Journey.read(text)
    if found is not None:
        assert Journey.read(found.cookie()) == found
        assert (found.state + found.nonce + found.verifier).isascii()
    path = own_path(text)
    assert path.startswith("/") and not path.startswith(("//", LOGIN)) and "\\" not in path
    assert is_console(path.partition("?")[0]) and path.isprintable()
    if not is_from_elsewhere("POST", {"host": "pool:1", "origin": text}):
        assert urlsplit(text).netloc.lower() == "pool:1"


class _Sent:
    """A request as far as a form's reader looks at it."""

    headers = {"content-type": "application/x-www-form-urlencoded"}

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def body(self) -> bytes:
        return self._data


def form(data: bytes) -> None:
    """What a form has sent, and the requests that are made of it."""
    try:
        found: Form = _LOOP.run_until_complete(read_form(cast(Request, _Sent(data))))
    except Problem:
        return
    with contextlib.suppress(Problem):
        json.dumps(trial.asked(found))
    with contextlib.suppress(Problem):
        json.dumps(trial._labels(found.text("labels")))


CONSOLE_TARGETS = (vouched, browser, form)

_COOKIE = _JOURNEY.cookie()
CONSOLE_SEEDS: dict[str, list[bytes]] = {
    "vouched": [
        _GOOD.partition(".")[0].encode(),
        json.dumps(_claims()).encode(),
        json.dumps(_claims() | {"aud": ["gpupool", "b"], "azp": "gpupool"}).encode(),
        json.dumps(_claims() | {"nonce": "\ud800", "groups": "gpupool-operators"}).encode(),
        json.dumps(_KEYS).encode(),
        json.dumps({"keys": [{**_SHOWN, "alg": "ES256"}, {"kty": "oct", "k": "AA"}, 5]}).encode(),
        b"[" * 5000,
    ],
    "browser": [
        _COOKIE.encode(),
        base64.urlsafe_b64encode(b'["\\ud800","n","v","/"]'),
        *(b"/console/queue?a=b", b"//evil.example/console/", b"http://pool:1", b"http://["),
    ],
    "form": [
        urlencode({"gpus": 4, "memory": "1GiB", "share": "50%", "labels": "a=b c=d"}).encode(),
        urlencode(
            {"gpus": "x", "priority": "9" * 18, "labels": "=", "memory": "1e999GiB"}
        ).encode(),
    ],
}
