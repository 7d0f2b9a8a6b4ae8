"""The pool's commands against a manager that answers badly: garbage, cuts, delays, refusals."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from gpupool.cli import make_app
from gpupool_common.paths import Home
from harness import PATIENCE
from manager_node import FakeServer
from pool_process import gpupool, start_gpupool

pytestmark = pytest.mark.timeout(60)

CUT = object()
LEASE: dict[str, Any] = {
    "id": "lease-1",
    "state": "active",
    "ttl_seconds": 60,
    "reason": "",
    "position": None,
    "token": "gpl_1",
    "servers": [{"node": "a", "address": "tcp://a:7700", "key": None, "devices": [0]}],
}
QUEUED = {**LEASE, "state": "queued", "position": 2, "reason": "no room", "token": None}


@pytest.fixture(autouse=True, scope="module")
def _front_end() -> Iterator[None]:
    """The server that leases name answers: who has a lease looks before the program starts."""
    server = FakeServer()
    LEASE["servers"][0]["address"] = server.url
    yield
    server.close()


class Handler(BaseHTTPRequestHandler):
    """Gives the answers it was told to, the last one for ever."""

    server: Stub

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        path = self.path.partition("?")[0].removeprefix("/v1")
        request = (self.command, path, self.headers.get("Idempotency-Key"), body)
        self.server.requests.append(request)
        found = self.server.answer(self.command, path)
        if found is CUT:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, content = found
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if 300 <= status < 400:
            self.send_header("Location", "http://elsewhere.invalid/")
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Stub(ThreadingHTTPServer):
    """What listens where a manager should."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.answers: dict[tuple[str, str], list[Any]] = {}
        self.requests: list[tuple[str, str, str | None, bytes]] = []

    def tell(self, method: str, path: str, *answers: Any) -> None:
        self.answers[method, path] = list(answers)

    def answer(self, method: str, path: str) -> Any:
        found = self.answers.get((method, path))
        if not found:
            return (404, problem(404, "not-found", "there is no such thing"))
        return found[0] if len(found) == 1 else found.pop(0)

    def asked(self, method: str, path: str) -> int:
        return sum(1 for request in self.requests if request[:2] == (method, path))


def problem(status: int, code: str, detail: str, **more: Any) -> dict[str, Any]:
    return {"type": f"urn:gpupool:problem:{code}", "status": status, "detail": detail, **more}


@pytest.fixture
def stub() -> Iterator[Stub]:
    found = Stub()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


Done = subprocess.CompletedProcess[str]
Do = Callable[..., Done]


@pytest.fixture
def env(stub: Stub, home: Home) -> dict[str, str]:
    return {
        "GPUPOOL_POOL": stub.url,
        "GPUPOOL_POOL_TOKEN": "gpp_secret",
        "GPUPOOL_HOME": str(home.root),
    }


@pytest.fixture
def do(env: dict[str, str]) -> Do:
    """A command in this process; what starts programs needs one without other threads."""

    def run(*args: str) -> Done:
        if args[0] == "run":
            return gpupool(*args, **env)
        done = CliRunner().invoke(make_app(), list(args), env=env)
        return Done(args, done.exit_code, done.stdout, done.stderr)

    return run


def one_line(done: Done, code: int) -> str:
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.count("\n") == 1, done.stderr
    assert "gpp_secret" not in done.stderr
    return done.stderr


# Any command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        ((500, b"<html>oops</html>"), 1, "answered 500 Internal Server Error without a reason"),
        ((500, problem(500, "failed", "its log says why")), 1, "said no: its log says why"),
        ((502, b""), 1, "answered 502 Bad Gateway without a reason"),
        ((200, b"garbage"), 1, "is it a gpupool-manager"),
        ((200, b"\xff\xfe"), 1, "is it a gpupool-manager"),
        ((200, []), 1, "answered no JSON object"),
        ((200, {"items": 5, "next": None}), 1, "answered /nodes without a list"),
        ((200, {"items": [], "next": "x"}), 1, "the list /nodes does not go on"),
        ((200, {"items": [{}], "next": None}), 1, "has no 'name'"),
        ((200, {"items": [7], "next": None}), 1, "has no 'name'"),
        ((302, b""), 1, "answered 302 Found without a reason"),
        ((401, problem(401, "bad-token", "the token is unknown")), 77, "refused the token"),
        ((403, problem(403, "forbidden", "this needs\x1b[2J 'admin'")), 77, "needs [2J 'admin'"),
        ((403, {"detail": ["x"]}), 1, "answered 403 Forbidden without a reason"),
        ((409, problem(409, "in-use", "it has 2 leases")), 1, "said no: it has 2 leases"),
        ((422, problem(422, "bad-request", "query.x: no")), 2, "cannot take this: query.x: no"),
        ((503, problem(503, "unavailable", "not now")), 75, "said no: not now"),
        (CUT, 75, "it hung up"),
    ],
)
def test_every_bad_answer_is_one_line(
    stub: Stub, do: Do, answer: Any, code: int, text: str
) -> None:
    stub.tell("GET", "/nodes", answer)
    assert text in one_line(do("node", "list"), code)


def test_an_answer_without_an_end_is_given_up(
    stub: Stub, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.pool_client.MAX_ANSWER", 1000)
    stub.tell("GET", "/nodes", (200, b" " * 2000))
    assert "answered more than 1000 bytes" in one_line(do("node", "list"), 1)


def test_a_silent_manager_is_given_up(do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool.pool_client.ANSWER_SECONDS", 0.2)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert "no answer within 0.2 s" in one_line(do("node", "list", "--pool", url), 75)


def test_someone_elses_change_is_not_overwritten(stub: Stub, do: Do) -> None:
    stub.tell("GET", "/tenants/red/quota", (200, {"gpus": 1}))
    stub.tell("PUT", "/tenants/red/quota", (412, problem(412, "changed", "it is at 3 now")))
    assert "it is at 3 now" in one_line(do("quota", "set", "red", "--gpus", "2"), 1)


def test_events_without_json(stub: Stub, do: Do) -> None:
    stub.tell("GET", "/events", (200, b": hello\n\nevent: x\ndata: }\n\n"))
    assert "sent an event that is not JSON" in one_line(do("events"), 1)


def test_an_event_without_end(stub: Stub, do: Do) -> None:
    stub.tell("GET", "/events", (200, b"data: " + b"x" * (2 << 20)))
    assert "sent an event of more than 1048576 bytes" in one_line(do("events"), 1)


# gpupool run --------------------------------------------------------------------------------


def test_a_lost_answer_does_not_lose_a_lease(stub: Stub, do: Do) -> None:
    """The request is repeated under one key, so the manager grants it once."""
    busy = (503, problem(503, "unavailable", "not now"))
    stub.tell("POST", "/leases", CUT, busy, (201, LEASE))
    stub.tell("POST", "/leases/lease-1/release", (200, LEASE))
    assert do("run", "--", "true").returncode == 0
    keys = {key for method, path, key, _ in stub.requests if path == "/leases"}
    assert len(keys) == 1 and None not in keys
    assert stub.asked("POST", "/leases") == 3
    assert stub.asked("POST", "/leases/lease-1/release") == 1


def test_a_refusal_is_not_repeated(stub: Stub, do: Do) -> None:
    stub.tell("POST", "/leases", (503, problem(503, "unavailable", "10 requests wait already")))
    assert "10 requests wait" in one_line(do("run", "--", "true"), 75)
    assert stub.asked("POST", "/leases") == 1


def test_a_manager_that_is_away_while_one_waits(stub: Stub, do: Do) -> None:
    stub.tell("POST", "/leases", (202, QUEUED))
    stub.tell("GET", "/leases/lease-1", CUT, (503, problem(503, "x", "x")), (200, LEASE))
    stub.tell("POST", "/leases/lease-1/release", (200, LEASE))
    done = do("run", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    waiting = "gpupool: waiting at position 2 in the queue: no room"
    away = "gpupool: the pool's manager does not answer; asking again"
    assert done.stderr.splitlines() == [waiting, away]


def test_forever_is_longer_than_a_queue_waits(stub: Stub, do: Do) -> None:
    late = {**LEASE, "state": "timed-out", "reason": "no room"}
    stub.tell("POST", "/leases", (202, QUEUED), (201, LEASE))
    stub.tell("GET", "/leases/lease-1", (200, late))
    stub.tell("POST", "/leases/lease-1/release", (200, LEASE))
    assert do("run", "--", "true").returncode == 0
    assert stub.asked("POST", "/leases") == 2


@pytest.mark.parametrize(
    ("state", "text"),
    [("timed-out", "no GPUs within the time to wait"), ("cancelled", "it is cancelled")],
)
def test_a_queue_that_gives_nothing(stub: Stub, do: Do, state: str, text: str) -> None:
    stub.tell("POST", "/leases", (202, QUEUED))
    stub.tell("GET", "/leases/lease-1", (200, {**LEASE, "state": state, "reason": "no room"}))
    done = do("run", "--wait", "5", "--", "true")
    assert done.returncode == 75
    assert done.stderr.splitlines()[-1].endswith(f"was not granted: {text}: no room")


@pytest.mark.parametrize(
    ("lease", "text", "released"),
    [
        ({}, "a lease without 'id'", 0),
        ({**LEASE, "id": 5}, "a lease without 'id'", 0),
        ({"id": "lease-1"}, "a lease without 'state'", 1),
        ({**LEASE, "servers": []}, "names no server to go to", 1),
        ({**LEASE, "token": None}, "names no server to go to", 1),
        ({**LEASE, "servers": [{}]}, "names a server without an address", 1),
        ({**LEASE, "servers": ["a"]}, "names a server without an address", 1),
    ],
)
def test_a_lease_that_is_of_no_use_is_given_back(
    stub: Stub, do: Do, lease: Any, text: str, released: int
) -> None:
    stub.tell("POST", "/leases", (201, lease))
    stub.tell("POST", "/leases/lease-1/release", (200, LEASE))
    assert text in one_line(do("run", "--", "true"), 1)
    assert stub.asked("POST", "/leases/lease-1/release") == released


def test_a_release_that_fails_is_said_and_changes_no_exit_code(stub: Stub, do: Do) -> None:
    stub.tell("POST", "/leases", (201, LEASE))
    stub.tell("POST", "/leases/lease-1/release", (500, b""))
    done = do("run", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert "the lease lease-1 could not be released and will expire" in done.stderr


def test_a_lease_that_ends_under_its_program_is_said_once(stub: Stub, env: dict[str, str]) -> None:
    stub.tell("POST", "/leases", (201, {**LEASE, "ttl_seconds": 4}))
    stub.tell("POST", "/leases/lease-1/renew", CUT, (409, problem(409, "ended", "it was revoked")))
    stub.tell("POST", "/leases/lease-1/release", (200, LEASE))
    program = start_gpupool("run", "--", "sh", "-c", "read line; exit 3", **env)
    assert program.stderr is not None
    said = program.stderr.readline()
    assert said.endswith("said no: it was revoked; the program's GPUs are gone\n")
    out, err = program.communicate("on\n", timeout=PATIENCE)
    assert (program.returncode, out, err) == (3, "", "")
