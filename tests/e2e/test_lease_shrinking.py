"""Leases that give a GPU back while programs run: who has it is told, ends, and others get it once.

Also while the server or the manager is killed in between.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from gpupool_common import paths
from harness import Talk, alive, wait_until
from pool_site import Site, running_host
from tenants import StartTalk, end, info, tell
from toolchain import Toolchain

WHOLE = {"memory_bytes": None, "share_permille": 1000}
GRACE = "2"


@pytest.fixture(scope="module")
def pool(home: paths.Home, toolchain: Toolchain) -> Iterator[Site]:
    """One host of two GPUs, and programs that have little time."""
    with running_host(home, toolchain, "--reclaim-seconds", GRACE) as site:
        yield site


@pytest.fixture
def site(pool: Site, talk: StartTalk) -> Iterator[Site]:
    yield from pool.lent(talk)


@pytest.fixture(scope="module")
def patient_pool(home: paths.Home, toolchain: Toolchain) -> Iterator[Site]:
    """Another, whose programs have more time than a machine stands still."""
    with running_host(home, toolchain) as site:
        yield site


@pytest.fixture
def patient(patient_pool: Site, talk: StartTalk) -> Iterator[Site]:
    yield from patient_pool.lent(talk)


def resize(site: Site, lease: dict[str, Any], gpus: int) -> httpx.Response:
    return site.manager.ask_again("PATCH", f"/leases/{lease['id']}", {"gpus": gpus}, site.red)


def seeing(site: Site, lease: dict[str, Any], visible: str) -> Talk:
    """A program that sees these of the lease's devices."""
    env = {**site.environment(lease), "CUDA_VISIBLE_DEVICES": visible}
    program = site.talk([str(site.toolchain.driver_program("driver_tenant"))], env)
    assert program.line() == "ready"
    return program


def now(site: Site, lease: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = site.manager.do("GET", f"/leases/{lease['id']}", token=site.red)
    return found


def gpus_in_use(site: Site) -> int:
    return int(site.manager.do("GET", "/tenants/red/quota")["in_use"]["gpus"])


def goes_on(program: Talk, answer: httpx.Response) -> str:
    """It works, unless the machine stood still until its time was over; what it said."""
    said = tell(program, "work 1")
    (leaves,) = (each["leaves"] for each in answer.json()["grants"] if each["leaves"])
    over = datetime.now(UTC) >= datetime.fromisoformat(leaves)
    assert said == "worked 1" or (over and said.startswith("gone")), "its time is not over"
    return said


def has_gone(program: Talk, said: str = "") -> None:
    """Its session has ended with a line that says why, and CUDA says so."""
    if not said.startswith("gone"):
        said = tell(program, "work 1")
    assert said.startswith("gone CUDA_ERROR")
    result = program.finish()
    (told,) = (line for line in result.own_lines() if "has gone back from the lease" in line)
    assert "start the program again on those that it has" in told


def check_next_has_it(site: Site) -> None:
    """All of one GPU, for another lease; and there is not a second one."""
    other = site.ask(**WHOLE)
    result = site.run(other, "driver_limits", "1024")
    assert result.stdout == "PASS driver_limits\n", result.explain()
    second = site.manager.ask_again("POST", "/leases", WHOLE, site.red)
    assert second.status_code == 409, second.text


def test_a_gpu_that_no_session_has_is_free_at_once(site: Site) -> None:
    lease = site.ask(gpus=2)
    answer = resize(site, lease, 1)
    assert (answer.status_code, len(answer.json()["grants"])) == (200, 1), answer.text
    assert gpus_in_use(site) == 1
    check_next_has_it(site)


def test_who_has_it_may_go_on_for_a_while(site: Site) -> None:
    """Who begins meanwhile has the others, and lives on, as does who began before it grew."""
    lease = site.ask(**WHOLE)
    first = site.tenant(lease)
    assert resize(site, lease, 2).status_code == 200
    second = site.tenant(lease)
    waiting = site.ask(**WHOLE, wait_seconds=300)
    answer = resize(site, lease, 1)
    assert answer.status_code == 202, answer.text
    assert [each["leaves"] is not None for each in answer.json()["grants"]] == [False, True]
    said = goes_on(second, answer)
    third = site.tenant(lease)
    wait_until(lambda: site.state(waiting) == "active", "the next one got it")
    has_gone(second, said)
    for program in (first, third):
        assert tell(program, "work 2") == "worked 2"
        end(program)
    assert len(now(site, lease)["grants"]) == 1
    result = site.run(now(site, waiting), "driver_limits", "1024")
    assert result.stdout == "PASS driver_limits\n", result.explain()


def test_who_does_not_see_it_goes_on(patient: Site) -> None:
    """It could have had both, and has chosen the one that stays by CUDA_VISIBLE_DEVICES."""
    lease = patient.ask(gpus=2)
    program = seeing(patient, lease, "0")
    assert info(program)[0] > 0
    both = seeing(patient, lease, "1,0")
    assert resize(patient, lease, 1).status_code == 202, "another has it"
    end(both)
    wait_until(lambda: gpus_in_use(patient) == 1, "it was free")
    assert tell(program, "work 2") == "worked 2"
    check_next_has_it(patient)
    assert tell(program, "work 3") == "worked 5"  # in all
    end(program)


def test_who_sees_it_alone_does_not(site: Site) -> None:
    lease = site.ask(gpus=2)
    other, program = seeing(site, lease, "0"), seeing(site, lease, "1")
    assert resize(site, lease, 1).status_code == 202
    wait_until(lambda: gpus_in_use(site) == 1, "its time was over")
    has_gone(program)
    assert tell(other, "work 2") == "worked 2"
    end(other)


def test_its_own_end_gives_it_back_before(patient: Site) -> None:
    lease = patient.ask(gpus=2)
    program = patient.tenant(lease)
    resize(patient, lease, 1)
    end(program)
    wait_until(lambda: gpus_in_use(patient) == 1, "it was free")
    check_next_has_it(patient)


def test_the_lease_may_grow_again(patient: Site) -> None:
    lease = patient.ask(gpus=2)
    for _ in range(3):
        assert len(resize(patient, lease, 1).json()["grants"]) == 1
        assert len(resize(patient, lease, 2).json()["grants"]) == 2
    program = patient.tenant(lease)
    assert info(program)[0] > 0
    assert resize(patient, lease, 1).status_code == 202
    assert resize(patient, lease, 2).status_code == 200, "it is kept after all"
    assert tell(program, "work 2") == "worked 2"
    end(program)


def test_a_server_that_is_killed_meanwhile(site: Site) -> None:
    """Its workers go on without it: until it has ended them the GPU is nobody else's."""
    lease = site.ask(gpus=2)
    program = site.tenant(lease)
    (worker,) = site.servers["one"].worker_pids()
    site.servers["one"].kill()
    resize(site, lease, 1)
    wait_until(lambda: site.manager.node("one")["state"] == "lost", "it was lost")
    assert alive(worker) and tell(program, "work 1") == "worked 1"
    assert gpus_in_use(site) == 2
    site.servers["one"].start()
    site.manager.wait_for("one")
    wait_until(lambda: gpus_in_use(site) == 1, "its server has ended what had it")
    assert not alive(worker)
    program.close()
    check_next_has_it(site)


def test_a_manager_that_is_killed_meanwhile(site: Site) -> None:
    """The next one goes on with it; programs have the whole time again."""
    lease = site.ask(gpus=2, ttl_seconds=600)
    program = site.tenant(lease)
    answer = resize(site, lease, 1)
    assert answer.status_code == 202, answer.text
    site.manager.kill()
    said = goes_on(program, answer)
    site.manager.start()
    site.manager.wait_for("one")
    wait_until(lambda: gpus_in_use(site) == 1, "its server has ended what had it")
    has_gone(program, said)
    check_next_has_it(site)


def test_a_worker_that_stands_still_is_killed(site: Site) -> None:
    """Until then its GPU is nobody else's."""
    lease = site.ask(gpus=2)
    program = site.tenant(lease)
    (worker,) = site.servers["one"].worker_pids()
    os.kill(worker, signal.SIGSTOP)
    resize(site, lease, 1)
    wait_until(lambda: gpus_in_use(site) == 1, "it is free")
    assert not alive(worker)
    program.close()
    check_next_has_it(site)
