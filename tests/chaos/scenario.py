"""A pool of three hosts under load, and faults from a seed.

    unshare --net python tests/chaos/scenario.py --programs FILE ... [--seed N] [--faults N]

Tenants ask for leases, run programs on them, change their limits or the number of their GPUs
meanwhile, now and then twice at once, and give them back, all the time. Meanwhile hosts are cut
off, servers, workers, clients and the manager that leads are killed, and servers and that manager
hang. In the end nothing may be lost: the exit code is 1, and the last lines say why, unless

* every program ended by itself or by its signal, with a right result or a CUDA error,
* every lease that was granted is known with the same grants, but for those that it got or gave back
  since, and none was made twice,
* at no instant was a tenant over its quota or a GPU given away more than once, whatever leases
  were changed to,
* all GPUs are free when all is over.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent.parent
for folder in (ROOT / "pool", ROOT / "server", ROOT / "tests" / "e2e"):
    sys.path.insert(0, str(folder))

from gpupool_common.ask import with_key  # noqa: E402
from gpupool_common.quantities import MEBIBYTE as MIB  # noqa: E402
from harness import PoolServer, client_environment  # noqa: E402
from manager_databases import Postgres, find_binaries  # noqa: E402
from managers import TwoManagers, until_another_leads  # noqa: E402
from network import Host, Network  # noqa: E402
from what_holds import (  # noqa: E402
    PATIENCE,
    QUOTAS,
    Lease,
    Record,
    check_free,
    check_history,
)

HOSTS = 3
GPUS = 2  # of each host
#: A lease that nobody gives back ends after so long.
TTL = 10


class Pool:
    """Two managers on the bridge, their PostgreSQL, and a server in every host."""

    def __init__(self, postgres: Postgres) -> None:
        self.network = Network()
        self.manager = TwoManagers(postgres, self.network.address)
        self.servers: list[PoolServer] = []
        self.tokens: dict[str, str] = {}

    def start(self) -> None:
        self.network.start(HOSTS)
        self.manager.begin()
        self.tokens = {name: self.manager.tenant(name, **quota) for name, quota in QUOTAS.items()}
        for host in self.network.hosts:
            self.servers.append(self._server(host))
            self.servers[-1].start()
        self.manager.wait_for(*(f"host{number}" for number in range(HOSTS)))

    def _server(self, host: Host) -> PoolServer:
        server = self.manager.server(f"host{host.number}")
        server.settings["soft-gpus"] = str(GPUS)
        server.settings["pool"] = self.manager.joins
        server.prefix = host.prefix
        server.url = f"tcp://{host.address}:7700"
        server.settings["data-listen"] = f"tcp://{host.address}:*"
        server.settings["advertise"] = server.url
        return server

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.manager.close()
        self.network.close()


class Tenant:
    """A tenant's load: ask, run, give back; again and again."""

    def __init__(self, pool: Pool, record: Record, name: str, seed: str, programs: list[Path]):
        self.pool = pool
        self.record = record
        self.name = name
        self.random = random.Random(seed)
        self.programs = programs
        self.running: subprocess.Popen[str] | None = None
        self.ended = threading.Event()
        self._number = itertools.count()
        self._seed = seed

    def live(self) -> None:
        while not self.ended.is_set():
            try:
                self._once()
            except Exception as error:  # one thread's failure is the scenario's
                self.record.complain(f"{self._seed}: {type(error).__name__}: {error}")
                return

    def _once(self) -> None:
        lease = self._ask()
        if lease is None:
            time.sleep(self.random.uniform(0.05, 0.3))
            return
        with self.record.lock:
            self.record.leases[lease["id"]] = lease
        self._run(lease)
        if self.random.random() < 0.4:  # a second round, on more or fewer
            self._change(lease["id"], {"gpus": 3 - len(lease["grants"])})
            self._run(lease)
        if self.random.random() < 0.1:
            self.record.count("lease left to expire")
        else:
            done = self._retry("POST", f"/leases/{lease['id']}/release")
            # It may have ended by itself: 409 says so.
            if not done.is_success and done.status_code != 409:
                raise RuntimeError(f"release: {done.status_code} {done.text}")

    # The manager may be away: whoever asks again under the same key is not served twice.
    def _retry(self, method: str, path: str, body: Any = None) -> httpx.Response:
        key = f"{self._seed}-{next(self._number)}"
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = self.pool.manager.ask(
                    method, path, body, self.pool.tokens[self.name], **{"Idempotency-Key": key}
                )
                if answer.status_code != 503:
                    return answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"{method} {path} was not answered")
            self.record.count("asked again")
            time.sleep(0.2)

    def _ask(self) -> Lease | None:
        body = {
            "gpus": self.random.choice((1, 1, 1, 2)),
            "memory_bytes": self.random.choice((32, 64, 96)) * MIB,
            "share_permille": self.random.choice((200, 500, 800)),
            "policy": self.random.choice(("binpack", "spread")),
            "wait_seconds": self.random.choice((0, 5)),
            "ttl_seconds": TTL,
            "label": f"{self._seed}-{next(self._number)}",
        }
        answer = self._retry("POST", "/leases", body)
        if answer.status_code in (403, 409):
            self.record.count(f"refused: {answer.json()['title']}")
            return None
        if not answer.is_success:
            raise RuntimeError(f"POST /leases: {answer.status_code} {answer.text}")
        lease: Lease = answer.json()
        while lease["state"] == "queued":
            time.sleep(0.1)
            lease = self._retry("GET", f"/leases/{lease['id']}").json()
        if lease["state"] != "active":
            self.record.count(f"queued, then {lease['state']}")
            return None
        if lease["token"] is None:  # the answer to a repeated request
            lease = self._retry("GET", f"/leases/{lease['id']}").json()
        return lease if lease["state"] == "active" else None

    def _run(self, lease: Lease) -> None:
        servers = ",".join(
            with_key(server["address"], server["key"] or "") for server in lease["servers"]
        )
        env = client_environment(self.pool.servers[0].home, servers, lease["token"], "zmq")
        program = self.random.choice(self.programs)
        self.running = subprocess.Popen(
            [str(program)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        changes = [self._changing(lease) for _ in range(self.random.choice((0, 1, 2)))]
        try:
            said, errors = self.running.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.running.kill()
            said, errors = self.running.communicate()
            self.record.complain(
                f"{program.name} hung on {lease['id']}: {said[-300:]}{errors[-300:]}"
            )
            return
        for change in changes:
            change.join(PATIENCE)
        self._judge(program, self.running.returncode, said, errors)

    def _changing(self, lease: Lease) -> threading.Thread:
        """Other limits, or another number of GPUs, at once with what else there is of it."""
        change = {
            "memory_bytes": self.random.choice((16, 48, 80, 128)) * MIB,
            "share_permille": self.random.choice((100, 300, 600, 900)),
        }
        if self.random.random() < 0.5:
            change = {"gpus": self.random.choice((1, 2))}
        thread = threading.Thread(target=self._change, args=(lease["id"], change))
        thread.start()
        return thread

    def _change(self, lease: str, change: dict[str, int]) -> None:
        answer = self._retry("PATCH", f"/leases/{lease}", change)
        what = "number" if "gpus" in change else "limits"
        said = {200: f"{what} changed", 202: f"{what} to be changed"}.get(answer.status_code)
        if said is None and answer.status_code not in (403, 409):
            self.record.complain(f"PATCH {lease}: {answer.status_code} {answer.text}")
        self.record.count(said or f"no other {what}: {answer.json()['title']}")

    def _judge(self, program: Path, code: int, said: str, errors: str) -> None:
        if code == 0 and "PASS" in said:
            self.record.count("right result")
        elif code == -signal.SIGKILL:
            self.record.count("killed")
        elif code > 0 and ("CUDA_ERROR_" in said + errors or "cudaError" in said + errors):
            self.record.count("CUDA error")
        else:
            self.record.complain(f"{program.name} ended with {code}: {said[-300:]}{errors[-300:]}")


class Faults:
    """One fault after the other, chosen by a seed."""

    def __init__(self, pool: Pool, record: Record, tenants: list[Tenant], seed: int) -> None:
        self.pool = pool
        self.record = record
        self.tenants = tenants
        self.random = random.Random(seed)

    def strike(self, number: int) -> None:
        kinds: dict[str, Callable[[], None]] = {
            "a worker was killed": self._kill_worker,
            "a client was killed": self._kill_client,
            "a server was killed": lambda: self._restart(self._server(), signal.SIGKILL),
            "a server was stopped": lambda: self._restart(self._server(), signal.SIGTERM),
            "a server hung": self._hang,
            "a host was cut off": self._cut,
            "the leading manager was killed": lambda: self._fail_over(signal.SIGKILL),
            "the leading manager was stopped": lambda: self._fail_over(signal.SIGTERM),
            "the leading manager hung": lambda: self._fail_over(signal.SIGSTOP),
        }
        name = self.random.choice(list(kinds))
        print(f"fault {number}: {name}", flush=True)
        kinds[name]()
        self.record.count(name)
        time.sleep(self.random.uniform(0.1, 0.8))

    def _server(self) -> PoolServer:
        return self.random.choice(self.pool.servers)

    def _kill_worker(self) -> None:
        pids = sorted(pid for server in self.pool.servers for pid in server.worker_pids())
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(pids), signal.SIGKILL)

    def _kill_client(self) -> None:
        running = self.random.choice(self.tenants).running
        if running is not None and running.poll() is None:
            running.kill()

    def _fail_over(self, how: signal.Signals) -> None:
        """Another manager leads; this one comes back and stands by."""
        gone = self.pool.manager.strike(how)
        took = until_another_leads(self.pool.manager, gone)
        self.record.longest = max(self.record.longest, took)
        if how == signal.SIGSTOP:
            gone.wake()
        gone.start()

    def _restart(self, what: PoolServer, how: signal.Signals) -> None:
        what.kill(how)
        time.sleep(self.random.uniform(0.0, 1.0))
        what.start()

    def _hang(self) -> None:
        server = self._server()
        server.signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.5, 2.0))
        server.signal(signal.SIGCONT)

    def _cut(self) -> None:
        host = self.random.choice(self.pool.network.hosts)
        host.cut()
        # Long enough, now and then, for the manager to give the host up.
        time.sleep(self.random.choice((0.3, 1.0, 2.0, 5.0)))
        host.mend()


def run(pool: Pool, record: Record, programs: list[Path], seed: int, faults: int) -> None:
    tenants = [
        Tenant(pool, record, name, f"{name}-{seed}-{number}", programs)
        for name in QUOTAS
        for number in range(2)
    ]
    threads = [threading.Thread(target=tenant.live) for tenant in tenants]
    for thread in threads:
        thread.start()
    try:
        injector = Faults(pool, record, tenants, seed)
        for number in range(faults):
            injector.strike(number)
    finally:
        for tenant in tenants:
            tenant.ended.set()
        for thread in threads:
            thread.join(2 * PATIENCE)
    if any(thread.is_alive() for thread in threads):
        record.complain("a tenant's thread did not end")
    check_free(pool, record)
    check_history(pool, record)


def main() -> int:
    parser = argparse.ArgumentParser(description="a pool of three hosts, and faults from a seed")
    parser.add_argument("--programs", nargs="+", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--logs", type=Path, help="a folder for the logs of manager and servers")
    given = parser.parse_args()
    binaries = find_binaries()
    if binaries is None:
        parser.error("two managers need a PostgreSQL: install the package postgresql")
    postgres, record = Postgres(binaries), Record()
    postgres.prepare()
    pool = Pool(postgres)
    try:
        pool.start()
        run(pool, record, given.programs, given.seed, given.faults)
    finally:
        if given.logs:
            given.logs.mkdir(parents=True, exist_ok=True)
            for number, manager in enumerate(pool.manager.both):
                (given.logs / f"manager{number}.log").write_bytes(manager.log.read_bytes())
            for number, server in enumerate(pool.servers):
                (given.logs / f"host{number}.log").write_bytes(server.log.read_bytes())
        pool.close()
        postgres.remove()
    print(f"another manager led within {record.longest:.1f} s, at most")
    print(json.dumps(dict(sorted(record.counts.items())), indent=1))
    for line in record.wrong[:20]:
        print(f"WRONG: {line}")
    return 1 if record.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
