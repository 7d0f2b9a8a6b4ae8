"""The operator's console: its pages, who sees what, and what names of others do there."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from console_visitor import Page, database, visitor  # noqa: F401
from gpupool_common import __version__
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.console import render
from gpupool_manager.console.console import make_router
from manager_rest import Rest
from manager_world import gpu, report

HOSTILE = "<script>alert(1)</script>'\"><img src=x onerror=alert(2)>{{7*7}}"

#: Pages that need no name.
LISTS = ["/", "/console/leases", "/console/leases?state=all", "/console/queue"]
OTHERS = [
    "tenants",
    "tenants/red",
    "sessions",
    "usage",
    "usage?step=hour",
    "events",
    "what-if",
    "join",
]
EVERY = [*LISTS, *(f"/console/{each}" for each in [*OTHERS, "join"])]


async def furnish(rest: Rest) -> dict[str, Any]:
    """Two hosts, two tenants, leases that are granted and one that waits."""
    await rest.world.join("n1")
    await rest.world.join("n2", 1)
    await rest.tenant("red", gpus=8)
    await rest.tenant("blue")
    mine = await rest.lease("red", label="training")
    theirs = await rest.lease("blue", label="secret-of-blue")
    waits = await rest.lease("red", gpus=3, memory_bytes=None, share_permille=1000, wait_seconds=60)
    assert waits["state"] == "queued"
    return {"red": mine["id"], "blue": theirs["id"], "waits": waits["id"]}


async def test_the_grid_has_every_gpu_with_what_is_granted(rest: Rest) -> None:
    await furnish(rest)
    page = await (await visitor(rest)).get("/")
    assert "3 GPUs on 2 hosts" in page.text
    hosts = [named for tag, named in page.elements if tag == "section"]
    assert [each["aria-labelledby"] for each in hosts] == ["host-n1", "host-n2"]
    assert sum(named.get("class") == "gpu" for tag, named in page.elements if tag == "li") == 3
    assert "20%" in page.text and "2GiB" in page.text and "NVIDIA H200, 9.8GiB" in page.text
    assert "Of 3 GPUs below 6.6% of the compute and 6.6% of the memory are granted." in page.text


async def test_the_grid_shows_how_gpus_do(rest: Rest) -> None:
    await rest.world.join("n1")
    reading = {"gpu": "GPU-n1-0", "busy_permille": 730, "temperature_celsius": 66}
    reading |= {"memory_used_bytes": 3 << 30, "memory_errors": 2}
    await rest.world.beat("n1", readings=[reading, {"gpu": "GPU-n1-1"}])
    someone = await visitor(rest)
    for path in ("/", "/console/nodes/n1"):
        text = (await someone.get(path)).text
        for shown in ("73%", "66 °C", "3GiB", "2"):
            assert shown in text, (path, shown)
        assert text.count("°C") == 1
    await rest.world.beat("n1")
    assert "73%" not in (await someone.get("/")).text


async def test_the_grid_goes_on_where_a_page_ends(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool_manager.console.pages.HOSTS", 1)
    await rest.world.join("n1")
    await rest.world.join("n2", 1)
    someone = await visitor(rest)
    first = await someone.get("/?state=ready")
    (more,) = [n["href"] or "" for t, n in first.elements if "cursor=" in str(n.get("href"))]
    second = await someone.get(f"/{more}")
    assert "host-n2" in str(second.elements) and "host-n1" not in str(second.elements)
    assert "cursor=" not in str(second.elements)


async def test_hosts_are_found_by_name_model_and_label(rest: Rest) -> None:
    await rest.world.join("rack7-a", labels={"zone": "b"})
    await rest.world.join("rack8-b", [gpu("rack8-b", 0, model="NVIDIA L40S")])
    someone = await visitor(rest)
    for query, found in (
        ("name=RACK7", {"rack7-a"}),
        ("name=rack%3F-b", {"rack8-b"}),
        ("model=l40s", {"rack8-b"}),
        ("label=zone%3Db", {"rack7-a"}),
        ("name=rack&model=h200&label=zone%3Dc", set()),
    ):
        page = await someone.get(f"/?{query}")
        hosts = [str(element["id"]) for tag, element in page.elements if tag == "h2"]
        named = {each.removeprefix("host-") for each in hosts if each.startswith("host-")}
        assert named == found, query
    assert "No such host." in page.text
    assert (await someone.client.get("/?label=zone")).status_code == 422


async def test_only_hosts_that_were_asked_for(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.world.join("n2")
    await rest.do("PATCH", "/nodes/n2", {"mode": "cordoned"})
    page = await (await visitor(rest)).get("/?mode=cordoned")
    assert "host-n2" in str(page.elements) and "host-n1" not in str(page.elements)


async def test_a_host_says_who_holds_each_gpu(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    await rest.world.join("n1")
    for name in ("red", "blue"):
        await rest.tenant(name)
    held = [await rest.lease(name, share_permille=300) for name in ("red", "blue")]
    someone = await visitor(rest)
    page = await someone.get("/console/nodes/n1")
    assert "red 30%" in page.text and "blue 30%" in page.text
    links = {named.get("href") for _, named in page.elements}
    assert {f"/console/leases/{each['id']}" for each in held} <= links
    monkeypatch.setattr("gpupool_manager.console.pages.ROWS", 1)
    assert "and 1 other" in (await someone.get("/console/nodes/n1")).text


async def test_a_host_is_drained_and_opened(rest: Rest) -> None:
    await furnish(rest)
    someone = await visitor(rest)
    page = await someone.get("/console/nodes/n1")
    form = [f for f in page.forms if f.fields.get("mode") == "draining"][0]
    after = await someone.do(form)
    assert "n1 is draining; leases on it:" in after.text
    assert (await rest.do("GET", "/nodes/n1"))["mode"] == "draining"
    assert "n1 is draining; leases" not in (await someone.get("/console/nodes/n1")).text
    form = [f for f in after.forms if f.fields.get("mode") == "open"][0]
    await someone.do(form)
    assert (await rest.do("GET", "/nodes/n1"))["mode"] == "open"


async def test_a_gpu_that_was_put_aside_is_used_again(rest: Rest) -> None:
    await rest.world.join("n1", [gpu("n1", 0, sick="XID 79")])
    someone = await visitor(rest)
    assert "XID 79" in (await someone.get("/")).text
    page = await someone.get("/console/nodes/n1")
    await someone.do(page.form("/console/gpus/GPU-n1-0/open"))
    assert (await rest.do("GET", "/gpus/GPU-n1-0"))["aside"] is None


async def test_a_lease_says_why_and_is_released(rest: Rest) -> None:
    known = await furnish(rest)
    someone = await visitor(rest)
    page = await someone.get(f"/console/leases/{known['red']}")
    assert "training" in page.text and "placed by the rule" in page.text
    after = await someone.do(page.form(f"/console/leases/{known['red']}/release"))
    assert f"{known['red']}: released" in after.text
    assert (await rest.do("GET", f"/leases/{known['red']}"))["state"] == "released"


async def test_no_page_has_the_token_of_a_lease(rest: Rest) -> None:
    known = await furnish(rest)
    await rest.do("POST", f"/leases/{known['waits']}/release")
    token = (await rest.do("GET", f"/leases/{known['red']}"))["token"]
    assert token is not None
    prefix = token.partition(".")[0]
    text = (await (await visitor(rest)).client.get(f"/console/leases/{known['red']}")).text
    assert prefix not in text and "training" in text


async def test_the_queue_has_reasons_and_the_expected_start(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("red")
    whole = {"memory_bytes": None, "share_permille": 1000}
    await rest.lease("red", **whole, time_seconds=600)
    waits = await rest.lease("red", **whole, wait_seconds=60)
    start = (await rest.do("GET", f"/leases/{waits['id']}/explain"))["expected_start"]
    assert start is not None
    page = await (await visitor(rest)).get("/console/queue")
    assert render.moment(start) in page.text
    assert waits["reason"] in page.text
    assert "Nobody waits" not in page.text


async def test_a_tenant_sees_its_own_alone(rest: Rest) -> None:
    known = await furnish(rest)
    red = await visitor(rest, "red")
    first = await red.client.get("/")
    assert (first.status_code, first.headers["location"]) == (303, "/console/leases")
    for path in LISTS[1:]:
        text = (await red.client.get(path)).text
        assert known["waits"] in text and known["blue"] not in text and "blue" not in text
    refused = await red.get(f"/console/leases/{known['blue']}", 404)
    assert "there is no lease" in refused.text
    assert "needs the scope 'admin'" in (await red.get("/console/nodes/n1", 403)).text
    page = await red.get("/console/leases")
    assert not [form for form in page.forms if "/nodes/" in form.action]
    form = page.form(f"/console/leases/{known['red']}/release")
    before = await rest.everything()
    form.action = f"/console/leases/{known['blue']}/release"
    assert (await red.send(form)).status_code == 404
    form.action, form.fields["mode"] = "/console/nodes/n1/mode", "draining"
    assert (await red.send(form)).status_code == 403
    assert await rest.everything() == before


#: What-if pages that make the manager say why there is no room.
TRIALS = ["gpus=1", "gpus=9", "gpus=3&share=100%25&memory=9GiB", "gpus=1&tenant=blue", "gpus=x"]


async def test_no_page_tells_a_tenant_of_another(rest: Rest) -> None:
    known = await furnish(rest)
    whole = {"memory_bytes": None, "share_permille": 1000}
    theirs = await rest.lease("blue", gpus=3, **whole, wait_seconds=600, label="blue-waits")
    start = datetime.fromtimestamp(rest.world.clock.now + 7200, UTC).isoformat()
    kept = {"gpus": 2, "start": start, "seconds": 3600, "label": "blue-keeps", **whole}
    reserved = await rest.do("POST", "/reservations", kept, by="blue")
    session = {"id": "blue-session", "lease": known["blue"], "program": "blue-program"}
    nodes = {
        grant["node"] for grant in (await rest.do("GET", f"/leases/{known['blue']}"))["grants"]
    }
    await rest.world.beat(nodes.pop(), sessions=[session])
    secrets = ["blue", known["blue"], theirs["id"], reserved["id"]]
    red = await visitor(rest, "red")
    paths = [f"/console/leases/{known['red']}", f"/console/leases/{known['waits']}", *EVERY[1:]]
    paths += [f"/console/what-if?{each}" for each in TRIALS]
    paths += [f"/console/leases/{theirs['id']}", "/console/leases?tenant=blue&state=all"]
    paths += ["/console/tenants/blue", "/console/usage?tenant=blue", "/console/nodes/n1"]
    paths += [f"/console/sessions?lease={known['blue']}", "/console/sessions?node=n1"]
    for path in paths:
        answer = await red.client.get(path)
        assert answer.status_code < 500, path
        for secret in secrets:
            asked = answer.text.count(secret) if secret not in path else 0
            assert not asked, (path, secret)
    for path in ("/", "/console/queue", "/console/leases", "/console/sessions", "/console/tenants"):
        text = (await (await visitor(rest)).client.get(path)).text
        assert "blue" in text or path == "/", path


async def test_every_page_is_well_formed_and_may_load_nothing_of_others(rest: Rest) -> None:
    known = await furnish(rest)
    named = [f"/console/leases/{each}" for each in known.values()] + ["/console/nodes/n1"]
    someone = await visitor(rest)
    for path in [*EVERY, *named, "/console/login", "/console/nothing"]:
        answer = await someone.client.get(path)
        page = Page(answer.text)
        assert ("None" in page.words, "Undefined" in page.text) == (False, False), path
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        for tag, attributes in page.elements:
            for name, value in attributes.items():
                assert name != "style" and not name.startswith("on"), (path, tag, name)
                if name in ("src", "href", "action"):
                    assert re.match(r"[/?#](?!/)", value or ""), (path, tag, value)
        assert sum(tag == "h1" for tag, _ in page.elements) == 1, path


async def test_whatever_others_write_is_text(rest: Rest) -> None:
    """Names and hints of hosts, tenants and leases, and what a browser asks for."""
    devices = [gpu("n1", 0, model=HOSTILE, pci="<b>"), gpu("n1", 1, sick=HOSTILE)]
    what = report("n1", devices, labels={"rack": HOSTILE})
    what.address = what.server_version = HOSTILE
    token = await rest.world.node_token("n1")
    pool = rest.world.pool
    await pool.commands.do(lambda t: pool.fleet.report(t, token, "n1", what))
    await rest.world.beat("n1", trouble=HOSTILE)
    await rest.tenant("red")
    await rest.do("PATCH", "/tenants/red", {"description": HOSTILE})
    await rest.do("PATCH", "/nodes/n1", {"mode": "open"})
    lease = await rest.lease("red", label=HOSTILE, model=None)
    session = {"id": "s", "lease": lease["id"], "program": HOSTILE}
    await rest.world.beat("n1", sessions=[session])
    asked = {"label": HOSTILE, "model": HOSTILE, "wait_seconds": 60}
    refused = await rest.ask("POST", "/leases", {"memory_bytes": MIB, **asked}, "red")
    assert refused.status_code in (202, 409)
    someone = await visitor(rest)
    shown = 0
    paths = [*EVERY, f"/console/leases/{lease['id']}", "/console/nodes/n1"]
    paths += [f"/console/nodes/{HOSTILE}", f"/console/leases?state={HOSTILE}&tenant={HOSTILE}"]
    paths += [f"/console/usage?tenant={HOSTILE}", f"/console/sessions?node={HOSTILE}"]
    paths += [f"/console/what-if?gpus={HOSTILE}&memory={HOSTILE}&model={HOSTILE}"]
    paths += [f"/?state={HOSTILE}", f"/?cursor={HOSTILE}", f"/console/login?next={HOSTILE}"]
    for path in paths:
        answer = await someone.client.get(path)
        assert answer.status_code < 500, (path, answer.text)
        page = Page(answer.text)
        tags = {tag for tag, _ in page.elements}
        assert "img" not in tags and "49" not in page.words
        assert [named.get("src") for tag, named in page.elements if tag == "script"] == [
            f"/console/static/console.js?{__version__}"
        ]
        shown += HOSTILE.split()[0] in page.text
    assert shown >= 7


def test_templates_and_scripts_do_nothing_that_is_not_escaped() -> None:
    for path in sorted((render.HERE / "templates").glob("*.html")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape|<style|<script>|javascript:", text), path
        # An attribute without quotes would end at the first blank of a name.
        assert not re.search(r"<[a-z][^<>]* [a-z-]+=\{\{", text), path
    for path in sorted((render.HERE / "static").glob("*.js")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)


def test_no_route_of_the_console_is_in_the_api() -> None:
    assert [route for route in make_router().routes if getattr(route, "include_in_schema", 0)] == []


async def test_files_come_with_their_kind_and_no_others_do(rest: Rest) -> None:
    nobody = await visitor(rest, None)
    for name, kind in (("console.css", "text/css"), ("console.js", "text/javascript")):
        answer = await nobody.client.get(f"/console/static/{name}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
    for name in ("..%2frender.py", "render.py", "../pages.py"):
        assert (await nobody.client.get(f"/console/static/{name}")).status_code == 404


async def test_events_come_without_names_and_of_the_own_tenant(rest: Rest) -> None:
    await rest.tenant("red")
    await rest.tenant("blue")
    await rest.world.join("n1")
    red = await visitor(rest, "red")
    mine = await rest.lease("red")
    await rest.lease("blue")
    bus = rest.world.pool.bus
    since = {"Last-Event-ID": f"{bus.epoch}-0"}
    told = []
    for query, headers in (("?recent=1", {}), ("?recent=1000", {}), ("", since)):
        asked = asyncio.create_task(red.client.get(f"/console/stream{query}", headers=headers))
        while not bus._watchers:
            await asyncio.sleep(0.01)
        bus.close()  # the answer ends with it
        answer = await asked
        told.append(re.findall("^id: .*$", answer.text, re.M))
    assert told == [told[2][-1:], told[2], told[2]]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "event:" not in answer.text
    heard = [json.loads(data) for data in re.findall(r"^data: (.*)$", answer.text, re.M)]
    assert "lease.granted" in {each["kind"] for each in heard}
    assert {each["tenant"] for each in heard} == {"red"}
    assert mine["id"] in {each["object"] for each in heard}


async def test_a_stream_ends_with_its_session(rest: Rest) -> None:
    """Not with its token: that of a tenant lasts, and whoever has signed out sees no more."""
    await rest.tenant("red")
    red = await visitor(rest, "red")
    form = (await red.get("/console/leases")).form("/console/logout")
    bus = rest.world.pool.bus
    asked = asyncio.create_task(red.client.get("/console/stream"))
    while not bus._watchers:
        await asyncio.sleep(0.01)
    await red.send(form)
    await rest.world.join("n1")
    await rest.lease("red")
    answer = await asyncio.wait_for(asked, 10)
    assert "data:" not in answer.text
    assert not bus._watchers


async def test_a_tenant_has_so_many_streams(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool_manager.api_looking.MOST_STREAMS", 2)
    await rest.tenant("red")
    await rest.tenant("blue")
    red, blue = await visitor(rest, "red"), await visitor(rest, "blue")
    bus = rest.world.pool.bus
    asked = [asyncio.create_task(red.client.get("/console/stream")) for _ in range(2)]
    while len(bus._watchers) < 2:
        await asyncio.sleep(0.01)
    refused = await red.client.get("/console/stream")
    assert refused.status_code == 429 and "tenant 'red' has 2" in refused.text
    assert (await rest.ask("GET", "/events", by="red")).status_code == 429
    asked.append(asyncio.create_task(blue.client.get("/console/stream")))
    while len(bus._watchers) < 3:
        await asyncio.sleep(0.01)
    bus.close()
    assert [(await each).status_code for each in asked] == [200, 200, 200]
    asked = [asyncio.create_task(red.client.get("/console/stream"))]
    while not bus._watchers:
        await asyncio.sleep(0.01)
    bus.close()
    assert (await asked[0]).status_code == 200


def test_the_package_has_its_files() -> None:
    names = {path.name for path in (Path(render.__file__).parent / "templates").iterdir()}
    assert {"base.html", "grid.html", "login.html", "problem.html"} <= names
    assert set(render.static_files()) == {"console.css", "console.js", "icon.svg"}
