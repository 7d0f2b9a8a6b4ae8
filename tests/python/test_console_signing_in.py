"""Signing in to the console: cookies, forms that others made, tokens that end."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from console_visitor import Visitor, database, visitor  # noqa: F401
from gpupool_common.errors import ConfigError
from gpupool_manager.app import make_app
from gpupool_manager.attempts import Attempts
from gpupool_manager.config import load_settings
from gpupool_manager.console.sessions import (
    MOST_EACH,
    MOST_NEWS,
    SESSION_SECONDS,
    Sessions,
)
from gpupool_manager.console.site import is_console, is_from_elsewhere
from gpupool_manager.console.visit import MOST_FIELDS, own_path
from gpupool_manager.records import Token
from manager_rest import ADMIN, Rest
from manager_world import Clock

PAGES = ["/", "/console/leases", "/console/leases/x", "/console/queue", "/console/nodes/n1"]


@pytest.mark.parametrize("path", [*PAGES, "/console/stream"])
async def test_who_is_not_signed_in_is_asked_to(rest: Rest, path: str) -> None:
    page = await (await visitor(rest, None)).get(path, 401)
    assert page.form("/console/login").fields["next"] == path


async def test_who_signs_in_comes_back(rest: Rest) -> None:
    someone = await visitor(rest, None)
    form = (await someone.get("/console/leases?state=all", 401)).form("/console/login")
    answer = await someone.send(form, token=ADMIN)
    assert answer.headers["location"] == "/console/leases?state=all"


@pytest.mark.parametrize(
    "target",
    [
        *("https://evil.example/", "//evil.example/", "/\\evil.example", "\\\\evil.example"),
        *("/v1/tokens", "/console/login", "/consoles", "javascript:alert(1)", "/console/\n/x", ""),
    ],
)
def test_nobody_is_led_elsewhere(target: str) -> None:
    assert own_path(target) == "/"


async def test_the_cookie_is_for_our_own_pages_alone(rest: Rest) -> None:
    someone = Visitor(rest.app)
    said = (await someone.sign_in(ADMIN)).headers["set-cookie"]
    assert ADMIN not in said
    parts = {part.strip().lower() for part in said.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/", f"max-age={SESSION_SECONDS:.0f}"} <= parts
    assert "secure" not in parts


@pytest.mark.parametrize(("base", "public"), [("https://pool", ""), ("http://pool", "https://p")])
async def test_behind_tls_the_cookie_is_not_sent_in_clear(
    rest: Rest, base: str, public: str
) -> None:
    app = make_app(rest.world.pool, console_url=public)
    said = (await Visitor(app, base).sign_in(ADMIN)).headers["set-cookie"]
    assert said.startswith("__Host-gpupool=") and "; secure" in said.lower()


@pytest.mark.parametrize("token", ["", "x", "gpp_" + "A" * 43, "é", "a\nb"])
async def test_a_wrong_token_opens_nothing(rest: Rest, token: str) -> None:
    someone = Visitor(rest.app)
    answer = await someone.sign_in(token)
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert 'role="alert"' in answer.text
    await someone.get("/", 401)


async def test_tokens_of_other_scopes_open_nothing(rest: Rest) -> None:
    metrics = (await rest.do("POST", "/tokens", {"scope": "metrics"}))["secret"]
    answer = await Visitor(rest.app).sign_in(metrics)
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


async def test_wrong_tokens_are_counted_by_their_address(rest: Rest) -> None:
    app = make_app(rest.world.pool, attempts=Attempts(burst=3, seconds=1000))
    someone = Visitor(app)
    assert [(await someone.sign_in("gpp_x")).status_code for _ in range(4)] == [401, 401, 401, 429]
    assert (await someone.sign_in(ADMIN)).status_code == 303


async def test_a_form_without_the_sessions_own_word_changes_nothing(rest: Rest) -> None:
    await rest.world.join("n1")
    someone, other = await visitor(rest), await visitor(rest)
    form = (await someone.get("/console/nodes/n1")).forms[-1]
    theirs = (await other.get("/console/nodes/n1")).forms[-1].fields["csrf"]
    assert form.fields["csrf"] != theirs
    before = await rest.everything()
    for wrong in ("", "x", theirs, "é"):
        answer = await someone.send(form, csrf=wrong)
        assert answer.status_code == 403 and "not of this session" in answer.text
    for path in ("/console/logout", "/console/nodes/n1/mode", "/console/leases/x/release"):
        answer = await someone.client.post(path, data={"mode": "draining"})
        assert answer.status_code == 403
    assert await rest.everything() == before
    await someone.get("/")  # still signed in


ELSEWHERE = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://pool.evil.example"},
    {"origin": "file://pool"},
    {"origin": "http://["},
    {"origin": "http://pool", "sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


@pytest.mark.parametrize("headers", ELSEWHERE)
async def test_another_sites_form_is_refused_whatever_it_knows(
    rest: Rest, headers: dict[str, str]
) -> None:
    await rest.world.join("n1")
    someone = await visitor(rest)
    form = (await someone.get("/console/nodes/n1")).forms[-1]
    answer = await someone.client.post(form.action, data=form.fields, headers=headers)
    assert answer.status_code == 403 and "another site" in answer.text
    assert (await rest.do("GET", "/nodes/n1"))["mode"] == "open"


def test_a_link_is_followed_and_a_frame_is_not() -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert not is_from_elsewhere("GET", {**link, "sec-fetch-dest": "document"})
    assert is_from_elsewhere("GET", {**link, "sec-fetch-dest": "iframe"})
    assert is_from_elsewhere("POST", {**link, "sec-fetch-dest": "document"})
    assert is_from_elsewhere("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"})
    assert is_from_elsewhere("GET", {"host": "pool", "origin": "http://evil"})
    assert not is_from_elsewhere("POST", {"host": "pool:1", "origin": "http://pool:1"})
    public = {"host": "10.0.0.1:7780", "origin": "https://gpu.example"}
    assert is_from_elsewhere("POST", public)
    assert not is_from_elsewhere("POST", public, "https://gpu.example")
    assert is_from_elsewhere("POST", {"origin": "http://"})


def test_the_api_stays_for_programs() -> None:
    assert [is_console(path) for path in ("/", "/console", "/console/x")] == [True] * 3
    assert not any(is_console(path) for path in ("/v1/leases", "/consolex", "/docs", "/readyz"))


async def test_the_cookie_is_no_token_of_the_api(rest: Rest) -> None:
    someone = await visitor(rest)
    assert (await someone.client.get("/v1/tenants")).status_code == 401


async def test_only_forms_are_read(rest: Rest) -> None:
    someone = await visitor(rest)
    answer = await someone.client.post("/console/login", json={"token": ADMIN})
    assert answer.status_code == 422 and "x-www-form-urlencoded" in answer.text
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    many = "&".join(f"a{i}=1" for i in range(MOST_FIELDS + 1))
    for body in (many, b"\xff", b"token=%ff", "token"):
        answer = await someone.client.post("/console/login", content=body, headers=kind)
        assert answer.status_code == 422 and "no form" in answer.text
    answer = await someone.client.post("/console/login", content=b"a" * (2 << 20), headers=kind)
    assert answer.status_code == 413


async def test_a_token_that_is_revoked_ends_its_sessions(rest: Rest) -> None:
    await rest.tenant("red")
    red = await visitor(rest, "red")
    await red.get("/console/leases")
    (token,) = [t for t in await rest.pages("/tokens") if t["tenant"] == "red"]
    await rest.do("DELETE", f"/tokens/{token['id']}")
    assert "revoked" in (await red.get("/console/queue", 401)).text
    assert len(rest.app.state.sessions) == 0


async def test_a_tenant_that_is_disabled_sees_nothing(rest: Rest) -> None:
    await rest.tenant("red")
    red = await visitor(rest, "red")
    await rest.do("PATCH", "/tenants/red", {"disabled": True})
    assert "is disabled" in (await red.get("/console/leases", 403)).text


async def test_a_session_ends_with_its_time_and_with_signing_out(rest: Rest) -> None:
    someone = await visitor(rest)
    form = (await someone.get("/")).form("/console/logout")
    answer = await someone.send(form)
    assert answer.headers["location"] == "/console/login"
    assert re.search(r"gpupool-console=\"?\"?;.*Max-Age=0", answer.headers["set-cookie"])
    await someone.get("/", 401)
    someone = await visitor(rest)
    rest.world.clock.now += SESSION_SECONDS - 1
    await someone.get("/")
    rest.world.clock.now += 1
    await someone.get("/", 401)


def _token(name: str) -> Token:
    return Token(name, "", "tenant", "red", None, "", 0.0, None)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """As many sessions as there may be here: to look for the oldest takes longer the more."""
    monkeypatch.setattr("gpupool_manager.console.sessions.MOST", 8 * MOST_EACH)
    return 8 * MOST_EACH


def test_sessions_are_few_and_the_oldest_go(few: int) -> None:
    sessions = Sessions(Clock())
    first = sessions.open("a", _token("t"))
    cookies = [sessions.open("a", _token("t")) for _ in range(MOST_EACH)]
    assert sessions.find(first) is None
    assert all(sessions.find(cookie) for cookie in cookies)
    assert len(sessions) == MOST_EACH
    for number in range(few):
        sessions.open("a", _token(f"t{number}"))
    assert len(sessions) == few and sessions.find(cookies[-1]) is None
    assert sessions.find("") is None and sessions.find("nonsense") is None


def test_nobody_signs_others_out_by_signing_in_again_and_again(few: int) -> None:
    """Of a tenant anybody may have as many tokens as there are people."""
    sessions = Sessions(Clock())
    mine = sessions.open("a", Token("t", "", "admin", None, None, "", 0.0, None))
    other = sessions.open("a", Token("b", "", "tenant", "blue", None, "", 0.0, None))
    for number in range(few + 10):
        sessions.open("a", _token(f"t{number}"), f"person {number}")
    assert len(sessions) == few
    assert sessions.find(mine) is not None and sessions.find(other) is not None
    for number in range(2 * MOST_EACH):
        sessions.open("a", _token(f"u{number}"), "one person")
    assert sum(each.person == "one person" for each in sessions._open.values()) == MOST_EACH


async def test_what_nobody_reads_does_not_grow(rest: Rest) -> None:
    await rest.world.join("n1")
    someone = await visitor(rest)
    form = (await someone.get("/console/nodes/n1")).forms[-1]
    for _ in range(3 * MOST_NEWS):
        assert (await someone.send(form)).status_code == 303
    page = await someone.get("/console/nodes/n1")
    assert sum(named.get("class") == "news" for _, named in page.elements) == MOST_NEWS


async def test_signing_in_anew_ends_the_session_before(rest: Rest) -> None:
    someone = await visitor(rest)
    before = dict(someone.client.cookies)
    await someone.sign_in(ADMIN)
    assert dict(someone.client.cookies) != before
    assert len(rest.app.state.sessions) == 1


def test_where_browsers_find_it_is_an_origin() -> None:
    for good in ("https://gpu.example", "http://10.0.0.1:80/", "https://[::1]:7780"):
        assert load_settings(None, {"console_url": good}, {}).console_url == good.rstrip("/")
    for bad in ("gpu.example", "https://a/b", "ftp://a", "https://a b", "https://u@a"):
        with pytest.raises(ConfigError, match="console-url"):
            load_settings(None, {"console_url": bad}, {})


async def test_without_templates_a_page_says_what_is_missing(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpupool_manager.console import render

    render._environment.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    answer = await Visitor(rest.app).client.get("/")
    assert answer.status_code == 503
    assert "'jinja2' is not installed" in answer.text and "gpupool[manager]" in answer.text
