"""A manager and two servers: leases from REST, programs on them, tokens, operators."""

from __future__ import annotations

import pytest

from harness import OURS, client_environment, run_program, wait_until
from pool_site import Site, node_of, refused
from tenants import MIB, end, info, tell

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


def test_memory_that_arrays_have_mapped_counts_in_a_lease(site: Site) -> None:
    lease = site.ask()
    result = site.run(lease, "driver_sparse_kept")
    assert result.stdout == "PASS driver_sparse_kept\n", result.explain()
    site.manager.do("POST", f"/leases/{lease['id']}/release", token=site.red)


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


# Tokens -------------------------------------------------------------------------------------


def test_a_token_is_of_no_use_elsewhere(site: Site) -> None:
    lease = site.ask()
    other = next(name for name in site.servers if name != node_of(lease))
    for url, token, part in (
        (site.servers[other].url, lease["token"], "for other servers"),
        (lease["servers"][0]["address"], lease["token"][:-4] + "AAAA", "was changed"),
        (lease["servers"][0]["address"], "gpl_", "refused"),
    ):
        env = client_environment(site.home, url, token, "tcp")
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
    log = site.servers[node_of(lease)].log

    def lines(words: str) -> list[str]:
        return [line for line in log.read_text().splitlines() if words in line]

    (ours,) = [line for line in lines("session opened") if f"lease={lease['id']}" in line]
    assert "request=ask-7" in ours
    # a worker's line comes to the log through the server
    wait_until(lambda: any("request=ask-7" in x for x in lines("part=worker")), "it was said")
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
