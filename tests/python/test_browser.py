"""An operator's browser, which shows a page of somebody else's: CSRF, CORS, DNS rebinding."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from ports import free_port

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from gpupool_common.browser import FROM_A_PAGE, is_from_a_page, is_rebound, own_names
from gpupool_common.errors import ConfigError
from gpupool_manager.app import make_app
from gpupool_manager.config import load_settings as manager_settings
from gpupool_server.config import load_settings as server_settings
from manager_rest import Rest, bearer
from metrics_harness import metrics_server
from server_harness import MakeOffice

#: How a browser's requests look that a page causes.
PAGES = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "same-origin"},  # a name that was rebound has the page's own origin
]

FOREIGN = ["evil.example", "evil.example:7780", "127.0.0.1.evil.example", "localhost.evil.example"]
OWN = ["127.0.0.1", "127.0.0.1:7780", "[::1]:7780", "localhost:7780", "10.0.0.5:7780", "[::1]"]


@pytest.mark.parametrize("host", FOREIGN)
def test_a_name_that_may_be_anybodys(host: str) -> None:
    assert is_rebound({"host": host})


def test_names_that_are_this_hosts_or_an_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "GPU1")
    monkeypatch.setattr("socket.getfqdn", lambda: "gpu1.example.")
    names = own_names() | {"metrics.local"}
    for host in ("gpu1", "gpu1:9117", "GPU1.example:9117", "gpu1.example.", "Metrics.local"):
        assert not is_rebound({"host": host}, names)
    for host in (*FOREIGN, "gpu1.evil.example", "gpu2"):
        assert is_rebound({"host": host}, names)


@pytest.mark.parametrize("load", [manager_settings, server_settings])
def test_an_operator_names_hosts(load: Callable[..., Any]) -> None:
    assert load(None, {"metrics_hosts": "GPU1.example.,alias"}, {}).metrics_hosts == (
        "gpu1.example",
        "alias",
    )
    for bad in ("", "gpu1:9117", "http://gpu1", "a b", "a,,b", "*"):
        with pytest.raises(ConfigError, match="metrics-hosts.*names of hosts, without ports"):
            load(None, {"metrics_hosts": bad}, {})


@pytest.mark.parametrize("host", OWN)
def test_an_address_is_nobody_elses(host: str) -> None:
    assert not is_rebound({"host": host})


def test_who_types_an_address_is_no_page() -> None:
    assert not is_from_a_page({"sec-fetch-site": "none"})
    assert not is_from_a_page({})


@pytest.mark.parametrize("page", PAGES)
async def test_a_page_changes_nothing_even_with_a_token(rest: Rest, page: dict[str, str]) -> None:
    headers = {**page, **bearer(rest.tokens["admin"])}
    answer = await rest.client.post("/tenants", json={"name": "evil"}, headers=headers)
    assert answer.status_code == 403 and "page in a browser" in answer.json()["detail"]
    assert (await rest.ask("GET", "/tenants/evil")).status_code == 404
    assert (await rest.client.get("/health", headers=page)).status_code == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_what_a_form_can_send_has_no_token(rest: Rest, kind: str) -> None:
    """A form needs no leave of ours; the token is in a header that it cannot set."""
    secret = rest.tokens["admin"]
    answer = await rest.client.post(
        f"/tenants?token={secret}&access_token={secret}",
        content=b'{"name": "evil"}',
        headers={"Content-Type": kind, "Cookie": f"token={secret}; Authorization=Bearer {secret}"},
    )
    assert answer.status_code == 401
    assert (await rest.ask("GET", "/tenants/evil")).status_code == 404


async def test_no_page_is_allowed_to_read(rest: Rest) -> None:
    """Neither a preflight nor an answer says that another origin may; none sets a cookie."""
    asked = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    preflight = await rest.client.options("/tenants", headers=asked)
    answers = [preflight, await rest.ask("GET", "/tenants"), await rest.client.get("/health")]
    assert preflight.status_code == 403
    for answer in answers:
        named = {name.lower() for name in answer.headers}
        assert not {name for name in named if name.startswith("access-control-")}
        assert "set-cookie" not in named


@pytest_asyncio.fixture
async def open_metrics(rest: Rest) -> AsyncIterator[httpx.AsyncClient]:
    """The same API on the loopback, with numbers for everybody."""
    transport = httpx.ASGITransport(
        make_app(rest.world.pool, open_metrics=True, host_names=("gpu1.example",))
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/v1") as client:
        yield client


async def test_open_numbers_are_not_for_a_rebound_name(
    open_metrics: httpx.AsyncClient, rest: Rest
) -> None:
    assert (await open_metrics.get("/metrics")).status_code == 200
    named = {"Host": "gpu1.example:7780"}
    assert (await open_metrics.get("/metrics", headers=named)).status_code == 200
    for host in FOREIGN:
        refused = await open_metrics.get("/metrics", headers={"Host": host})
        assert refused.status_code == 401
        detail = refused.json()["detail"]
        assert f"'{host.partition(':')[0]}'" in detail and "'metrics_hosts'" in detail
        headers = {"Host": host, **bearer(rest.tokens["admin"])}
        assert (await open_metrics.get("/metrics", headers=headers)).status_code == 200


async def test_a_servers_numbers_are_not_for_pages(make_office: MakeOffice) -> None:
    office = await make_office()
    server = metrics_server(
        office,
        metrics_listen=f"http://127.0.0.1:{free_port()}",
        metrics_hosts="gpu1.example",
    )
    await server.open()

    async def ask(*lines: str) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write("\r\n".join(["GET /metrics HTTP/1.1", *lines, "", ""]).encode())
        answer = (await reader.read()).decode()
        writer.close()
        return int(answer.split(" ", 2)[1]), answer

    try:
        for host in (*OWN, "gpu1.example:9117", socket.gethostname()):
            assert (await ask(f"Host: {host}"))[0] == 200
        for host in FOREIGN:
            status, answer = await ask(f"Host: {host}")
            assert status == 403 and f"'{host.partition(':')[0]}'" in answer
            assert "'metrics_hosts'" in answer and FROM_A_PAGE not in answer
        for page in PAGES:
            status, answer = await ask("Host: localhost", *(f"{k}: {v}" for k, v in page.items()))
            assert status == 403 and FROM_A_PAGE in answer
    finally:
        await server.close()
