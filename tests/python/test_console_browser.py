"""The console in a real Chromium: what axe finds, small screens, a keyboard alone, live pages.

Writes a picture of each page into build/console.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from chromium import PICTURES, axe, chromium, lacking
from filled_manager import FilledManager
from gpupool_common.quantities import MEBIBYTE as MIB

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking() or "all is here")

#: Of each wait of the browser; a machine that runs other tests is slow.
PATIENCE_MS = 60_000

#: Pages of an operator, by the names of their pictures.
PAGES = {
    "gpus": "/",
    "host": "/console/nodes/n1",
    "leases": "/console/leases",
    "lease": "/console/leases/{lease}",
    "queue": "/console/queue",
    "tenants": "/console/tenants",
    "tenant": "/console/tenants/a",
    "sessions": "/console/sessions",
    "usage": "/console/usage",
    "events": "/console/events",
    "what-if": "/console/what-if?gpus=2&memory=1MiB",
    "join": "/console/join",
    "problem": "/console/leases/nothing",
}

#: What axe is asked for: WCAG 2.2 AA, and what its authors hold for good practice.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def site(manager: FilledManager) -> FilledManager:
    """With somebody who waits."""
    body = {"tenant": "a", "gpus": 2, "wait_seconds": 600}
    with httpx.Client(headers=manager.headers, trust_env=False, timeout=30) as client:
        whole = {**body, "memory_bytes": None, "share_permille": 1000, "label": "a long training"}
        assert client.post(f"{manager.url}/leases", json=whole).status_code == 202
    return manager


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def open_page(browser: Any, site: FilledManager, **options: Any) -> Any:
    base = site.url.removesuffix("/v1")
    context = browser.new_context(base_url=base, **options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/console/login")
    return page


def sign_in(page: Any, site: FilledManager) -> None:
    """By keyboard: the field has the focus."""
    page.keyboard.type(site.admin)
    # Its stream is open, so that nobody takes it for that of the next page.
    with page.expect_response("**/console/stream"):
        page.keyboard.press("Enter")
        page.wait_for_url("**/")


def complaints(page: Any, script: str) -> list[str]:
    """What axe says of a page as it is now."""
    page.evaluate(script)
    found = page.evaluate("tags => axe.run({runOnly: {type: 'tag', values: tags}})", RULES)
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found["violations"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_kept_out(browser: Any, site: FilledManager, scheme: str) -> None:
    """axe has nothing to say of any page, wide or narrow, and none is wider than 400 px."""
    script, wrong = axe(), []
    PICTURES.mkdir(parents=True, exist_ok=True)
    page = open_page(browser, site, color_scheme=scheme)
    wrong += [f"login: {each}" for each in complaints(page, script)]
    sign_in(page, site)
    for name, path in PAGES.items():
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(path.format(lease=site.known["leases"]))
        wrong += [f"{name}: {each}" for each in complaints(page, script)]
        page.screenshot(path=PICTURES / f"{name}-{scheme}.png", full_page=True)
        page.set_viewport_size({"width": 400, "height": 800})
        wrong += [f"{name}, narrow: {each}" for each in complaints(page, script)]
        wide = page.evaluate("document.documentElement.scrollWidth")
        wrong += [f"{name}: {wide} px wide on a screen of 400"] if wide > 400 else []
        page.screenshot(path=PICTURES / f"{name}-{scheme}-narrow.png", full_page=True)
    page.context.close()
    assert wrong == []


def test_axe_would_find_something(browser: Any, site: FilledManager) -> None:
    page = open_page(browser, site)
    page.evaluate("document.querySelector('label').remove()")
    assert [each for each in complaints(page, axe()) if each.startswith("label: ")]
    page.context.close()


def focus_on(page: Any, text: str) -> None:
    """By the tabulator, and one sees where one is all the way."""
    for _ in range(60):
        page.keyboard.press("Tab")
        seen = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert seen != "none", page.evaluate("document.activeElement.outerHTML")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"the tabulator does not come to {text!r}")


def test_a_keyboard_alone_signs_in_and_drains(browser: Any, site: FilledManager) -> None:
    page = open_page(browser, site)
    sign_in(page, site)
    focus_on(page, "Drain")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    assert not complaints(page, axe())
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="hidden")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Drain"
    assert mode(site) == "open"
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    focus_on(page, "Drain")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=n1 is draining")
    assert mode(site) == "draining"
    focus_on(page, "Open")
    page.keyboard.press("Enter")
    focus_on(page, "Open")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=n1 is open again")
    assert mode(site) == "open"
    page.context.close()


def mode(site: FilledManager) -> str:
    answer = httpx.get(f"{site.url}/nodes/n1", headers=site.headers, trust_env=False, timeout=30)
    return str(answer.json()["mode"])


def test_a_page_shows_what_happens(browser: Any, site: FilledManager) -> None:
    """A lease of somebody else is there without loading the page anew; no script is refused."""
    page = open_page(browser, site)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    sign_in(page, site)
    # Whoever has the head of the answer is told of all that comes.
    with page.expect_response("**/console/stream"):
        page.goto("/console/leases")
    lease: dict[str, object] = {
        "tenant": "a",
        "memory_bytes": MIB,
        "share_permille": 1,
        "label": "while-you-look",
    }
    lease["wait_seconds"] = 600  # who waits already may have waited for so long that this one does
    with httpx.Client(headers=site.headers, trust_env=False, timeout=30) as client:
        made = client.post(f"{site.url}/leases", json=lease).raise_for_status().json()
        page.wait_for_selector("text=while-you-look")
        with page.expect_response("**/console/stream?recent=*"):
            page.goto("/console/events")
        page.wait_for_selector(f"text={made['id']}")  # it begins with what was
        client.post(f"{site.url}/leases/{made['id']}/release").raise_for_status()
    page.wait_for_selector(f"text=/lease.(released|cancelled) · {made['id']}/")
    page.context.close()
    assert errors == []


def test_a_page_says_that_it_may_be_old(browser: Any, site: FilledManager) -> None:
    """A page that nothing came to any more looked like a pool where nothing happens."""
    page = open_page(browser, site)
    sign_in(page, site)
    with page.expect_response("**/console/stream"):
        page.goto("/console/leases")
    page.route("**/console/stream", lambda route: route.abort())
    site.hang_up()
    page.wait_for_selector("text=The manager does not answer. This is as of")
    assert not complaints(page, axe())
    page.unroute("**/console/stream")
    page.wait_for_selector("#lost", state="hidden")
    page.context.close()


def test_who_is_signed_out_comes_back_to_the_page(browser: Any, site: FilledManager) -> None:
    """A manager that is started anew knows nobody."""
    page = open_page(browser, site)
    sign_in(page, site)
    with page.expect_response("**/console/stream"):
        page.goto("/console/leases?state=all")
    page.context.clear_cookies()
    site.hang_up()
    page.wait_for_selector("text=Sign in")
    page.keyboard.type(site.admin)
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/leases?state=all")
    page.context.close()


def test_a_slider_writes_what_is_sent(browser: Any, site: FilledManager) -> None:
    page = open_page(browser, site)
    sign_in(page, site)
    page.goto("/console/tenants/a")
    page.get_by_label("GPUs, slider").focus()
    page.keyboard.press("Home")
    page.keyboard.press("End")
    assert page.locator("#gpus").input_value() == "2"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Set the quota").click()
    page.wait_for_selector("text=the quota of a is another now")
    page.context.close()
    asked = f"{site.url}/tenants/a/quota"
    quota = httpx.get(asked, headers=site.headers, trust_env=False, timeout=30).json()
    assert (quota["gpus"], quota["memory_bytes"], quota["compute_permille"]) == (1, None, None)
