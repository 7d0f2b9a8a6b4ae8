"""Debian's Chromium, steered by Playwright: `make browser` fetches both.

Playwright is in a folder of its own, because only the console's tests and the demo want its 45 MB.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_FOLDER = Path(os.environ.get("GPUPOOL_BROWSER", ROOT / "build" / "browser"))

#: Where pictures of the pages go.
PICTURES = ROOT / "build" / "console"

NAMES = ("chromium", "chromium-browser")


def lacking() -> str:
    """What is not here of all that steers a browser; empty: it is all here."""
    if not any(shutil.which(name) for name in NAMES):
        return "there is no Chromium: make browser installs it"
    # Behind all others: what both folders have is this environment's.
    if str(_FOLDER) not in sys.path:
        sys.path.append(str(_FOLDER))
    if importlib.util.find_spec("playwright") is None:
        return "there is no Playwright: make browser fetches it"
    return ""


def axe() -> str:
    """The script that looks for what keeps people from using a page."""
    spec = importlib.util.find_spec("axe_playwright_python")
    assert spec is not None and spec.origin is not None, "there is no axe: make browser fetches it"
    (script,) = Path(spec.origin).parent.rglob("axe.min.js")
    return script.read_text(encoding="utf-8")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that runs without a screen."""
    from playwright.sync_api import sync_playwright

    program = next(found for name in NAMES if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        # As root it has no sandbox, and a container's /dev/shm is small.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()
