"""``gpupool node``, ``tenant``, ``lease`` and all others against a manager's process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpupool.cli import make_app
from gpupool_common.quantities import MEBIBYTE as MIB
from harness import PATIENCE
from pool_process import STEADY, Manager, start_gpupool

pytestmark = pytest.mark.timeout(120)


class Operator:
    """An admin at a shell of 80 columns."""

    def __init__(self, manager: Manager, token: str = "") -> None:
        self.manager = manager
        self.env = {"GPUPOOL_POOL": manager.url, "GPUPOOL_POOL_TOKEN": token or manager.admin}

    def do(self, *args: str, code: int = 0) -> str:
        """What a command prints: on stdout if it succeeds, else its one line on stderr."""
        done = CliRunner().invoke(make_app(), list(args), env=self.env)
        assert done.exit_code == code, f"{args}: {done.exit_code} {done.output} {done.exception!r}"
        if code == 0:
            return done.stdout
        assert done.stdout == "" and done.stderr.count("\n") == 1, done.output
        return done.stderr

    def json(self, *args: str) -> Any:
        done = CliRunner().invoke(make_app(), [*args, "--json"], env=self.env)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    found = Manager(tmp_path_factory.mktemp("pool"), *STEADY)
    found.start()
    try:
        for name in ("one", "two", "three"):
            found.node(name, memory_bytes=81_920 * MIB)
        yield found
    finally:
        found.close()


@pytest.fixture
def operator(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.setenv("COLUMNS", "80")
    return Operator(manager)


def columns(text: str, row: int = 1) -> list[str]:
    return text.splitlines()[row].split()


# Nodes and GPUs -----------------------------------------------------------------------------


def test_nodes(operator: Operator) -> None:
    shown = operator.do("node", "list")
    assert columns(shown, 0)[:4] == ["NAME", "STATE", "MODE", "GPUS"]
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["one", "three", "two"]
    assert operator.do("node", "cordon", "one") == "one is cordoned, leases on it: 0\n"
    assert [node["name"] for node in operator.json("node", "list", "--mode", "cordoned")] == ["one"]
    assert "draining" in operator.do("node", "drain", "one")
    assert "open" in operator.do("node", "open", "one")
    operator.do("node", "label", "one", "rack=a", "disk=nvme")
    assert "disk=nvme" in operator.do("node", "label", "one", "rack-")
    assert operator.json("node", "show", "one")["labels"] == {"disk": "nvme"}
    assert operator.json("node", "list", "--label", "rack=a") == []
    assert "is not KEY=VALUE" in operator.do("node", "label", "one", "rack", code=2)
    assert "there is no node 'nine'" in operator.do("node", "show", "nine", code=1)
    assert "Not Found" in operator.do("node", "show", "a/b", code=1)


def test_a_node_joins_with_what_is_printed(operator: Operator, tmp_path: Path) -> None:
    shown = operator.do("node", "join", "--name", "four")
    assert "gpupool-server --listen tcp://0.0.0.0:7700" in shown
    assert "--pool tcp://127.0.0.1:" in shown and "--node-name four" in shown
    warned = (
        CliRunner().invoke(make_app(), ["node", "join", "--name", "four"], env=operator.env).stderr
    )
    assert "reaches the manager from its own machine only" in warned
    assert warned.count("\n") == 1
    assert "echo 'gpn_" in shown
    path = tmp_path / "join.token"
    shown = operator.do("node", "join", "--name", "five", "--out", str(path), "--lifetime", "2h")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("gpn_") and "gpn_" not in shown
    five = ("node", "join", "--name", "five")
    assert "exists already" in operator.do(*five, "--out", str(path), code=2)
    made = operator.json(*five, "--label", "rack=7")
    assert made["expires"] is not None and made["nodes"].startswith("tcp://127.0.0.1:")
    assert "at most 30 days" in operator.do(*five, "--lifetime", "31d", code=2)
    missing = CliRunner().invoke(make_app(), ["node", "join"], env=operator.env)
    assert missing.exit_code == 2 and "--name" in missing.stderr


def test_a_node_that_is_gone_is_forgotten(operator: Operator) -> None:
    operator.manager.node("gone", gpus=1)
    assert operator.do("node", "remove", "gone") == ""
    assert "gone" not in operator.do("node", "list")
    operator.manager.node("stolen", gpus=1)
    operator.do("node", "remove", "stolen", "--force")
    assert "stolen" not in operator.do("node", "list")


def test_gpus(operator: Operator) -> None:
    shown = operator.do("gpu", "list", "--node", "two")
    assert columns(shown)[:4] == ["two/0", "NVIDIA", "H200", "0MiB/80GiB"]
    operator.do("gpu", "set", "two/1", "--policy", "weighted", "--max-inst", "7")
    gpu = operator.json("gpu", "show", "GPU-two-1")
    assert (gpu["policy"], gpu["max_inst"], gpu["prio_ratio"]) == ("weighted", 7, 90)
    assert "NVIDIA H200" in operator.do("gpu", "show", "two/1")
    assert "NODE/INDEX" in operator.do("gpu", "set", "1", "--max-inst", "7", code=2)
    assert "no such GPU" in operator.do("gpu", "show", "two/9", code=2)
    assert "say what to set" in operator.do("gpu", "set", "two/1", code=2)
    assert "leases say" in operator.do("gpu", "set", "two/1", "--default-memory", "1GiB", code=2)


def test_this_machines_server_is_still_there(operator: Operator, tmp_path: Path) -> None:
    for args in (["gpu", "list"], ["session", "list"], ["inspect"]):
        said = operator.do(*args, "--run-dir", str(tmp_path), code=1)
        assert f"no gpupool server answers at {tmp_path}/admin.sock" in said


# Tenants, quotas, tokens --------------------------------------------------------------------


def test_tenants_and_quotas(operator: Operator, tmp_path: Path) -> None:
    path = tmp_path / "token"
    args = ("--gpus", "4", "--memory", "100GiB", "--description", "night shift")
    shown = operator.do("tenant", "create", "amber", *args, "--token-out", str(path))
    assert "night shift" in shown and "0MiB/100GiB" in shown
    own = Operator(operator.manager, path.read_text().strip())
    assert own.json("quota", "show", "amber")["gpus"] == 4
    assert "needs the scope 'admin'" in own.do("tenant", "list", code=77)
    assert "the tenant 'amber' exists already" in operator.do("tenant", "create", "amber", code=1)
    operator.do("quota", "set", "amber", "--compute", "250%", "--memory", "none")
    quota = operator.json("quota", "show", "amber")
    assert (quota["gpus"], quota["memory_bytes"], quota["compute_permille"]) == (4, None, 2500)
    shown = operator.do(
        "quota", "set", "amber", "--budget", "host_memory=8GiB", "--budget", "disk=1GiB"
    )
    assert "host_memory=8GiB, disk=1GiB" in shown
    operator.do("quota", "set", "amber", "--budget", "disk=none")
    set_now = {k: v for k, v in operator.json("quota", "show", "amber")["budgets"].items() if v}
    assert set_now == {"host_memory": 8 << 30}
    assert "a size from 16MiB" in operator.do("quota", "set", "amber", "--budget", "disk=1", code=2)
    assert "needs the scope 'admin'" in own.do(
        "quota", "set", "amber", "--budget", "disk=9GiB", code=77
    )
    operator.do("quota", "set", "amber", "--model", "A*", "--model", "B*", "--priority", "9")
    assert operator.json("quota", "show", "amber")["models"] == ["A*", "B*"]
    operator.do("quota", "set", "amber", "--model", "none", "--sessions", "3")
    row = next(r for r in operator.do("quota", "list").splitlines() if r.startswith("amber"))
    assert row.split() == ["amber", "0/4", "0MiB/-", "0%/250%", "0/3", "9", "-"]
    assert "up to 9" in operator.do("quota", "show", "amber")
    operator.do("tenant", "change", "amber", "--disable")
    assert "disabled" in own.do("lease", "list", code=77)
    assert "disabled" in operator.do("tenant", "list")
    operator.do("tenant", "change", "amber", "--enable", "--description", "day shift")
    assert operator.json("tenant", "show", "amber")["description"] == "day shift"
    assert operator.do("tenant", "remove", "amber") == ""
    assert "refused the token" in own.do("lease", "list", code=77)
    for wrong in (["quota", "set", "amber"], ["tenant", "change", "amber"]):
        assert "say what to" in operator.do(*wrong, code=2)
    assert "--gpus: 'many'" in operator.do("quota", "set", "amber", "--gpus", "many", code=2)


def test_tokens(operator: Operator, tmp_path: Path) -> None:
    operator.do("tenant", "create", "brown")
    secret = operator.do("token", "create", "--tenant", "brown", "--lifetime", "1h").strip()
    assert secret.startswith("gpp_")
    own = Operator(operator.manager, secret)
    assert own.do("lease", "list") == ""
    (token,) = operator.json("token", "list", "--tenant", "brown")
    assert "secret" not in token and secret not in operator.do("token", "list", "--all")
    assert "valid" in operator.do("token", "show", token["id"])
    operator.do("token", "revoke", token["id"])
    assert "the token was revoked" in own.do("lease", "list", code=77)
    assert operator.json("token", "list", "--tenant", "brown") == []
    (token,) = operator.json("token", "list", "--tenant", "brown", "--all")
    assert token["revoked"] is not None
    path = tmp_path / "admin"
    assert operator.do("token", "create", "--admin", "--out", str(path)) == ""
    assert Operator(operator.manager, path.read_text().strip()).json("tenant", "list")
    for none_or_two in ((), ("--admin", "--metrics")):
        wrong = operator.do("token", "create", *none_or_two, code=2)
        assert "--tenant NAME, --admin or --metrics" in wrong
    scraper = Operator(operator.manager, operator.do("token", "create", "--metrics").strip())
    assert "this needs the scope 'admin'" in scraper.do("tenant", "list", code=77)
    (token,) = operator.json("token", "list", "--scope", "metrics")
    assert (token["tenant"], token["node"]) == (None, None)
    wrong = operator.do("token", "create", "--admin", "--lifetime", "soon", code=2)
    assert "--lifetime: 'soon' is not a time" in wrong


# Leases -------------------------------------------------------------------------------------


@pytest.fixture
def green(operator: Operator) -> Iterator[str]:
    """A tenant; all its leases end with the test."""
    operator.do("tenant", "create", "green", "--gpus", "20")
    yield "green"
    for lease in operator.json("lease", "list", "--tenant", "green"):
        operator.do("lease", "release", lease["id"])
    operator.do("tenant", "remove", "green")


HALF = ("--memory", "8GiB", "--share", "50%")


def test_leases(operator: Operator, green: str) -> None:
    ask = ("lease", "create", "--tenant", green)
    made = operator.json(*ask, "--gpus", "2", "--spread", *HALF, "--name", "work")
    assert made["token"].startswith("gpl_") and len(made["servers"]) == 2
    shown = operator.do("lease", "list")
    assert columns(shown)[:6] == [made["id"], green, "active", "2x", "8GiB", "50%"]
    shown = operator.do("lease", "show", made["id"])
    assert "unless it is renewed" in shown and "8GiB" in shown
    assert "token" not in operator.json("lease", "show", made["id"])
    few = operator.json(*ask, *HALF, "--sessions", "2")
    assert few["sessions"] == 2 and made["sessions"] is None
    assert "2 at once on each host" in operator.do("lease", "show", few["id"])
    operator.do("lease", "release", few["id"])
    assert "--sessions" in operator.do(*ask, *HALF, "--sessions", "0", code=2)
    uuid = operator.json("gpu", "list")[-1]["uuid"]
    named = operator.json(*ask, *HALF, "--uuid", uuid)
    assert [grant["gpu"] for grant in named["grants"]] == [uuid]
    operator.do("lease", "release", named["id"])
    assert "2 named" in operator.do(
        *ask, *HALF, "--gpus", "1", *["--uuid", uuid, "--uuid", "x"], code=2
    )
    assert "placed by the rule" in operator.do("lease", "explain", made["id"])
    assert operator.json("lease", "renew", made["id"])["token"] != made["token"]
    assert operator.do("lease", "release", made["id"]) == f"{made['id']} is released\n"
    assert operator.json("lease", "list") == []
    ended = operator.json("lease", "list", "--all", "--tenant", green)
    assert [each["state"] for each in ended] == ["released", "released", "released"]
    assert "the lease is released" in operator.do("lease", "renew", made["id"], code=1)


def test_a_lease_is_resized(operator: Operator, green: str) -> None:
    made = operator.json("lease", "create", "--tenant", green, *HALF)
    change = ("lease", "resize", made["id"])
    asked = ("--memory", "4GiB", "--share", "25%", "--ceiling", "75%")
    found = operator.json(*change, *asked)
    assert (found["resize"], "token" in found) == (None, False)
    (grant,) = found["grants"]
    assert (grant["memory_bytes"], grant["share_permille"]) == (4096 * MIB, 250)
    shown = operator.do("lease", "show", made["id"])
    assert "4GiB" in shown and "75%" in shown
    assert "say what to change" in operator.do(*change, code=2)
    assert "--memory" in operator.do(*change, "--memory", "much", code=2)
    assert "--priority" in operator.do(*change, "--priority", "101", code=2)
    assert "--gpus" in operator.do(*change, "--gpus", "0", code=2)
    assert "less than the share" in operator.do(*change, "--share", "80%", code=2)
    assert "asked 100GiB" in operator.do(*change, "--memory", "100GiB", code=1)
    operator.do("lease", "release", made["id"])
    assert "has ended" in operator.do(*change, "--memory", "5GiB", code=1)


def test_a_lease_has_more_and_fewer_gpus(operator: Operator, green: str) -> None:
    made = operator.json("lease", "create", "--tenant", green, *HALF)
    change = ("lease", "resize", made["id"], "--gpus")
    grown = operator.json(*change, "2")
    assert [grant["ordinal"] for grant in grown["grants"]] == [0, 1]
    assert len({grant["node"] for grant in grown["grants"]}) == 1
    assert operator.json(*change, "1")["grants"] == grown["grants"][:1]
    both = operator.do(*change, "2", "--memory", "4GiB", code=2)
    assert "another number of GPUs is a change of its own" in both
    kinds = [entry["action"] for entry in operator.json("audit", "--object", made["id"])]
    assert {"lease.grown", "lease.shrinking", "lease.shrunk"} <= set(kinds)
    operator.do("lease", "release", made["id"])


def test_a_dry_run_changes_nothing(operator: Operator, green: str) -> None:
    shown = operator.do("lease", "create", "--tenant", green, *HALF, "--dry-run")
    assert "it would be placed on" in shown and "one/0" in shown
    assert operator.json("lease", "list") == []
    answer = operator.json("lease", "create", "--tenant", green, "--dry-run", "--model", "A1")
    assert answer["decision"].startswith("no room")


def test_the_managers_own_key(operator: Operator) -> None:
    before = operator.do("key", "link")
    assert columns(before, 0) == ["AGE", "KEY"] and len(before.splitlines()) == 2
    assert "gpupool key roll --link" in operator.do("key", "retire", code=1)
    assert "gpupool key retire" in operator.do("key", "roll", "--link", "--revoke", code=2)
    rolled = operator.json("key", "roll", "--link")
    shown = operator.do("key", "link")
    assert columns(shown) == ["current", rolled["current"]] == columns(before)
    assert columns(shown, 2) == ["upcoming", rolled["upcoming"]]
    # Nodes of the tests do not keep it.
    assert shown.splitlines()[3] == "hosts without the upcoming one: one, three, two"
    assert "do not have the next key yet" in operator.do("key", "retire", code=1)
    assert operator.json("key", "link") == rolled


def test_the_queue_says_who_waits_and_why(operator: Operator, green: str) -> None:
    operator.json("lease", "create", "--tenant", green, "--gpus", "5")
    waiting = operator.json("lease", "create", "--tenant", green, "--gpus", "2", "--wait", "1h")
    assert (waiting["state"], waiting["position"]) == ("queued", 1)
    (entry,) = operator.json("queue", "list")
    assert entry["lease"] == waiting["id"]
    assert waiting["id"] in operator.do("queue", "list")
    shown = operator.do("lease", "explain", waiting["id"])
    assert "it waits at position 1 of 1" in shown and "WHY NOT" in shown
    full = operator.do("lease", "create", "--tenant", green, "--gpus", "2", code=75)
    assert "said no" in full
    over = operator.do("lease", "create", "--tenant", green, "--gpus", "14", code=77)
    assert "over the quota: tenant 'green': virtual GPUs: 14 " in over
    assert "5 in use and 2 queued, quota 20" in over


# Looking ------------------------------------------------------------------------------------


def test_inspect_draws_the_pool(operator: Operator, green: str) -> None:
    lease = operator.json("lease", "create", "--tenant", green, "--memory", "8GiB")
    node = lease["grants"][0]["node"]
    operator.do("node", "cordon", "three")
    shown = operator.do("inspect")
    operator.do("node", "open", "three")
    assert shown.splitlines()[0].split() == [
        "NAME",
        "IPADDRESS",
        "GPU0(Allocated/Total)",
        "GPU1(Allocated/Total)",
        "GPU",
        "Memory(GiB)",
    ]
    row = next(line for line in shown.splitlines() if line.startswith(node))
    assert "8/80" in row and row.rstrip().endswith("8/160")
    assert "three (cordoned)" in shown
    assert shown.endswith("Allocated/Total GPU Memory In Pool:\n8/480 (2%) GiB\n")
    details = operator.do("inspect", "-d")
    assert f"green/{lease['id']}" in details
    summary = operator.json("inspect")
    assert (summary["allocated_bytes"], summary["total_bytes"]) == (8 << 30, 480 << 30)


def test_usage_audit_and_sessions(operator: Operator, green: str) -> None:
    actions = [entry["action"] for entry in operator.json("audit", "--object", green)]
    assert "tenant.created" in actions, actions
    assert "tenant.created" in operator.do("audit", "--since", "1h", "--tenant", green)
    assert len(operator.json("audit", "--most", "2")) == 2
    assert operator.json("audit", "--until", "2020-01-01") == []
    within = ("--since", "2020-01-01", "--until", "2020-02-01")
    assert operator.json("usage", *within, "--by", "hour") == []
    assert "is not a time" in operator.do("usage", "--since", "soon", code=2)
    assert "--by: 'year' is neither hour nor day" in operator.do("usage", "--by", "year", code=2)
    assert operator.json("session", "list", "--lease", "x") == []


def test_events_are_told_as_they_happen(operator: Operator) -> None:
    watcher = start_gpupool("events", "--kind", "tenant.", "--count", "2", "--json", **operator.env)
    try:
        for number in range(200):
            operator.do("tenant", "create", f"t{number}")
            operator.do("tenant", "remove", f"t{number}")
            try:
                watcher.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                continue
        out, err = watcher.communicate(timeout=PATIENCE)
    finally:
        watcher.kill()
    assert err == ""
    events = [json.loads(line) for line in out.splitlines()]
    assert len(events) == 2
    assert all(event["kind"].startswith("tenant.") and event["object"] for event in events)
    of_late = ("--kind", "tenant.", "--recent", "2", "--count", "2", "--json")
    told = [json.loads(line) for line in operator.do("events", *of_late).splitlines()]
    assert [event["kind"] for event in told] == ["tenant.created", "tenant.removed"]


def test_lists_go_on_behind_a_page(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool.pool_client.PAGE", 1)
    assert len(operator.json("node", "list")) == 3
    assert len(operator.json("gpu", "list")) == 6


@pytest.mark.parametrize(
    "command",
    [
        "node list",
        "gpu list",
        "tenant list",
        "quota list",
        "token list --all",
        "lease list --all",
        "queue list",
        "audit",
        "inspect",
    ],
)
def test_tables_fit_a_terminal(
    operator: Operator, green: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    operator.json("lease", "create", "--tenant", green, "--gpus", "5", "--name", "a long name")
    lease = operator.json("lease", "create", "--tenant", green, "--gpus", "2", "--wait", "1h")
    for module in ("pool_show", "pool_inspect"):
        monkeypatch.setattr(f"gpupool.{module}.terminal_width", lambda: 80)
    shown = operator.do(*command.split())
    assert all(len(line.rstrip()) <= 80 for line in shown.splitlines()), shown
    if command in ("lease list --all", "queue list"):
        assert lease["id"] in shown


# Where the pool is --------------------------------------------------------------------------


def test_what_is_missing_is_named(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(args: list[str], env: dict[str, str], code: int) -> str:
        done = CliRunner().invoke(make_app(), args, env=env)
        assert done.exit_code == code, done.output
        return done.stderr

    assert "name the pool with --pool" in said(["node", "list"], {}, 2)
    assert "a pool wants a token" in said(["node", "list", "--pool", manager.url], {}, 2)
    # A server's token would be shown to the pool, and the other way round.
    other = said(["node", "list", "--pool", manager.url], {"GPUPOOL_TOKEN": "t"}, 2)
    assert "set GPUPOOL_POOL_TOKEN (GPUPOOL_TOKEN is for a server)" in other
    env = {"GPUPOOL_POOL_TOKEN": "t"}
    away = said(["node", "list", "--pool", "http://127.0.0.1:1"], env, 75)
    assert "is gpupool-manager running there" in away
    tls = said(["node", "list", "--pool", manager.url.replace("http", "https")], env, 1)
    assert "pool at https://127.0.0.1" in tls and "write http:// there" in tls


def test_a_tenant_may_borrow_and_has_a_weight(operator: Operator, green: str) -> None:
    before = operator.json("quota", "show", green)
    assert (before["weight"], before["borrow"]) == (1, False)
    operator.do("quota", "set", green, "--weight", "3", "--borrow")
    try:
        operator.do("quota", "set", green, "--priority", "1")  # what is not named stays
        shown = operator.do("quota", "show", green)
        assert "weight:" in shown and "yes, now 0 GPUs" in shown
        assert operator.json("quota", "show", green)["weight"] == 3
        assert "--weight" in operator.do("quota", "set", green, "--weight", "0", code=2)
        operator.do("quota", "set", green, "--idle-action", "warn", "--idle-after", "30m")
        assert "warn, after 30:00" in operator.do("quota", "show", green)
        operator.do("quota", "set", green, "--idle-action", "none", "--idle-after", "none")
        assert "as of all tenants" in operator.do("quota", "show", green)
        wrong = operator.do("quota", "set", green, "--idle-action", "end", code=2)
        assert "off, warn, reclaim" in wrong
        made = operator.json("lease", "create", "--tenant", green, *HALF, "--time", "2h")
        assert (made["time_seconds"], made["borrowed"]) == (7200, False)
        assert made["idle"]["action"] == "off"
        assert "idle:" in operator.do("lease", "show", made["id"])
        operator.do("lease", "release", made["id"])
    finally:
        priority = str(before["priority"])
        operator.do("quota", "set", green, "--weight", "1", "--no-borrow", "--priority", priority)


def test_gpus_are_reserved(operator: Operator, green: str) -> None:
    span = ("--from", "2h", "--for", "90m")
    made = operator.json("reserve", "--tenant", green, *span, *HALF, "--name", "a lecture")
    shown = operator.do("reservation", "show", made["id"])
    assert "a lecture" in shown and f"gpupool run --lease {made['id']} -- COMMAND" in shown
    assert made["id"] in operator.do("reservation", "list") and "1:30:00" in operator.do(
        "reservation", "list", "--tenant", green
    )
    assert "it is a reservation" in operator.do("lease", "show", made["id"], code=75)
    later = operator.do("reserve", "--tenant", green, "--from", "2h", "--for", "1s", *HALF, code=2)
    assert "seconds" in later
    wrong = operator.do("reserve", "--tenant", green, "--from", "soon", "--for", "1h", code=2)
    assert "--from: 'soon' is not" in wrong
    operator.do("reservation", "cancel", made["id"])
    assert operator.json("reservation", "list") == []
