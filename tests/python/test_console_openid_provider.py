"""Signing in at a provider of OpenID Connect that others wrote, in a real Chromium."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from chromium import chromium, lacking
from filled_manager import FilledManager
from harness import PATIENCE
from ports import free_port

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("GPUPOOL_OPENID", HERE.parents[1] / "build" / "openid"))

pytestmark = [
    pytest.mark.skipif(bool(lacking()), reason=lacking() or "all is here"),
    pytest.mark.skipif(
        not (FOLDER / "node_modules/oidc-provider").is_dir() or shutil.which("node") is None,
        reason="there is no provider: make openid fetches it",
    ),
]

SECRET = "a-secret-of-some-length_with+signs/and=more"

#: What the provider knows of its client, and the same as the manager's settings.
CLIENTS: dict[str, tuple[dict[str, str], bool]] = {
    "default": ({"client_secret": SECRET}, True),
    "public": ({"token_endpoint_auth_method": "none"}, False),
}


class Pool:
    """A manager, and the provider that it asks."""

    def __init__(self, folder: Path, client: dict[str, str], with_secret: bool) -> None:
        self.here = f"http://127.0.0.1:{free_port()}"
        # By another name: for a browser it is another site.
        issuer = f"http://localhost:{free_port()}"
        self._provider = start_provider(issuer, f"{self.here}/console/openid/back", client)
        settings = {"listen": self.here, "console_url": self.here, "openid_issuer": issuer}
        if with_secret:
            path = folder / "openid.secret"
            path.write_text(SECRET)
            path.chmod(0o600)
            settings["openid_secret_file"] = str(path)
        self.manager = FilledManager(folder, openid_client="gpupool", **settings)
        with httpx.Client(headers=self.manager.headers, trust_env=False) as asker:
            asker.post(f"{self.manager.url}/tenants", json={"name": "red"}).raise_for_status()

    def close(self) -> None:
        self.manager.close()
        self._provider.kill()
        self._provider.communicate()


def start_provider(issuer: str, back: str, client: dict[str, str]) -> subprocess.Popen[str]:
    command = ["node", str(HERE / "openid_provider.mjs"), str(FOLDER), issuer, back]
    command.append(json.dumps(client))
    provider = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert provider.stdout is not None
    assert any(line == "listens\n" for line in provider.stdout)
    return provider


@pytest.fixture(scope="module", params=CLIENTS)
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("state")
    folder.chmod(0o700)
    made = Pool(folder, *CLIENTS[request.param])
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def sign_in(browser: Any, pool: Pool, name: str) -> Any:
    """By the provider's own pages."""
    page = browser.new_context(base_url=pool.here).new_page()
    page.set_default_timeout(PATIENCE * 1000)
    page.goto("/console/queue")
    page.get_by_role("link", name="Sign in with your organisation's account").click()
    page.locator("input[name=login]").fill(name)
    page.locator("input[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.get_by_role("button", name="Continue").click()
    return page


@pytest.mark.parametrize(("name", "whose"), [("olga", "operator"), ("rita", "red")])
def test_who_the_provider_knows_is_signed_in(
    browser: Any, pool: Pool, name: str, whose: str
) -> None:
    page = sign_in(browser, pool, name)
    page.wait_for_url("**/console/queue")
    assert page.locator("form.who span").inner_text() == whose
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector("text=Token of an operator or a tenant")
    page.context.close()


def test_who_is_nobody_here_is_told_so(browser: Any, pool: Pool) -> None:
    page = sign_in(browser, pool, "gast")
    page.wait_for_selector("text=makes you neither an operator nor of a tenant")
    page.goto("/console/queue")
    page.wait_for_selector("text=Token of an operator or a tenant")
    page.context.close()
