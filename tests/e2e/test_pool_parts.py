"""A pool whose parts are ended, hung, changed and added; what a test leaves changed is its own."""

from __future__ import annotations

import signal

import pytest

from harness import wait_until
from pool_site import Site, node_of
from tenants import MIB, end, tell

# Added, changed, counted -------------------------------------------------------------------


def test_a_lease_on_an_encrypted_server(own: Site) -> None:
    own.add("three", curve="", labels="rack=7")
    own.manager.wait_for("three")
    lease = own.ask(labels={"rack": "7"})
    (server,) = lease["servers"]
    assert (server["node"], len(server["key"])) == ("three", 64)
    result = own.run(lease, "driver_limits", "64")
    assert result.stdout == "PASS driver_limits\n", result.explain()


def test_the_time_that_gpus_were_busy_comes_to_the_manager(own: Site) -> None:
    lease = own.ask()
    assert own.run(lease, "driver_limits", "64").returncode == 0
    program = own.tenant(lease)
    assert tell(program, "work 50") == "worked 50"

    def busy() -> float:
        (grant,) = own.manager.do("GET", f"/leases/{lease['id']}", token=own.red)["grants"]
        return float(grant["busy_seconds"])

    wait_until(lambda: busy() > 0, "the manager heard of it")
    end(program)
    own.manager.kill(signal.SIGTERM)
    own.manager.start()
    (usage,) = own.manager.do("GET", "/usage?tenant=red")["items"]
    assert 0 < usage["busy_hours"] * 3600 <= busy() + 0.001  # it was written down before


def test_settings_of_a_gpu_are_there_at_once(own: Site) -> None:
    gpu = own.manager.do("GET", "/gpus?node=two")["items"][0]
    own.manager.do("PATCH", f"/gpus/{gpu['uuid']}", {"policy": "weighted", "max_inst": 10})
    wait_until(
        lambda: (
            (found := own.admin("two")["gpus"][gpu["index"]])["policy"] == "weighted"
            and found["max_inst"] == 10
        ),
        "the server had the settings",
    )
    leases = [own.ask(share_permille=share, labels={}) for share in (600, 300, 100)]
    programs = [own.tenant(lease) for lease in leases]
    for program in programs:
        assert tell(program, "work 2") == "worked 2"
        end(program)


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


def test_a_server_without_a_manager_knows_its_leases(own: Site) -> None:
    lease = own.ask()
    node = node_of(lease)
    own.manager.kill()
    own.servers[node].kill()
    own.servers[node].start()
    assert own.run(lease, "driver_limits", "64").returncode == 0


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


def test_a_node_that_comes_back_with_fewer_gpus(own: Site) -> None:
    lease = own.ask(gpus=2, hosts="same")
    node = node_of(lease)
    own.servers[node].kill()
    own.servers[node].settings["soft-gpus"] = "1"
    own.servers[node].start()
    wait_until(
        lambda: (
            [g["lost"] for g in own.manager.do("GET", f"/leases/{lease['id']}")["grants"]]
            == [False, True]
        ),
        "the grant on the missing GPU was lost",
    )
    fresh = own.manager.do("POST", f"/leases/{lease['id']}/renew", token=own.red)
    assert fresh["servers"][0]["devices"] == [0]
    assert own.run(fresh, "driver_limits", "64").returncode == 0


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
