"""The REST API: every resource, as operators and tenants use it."""

from __future__ import annotations

import re

import pytest

from gpupool_common import __version__
from gpupool_common.budgets import TenantBudgets
from gpupool_common.node_protocol import Apply
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.tables import TABLES
from gpupool_manager.tokens import digest, new_secret
from manager_rest import Rest, bearer
from manager_world import gpu

pytestmark = pytest.mark.timeout(60)


async def test_health_and_readiness_need_no_token(rest: Rest) -> None:
    health = await rest.ask("GET", "/health", by=None)
    assert (health.status_code, health.json()) == (200, {"status": "ok", "version": __version__})
    await rest.world.join("n1", 3)
    ready = await rest.ask("GET", "/ready", by=None)
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "nodes": 1, "gpus": 3})


async def test_others_ask_by_their_own_paths(rest: Rest) -> None:
    for path in ("/healthz", "/livez"):
        assert (await rest.client.get(f"http://pool{path}")).json()["status"] == "ok"
    assert (await rest.client.get("http://pool/readyz")).json()["status"] == "ready"
    assert (await rest.client.post("http://pool/healthz")).status_code == 405
    await rest.world.pool.commands.close()
    assert (await rest.client.get("http://pool/readyz")).status_code == 503
    assert (await rest.client.get("http://pool/healthz")).status_code == 200
    rest.world.pool.commands.start()


async def test_the_api_is_on_one_page(rest: Rest) -> None:
    page = await rest.client.get("http://pool/docs")
    assert page.headers["content-type"].startswith("text/html")
    schema = (await rest.client.get("http://pool/v1/openapi.json")).json()
    rows = re.findall(r"<tr><td><code>(\w+) ([^<]*)</code><td>([^<]+)<td>", page.text)
    wanted = {(way.upper(), path) for path, ways in schema["paths"].items() for way in ways}
    assert {(way, path) for way, path, _ in rows} == wanted
    assert "<script" not in page.text and "://" not in page.text


async def test_a_manager_that_stops_is_not_ready(rest: Rest) -> None:
    await rest.world.pool.commands.close()
    answer = await rest.ask("GET", "/ready", by=None)
    assert answer.status_code == 503
    assert answer.json()["detail"] == "the manager is stopping"
    answer = await rest.ask("POST", "/tenants", {"name": "a"})
    assert answer.status_code == 503
    assert (await rest.ask("GET", "/health", by=None)).status_code == 200
    rest.world.pool.commands.start()


# Tenants and quotas --------------------------------------------------------------------


NOTHING = {"gpus": 0, "memory_bytes": 0, "compute_permille": 0, "sessions": 0}


async def test_a_tenant_is_made_changed_and_removed(rest: Rest) -> None:
    made = await rest.ask("POST", "/tenants", {"name": "blue", "quota": {"gpus": 4}})
    assert made.status_code == 201
    assert made.json()["quota"] == {
        "tenant": "blue",
        "gpus": 4,
        "memory_bytes": None,
        "compute_permille": None,
        "sessions": None,
        "priority": 0,
        "models": None,
        "budgets": dict.fromkeys(TenantBudgets.model_fields),
        "weight": 1,
        "borrow": False,
        "idle_action": None,
        "idle_seconds": None,
        "in_use": NOTHING,
        "queued": NOTHING,
        "borrowed": NOTHING,
    }
    read = await rest.ask("GET", "/tenants/blue")
    assert (read.json(), read.headers["etag"]) == (made.json(), made.headers["etag"])
    changed = await rest.do("PATCH", "/tenants/blue", {"description": "the blue ones"})
    assert changed == {**made.json(), "description": "the blue ones"}
    assert (await rest.ask("DELETE", "/tenants/blue")).status_code == 204
    await rest.no(404, "not-found", "GET", "/tenants/blue")
    actions = [entry["action"] for entry in await rest.pages("/audit?object=blue")]
    assert actions == ["tenant.created", "tenant.changed", "tenant.removed"]


async def test_tenants_come_by_name_in_pages(rest: Rest) -> None:
    names = ["e", "b", "a", "d", "c"]
    for name in names:
        await rest.do("POST", "/tenants", {"name": name})
    assert [tenant["name"] for tenant in await rest.pages("/tenants")] == sorted(names)
    assert [quota["tenant"] for quota in await rest.pages("/quotas", limit=3)] == sorted(names)


async def test_a_quota_is_replaced_and_shows_what_is_in_use(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a", gpus=9, priority=5)
    await rest.lease("a", gpus=2, memory_bytes=300 * MIB, share_permille=200)
    await rest.lease("a", share_permille=1000, wait_seconds=60)
    quota = await rest.do("GET", "/tenants/a/quota", by="a")
    assert quota["in_use"] == {
        "gpus": 2,
        "memory_bytes": 600 * MIB,
        "compute_permille": 400,
        "sessions": 1,
    }
    assert quota["queued"] == {
        "gpus": 1,
        "memory_bytes": 1000 * MIB,
        "compute_permille": 1000,
        "sessions": 1,
    }
    put = await rest.do("PUT", "/tenants/a/quota", {"gpus": 1, "models": ["NVIDIA H*"]})
    assert (put["gpus"], put["priority"], put["models"]) == (1, 0, ["NVIDIA H*"])
    assert put["in_use"] == quota["in_use"], "what is granted stays"


async def test_a_disabled_tenant_is_refused_and_what_it_has_stays(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    lease = await rest.lease("a")
    await rest.do("PATCH", "/tenants/a", {"disabled": True})
    await rest.no(403, "disabled", "GET", "/leases", by="a")
    await rest.no(403, "disabled", "POST", "/leases", {"tenant": "a"})
    assert (await rest.do("GET", f"/leases/{lease['id']}"))["state"] == "active"
    await rest.do("PATCH", "/tenants/a", {"disabled": False})
    assert await rest.pages("/leases", by="a")


# Tokens --------------------------------------------------------------------------------


async def test_a_token_is_shown_once_and_kept_as_a_hash(rest: Rest) -> None:
    await rest.do("POST", "/tenants", {"name": "a"})
    made = await rest.do("POST", "/tokens", {"scope": "tenant", "tenant": "a"})
    secret = made["secret"]
    for path in ("/tokens", f"/tokens/{made['id']}", "/audit", "/tenants/a"):
        answer = await rest.ask("GET", path)
        assert answer.is_success
        assert secret not in answer.text and digest(secret) not in answer.text
    state = str(await rest.everything())
    assert secret not in state and digest(secret) in state


async def test_what_the_database_has_of_a_token_opens_nothing(rest: Rest) -> None:
    """A real database, read as a thief would: its own words are no tokens."""
    await rest.tenant("a")
    everything = await rest.everything()
    rows = [row for table in TABLES.values() for row in everything[table.name]]
    words = {v for row in rows for v in row.values() if isinstance(v, str) and v.isascii()}
    assert rows and any(re.fullmatch("[0-9a-f]{64}", word) for word in words)  # a digest
    assert not words & set(rest.tokens.values())
    for word in sorted(word for word in words if word.isprintable()):
        for shown in (word, f"gpp_{word}"):
            answer = await rest.client.get("/leases", headers=bearer(shown))
            assert answer.status_code == 401


async def test_a_token_expires_and_is_revoked(rest: Rest) -> None:
    await rest.do("POST", "/tenants", {"name": "a"})
    body = {"scope": "tenant", "tenant": "a", "lifetime_seconds": 60}
    short, long = [
        await rest.do("POST", "/tokens", body | more) for more in ({}, {"lifetime_seconds": None})
    ]
    assert short["expires"] is not None and long["expires"] is None
    for made in (short, long):
        await rest.do("GET", "/leases", by=made["secret"])
    rest.world.clock.now += 60
    problem = await rest.no(401, "bad-token", "GET", "/leases", by=short["secret"])
    assert problem["detail"] == "the token has expired"
    for _ in range(2):  # a second time changes nothing
        assert (await rest.ask("DELETE", f"/tokens/{long['id']}")).status_code == 204
    problem = await rest.no(401, "bad-token", "GET", "/leases", by=long["secret"])
    assert problem["detail"] == "the token was revoked"
    assert (await rest.do("GET", f"/tokens/{long['id']}"))["revoked"] is not None
    assert len(await rest.pages("/tokens?scope=tenant")) == 2
    assert [t["scope"] for t in await rest.pages("/tokens?scope=admin")] == ["admin"]


async def test_the_last_admin_token_stays(rest: Rest) -> None:
    [first] = await rest.pages("/tokens?scope=admin")
    await rest.no(409, "in-use", "DELETE", f"/tokens/{first['id']}")
    other = await rest.do("POST", "/tokens", {"scope": "admin"})
    rest.tokens["other"] = other["secret"]
    await rest.do("DELETE", f"/tokens/{first['id']}", by="other")
    await rest.no(401, "bad-token", "GET", "/tenants")
    await rest.no(409, "in-use", "DELETE", f"/tokens/{other['id']}", by="other")


async def test_with_a_tenant_go_its_tokens(rest: Rest) -> None:
    await rest.tenant("a")
    await rest.do("DELETE", "/tenants/a")
    problem = await rest.no(401, "bad-token", "GET", "/leases", by="a")
    assert problem["detail"] == "the token is unknown"


# Nodes and GPUs ------------------------------------------------------------------------


async def test_a_node_is_told_what_holds(rest: Rest) -> None:
    await rest.world.join("n1", labels={"zone": "b"})
    [apply] = (await rest.world.beat("n1")).commands
    assert isinstance(apply, Apply)
    assert (apply.mode, apply.grants, len(apply.gpus)) == ("open", [], 2)
    assert (await rest.world.beat("n1", applied=apply.generation)).commands == []
    await rest.tenant("a")
    lease = await rest.lease("a", gpus=2)
    [told] = (await rest.world.beat("n1", applied=apply.generation)).commands
    assert isinstance(told, Apply) and {grant.lease for grant in told.grants} == {lease["id"]}
    node = await rest.do("GET", "/nodes/n1")
    assert (node["state"], node["gpus"], node["leases"]) == ("ready", 2, 1)
    assert node["labels"] == {"zone": "b"}


async def test_a_node_is_cordoned_drained_opened_and_labelled(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    for mode in ("cordoned", "draining"):
        assert (await rest.do("PATCH", "/nodes/n1", {"mode": mode}))["mode"] == mode
        await rest.no(409, "full", "POST", "/leases", {"memory_bytes": 1 * MIB}, "a")
        asked = {"memory_bytes": 1 * MIB, "tenant": "a"}
        why = await rest.do("POST", "/leases/explain", asked)
        assert {one["reason"] for one in why["gpus"]} == {f"node: it is {mode}"}
    await rest.do("PATCH", "/nodes/n1", {"mode": "open"})
    await rest.lease("a")
    node = await rest.do("PATCH", "/nodes/n1", {"labels": {"zone": "north"}})
    assert node["labels"] == {"zone": "north"} and node["mode"] == "open"
    await rest.lease("a", labels={"zone": "north"})
    await rest.no(409, "impossible", "POST", "/leases", {"labels": {"zone": "south"}}, "a")


async def test_a_removed_node_comes_back_as_it_was_left(rest: Rest) -> None:
    """It came back by itself, open and without its labels, as soon as its server reported."""
    await rest.world.join("n1", labels={"rack": "1"})
    await rest.do("PATCH", "/nodes/n1", {"mode": "draining", "labels": {"zone": "b"}})
    token = await rest.world.node_token("n1")
    await rest.do("DELETE", "/nodes/n1")
    assert token.revoked is not None
    await rest.world.restart()
    await rest.world.pool.add_admin(new := new_secret("admin"))
    rest.tokens["admin"] = new
    rest.app.state.pool = rest.world.pool
    await rest.do("POST", "/tokens", {"scope": "node", "node": "n1"})
    assert await rest.pages("/nodes") == []
    await rest.world.join("n1", labels={"rack": "2", "gold": "yes"})
    node = await rest.do("GET", "/nodes/n1")
    assert (node["mode"], node["labels"]) == ("draining", {"zone": "b"})


async def test_labels_are_the_managers(rest: Rest) -> None:
    """A server names some when it joins first; from then on, and before, operators do."""
    await rest.world.join("n1", labels={"rack": "1"})
    await rest.world.join("n1", labels={"rack": "2", "gold": "yes"})
    assert (await rest.do("GET", "/nodes/n1"))["labels"] == {"rack": "1"}
    body = {"scope": "node", "node": "n2", "labels": {"zone": "b"}}
    await rest.do("POST", "/tokens", body)
    await rest.world.join("n2", labels={"gold": "yes"})
    assert (await rest.do("GET", "/nodes/n2"))["labels"] == {"zone": "b"}
    await rest.no(409, "exists", "POST", "/tokens", body)


async def test_nodes_are_filtered_and_removed(rest: Rest) -> None:
    for name in ("n3", "n1", "n2"):
        await rest.world.join(name, labels={"rack": name[1]})
    await rest.do("PATCH", "/nodes/n2", {"mode": "cordoned"})

    async def names(query: str) -> list[str]:
        return [node["name"] for node in await rest.pages(f"/nodes{query}")]

    assert await names("") == ["n1", "n2", "n3"]
    assert await names("?mode=cordoned") == ["n2"]
    assert await names("?label=rack%3D3") == ["n3"]
    assert await names("?state=lost") == []
    await rest.world.later(41)
    assert await names("?state=lost") == ["n1", "n2", "n3"]
    await rest.do("DELETE", "/nodes/n1")
    assert await names("") == ["n2", "n3"]
    await rest.no(404, "not-found", "DELETE", "/nodes/n1")


async def test_a_node_with_leases_stays(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    lease = await rest.lease("a")
    await rest.no(409, "in-use", "DELETE", "/nodes/n1")
    await rest.no(409, "in-use", "DELETE", "/tenants/a")
    await rest.do("POST", f"/leases/{lease['id']}/release")
    await rest.do("DELETE", "/nodes/n1")
    await rest.do("DELETE", "/tenants/a")


async def test_a_node_is_removed_by_force_with_its_leases(rest: Rest) -> None:
    """One that was taken over, or is gone for good, need not be waited for."""
    await rest.world.join("n1")
    await rest.world.join("n2")
    await rest.tenant("a")
    both = await rest.lease("a", gpus=2)
    (node,) = {grant["node"] for grant in both["grants"]} - {"n1"} or {"n2"}
    refused = await rest.no(409, "in-use", "DELETE", "/nodes/n1")
    assert "force=true" in refused["detail"]
    await rest.no(422, "bad-request", "DELETE", "/nodes/n1?force=perhaps")
    await rest.do("DELETE", "/nodes/n1?force=true")
    ended = await rest.do("GET", f"/leases/{both['id']}")
    assert (ended["state"], ended["reason"]) == ("lost", "its node 'n1' was removed")
    left = await rest.pages("/gpus")
    assert {gpu["node"] for gpu in left} == {node}
    assert {gpu["used_permille"] for gpu in left} == {0}
    await rest.no(409, "ended", "POST", f"/leases/{both['id']}/renew")
    await rest.no(404, "not-found", "DELETE", "/nodes/n1?force=true")


async def test_gpus_are_filtered_and_set(rest: Rest) -> None:
    h100 = gpu("n2", 0, 20_000 * MIB, model="NVIDIA H100")
    await rest.world.join("n2", [h100, gpu("n2", 1)])
    await rest.world.join("n1", 2)
    await rest.tenant("a")
    await rest.lease("a", model="*h100", memory_bytes=15_000 * MIB, share_permille=600)

    async def uuids(query: str) -> list[str]:
        return [one["uuid"] for one in await rest.pages(f"/gpus{query}", limit=1)]

    assert await uuids("") == ["GPU-n1-0", "GPU-n1-1", "GPU-n2-0", "GPU-n2-1"]
    assert await uuids("?node=n2") == ["GPU-n2-0", "GPU-n2-1"]
    assert await uuids("?model=nvidia%20h1*") == ["GPU-n2-0"]
    assert await uuids(f"?free_bytes={6000 * MIB}&free_permille=500") == [
        "GPU-n1-0",
        "GPU-n1-1",
        "GPU-n2-1",
    ]
    assert await uuids("?usable=false") == []
    taken = await rest.do("GET", "/gpus/GPU-n2-0")
    assert (taken["used_bytes"], taken["used_permille"], taken["grants"]) == (15_000 * MIB, 600, 1)
    changed = await rest.do(
        "PATCH", "/gpus/GPU-n2-0", {"policy": "fixed", "max_inst": 1, "prio_ratio": 50}
    )
    assert (changed["policy"], changed["max_inst"], changed["prio_ratio"]) == ("fixed", 1, 50)
    assert await uuids("?usable=false") == ["GPU-n2-0"]
    await rest.no(404, "not-found", "PATCH", "/gpus/GPU-x", {"max_inst": 1})


async def test_sessions_are_as_the_last_heartbeats_said(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    for name in ("a", "b"):
        await rest.tenant(name)
    leases = {name: (await rest.lease(name))["id"] for name in ("a", "b")}
    sessions = [
        {"id": f"s-{name}", "lease": lease, "program": "python train.py"}
        for name, lease in leases.items()
    ]
    sessions[1]["state"] = "waiting"
    await rest.world.beat("n1", sessions=sessions)
    assert [s["id"] for s in await rest.pages("/sessions", limit=1)] == ["s-a", "s-b"]
    assert [s["id"] for s in await rest.pages(f"/sessions?lease={leases['b']}")] == ["s-b"]
    assert await rest.pages("/sessions", by="a") == [
        {
            "id": "s-a",
            "node": "n1",
            "lease": leases["a"],
            "tenant": "a",
            "program": "python train.py",
            "state": "running",
        }
    ]
    assert (await rest.pages("/sessions", by="b"))[0]["state"] == "waiting"
    assert await rest.pages("/sessions?node=n2") == []


# Usage, audit -----------------------------------------------------------------


async def test_usage_is_counted_by_tenant_and_time(rest: Rest) -> None:
    clock = rest.world.clock
    clock.now = 1_800_000_000.0  # 08:00 UTC
    await rest.world.join("n1", 2)
    for name in ("a", "b"):
        await rest.tenant(name)
    lease = await rest.lease(
        "a", gpus=2, memory_bytes=1024 * MIB, share_permille=500, ttl_seconds=86400
    )
    await rest.lease("b", share_permille=100, ttl_seconds=86400)
    clock.now += 5400
    await rest.do("POST", f"/leases/{lease['id']}/release")
    clock.now += 1800
    await rest.world.pool.commands.do(rest.world.pool._flush)
    hours = await rest.pages("/usage", limit=1)
    assert [(row["tenant"], row["start"][11:16]) for row in hours] == [
        ("a", "08:00"),
        ("b", "08:00"),
        ("a", "09:00"),
        ("b", "09:00"),
    ]
    assert [row["gpu_hours"] for row in hours] == pytest.approx([2.0, 1.0, 1.0, 1.0])
    assert hours[0]["memory_gib_hours"] == pytest.approx(2.0)
    assert hours[0]["compute_hours"] == pytest.approx(1.0)
    assert [row["leases"] for row in hours] == [1, 1, 0, 0]
    days = await rest.pages("/usage?step=day", limit=1)
    assert [(row["tenant"], row["gpu_hours"]) for row in days] == [
        ("a", pytest.approx(3.0)),
        ("b", pytest.approx(2.0)),
    ]
    start = hours[2]["start"].replace("+", "%2B")
    assert [row["tenant"] for row in await rest.pages(f"/usage?since={start}")] == ["a", "b"]
    assert {row["tenant"] for row in await rest.pages("/usage", by="b")} == {"b"}
    newest = await rest.pages("/usage?newest=true", limit=1)
    assert newest == hours[::-1]
    for by, held in (("admin", [3.0, 2.0]), ("b", [1.0, 1.0])):
        for order, query in ((1, ""), (-1, "&newest=true")):
            summed = await rest.pages(f"/usage?total=true{query}", limit=1, by=by)
            assert {row["tenant"] for row in summed} == {None}
            assert [row["gpu_hours"] for row in summed][::order] == pytest.approx(held)


async def test_the_audit_log_says_who_changed_what(rest: Rest) -> None:
    answer = await rest.ask("POST", "/tenants", {"name": "a"}, X_Request_ID="from-a-script.1")
    assert answer.headers["x-request-id"] == "from-a-script.1"
    [admin] = await rest.pages("/tokens?scope=admin")
    [entry] = await rest.pages("/audit?action=tenant.created")
    assert entry["actor"] == admin["id"] and entry["request_id"] == "from-a-script.1"
    assert (entry["object"], entry["tenant"]) == ("a", "a")
    assert await rest.pages(f"/audit?actor={admin['id']}&tenant=a") == [entry]
    everything = await rest.pages("/audit", limit=1)
    assert [one["id"] for one in everything] == sorted(one["id"] for one in everything)
    before = entry["at"].replace("+", "%2B")
    assert entry not in await rest.pages(f"/audit?until={before}")
