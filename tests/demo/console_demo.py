"""The end of ``make demo``: the pool in a browser."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
from showing import fail

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from chromium import chromium, lacking  # noqa: E402

PATIENCE_MS = 60_000


def show_console(url: str, token: Path, picture: Path, stay: bool) -> None:
    """Where it is, and what it looks like, if a browser is here."""
    print("\nThe pool in a browser: its console")
    secret = token.read_text(encoding="utf-8").strip()
    _sign_in(url, secret)
    picture.unlink(missing_ok=True)
    reason = lacking()
    if reason:
        print(f"    no picture of it: {reason}")
    else:
        _take_picture(url, secret, picture)
        print(f"    a picture of it: {picture}")
    print(f"    {url}/ (the operator's token: {token})", flush=True)
    if not stay:
        print("    it ends with the demo; make demo STAY=1 waits until you have looked around")
        return
    try:
        input("    press Enter when you have looked around: ")
    except (EOFError, KeyboardInterrupt):
        print()


def _sign_in(url: str, secret: str) -> None:
    """Without a browser, so that the address is one that works."""
    with httpx.Client(base_url=url, trust_env=False, timeout=60, follow_redirects=True) as client:
        page = client.post("/console/login", data={"token": secret, "next": "/"})
    if page.status_code != 200 or "6 GPUs on 3 hosts" not in page.text:
        fail(f"the console does not show the pool: {page.status_code}")


def _take_picture(url: str, secret: str, picture: Path) -> None:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{url}/console/login")
        page.fill("#token", secret)
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text('GPUs')")
        page.screenshot(path=picture, full_page=True)
