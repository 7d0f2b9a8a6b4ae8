"""Tenants on one GPU: memory limits, shares, and what an operator sees and changes.

Only counts, limits and accounts are asserted here: how exact the ratios are is a matter of
tests/c/test_board_shares.c, where time is made, and of tests/gpu/shares.py, where it is real.
"""

from __future__ import annotations

import json
import struct
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE, Talk, alive, wait_until
from peer_client import KIND_STREAM, worker_of
from ports import free_port
from raw_client import handle
from tenants import (
    BLUE,
    MIB,
    RED,
    MakeServer,
    Pool,
    StartTalk,
    configured,
    end,
    info,
    operator,
    tell,
)
from toolchain import Toolchain

REFUSED = "refused CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture
def pool(make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path) -> Pool:
    return Pool(configured(make_server, tmp_path), toolchain, talk)


# Memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "request_"),
    [(48, {"GPUPOOL_MEMORY": "48MiB"}), (32, BLUE), (16, {**BLUE, "GPUPOOL_MEMORY": "16MiB"})],
    ids=["request", "quota", "request-under-quota"],
)
def test_ten_ways_of_taking_memory(
    pool: Pool, transport: str, limit: int, request_: dict[str, str]
) -> None:
    result = pool.run(transport, "driver_limits", str(limit), **request_)
    assert result.stdout == "PASS driver_limits\n", result.explain()


def test_the_peak_never_exceeds_the_limit(pool: Pool, transport: str) -> None:
    """The same, seen from the board, where an idle session keeps the group's account."""
    asked = {**RED, "GPUPOOL_GROUP": "g", "GPUPOOL_MEMORY": "64MiB"}
    idle = pool.start(transport, **asked)
    before = pool.account("red/g")
    result = pool.run(transport, "driver_limits", "64", **asked)
    # It is not alone under this limit, so what it is told is free is less than all.
    assert result.stdout == "PASS driver_limits\n", result.explain()
    used = before["memory_used_bytes"]
    wait_until(lambda: pool.account("red/g")["memory_used_bytes"] == used, "all was given back")
    after = pool.account("red/g")
    assert after["memory_limit_bytes"] == 64 * MIB
    assert 32 * MIB < after["memory_peak_bytes"] <= 64 * MIB
    assert after["memory_denied"] > 0
    end(idle)


def test_allocations_seldom_ask(pool: Pool, transport: str) -> None:
    """What is taken and given back within the advance costs the arbiter nothing."""
    program = pool.start(transport, **RED, GPUPOOL_GROUP="g", GPUPOOL_MEMORY="64MiB")
    assert tell(program, "take 1") == "took 1"

    def questions() -> int:
        return int(pool.account("red/g")["processes"][0]["questions"])

    for kib in (1024, 4096):
        before = questions()
        assert tell(program, f"pairs 1000 {kib}") == "paired"
        assert questions() - before <= 8
    end(program)


def test_sessions_of_a_tenant_share_all_of_its_limit(pool: Pool, transport: str) -> None:
    """None is refused for what another was only granted ahead, and what is free is seen by all."""
    asked = {**RED, "GPUPOOL_GROUP": "g", "GPUPOOL_MEMORY": "64MiB"}
    programs = [pool.start(transport, **asked) for _ in range(3)]
    answers = ["took 4"] * 3
    while "took 4" in answers:
        answers = [tell(program, "take 4") for program in programs]
    assert answers == [REFUSED] * 3
    account = pool.account("red/g")
    assert 60 * MIB < account["memory_used_bytes"] <= 64 * MIB
    assert account["memory_peak_bytes"] <= 64 * MIB
    for giver, taker in ((0, 1), (1, 2), (2, 0)):
        assert tell(programs[giver], "give") == "gave"
        frees = {info(program)[0] for program in programs}
        assert len(frees) == 1
        assert frees.pop() == 64 * MIB - pool.account("red/g")["memory_used_bytes"]
        assert tell(programs[taker], "take 4") == "took 4"
    for program in programs:
        end(program)


def test_what_the_driver_takes_by_itself(pool: Pool, transport: str) -> None:
    """Variables of modules and libraries, graphs' memory nodes, threads' local memory."""
    asked = {**RED, "GPUPOOL_GROUP": "g", "GPUPOOL_MEMORY": "64MiB"}
    idle = pool.start(transport, **asked)
    before = pool.account("red/g")
    result = pool.run(transport, "driver_growth", **asked)
    assert result.stdout == "PASS driver_growth\n", result.explain()
    used = before["memory_used_bytes"]
    # The program has its end before its worker has.
    wait_until(lambda: pool.account("red/g")["memory_used_bytes"] == used, "all was given back")
    end(idle)


def test_sessions_of_one_group_share_its_limit(pool: Pool, transport: str) -> None:
    asked = {**RED, "GPUPOOL_GROUP": "g", "GPUPOOL_MEMORY": "60MiB"}
    one, two = pool.start(transport, **asked), pool.start(transport, **asked)
    assert tell(one, "total") == tell(two, "total") == f"total {60 * MIB}"
    assert info(one) == info(two)
    assert tell(one, "take 32") == "took 32"
    assert tell(two, "take 32") == REFUSED
    left, total = info(two)
    assert (total, left) == (60 * MIB, info(one)[0])
    assert tell(two, f"take {left // MIB}") == f"took {left // MIB}"
    assert tell(one, "take 1") == REFUSED
    account = pool.account("red/g")
    assert account["workers"] == 2
    assert account["memory_used_bytes"] <= account["memory_peak_bytes"] <= 60 * MIB
    assert account["memory_denied"] >= 2
    end(one)
    wait_until(lambda: info(two)[0] >= 32 * MIB, "the group had back what its other session used")
    assert tell(two, "take 32") == "took 32"
    end(two)


def test_tenants_share_no_limit(pool: Pool, transport: str) -> None:
    red, blue = pool.start(transport, **RED), pool.start(transport, **BLUE)
    assert (info(red)[1], info(blue)[1]) == (64 * MIB, 32 * MIB)
    assert tell(red, "take 60") == "took 60"
    assert tell(blue, "take 28") == "took 28"
    assert tell(red, "take 8") == tell(blue, "take 8") == REFUSED
    assert tell(red, "work 3") == tell(blue, "work 3") == "worked 3"
    end(red)
    end(blue)


def test_groups_share_their_tenants_quota(pool: Pool) -> None:
    one = pool.start("shm", **RED, GPUPOOL_GROUP="one", GPUPOOL_MEMORY="40MiB")
    result = pool.run("shm", "driver_vmm", **RED, GPUPOOL_GROUP="two", GPUPOOL_MEMORY="32MiB")
    assert result.returncode == 1
    (line,) = result.own_lines()
    assert all(part in line for part in ("32MiB", "40MiB", "64MiB", "red")), line
    two = pool.start("shm", **RED, GPUPOOL_GROUP="two", GPUPOOL_MEMORY="24MiB")
    assert (info(one)[1], info(two)[1]) == (40 * MIB, 24 * MIB)
    end(one)
    end(two)


def test_a_killed_clients_memory_comes_back(pool: Pool, transport: str) -> None:
    asked = {**RED, "GPUPOOL_GROUP": "g", "GPUPOOL_MEMORY": "60MiB"}
    one, two = pool.start(transport, **asked), pool.start(transport, **asked)
    before = info(two)[0]
    assert tell(one, "take 40") == "took 40"
    assert tell(two, "take 40") == REFUSED
    one.process.kill()
    wait_until(lambda: info(two)[0] >= before, "what a killed client had was free again")
    assert tell(two, "take 40") == "took 40"
    end(two)


def test_a_killed_workers_memory_comes_back(pool: Pool) -> None:
    asked = {**RED, "GPUPOOL_GROUP": "g", "GPUPOOL_MEMORY": "60MiB"}
    one, two = pool.start("shm", **asked), pool.start("shm", **asked)
    before = info(two)[0]
    assert tell(one, "take 40") == "took 40"
    subprocess.run(["kill", "-9", str(pool.worker_of(one))], check=True)
    wait_until(lambda: info(two)[0] >= before, "what a killed worker had was free again")
    assert tell(two, "take 40") == "took 40"
    end(two)


# What an operator sees ---------------------------------------------------------------------


def test_smi_shows_tenants_and_their_programs(pool: Pool) -> None:
    red = pool.start("shm", **RED, GPUPOOL_GROUP="job", GPUPOOL_MEMORY="40MiB")
    blue = pool.start("shm", **BLUE)
    assert tell(red, "take 16") == "took 16"
    shown = pool.cli("smi", "--json")
    assert shown.returncode == 0, shown.explain()
    (gpu,) = json.loads(shown.stdout)["gpus"]
    tenants = {tenant["name"]: tenant for tenant in gpu["tenants"]}
    assert set(tenants) == {"red/job", "blue"}
    job = tenants["red/job"]
    assert job["memory_limit_bytes"] == 40 * MIB
    assert 16 * MIB <= job["memory_used_bytes"] <= 20 * MIB
    (process,) = job["processes"]
    assert process["client_pid"] == red.process.pid
    assert process["program"] == "driver_tenant"
    assert process["memory_used_bytes"] == job["memory_used_bytes"]
    assert tenants["blue"]["memory_limit_bytes"] == 32 * MIB
    assert tenants["blue"]["processes"][0]["client_pid"] == blue.process.pid
    table = pool.cli("smi")
    assert table.returncode == 0 and "red/job" in table.stdout, table.explain()
    end(red)
    end(blue)


def test_accounts_count_launches_and_bytes(pool: Pool, transport: str) -> None:
    program = pool.start(transport, **RED)
    before = pool.account("red")
    assert tell(program, "work 25") == "worked 25"
    assert tell(program, "flood 10 64") == "sent"
    assert tell(program, "work 5") == "worked 40"
    after = pool.account("red")
    assert after["launches"] - before["launches"] == 40
    assert after["bytes_copied"] - before["bytes_copied"] >= 10 * 64 * 1024
    assert after["busy_ns"] > before["busy_ns"]
    end(program)


def test_metrics_name_the_tenant(
    make_server: MakeServer, toolchain: Toolchain, talk: StartTalk, tmp_path: Path
) -> None:
    where = f"http://127.0.0.1:{free_port()}"
    server = configured(make_server, tmp_path, **{"metrics-listen": where})
    pool = Pool(server, toolchain, talk)
    program = pool.start("shm", **RED, GPUPOOL_GROUP="job", GPUPOOL_MEMORY="40MiB")
    assert tell(program, "take 16") == "took 16"
    assert tell(program, "take 40") == REFUSED
    assert tell(program, "work 7") == "worked 7"
    account = pool.account("red/job")
    with urllib.request.urlopen(f"{where}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    ours = [line for line in lines if 'tenant="red"' in line and 'group="job"' in line]
    values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in ours}
    assert values["gpupool_tenant_memory_limit_bytes"] == 40 * MIB
    assert values["gpupool_tenant_memory_used_bytes"] == account["memory_used_bytes"]
    assert values["gpupool_tenant_launches_total"] == account["launches"]
    end(program)


# What an operator changes --------------------------------------------------------------------


def test_memory_grows_and_shrinks_while_a_program_runs(pool: Pool, transport: str) -> None:
    program = pool.start(transport, **RED, GPUPOOL_GROUP="g", GPUPOOL_MEMORY="32MiB")
    assert tell(program, "take 40") == REFUSED
    grown = pool.cli("session", "set", "red/g", "--memory", "60MiB")
    assert grown.returncode == 0, grown.explain()
    assert info(program)[1] == 60 * MIB
    assert tell(program, "take 40") == "took 40"
    refused = pool.cli("session", "set", "red/g", "--memory", "36MiB")
    assert refused.returncode != 0
    used = pool.account("red/g")["memory_used_bytes"]
    assert f"{used // MIB}MiB" in refused.stderr and "36MiB" in refused.stderr, refused.stderr
    assert info(program)[1] == 60 * MIB
    over = pool.cli("session", "set", "red/g", "--memory", "65MiB")
    assert over.returncode != 0 and "64MiB" in over.stderr, over.explain()
    assert tell(program, "give") == "gave"
    shrunk = pool.cli("session", "set", "red/g", "--memory", "36MiB")
    assert shrunk.returncode == 0, shrunk.explain()
    assert info(program)[1] == 36 * MIB
    assert tell(program, "take 40") == REFUSED
    assert tell(program, "take 30") == "took 30"
    assert tell(program, "work 4") == "worked 4"
    end(program)


def test_a_shrink_that_waits_until_it_fits(pool: Pool) -> None:
    program = pool.start("shm", **RED, GPUPOOL_GROUP="g", GPUPOOL_MEMORY="60MiB")
    assert tell(program, "take 40") == "took 40"
    words = ("session", "set", "red/g", "--memory", "20MiB", "--wait", f"{PATIENCE:g}")
    with subprocess.Popen(pool.command(*words), env=operator(), stderr=subprocess.PIPE) as waiting:
        assert info(program)[1] == 60 * MIB
        assert waiting.poll() is None
        assert tell(program, "give") == "gave"
        _, said = waiting.communicate(timeout=PATIENCE)
        assert waiting.returncode == 0, said.decode()
    assert info(program)[1] == 20 * MIB
    end(program)


def test_a_shrink_whose_wait_is_over(pool: Pool) -> None:
    program = pool.start("shm", **RED, GPUPOOL_GROUP="g", GPUPOOL_MEMORY="60MiB")
    assert tell(program, "take 40") == "took 40"
    late = pool.cli("session", "set", "red/g", "--memory", "20MiB", "--wait", "0.2")
    assert late.returncode != 0 and "20MiB" in late.stderr, late.explain()
    assert info(program)[1] == 60 * MIB
    end(program)


def test_a_tenants_quota_changes_what_its_program_sees(pool: Pool) -> None:
    program = pool.start("shm", **BLUE)
    assert info(program)[1] == 32 * MIB
    changed = pool.cli("session", "set", "blue", "--memory", "48MiB")
    assert changed.returncode == 0, changed.explain()
    assert info(program)[1] == 48 * MIB
    assert tell(program, "take 44") == "took 44"
    end(program)


def test_changes_outlive_the_server(pool: Pool) -> None:
    program = pool.start("shm", **RED, GPUPOOL_GROUP="g", GPUPOOL_MEMORY="32MiB")
    assert pool.cli("session", "set", "red/g", "--memory", "48MiB").returncode == 0
    assert pool.cli("gpu", "set", "0", "--policy", "fixed").returncode == 0
    pool.server.kill()
    assert tell(program, "take 40") == "took 40"
    assert tell(program, "take 16") == REFUSED
    pool.server.start()
    account = pool.account("red/g")
    assert account["memory_limit_bytes"] == info(program)[1] == 48 * MIB
    assert account["memory_used_bytes"] >= 40 * MIB
    assert pool.ask(do="status")["gpus"][0]["policy"] == "fixed"
    assert tell(program, "work 3") == "worked 3"
    end(program)


#: What red (weight 4, ceiling 80 %) and blue (weight 1, no ceiling) may then have at most.
ENTITLED = [
    ("average", 50, 50),
    ("preemptive", 1000, 1000),
    ("weighted", 800, 200),
    ("fixed", 200, 50),
    ("weak", 1000, 1000),
    ("native", 1000, 1000),
    ("share", 800, 1000),
]


def test_policies_change_while_programs_run(pool: Pool, transport: str) -> None:
    red, blue = pool.start(transport, **RED), pool.start(transport, **BLUE)
    for number, (policy, of_red, of_blue) in enumerate(ENTITLED, start=1):
        changed = pool.cli("gpu", "set", "0", "--policy", policy)
        assert changed.returncode == 0, changed.explain()
        red.say("work 5")
        blue.say("work 5")
        assert (red.line(), blue.line()) == (f"worked {5 * number}",) * 2
        accounts = pool.account("red"), pool.account("blue")
        assert [each["entitled_permille"] for each in accounts] == [of_red, of_blue], policy
    end(red)
    end(blue)


def test_limits_of_compute_change_while_a_program_runs(pool: Pool) -> None:
    program = pool.start("shm", **RED)
    assert pool.account("red")["entitled_permille"] == 800
    assert pool.cli("session", "set", "red", "--share", "20%", "--ceiling", "30%").returncode == 0
    account = pool.account("red")
    assert (
        account["share_permille"],
        account["ceiling_permille"],
        account["entitled_permille"],
    ) == (200, 300, 300)
    assert pool.cli("gpu", "set", "0", "--policy", "3", "--max-inst", "10").returncode == 0
    assert pool.account("red")["entitled_permille"] == 400
    assert pool.cli("session", "set", "red", "--weight", "2").returncode == 0
    assert pool.account("red")["entitled_permille"] == 200
    assert tell(program, "work 50") == "worked 50"
    end(program)


# Shares ------------------------------------------------------------------------------------


def test_a_fixed_share_is_accounted(pool: Pool, transport: str) -> None:
    """Work that a fixed share holds back waits, and goes on."""
    assert pool.cli("gpu", "set", "0", "--policy", "fixed").returncode == 0
    program = pool.start(transport, **BLUE)  # 1 of 20 slices
    before: dict[str, Any] = pool.account("blue")
    done = 0

    def held_back() -> bool:
        nonlocal done
        done += 4000
        assert tell(program, "work 4000") == f"worked {done}"
        now = pool.account("blue")
        return bool(now["waited_ns"] > before["waited_ns"] and now["turns"] > before["turns"])

    wait_until(held_back, "a fixed share was held back")
    after = pool.account("blue")
    assert after["busy_ns"] > before["busy_ns"]
    assert after["launches"] == before["launches"] + done
    end(program)


@pytest.mark.real_gpu
@pytest.mark.parametrize("capture", ["failed", "open"])
def test_a_capture_keeps_no_turn(
    make_server: MakeServer, tmp_path: Path, toolchain: Toolchain, talk: StartTalk, capture: str
) -> None:
    """One that could not begin, or is left open on another stream, hid that work was over:
    the GPU stayed that tenant's until the others lost patience, two seconds each time."""
    pool = Pool(configured(make_server, tmp_path), toolchain, talk)
    with worker_of(pool.server, token="token-of-red") as worker:
        captured = worker.stream() if capture == "open" else handle(KIND_STREAM, 99)
        stream, target = worker.stream(), worker.allocate(4096)
        begun = worker.result("cuStreamBeginCapture_v2", struct.pack("<QI4x", captured, 2))
        assert (begun == 0) == (capture == "open")
        before = pool.account("red")["turns"]
        body = struct.pack("<QB7xQQ", target, 1, 4096, stream)
        assert worker.result("cuMemsetD8Async", body) == 0
        assert worker.synchronize(stream) == 0
        assert pool.account("red")["turns"] > before

        def idle() -> bool:
            first = pool.account("red")["busy_ns"]
            return bool(pool.account("red")["busy_ns"] == first)

        wait_until(idle, "the work was over")


def come_to_the_gate(pool: Pool, program: Talk) -> None:
    """Give it work, and see that its worker has taken in the first of it."""
    before = pool.session_of(program)["calls"]
    program.say("work 10")
    wait_until(lambda: bool(pool.session_of(program)["calls"] > before), "its work had come")


def test_weight_zero_computes_nothing(pool: Pool, transport: str) -> None:
    assert pool.cli("gpu", "set", "0", "--policy", "weighted").returncode == 0
    red = pool.start(transport, **RED)
    none = pool.start(transport, GPUPOOL_WEIGHT="0", GPUPOOL_GROUP="none")
    worker = pool.worker_of(none)
    come_to_the_gate(pool, none)
    assert tell(red, "work 100") == "worked 100"
    account = pool.account("default/none")
    assert (account["entitled_permille"], account["launches"], account["turns"]) == (0, 0, 0)
    assert account["busy_ns"] == 0
    assert none.process.poll() is None
    none.process.kill()
    wait_until(lambda: not alive(worker), "the worker of a killed client before the gate ended")
    wait_until(lambda: pool.account("default/none") == {}, "it was off the board")
    assert tell(red, "work 1") == "worked 101"
    end(red)


def test_a_weight_that_changes_nothing_is_said_once(pool: Pool) -> None:
    """The policy of a GPU has no weights unless an operator sets one that has."""
    result = pool.run("shm", "driver_memory", GPUPOOL_WEIGHT="3")
    said = [line for line in result.own_lines() if "a weight of 3 changes nothing" in line]
    assert (result.returncode, len(said)) == (0, 1), result.explain()
    assert pool.run("shm", "driver_memory").own_lines() == []


def test_weight_zero_works_once_it_is_given_weight(pool: Pool) -> None:
    assert pool.cli("gpu", "set", "0", "--policy", "weighted").returncode == 0
    program = pool.start("shm", GPUPOOL_WEIGHT="0", GPUPOOL_GROUP="none")
    come_to_the_gate(pool, program)
    assert pool.account("default/none")["launches"] == 0
    assert pool.cli("session", "set", "default/none", "--weight", "1").returncode == 0
    assert program.line() == "worked 10"
    account = pool.account("default/none")
    assert account["waited_ns"] > 0 and account["launches"] == 10
    end(program)
