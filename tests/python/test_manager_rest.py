"""The REST API: every resource, as operators and tenants use it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from gpupool_common import __version__
from gpupool_common.node_protocol import Apply
from gpupool_manager import tables
from gpupool_manager.tokens import digest, new_secret
from manager_rest import ADMIN, Rest
from manager_world import gpu

pytestmark = pytest.mark.timeout(60)


async def test_health_and_readiness_need_no_token(rest: Rest) -> None:
    health = await rest.ask("GET", "/health", by=None)
    assert (health.status_code, health.json()) == (200, {"status": "ok", "version": __version__})
    await rest.world.join("n1", 3)
    ready = await rest.ask("GET", "/ready", by=None)
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "nodes": 1, "gpus": 3})


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


async def test_a_tenant_is_made_changed_and_removed(rest: Rest) -> None:
    made = await rest.ask("POST", "/tenants", {"name": "blue", "quota": {"gpus": 4}})
    assert made.status_code == 201
    assert made.json()["quota"] == {
        "tenant": "blue",
        "gpus": 4,
        "memory_mib": None,
        "compute": None,
        "sessions": None,
        "priority": 0,
        "models": None,
        "in_use": {"gpus": 0, "memory_mib": 0, "compute": 0, "sessions": 0},
        "queued": {"gpus": 0, "memory_mib": 0, "compute": 0, "sessions": 0},
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
    await rest.lease("a", gpus=2, memory_mib=300, share=20)
    await rest.lease("a", share=100, wait_seconds=60)
    quota = await rest.do("GET", "/tenants/a/quota", by="a")
    assert quota["in_use"] == {"gpus": 2, "memory_mib": 600, "compute": 40, "sessions": 1}
    assert quota["queued"] == {"gpus": 1, "memory_mib": 1000, "compute": 100, "sessions": 1}
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
        await rest.no(409, "full", "POST", "/leases", {"memory_mib": 1}, "a")
        asked = {"memory_mib": 1, "tenant": "a"}
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


async def test_gpus_are_filtered_and_set(rest: Rest) -> None:
    h100 = gpu("n2", 0, 20_000, model="NVIDIA H100")
    await rest.world.join("n2", [h100, gpu("n2", 1)])
    await rest.world.join("n1", 2)
    await rest.tenant("a")
    await rest.lease("a", model="*h100", memory_mib=15_000, share=60)

    async def uuids(query: str) -> list[str]:
        return [one["uuid"] for one in await rest.pages(f"/gpus{query}", limit=1)]

    assert await uuids("") == ["GPU-n1-0", "GPU-n1-1", "GPU-n2-0", "GPU-n2-1"]
    assert await uuids("?node=n2") == ["GPU-n2-0", "GPU-n2-1"]
    assert await uuids("?model=nvidia%20h1*") == ["GPU-n2-0"]
    assert await uuids("?free_mib=6000&free_share=50") == ["GPU-n1-0", "GPU-n1-1", "GPU-n2-1"]
    assert await uuids("?usable=false") == []
    taken = await rest.do("GET", "/gpus/GPU-n2-0")
    assert (taken["used_mib"], taken["used_share"], taken["grants"]) == (15_000, 60, 1)
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


# Leases and the queue ------------------------------------------------------------------


async def test_a_lease_is_granted_renewed_explained_and_released(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a")
    made = await rest.ask(
        "POST", "/leases", {"gpus": 2, "memory_mib": 500, "share": 1, "label": "train"}, "a"
    )
    assert made.status_code == 201
    lease = made.json()
    assert (lease["state"], lease["tenant"], lease["label"]) == ("active", "a", "train")
    assert [grant["memory_mib"] for grant in lease["grants"]] == [500, 500]
    assert lease["servers"] == [
        {"node": "n1", "address": "tcp://n1:7700", "key": None, "devices": [0, 1]}
    ]
    assert lease["token"]
    path = f"/leases/{lease['id']}"
    rest.world.clock.now += 30
    renewed = await rest.do("POST", f"{path}/renew", by="a")
    assert renewed["expires"] > lease["expires"]
    why = await rest.do("GET", f"{path}/explain", by="a")
    assert "placed by the rule: one node" in why["decision"]
    assert [one["gpu"] for one in why["placement"]["gpus"]] == ["GPU-n1-0", "GPU-n1-1"]
    released = await rest.do("POST", f"{path}/release", by="a")
    assert (released["state"], released["servers"], released["token"]) == ("released", [], None)
    assert await rest.do("POST", f"{path}/release", by="a") == released, "a second time is none"
    await rest.no(409, "ended", "POST", f"{path}/renew", by="a")
    assert (await rest.do("GET", path, by="a"))["state"] == "released"


async def test_a_lease_that_is_not_renewed_expires(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    lease = await rest.lease("a", ttl_seconds=5)
    await rest.world.later(6)
    ended = await rest.do("GET", f"/leases/{lease['id']}", by="a")
    assert (ended["state"], ended["reason"]) == ("expired", "not renewed for 5 s")
    assert ended["token"] is None


async def test_a_full_pool_queues_and_says_the_position(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a", priority=9)
    await rest.tenant("b")
    first = await rest.lease("a", share=100)
    whole = {"memory_mib": 10, "share": 100}
    answer = await rest.ask("POST", "/leases", {**whole, "wait_seconds": 60}, "b")
    assert answer.status_code == 202
    queued = answer.json()
    assert (queued["state"], queued["position"]) == ("queued", 1)
    assert queued["reason"] == "10MiB with 100% of a GPU fits on 0 GPUs, asked 1"
    assert (queued["servers"], queued["grants"], queued["token"]) == ([], [], None)
    urgent = await rest.lease("a", share=100, wait_seconds=60, priority=9)
    assert urgent["position"] == 1
    assert (await rest.do("GET", f"/leases/{queued['id']}", by="b"))["position"] == 2
    line = await rest.pages("/queue", limit=1)
    assert [(one["position"], one["lease"]) for one in line] == [
        (1, urgent["id"]),
        (2, queued["id"]),
    ]
    [mine] = await rest.pages("/queue", by="b")
    assert (mine["position"], mine["lease"], mine["tenant"]) == (2, queued["id"], "b")
    why = await rest.do("GET", f"/leases/{queued['id']}/explain", by="b")
    assert "position 2:" in why["decision"]
    assert (why["summary"], why["gpus"]) == ({"not free": 1}, [])
    why = await rest.do("GET", f"/leases/{queued['id']}/explain")
    assert "position 2 of 2" in why["decision"]
    assert [one["fits"] for one in why["gpus"]] == [False]
    await rest.do("POST", f"/leases/{first['id']}/release")
    assert (await rest.do("GET", f"/leases/{urgent['id']}"))["state"] == "active"
    cancelled = await rest.do("POST", f"/leases/{queued['id']}/release", by="b")
    assert (cancelled["state"], cancelled["position"]) == ("cancelled", None)


async def test_waiting_in_the_queue_ends(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    await rest.lease("a", share=100, ttl_seconds=3600)
    queued = await rest.lease("a", wait_seconds=30)
    await rest.world.later(31)
    ended = await rest.do("GET", f"/leases/{queued['id']}", by="a")
    assert (ended["state"], ended["reason"]) == ("timed-out", "no room within 30 s")


async def test_asking_keeps_a_place_in_the_queue(rest: Rest) -> None:
    world = rest.world
    await world.join("n1", 1)
    await rest.tenant("a")
    await rest.lease("a", share=100, ttl_seconds=3600)
    queued = await rest.lease("a", wait_seconds=3600)
    path = f"/leases/{queued['id']}"

    def silence() -> float:
        waiting = world.pool.ledger.queue.get(queued["id"])
        assert waiting is not None
        return world.clock.now - waiting.heard

    await world.later(20)
    await rest.do("GET", path)
    assert silence() == 20, "an operator that looks does not keep it"
    await rest.do("GET", path, by="a")
    assert silence() == 0
    await world.later(20)
    await rest.do("POST", f"{path}/renew", by="a")
    assert silence() <= 0
    await world.later(20)
    await rest.do("GET", f"{path}?wait=1")
    assert silence() == -1, "whoever waits for it wants it"


async def test_who_waits_for_a_lease_hears_at_once(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    first = await rest.lease("a", share=100)
    queued = await rest.lease("a", wait_seconds=60)
    watching = asyncio.create_task(rest.do("GET", f"/leases/{queued['id']}?wait=60", by="a"))
    await asyncio.sleep(0)
    await rest.do("POST", f"/leases/{first['id']}/release", by="a")
    granted = await asyncio.wait_for(watching, 30)
    assert granted["state"] == "active" and granted["token"]


async def test_who_waits_for_a_lease_that_stays_queued_is_told(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    await rest.lease("a", share=100)
    queued = await rest.lease("a", wait_seconds=60)
    answer = await rest.do("GET", f"/leases/{queued['id']}?wait=1", by="a")
    assert answer["state"] == "queued"


async def test_what_would_come_of_a_request_is_explained(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a")
    before = await rest.everything()
    why = await rest.do("POST", "/leases/explain", {"memory_mib": 9000, "share": 50})
    assert "GPU-n1-0" in why["decision"] and why["summary"] == {"fits": 2}
    assert [one["rank"] for one in why["gpus"]] == [1, 2]
    why = await rest.do("POST", "/leases/explain?limit=1", {"memory_mib": 90_000})
    assert why["decision"].startswith("no room") and len(why["gpus"]) == 1
    assert await rest.everything() == before


async def test_leases_are_filtered_and_paged_with_their_history(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.world.join("n2", 1)
    for name in ("a", "b"):
        await rest.tenant(name)
    made = [await rest.lease(name, hosts="any") for name in "abababa"]
    await rest.do("POST", f"/leases/{made[0]['id']}/release")
    ids = [lease["id"] for lease in made]

    async def found(query: str, by: str = "admin") -> list[str]:
        return [lease["id"] for lease in await rest.pages(f"/leases{query}", by)]

    assert await found("") == ids == sorted(ids)
    assert await found("", "b") == await found("?tenant=b") == ids[1::2]
    assert await found("?state=released") == ids[:1]
    assert await found("?state=active&state=released&tenant=a") == ids[::2]
    on = {lease["id"]: lease["grants"][0]["node"] for lease in made}
    assert await found("?node=n1") == [name for name in ids if on[name] == "n1"]
    uuid = made[3]["grants"][0]["gpu"]
    assert ids[3] in await found(f"?gpu={uuid}")
    assert await found("?gpu=GPU-none") == []


async def test_the_list_shows_no_lease_tokens(rest: Rest) -> None:
    await rest.world.join("n1", 1)
    await rest.tenant("a")
    lease = await rest.lease("a")
    [listed] = await rest.pages("/leases", by="a")
    assert listed["token"] is None and listed["id"] == lease["id"]


# Usage, audit, metrics -----------------------------------------------------------------


async def test_usage_is_counted_by_tenant_and_time(rest: Rest) -> None:
    clock = rest.world.clock
    clock.now = 1_800_000_000.0  # 08:00 UTC
    await rest.world.join("n1", 2)
    for name in ("a", "b"):
        await rest.tenant(name)
    lease = await rest.lease("a", gpus=2, memory_mib=1024, share=50, ttl_seconds=86400)
    await rest.lease("b", share=10, ttl_seconds=86400)
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


async def test_metrics_are_prometheus_text_for_admins(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a")
    await rest.lease("a", gpus=2, memory_mib=100)
    await rest.no(401, "bad-token", "GET", "/metrics", by=None)
    await rest.no(403, "forbidden", "GET", "/metrics", by="a")
    answer = await rest.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    for line in (
        'gpupool_manager_nodes{state="open"} 1.0',
        'gpupool_manager_gpus{state="usable"} 2.0',
        'gpupool_manager_leases{state="active"} 1.0',
        'gpupool_manager_memory_mib{state="used"} 200.0',
        'gpupool_manager_tenant_use{quantity="gpus",state="in_use",tenant="a"} 2.0',
        'gpupool_manager_requests_total{method="GET",status="401"} 1.0',
    ):
        assert line in lines
    rest.app.state.open_metrics = True
    assert (await rest.ask("GET", "/metrics", by=None)).status_code == 200


# Writes: once, and on what was read ----------------------------------------------------


async def test_a_write_with_a_key_is_done_once(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    ask = ("POST", "/leases", {"memory_mib": 10, "share": 1}, "a")
    first = await rest.ask(*ask, Idempotency_Key="k1")
    again = await rest.ask(*ask, Idempotency_Key="k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    other = await rest.ask(*ask, Idempotency_Key="k2")
    assert other.json()["id"] != first.json()["id"]
    assert len(await rest.pages("/leases")) == 2
    wrong = {"memory_mib": 11, "share": 1}
    problem = await rest.no(422, "repeated", "POST", "/leases", wrong, "a", Idempotency_Key="k1")
    assert problem["errors"][0]["field"] == "Idempotency-Key"
    await rest.world.restart()
    rest.app.state.pool = rest.world.pool
    after = await rest.ask(*ask, Idempotency_Key="k1")
    assert after.json()["id"] == first.json()["id"], "a restart forgets no key"


async def test_keys_are_each_callers_own_and_forgotten_after_a_day(rest: Rest) -> None:
    await rest.world.join("n1")
    for name in ("a", "b"):
        await rest.tenant(name)
    body = {"memory_mib": 10, "share": 1, "ttl_seconds": 86400}
    made = [
        (await rest.ask("POST", "/leases", body, name, Idempotency_Key="k")).json()
        for name in ("a", "b")
    ]
    assert [lease["tenant"] for lease in made] == ["a", "b"]
    rest.world.clock.now += 86401
    await rest.world.pool._purge()
    again = (await rest.ask("POST", "/leases", body, "a", Idempotency_Key="k")).json()
    assert again["id"] != made[0]["id"]


async def test_a_refusal_is_not_kept_under_its_key(rest: Rest) -> None:
    await rest.tenant("a")
    ask = ("POST", "/leases", {"memory_mib": 10}, "a")
    await rest.no(409, "impossible", *ask, Idempotency_Key="k")
    await rest.world.join("n1")
    assert (await rest.ask(*ask, Idempotency_Key="k")).status_code == 201


async def test_a_secret_is_not_kept_under_its_key(rest: Rest) -> None:
    body = {"scope": "admin"}
    made = await rest.ask("POST", "/tokens", body, Idempotency_Key="k")
    assert made.json()["secret"]
    await rest.no(409, "exists", "POST", "/tokens", body, Idempotency_Key="k")
    assert made.json()["secret"] not in str(await rest.everything())
    assert len(await rest.pages("/tokens?scope=admin")) == 2


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        ("/tenants/a", "PATCH", {"description": "new"}),
        ("/tenants/a/quota", "PUT", {"gpus": 3}),
        ("/nodes/n1", "PATCH", {"labels": {"a": "b"}}),
        ("/gpus/GPU-n1-0", "PATCH", {"prio_ratio": 33}),
    ],
)
async def test_a_change_can_be_of_what_was_read_only(
    rest: Rest, path: str, method: str, body: dict[str, Any]
) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    seen = (await rest.ask("GET", path)).headers["etag"]
    changed = await rest.ask(method, path, body, If_Match=f'"99", {seen}')
    assert changed.is_success and changed.headers["etag"] != seen
    problem = await rest.no(412, "changed", method, path, body, If_Match=seen)
    assert changed.headers["etag"] in problem["detail"]
    again = await rest.ask(method, path, body, If_Match="*")
    assert again.is_success
    assert (await rest.ask("GET", path)).headers["etag"] == again.headers["etag"]


async def test_a_removal_can_be_of_what_was_read_only(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("a")
    for path in ("/tenants/a", "/nodes/n1"):
        await rest.no(412, "changed", "DELETE", path, If_Match='"77"')
        seen = (await rest.ask("GET", path)).headers["etag"]
        await rest.do("DELETE", path, If_Match=seen)


async def test_many_at_once_get_no_more_than_there_is(rest: Rest) -> None:
    await rest.world.join("n1", 2)
    await rest.tenant("a", gpus=3)
    ask = ("POST", "/leases", {"memory_mib": 10, "share": 50}, "a")
    answers = await asyncio.gather(*(rest.ask(*ask) for _ in range(12)))
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [201] * 3 + [403] * 9
    assert ADMIN not in "".join(answer.text for answer in answers)


async def test_answers_are_not_kept_in_any_number(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant filled the manager's memory, and its database, with keys that it made up."""
    monkeypatch.setattr("gpupool_manager.answers.MOST", 3)
    await rest.world.join("n1", 1)
    for name in ("a", "b"):
        await rest.tenant(name)
    first = await rest.ask(
        "POST", "/leases", {"memory_mib": 1, "share": 1}, "b", Idempotency_Key="theirs"
    )
    for number in range(7):
        body = {"memory_mib": 1, "share": 1}
        answer = await rest.ask("POST", "/leases", body, "a", Idempotency_Key=f"k-{number}")
        assert answer.status_code == 201
        await rest.do("POST", f"/leases/{answer.json()['id']}/release", by="a")
    kept = {key for _, key in rest.world.pool.ledger.answers}
    assert kept == {"theirs", "k-4", "k-5", "k-6"}
    rows = await rest.world.pool.store.fetch(select(tables.answers.c.key))
    assert {row[0] for row in rows} == kept
    again = await rest.ask(
        "POST", "/leases", {"memory_mib": 1, "share": 1}, "b", Idempotency_Key="theirs"
    )
    assert again.json()["id"] == first.json()["id"]
