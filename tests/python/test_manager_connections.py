"""Strangers at the REST API: connections that say nothing, and tokens that are none."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gpupool_manager.attempts import MOST_ADDRESSES, Attempts
from gpupool_manager.connections import RESERVED
from gpupool_manager.ids import Ids
from gpupool_manager.tokens import new_secret
from harness import wait_until
from manager_rest import bearer
from manager_world import Clock
from pool_process import Manager

pytestmark = pytest.mark.timeout(120)

PATIENCE = 30.0


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    process = Manager(folder)
    yield process
    process.close()


def connect(manager: Manager, source: str = "127.0.0.1") -> socket.socket:
    url = httpx.URL(manager.url)
    assert url.port is not None
    return socket.create_connection((url.host, url.port), PATIENCE, (source, 0))


def is_closed(sock: socket.socket, seconds: float = PATIENCE) -> bool:
    """Whether the other side has hung up, at the latest after so long."""
    sock.settimeout(seconds)
    try:
        return sock.recv(4096) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def health(manager: Manager, source: str = "127.0.0.1") -> int:
    with httpx.Client(
        transport=httpx.HTTPTransport(local_address=source), timeout=PATIENCE
    ) as client:
        return client.get(f"{manager.url}/v1/health").status_code


def test_idle_connections_do_not_close_the_api(manager: Manager) -> None:
    """1,200 of them closed it for good where there were 1,024 descriptors."""
    few = 200
    manager.limits = {resource.RLIMIT_NOFILE: (few, few)}
    manager.start("--request-seconds", "3", "--connections-each", "8192")
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(manager)) for _ in range(few + 50)]
        assert is_closed(idle[-1]), "there is no end to them"
        assert all(map(is_closed, idle)), "they may stay for ever"
    assert health(manager) == 200


def test_descriptors_that_are_gone_come_back(manager: Manager) -> None:
    """What else takes them all must not end accepting, either."""
    manager.start()
    pid = manager.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    with connect(manager) as waiting:
        waiting.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(
            lambda: "connections cannot be accepted" in manager.log.read_text(), "it was said"
        )
        waiting.settimeout(0.5)
        with pytest.raises(TimeoutError):
            waiting.recv(1)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        waiting.settimeout(PATIENCE)
        assert waiting.recv(12) == b"HTTP/1.1 200"
    assert health(manager) == 200


def test_nobody_is_a_proxy(manager: Manager) -> None:
    """What a header says of scheme and address is not believed, on the loopback either."""
    manager.start("--open-metrics")
    with httpx.Client(base_url=f"{manager.url}/v1", trust_env=False, timeout=PATIENCE) as client:
        rebound = {"Host": "evil.example", "X-Forwarded-Proto": "https"}
        assert client.get("/metrics").status_code == 200
        assert client.get("/metrics", headers=rebound).status_code == 401
        answers = [
            client.get(
                "/leases", headers={"X-Forwarded-For": f"10.0.0.{n}", **bearer(new_secret("admin"))}
            ).status_code
            for n in range(60)
        ]
    assert 429 in answers


def test_one_address_leaves_room_for_others(manager: Manager) -> None:
    manager.start("--connections-each", "5")
    with contextlib.ExitStack() as stack:
        mine = [stack.enter_context(connect(manager, "127.0.0.2")) for _ in range(5)]
        assert is_closed(stack.enter_context(connect(manager, "127.0.0.2")))
        assert health(manager) == 200
        assert not is_closed(mine[0], 0.2)
    deadline = time.monotonic() + PATIENCE
    while True:  # a place is given back as its connection ends
        with contextlib.suppress(httpx.TransportError):
            assert health(manager, "127.0.0.2") == 200
            break
        assert time.monotonic() < deadline


def test_a_crowd_of_addresses_leaves_room_for_another(manager: Manager) -> None:
    """Who had all places, by as many addresses as it takes, had the API for itself."""
    most = 16
    manager.limits = {resource.RLIMIT_NOFILE: (RESERVED + most, RESERVED + most)}
    manager.start("--connections-each", "8")
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connect(manager, f"127.0.0.{2 + n % 2}")) for n in range(most)]
        assert health(manager, "127.0.0.9") == 200
        assert is_closed(crowd[0])
        assert not is_closed(crowd[2], 0.2)


def test_what_is_no_request_fills_no_log(manager: Manager) -> None:
    """Each was a line, in no form of ours."""
    manager.start()
    for _ in range(30):
        with connect(manager) as stranger:
            stranger.sendall(b"\x16\x03\x01\r\n\r\n")
            assert stranger.recv(12) == b"HTTP/1.1 400"
    assert manager.log.read_text().count("Invalid HTTP request received") < 5
    assert "a request was refused" in manager.log.read_text()


HEAD = b"POST /v1/leases HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /v1/he",
        HEAD,
        HEAD + b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
        b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/he",
    ],
    ids=["nothing", "a part of a line", "a part of a head", "a part of a body", "the next one"],
)
def test_a_request_that_does_not_come_is_not_waited_for(manager: Manager, begun: bytes) -> None:
    manager.start("--request-seconds", "0.5")
    with connect(manager) as slow:
        slow.settimeout(PATIENCE)
        slow.sendall(begun)
        with contextlib.suppress(ConnectionError):
            # One byte now and then does not make it better: all of it must be there in time.
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                if begun and b"health" not in begun:
                    slow.sendall(b"x")
                slow.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    if slow.recv(4096) == b"":
                        return
            raise AssertionError("it may stay for ever")


def test_wrong_tokens_slow_their_address_down_and_nobody_else(manager: Manager) -> None:
    manager.start()
    url = f"{manager.url}/v1/tenants"
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        first = last = client.get(url, headers=bearer(new_secret()))
        for _ in range(400):  # one a second is forgiven meanwhile
            if last.status_code == 429:
                break
            last = client.get(url, headers=bearer(new_secret()))
        assert [first.status_code, last.status_code] == [401, 429]
        assert last.json()["type"] == "urn:gpupool:problem:too-many"
        assert int(last.headers["retry-after"]) > 0
        assert client.get(f"{manager.url}/v1/health").status_code == 200  # no attempt
        # Who has a token is not shut out by a neighbour of the same address.
        assert client.get(url, headers=bearer(manager.admin)).status_code == 200
    assert health(manager, "127.0.0.2") == 200


def test_attempts_come_back_with_time_and_take_no_room() -> None:
    clock = Clock(1000.0)
    attempts = Attempts(burst=3, seconds=1.0, clock=clock)
    for _ in range(3):
        assert not attempts.too_many("a")
        attempts.count("a")
    assert attempts.too_many("a") and not attempts.too_many("b")
    clock.now += 1.0
    assert not attempts.too_many("a")
    attempts.count("a")
    assert attempts.too_many("a")
    clock.now += 100.0
    for _ in range(3):
        assert not attempts.too_many("a")
        attempts.count("a")
    for number in range(2 * MOST_ADDRESSES):
        attempts.count(str(number))
    assert len(attempts) == MOST_ADDRESSES


def test_names_rise_and_cannot_be_guessed() -> None:
    """20 bits of chance beside the time were a million tries."""
    ids = Ids()
    made = [ids.make("lease", 1_800_000_000.0 - number) for number in range(1000)]
    assert made == sorted(made) and len(set(made)) == 1000
    assert all(len(name) <= 32 for name in made)
    tails = {name[-11:] for name in made}  # 55 of the 56 bits
    assert len(tails) == 1000 and len({tail[0] for tail in tails}) == 32
    assert Ids(made).make("lease", 0.0) > made[-1]
