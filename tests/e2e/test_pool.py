"""A manager and two servers: leases from REST, programs on them, everything killed in turn."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from gpupool.admin import Admin
from gpupool_common import paths
from gpupool_common.ask import with_key
from harness import OURS, PoolServer, Result, Talk, client_environment, run_program, wait_until
from pool_harness import PoolManager
from tenants import MIB, StartTalk, end, info, tell
from toolchain import Toolchain


class Site:
    """A pool of two hosts with two GPUs each, and a tenant ``red``."""

    def __init__(self, home: paths.Home, toolchain: Toolchain, talk: StartTalk) -> None:
        self.home = home
        self.toolchain = toolchain
        self.talk = talk
        self.manager = PoolManager()
        self.servers: dict[str, PoolServer] = {}
        self.red = ""

    def start(self) -> None:
        self.manager.start()
        self.red = self.manager.tenant("red")
        for name in ("one", "two"):
            self.add(name)
        self.manager.wait_for("one", "two")

    def add(self, name: str, **settings: Any) -> None:
        self.servers[name] = self.manager.server(name, **settings)
        self.servers[name].start()

    def close(self) -> None:
        for server in self.servers.values():
            server.close()
        self.manager.close()

    # What a tenant does -----------------------------------------------------------------------

    def ask(self, **want: Any) -> dict[str, Any]:
        return self.manager.lease(
            self.red, **{"memory_bytes": 64 * MIB, "share_permille": 500, **want}
        )

    def environment(self, lease: dict[str, Any], transport: str = "zmq") -> dict[str, str]:
        servers = ",".join(
            with_key(server["address"], server["key"] or "") for server in lease["servers"]
        )
        return client_environment(self.home, servers, lease["token"], transport)

    def run(self, lease: dict[str, Any], name: str, *arguments: str) -> Result:
        program = str(self.toolchain.driver_program(name))
        return run_program([program, *arguments], self.environment(lease))

    def tenant(self, lease: dict[str, Any]) -> Talk:
        """A program that obeys, once it has its session."""
        program = str(self.toolchain.driver_program("driver_tenant"))
        found = self.talk([program], self.environment(lease))
        assert found.line() == "ready"
        return found

    # What an operator sees --------------------------------------------------------------------

    def state(self, lease: dict[str, Any]) -> str:
        return str(self.manager.do("GET", f"/leases/{lease['id']}")["state"])

    def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.manager.do("GET", "/sessions")["items"]
        return found

    def admin(self, node: str) -> dict[str, Any]:
        return Admin(self.servers[node].folder / "run").ask({"do": "status"})

    def account(self, node: str, name: str) -> dict[str, Any]:
        """A group on the boards of a node; empty if it is on none."""
        accounts = [each for gpu in self.admin(node)["gpus"] for each in gpu["tenants"]]
        return next((each for each in accounts if each["name"] == name), {})


@pytest.fixture
def site(home: paths.Home, toolchain: Toolchain, talk: StartTalk) -> Iterator[Site]:
    found = Site(home, toolchain, talk)
    try:
        found.start()
        yield found
    finally:
        found.close()


def node_of(lease: dict[str, Any]) -> str:
    (server,) = lease["servers"]
    return str(server["node"])


def refused(result: Result, *parts: str) -> None:
    """It failed, with one line of ours that says this."""
    assert result.returncode != 0
    (line,) = result.own_lines()
    assert all(part in line for part in parts), line


# One program --------------------------------------------------------------------------------


def test_a_lease_runs_a_program_within_its_limits(site: Site) -> None:
    lease = site.ask()
    assert lease["state"] == "active"
    assert lease["servers"][0]["devices"] == [0]
    # The order is there before the answer: nothing is waited for.
    result = site.run(lease, "driver_limits", "64")
    assert result.stdout == "PASS driver_limits\n", result.explain()
    program = site.tenant(lease)
    assert info(program)[1] == 64 * MIB
    assert tell(program, "take 60") == "took 60"
    assert tell(program, "take 8") == "refused CUDA_ERROR_OUT_OF_MEMORY"
    account = site.account(node_of(lease), f"red/{lease['id']}")
    assert (account["memory_limit_bytes"], account["share_permille"]) == (64 * MIB, 500)
    end(program)
    site.manager.do("POST", f"/leases/{lease['id']}/release", token=site.red)
    refused(site.run(lease, "driver_limits", "64"), lease["id"], "has ended")


@pytest.mark.parametrize("who", ["an operator", "its tenant"])
def test_a_lease_that_is_released_says_by_whom(site: Site, who: str) -> None:
    """The program's one line names the lease, who ended it, and what to do."""
    lease = site.ask()
    program = site.tenant(lease)
    token = {"token": site.red} if who == "its tenant" else {}
    site.manager.do("POST", f"/leases/{lease['id']}/release", **token)
    wait_until(lambda: not site.admin(node_of(lease))["sessions"], "the session was ended")
    assert tell(program, "work 1").startswith("gone ")
    ended = f"the lease '{lease['id']}' has ended (released by {who})"
    refused(program.finish(), ended, "take a new one")


def test_every_lease_has_its_own_limits(site: Site) -> None:
    one, two = (
        site.ask(memory_bytes=32 * MIB, share_permille=200),
        site.ask(memory_bytes=48 * MIB, share_permille=300),
    )
    assert node_of(one) == node_of(two)
    programs = [site.tenant(lease) for lease in (one, one, two)]
    assert [info(program)[1] for program in programs] == [32 * MIB, 32 * MIB, 48 * MIB]
    assert tell(programs[0], "take 28") == "took 28"
    assert tell(programs[1], "take 8") == "refused CUDA_ERROR_OUT_OF_MEMORY"
    assert tell(programs[2], "take 40") == "took 40"
    for program in programs:
        end(program)


def test_a_whole_gpu_has_all_of_its_memory(site: Site) -> None:
    lease = site.ask(memory_bytes=None, share_permille=1000, gpus=2, hosts="same")
    assert lease["servers"][0]["devices"] == [0, 1]
    program = site.tenant(lease)
    assert info(program)[1] == 1 << 30
    end(program)


def test_a_lease_says_itself_what_it_has(site: Site) -> None:
    env = {**site.environment(site.ask()), "GPUPOOL_MEMORY": "1GiB"}
    program = str(site.toolchain.driver_program("driver_limits"))
    refused(run_program([program, "64"], env), "GPUPOOL_MEMORY", "lease")


def test_a_lease_on_an_encrypted_server(site: Site) -> None:
    site.add("three", curve="", labels="rack=7")
    site.manager.wait_for("three")
    lease = site.ask(labels={"rack": "7"})
    (server,) = lease["servers"]
    assert (server["node"], len(server["key"])) == ("three", 64)
    result = site.run(lease, "driver_limits", "64")
    assert result.stdout == "PASS driver_limits\n", result.explain()


def test_a_lease_on_two_hosts_is_one_process(site: Site) -> None:
    lease = site.ask(gpus=4, share_permille=1000)
    assert [grant["ordinal"] for grant in lease["grants"]] == [0, 1, 2, 3]
    assert [server["devices"] for server in lease["servers"]] == [[0, 1], [2, 3]]
    # Each of them takes the one token, and gives what it has of the lease.
    for server in lease["servers"]:
        found = site.run({**lease, "servers": [server]}, "driver_limits", "64")
        assert found.stdout == "PASS driver_limits\n", found.explain()
    for name in ("driver_hosts", "driver_between"):
        found = site.run(lease, name, "2")
        assert found.stdout == f"PASS {name}\n", found.explain()


def test_the_time_that_gpus_were_busy_comes_to_the_manager(site: Site) -> None:
    lease = site.ask()
    assert site.run(lease, "driver_limits", "64").returncode == 0
    program = site.tenant(lease)
    assert tell(program, "work 50") == "worked 50"

    def busy() -> float:
        (grant,) = site.manager.do("GET", f"/leases/{lease['id']}", token=site.red)["grants"]
        return float(grant["busy_seconds"])

    wait_until(lambda: busy() > 0, "the manager heard of it")
    end(program)
    site.manager.kill(signal.SIGTERM)
    site.manager.start()
    (usage,) = site.manager.do("GET", "/usage?tenant=red")["items"]
    assert 0 < usage["busy_hours"] * 3600 <= busy() + 0.001  # it was written down before


# Tokens -------------------------------------------------------------------------------------


def test_a_token_is_of_no_use_elsewhere(site: Site) -> None:
    lease = site.ask()
    other = next(name for name in site.servers if name != node_of(lease))
    for url, token, part in (
        (site.servers[other].url, lease["token"], "for other servers"),
        (lease["servers"][0]["address"], lease["token"][:-4] + "AAAA", "was changed"),
        (lease["servers"][0]["address"], "gpl_", "refused"),
    ):
        env = client_environment(site.home, url, token, "zmq")
        program = str(site.toolchain.driver_program("driver_limits"))
        refused(run_program([program, "64"], env), part)


def test_no_token_stands_in_a_log(site: Site) -> None:
    lease = site.ask()
    assert site.run(lease, "driver_limits", "64").returncode == 0
    logs = [server.log for server in site.servers.values()] + [site.manager.log]
    text = "".join(path.read_text() for path in logs)
    assert lease["id"] in text
    for secret in (lease["token"][:40], site.red, site.manager.admin, "gpn_"):
        assert secret not in text


def test_the_request_is_named_in_every_log(site: Site) -> None:
    answer = site.manager.ask(
        "POST",
        "/leases",
        {"memory_bytes": 64 * MIB, "share_permille": 500},
        site.red,
        **{"X-Request-ID": "ask-7"},
    )
    lease = answer.json()
    assert site.run(lease, "driver_limits", "64").returncode == 0
    log = site.servers[node_of(lease)].log.read_text()
    opened = next(line for line in log.splitlines() if "session opened" in line)
    assert "request=ask-7" in opened and f"lease={lease['id']}" in opened
    assert any("part=worker" in x and "request=ask-7" in x for x in log.splitlines())
    assert "request=ask-7" in site.manager.log.read_text()


# Ends ---------------------------------------------------------------------------------------


def test_what_is_released_ends(site: Site) -> None:
    lease = site.ask()
    program = site.tenant(lease)
    wait_until(lambda: len(site.sessions()) == 1, "the manager heard of the session")
    site.manager.do("POST", f"/leases/{lease['id']}/release", token=site.red)
    wait_until(lambda: not site.admin(node_of(lease))["sessions"], "the session ended")
    answer = tell(program, "work 1")
    assert answer.startswith("gone CUDA_ERROR"), answer
    result = program.finish()
    assert len([x for x in result.stderr.splitlines() if x.startswith(OURS)]) == 1, result.explain()
    wait_until(lambda: not site.sessions(), "the manager heard of its end")


def test_the_last_session_ends_its_lease(site: Site) -> None:
    lease = site.ask(until="last-session")
    one, two = site.tenant(lease), site.tenant(lease)
    wait_until(lambda: len(site.sessions()) == 2, "the manager heard of both")
    end(one)
    wait_until(lambda: len(site.sessions()) == 1, "the manager heard of the end")
    assert site.state(lease) == "active"
    end(two)
    wait_until(lambda: site.state(lease) == "released", "the lease was released")


def test_sessions_keep_their_lease(site: Site) -> None:
    lease, idle = site.ask(ttl_seconds=5), site.ask(ttl_seconds=5)
    program = site.tenant(lease)
    wait_until(lambda: site.state(idle) == "expired", "an unused lease expired")
    assert tell(program, "work 3") == "worked 3"
    assert site.state(lease) == "active"
    end(program)


# Operators ----------------------------------------------------------------------------------


def test_settings_of_a_gpu_are_there_at_once(site: Site) -> None:
    gpu = site.manager.do("GET", "/gpus?node=two")["items"][0]
    site.manager.do("PATCH", f"/gpus/{gpu['uuid']}", {"policy": "weighted", "max_inst": 10})
    wait_until(
        lambda: (
            (found := site.admin("two")["gpus"][gpu["index"]])["policy"] == "weighted"
            and found["max_inst"] == 10
        ),
        "the server had the settings",
    )
    leases = [site.ask(share_permille=share, labels={}) for share in (600, 300, 100)]
    programs = [site.tenant(lease) for lease in leases]
    for program in programs:
        assert tell(program, "work 2") == "worked 2"
        end(program)


def test_a_drained_node_finishes_what_runs(site: Site) -> None:
    lease = site.ask()
    node = node_of(lease)
    program = site.tenant(lease)
    site.manager.do("PATCH", f"/nodes/{node}", {"mode": "draining"})
    wait_until(lambda: "drained" in site.run(lease, "driver_limits", "64").stderr, "it was drained")
    assert tell(program, "work 3") == "worked 3"
    end(program)
    assert node_of(site.ask()) != node
    site.manager.do("PATCH", f"/nodes/{node}", {"mode": "open"})
    wait_until(lambda: site.run(lease, "driver_limits", "64").returncode == 0, "it was open")


# Everything dies ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_new_manager_loses_nothing(site: Site, how: signal.Signals) -> None:
    lease = site.ask()
    program = site.tenant(lease)
    wait_until(lambda: len(site.sessions()) == 1, "the manager heard of the session")
    site.manager.kill(how)
    # Without a manager everything goes on, new sessions too.
    assert tell(program, "work 3") == "worked 3"
    assert site.run(lease, "driver_errors").returncode == 0
    site.manager.start()
    wait_until(lambda: len(site.sessions()) == 1, "the servers joined the new manager")
    assert site.state(lease) == "active"
    fresh = site.manager.do("POST", f"/leases/{lease['id']}/renew", token=site.red)
    assert site.run(fresh, "driver_errors").returncode == 0
    assert tell(program, "work 3") == "worked 6"
    end(program)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=["killed", "stopped", "hung"]
)
def test_no_lease_goes_to_a_server_that_is_not_there(site: Site, how: signal.Signals) -> None:
    """Until its heartbeats were missed, leases went there and programs failed."""
    first = site.ask()
    gone = node_of(first)
    site.servers[gone].kill(how, wait=how != signal.SIGSTOP)
    try:
        lease = site.ask()  # the same GPU would be the best for it
        assert lease["state"] == "active" and node_of(lease) != gone
        assert site.run(lease, "driver_limits", "64").returncode == 0
        node = site.manager.node(gone)
        # Of one that hangs, its heartbeats may be missed before the lease is.
        reasons = ["was stopped"] if how == signal.SIGTERM else ["not confirm", "not heard of"]
        assert node["state"] == "lost" and any(each in node["reason"] for each in reasons)
    finally:
        if how == signal.SIGSTOP:
            site.servers[gone].signal(signal.SIGCONT)
    if how != signal.SIGSTOP:
        site.servers[gone].start()
    wait_until(lambda: site.manager.node(gone)["state"] == "ready", "it was back")
    assert site.manager.node(gone)["reason"] == ""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_new_server_loses_nothing(site: Site, how: signal.Signals) -> None:
    lease = site.ask(until="last-session")
    node = node_of(lease)
    program = site.tenant(lease)
    wait_until(lambda: len(site.sessions()) == 1, "the manager heard of the session")
    site.servers[node].kill(how)
    wait_until(lambda: site.manager.node(node)["state"] == "lost", "the node was lost")
    assert tell(program, "work 3") == "worked 3"
    assert site.state(lease) == "active"
    site.servers[node].start()
    site.manager.wait_for(node)
    wait_until(lambda: len(site.sessions()) == 1, "the session was found again")
    assert site.account(node, f"red/{lease['id']}")["memory_limit_bytes"] == 64 * MIB
    assert tell(program, "work 3") == "worked 6"
    end(program)
    wait_until(lambda: site.state(lease) == "released", "its end released the lease")


def test_a_server_without_a_manager_knows_its_leases(site: Site) -> None:
    lease = site.ask()
    node = node_of(lease)
    site.manager.kill()
    site.servers[node].kill()
    site.servers[node].start()
    assert site.run(lease, "driver_limits", "64").returncode == 0


def test_a_lease_that_ended_meanwhile_ends(site: Site) -> None:
    """Cut off from the manager, a server goes on; back again it learns what has ended."""
    lease = site.ask()
    node = node_of(lease)
    program = site.tenant(lease)
    site.servers[node].kill()
    site.manager.do("POST", f"/leases/{lease['id']}/release", token=site.red)
    assert tell(program, "work 3") == "worked 3"
    site.servers[node].start()
    wait_until(lambda: not site.admin(node)["sessions"], "the session ended")
    assert tell(program, "work 1").startswith("gone CUDA_ERROR")


def test_a_node_that_comes_back_with_fewer_gpus(site: Site) -> None:
    lease = site.ask(gpus=2, hosts="same")
    node = node_of(lease)
    site.servers[node].kill()
    site.servers[node].settings["soft-gpus"] = "1"
    site.servers[node].start()
    wait_until(
        lambda: (
            [g["lost"] for g in site.manager.do("GET", f"/leases/{lease['id']}")["grants"]]
            == [False, True]
        ),
        "the grant on the missing GPU was lost",
    )
    fresh = site.manager.do("POST", f"/leases/{lease['id']}/renew", token=site.red)
    assert fresh["servers"][0]["devices"] == [0]
    assert site.run(fresh, "driver_limits", "64").returncode == 0


def test_a_host_that_hangs_is_lost_and_back(site: Site) -> None:
    lease, other = site.ask(ttl_seconds=600), site.ask(ttl_seconds=5, until="last-session")
    node = node_of(lease)
    assert node_of(other) == node
    kept, ended = site.tenant(lease), site.tenant(other)
    wait_until(lambda: len(site.sessions()) == 2, "the manager heard of both")
    site.servers[node].kill(signal.SIGSTOP, wait=False)
    wait_until(lambda: site.manager.node(node)["state"] == "lost", "the node was lost")
    # Nothing new goes there, and what is not renewed expires.
    assert node_of(site.ask()) != node
    wait_until(lambda: site.state(other) == "expired", "an unrenewed lease expired")
    assert tell(kept, "work 3") == tell(ended, "work 3") == "worked 3"
    site.servers[node].kill(signal.SIGCONT, wait=False)
    site.manager.wait_for(node)
    wait_until(lambda: len(site.admin(node)["sessions"]) == 1, "what expired was ended")
    assert tell(ended, "work 1").startswith("gone CUDA_ERROR")
    assert tell(kept, "work 3") == "worked 6"
    end(kept)


def test_a_manager_that_hangs_holds_nobody_up(site: Site) -> None:
    lease = site.ask()
    program = site.tenant(lease)
    site.manager.kill(signal.SIGSTOP, wait=False)
    try:
        for _ in range(3):
            assert site.run(lease, "driver_limits", "64").returncode == 0
        assert tell(program, "work 3") == "worked 3"
    finally:
        site.manager.kill(signal.SIGCONT, wait=False)
    wait_until(lambda: len(site.sessions()) == 1, "the manager heard of the session")
    assert site.state(lease) == "active"
    end(program)


# Who may join -------------------------------------------------------------------------------


def test_nobody_else_is_taken_for_a_node(site: Site) -> None:
    """Another host with another key, even with the right token, is not the node."""
    token = site.manager.join_token("one")
    thief = site.manager.server("one", token=token)
    try:
        thief.start()
        wait_until(lambda: "another key" in thief.log.read_text(), "it was refused")
        assert site.manager.node("one")["address"] == site.servers["one"].url
    finally:
        thief.close()


def test_a_wrong_key_is_named(site: Site) -> None:
    token = site.manager.join_token("three")
    text = token.read_text()
    token.write_text(text.partition(".")[0] + "." + "ab" * 32)
    server = site.manager.server("three", token=token)
    try:
        server.start()
        wait_until(
            lambda: "does not have the key" in server.log.read_text(), "the wrong key was named"
        )
    finally:
        server.close()
