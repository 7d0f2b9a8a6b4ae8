"""The console's tenants, sessions, usage and trials, and what a host is told that is to join."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("jinja2")

from console_visitor import Visitor, database, visitor  # noqa: F401
from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.console.chart import HIGH, bars
from gpupool_manager.pool import Pool
from manager_rest import Rest

QUOTA = "/console/tenants/red/quota"


async def test_tenants_are_shown_against_their_quotas(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("red", gpus=4, memory_bytes=4000 * MIB)
    await rest.tenant("blue")
    await rest.lease("red", gpus=2)
    text = (await (await visitor(rest)).get("/console/tenants")).text
    assert "2 of 4" in text and "2GiB of 3.9GiB" in text and "0, no limit" in text


async def test_a_tenant_sees_its_own_quota_and_cannot_change_it(rest: Rest) -> None:
    await rest.tenant("red", gpus=4)
    await rest.tenant("blue", gpus=77)
    red = await visitor(rest, "red")
    page = await red.get("/console/tenants")
    assert "0 of 4" in page.text and "blue" not in page.text and "77" not in page.text
    page = await red.get("/console/tenants/red")
    assert [form.action for form in page.forms] == ["/console/logout"]
    assert "of the tenant 'red'" in (await red.get("/console/tenants/blue", 403)).text
    before = await rest.everything()
    form = page.form("/console/logout")
    form.action = QUOTA
    assert (await red.send(form, gpus="100", tag="*")).status_code == 403
    form.action = "/console/join"
    assert (await red.send(form, name="n9")).status_code == 403
    assert "needs the scope 'admin'" in (await red.get("/console/join", 403)).text
    assert await rest.everything() == before


async def test_a_quota_is_set_and_the_rest_of_it_stays(rest: Rest) -> None:
    await rest.world.join("n1")
    budgets = {"host_memory": 64 * MIB}
    models = ["NVIDIA *"]
    await rest.tenant("red", gpus=4, memory_bytes=1000 * MIB + 1, budgets=budgets, models=models)
    someone = await visitor(rest)
    form = (await someone.get("/console/tenants/red")).form(QUOTA)
    assert form.fields["gpus"] == "4" and form.fields["sessions"] == ""
    del form.fields["borrow"]  # the page has a box that is not ticked
    before = await rest.do("GET", "/tenants/red/quota")
    page = await someone.do(form)
    assert "the quota of red is another now" in page.text
    assert await rest.do("GET", "/tenants/red/quota") == before
    form = page.form(QUOTA)
    await someone.do(form, gpus="", compute="150%", priority="7", weight="3")
    after = await rest.do("GET", "/tenants/red/quota")
    assert after == before | {
        "gpus": None,
        "compute_permille": 1500,
        "priority": 7,
        "weight": 3,
        "borrow": True,
    }


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("gpus", "-1"),
        ("gpus", "many"),
        ("memory", "8 apples"),
        ("compute", "x"),
        ("gpus", "9" * 18),
        ("weight", "0"),
    ],
)
async def test_a_quota_that_is_none_is_refused(rest: Rest, field: str, text: str) -> None:
    await rest.tenant("red", gpus=4)
    someone = await visitor(rest)
    form = (await someone.get("/console/tenants/red")).form(QUOTA)
    answer = await someone.send(form, **{field: text})
    assert answer.status_code == 422 and field in answer.text
    assert (await rest.do("GET", "/tenants/red/quota"))["gpus"] == 4


async def test_a_quota_that_somebody_else_has_changed_meanwhile_stays(rest: Rest) -> None:
    await rest.tenant("red", gpus=4)
    someone = await visitor(rest)
    form = (await someone.get("/console/tenants/red")).form(QUOTA)
    await rest.do("PUT", "/tenants/red/quota", {"gpus": 9})
    for tag in (form.fields["tag"], ""):
        assert (await someone.send(form, gpus="5", tag=tag)).status_code == 412
    assert (await rest.do("GET", "/tenants/red/quota"))["gpus"] == 9


async def test_reservations_are_shown_and_cancelled(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("red")
    await rest.tenant("blue")
    start = datetime.fromtimestamp(rest.world.clock.now + 3600, UTC).isoformat()
    body = {"tenant": "red", "gpus": 1, "start": start, "seconds": 3600, "label": "a lecture"}
    made = await rest.do("POST", "/reservations", body)
    assert "lecture" not in (await (await visitor(rest, "blue")).get("/console/queue")).text
    someone = await visitor(rest, "red")
    page = await someone.get("/console/queue")
    assert "Nobody waits." in page.text and "a lecture" in page.text and "yes" in page.text
    page = await someone.do(page.form(f"/console/reservations/{made['id']}/cancel"))
    assert f"{made['id']} is cancelled" in page.text and "a lecture" not in page.text
    assert (await rest.do("GET", "/reservations"))["items"] == []


async def test_sessions_are_of_who_may_see_them(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("red")
    await rest.tenant("blue")
    for name in ("red", "blue"):
        lease = await rest.lease(name)
        rest.tokens[f"{name}'s"] = lease["id"]
    told = [
        {"id": n, "lease": rest.tokens[f"{n}'s"], "program": f"{n}.py"} for n in ("red", "blue")
    ]
    await rest.world.beat("n1", sessions=told)
    everything = (await (await visitor(rest)).get("/console/sessions")).text
    assert "red.py" in everything and "blue.py" in everything
    own = (await (await visitor(rest, "red")).get("/console/sessions")).text
    assert "red.py" in own and "blue" not in own


async def _count(pool: Pool) -> None:
    await pool.commands.do(pool._flush)


async def test_usage_is_drawn_and_listed(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    await rest.world.join("n1")
    await rest.tenant("red")
    await rest.tenant("blue")
    await rest.lease("red", gpus=2, ttl_seconds=86400)
    await rest.lease("blue", ttl_seconds=86400)
    await rest.world.later(1800)
    await _count(rest.world.pool)
    page = await (await visitor(rest)).get("/console/usage?step=hour")
    assert page.text.count("red") == 1 and page.text.count("blue") == 1
    highest = [float(n["height"] or 0) for t, n in page.elements if n.get("class") == "granted"]
    assert len(highest) == 48 and max(highest) == HIGH
    # The chart is of all, however few of them the table has.
    monkeypatch.setattr("gpupool_manager.console.more_pages.ROWS", 1)
    page = await (await visitor(rest)).get("/console/usage?step=hour")
    assert "1.5 GPU hours granted" in page.text and "red" in page.text and "blue" not in page.text
    (more,) = [n["href"] for t, n in page.elements if (n.get("href") or "").startswith("?")]
    page = await (await visitor(rest)).get(f"/console/usage{more}")
    assert "1.5 GPU hours granted" in page.text and "blue" in page.text and "red" not in page.text
    own = await (await visitor(rest, "red")).get("/console/usage")
    assert "red" in own.text and "blue" not in own.text
    await (await visitor(rest)).get("/console/usage?step=year", 422)


def test_bars_are_in_proportion() -> None:
    row = {"gpu_hours": 4.0, "busy_hours": 1.0, "start": "1970-01-01T01:00:00+00:00"}
    late = {**row, "start": "1970-01-01T09:00:00+00:00"}
    first, second = bars([row, row, late], [0.0, 3600.0])
    assert (first.granted, first.granted_high, second.granted, second.busy) == (0, 0, 8, 2)
    assert (second.granted_high, second.busy_high) == (HIGH, HIGH / 4)


async def test_a_trial_says_what_would_come_and_changes_nothing(rest: Rest) -> None:
    await rest.world.join("n1")
    await rest.tenant("red", gpus=1)
    someone, red = await visitor(rest), await visitor(rest, "red")
    before = await rest.everything()
    ask = "/console/what-if?gpus=2&memory=1GiB&share=50%25&policy=spread&hosts=same"
    page = await someone.get(ask)
    assert "it would be placed on GPU-n1-0 on n1, GPU-n1-1 on n1" in page.text
    own = await red.get(ask)
    assert "quota 1" in own.text and "GPU-n1-0" not in own.text
    assert "no room" in (await someone.get("/console/what-if?gpus=3")).text
    borrowed = await red.get(f"{ask}&beyond_quota=borrow&time_seconds=60&priority=0")
    assert "quota 1" in borrowed.text
    await rest.do("PUT", "/tenants/red/quota", {"gpus": 1, "borrow": True})
    before = await rest.everything()
    borrowed = await red.get(f"{ask}&beyond_quota=borrow&time_seconds=60&priority=0")
    assert "fits 2" in borrowed.text and "quota 1" not in borrowed.text
    for wrong in (
        "gpus=x",
        "gpus=1&memory=x",
        "gpus=1&share=x",
        "gpus=1&policy=x",
        "gpus=0",
        "gpus=1&priority=-1",
    ):
        page = await someone.get(f"/console/what-if?{wrong}")
        assert [named for tag, named in page.elements if named.get("role") == "alert"]
    assert await rest.everything() == before


async def test_a_host_gets_a_token_that_is_shown_once(rest: Rest) -> None:
    someone = await visitor(rest)
    form = (await someone.get("/console/join")).form("/console/join")
    answer = await someone.send(form, name="gpu-7", labels="zone=b rack=12", days="2")
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    assert "gpn_" in answer.text and "--node-name gpu-7" in answer.text
    (token,) = [each for each in await rest.pages("/tokens") if each["node"] == "gpu-7"]
    assert token["scope"] == "node"
    assert "gpn_" not in (await someone.client.get("/console/join")).text
    for wrong in ({"name": "a b"}, {"name": "x", "labels": "zone"}, {"name": "x", "days": "31"}):
        answer = await someone.send(form, **wrong)
        assert answer.status_code == 422, wrong
    assert len([each for each in await rest.pages("/tokens") if each["node"]]) == 1


async def test_a_tenant_has_pages_for_tenants(rest: Rest) -> None:
    await rest.tenant("red")
    page = await (await visitor(rest, "red")).get("/console/leases")
    links = {named.get("href") for tag, named in page.elements if tag == "a"}
    assert {"/console/queue", "/console/tenants", "/console/usage", "/console/what-if"} <= links
    assert "/console/join" not in links


async def test_a_visitor_of_another_manager_is_nobody(rest: Rest) -> None:
    """Sessions are in memory: after a restart one signs in anew."""
    from gpupool_manager.app import make_app

    someone = await visitor(rest)
    other = Visitor(make_app(rest.world.pool))
    other.client.cookies = someone.client.cookies
    await other.get("/", 401)
