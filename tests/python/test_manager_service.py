"""The manager's process: TLS, its first token, its secrets, its end and its next start."""

from __future__ import annotations

import datetime
import ipaddress
import json
import shutil
import socket
import ssl
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpupool_common.quantities import MEBIBYTE as MIB
from harness import wait_until
from manager_node import FakeNode
from manager_rest import bearer
from pool_process import Manager, environment
from warm_start import run

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    process = Manager(folder, "--log-json")
    yield process
    process.close()


def ask(manager: Manager, method: str, path: str, body: Any = None, **more: Any) -> Any:
    headers = {**bearer(more.pop("token", None) or manager.admin), **more.pop("headers", {})}
    with httpx.Client(trust_env=False, timeout=30, **more) as client:
        answer = client.request(method, f"{manager.url}/v1{path}", json=body, headers=headers)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def test_commands_trust_the_certificate_they_are_given(folder: Path) -> None:
    certificate, key = self_signed(folder)
    tls = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    manager = Manager(folder, "--listen", "https://127.0.0.1:0", *tls)
    try:
        manager.start()
        command = [sys.executable, "-m", "gpupool", "tenant", "list", "--json"]
        env = environment(GPUPOOL_POOL=manager.url, GPUPOOL_POOL_TOKEN=manager.admin)
        trusting = [*command, "--ca", str(certificate)]
        done = run(trusting, 60, env)
        assert (done.returncode, json.loads(done.stdout)) == (0, []), done.stderr
        done = run(command, 60, env)
        assert done.returncode != 0
        assert "certificate" in done.stderr
    finally:
        manager.close()


def test_a_manager_that_is_killed_grants_nothing_twice(manager: Manager) -> None:
    """Between the database and the server: what was asked is known, and not made."""
    manager.start()
    manager.report("n1")
    (node,) = manager.nodes
    assert isinstance(node, FakeNode)
    asked = {"gpus": 2, "memory_bytes": 8000 * MIB, "share_permille": 500, "ttl_seconds": 3600}
    red = manager.tenant("red")
    path = f"/leases/{manager.do('POST', '/leases', asked, red)['id']}"
    node.obedient = False
    assert manager.ask("PATCH", path, {"memory_bytes": 2000 * MIB}, red).status_code == 202
    small = {**asked, "memory_bytes": 3000 * MIB}
    for obedient in (False, True):
        node.obedient = obedient
        manager.kill()
        manager.start()
        wait_until(lambda: manager.do("GET", "/nodes/n1")["state"] == "ready", "it was back")
        if not obedient:
            assert manager.ask("POST", "/leases", small, red).status_code == 409
            assert "node 'n1'" in manager.do("GET", path)["resize"]["reason"]
    wait_until(lambda: manager.do("GET", path)["resize"] is None, "it was made")
    assert manager.ask("POST", "/leases", small, red).status_code == 201
    gpus = manager.do("GET", "/gpus")["items"]
    assert [gpu["used_bytes"] for gpu in gpus] == [5000 * MIB] * 2


def test_tls_is_what_travels(folder: Path) -> None:
    certificate, key = self_signed(folder)
    tls = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    manager = Manager(folder, "--listen", "https://127.0.0.1:0", *tls)
    try:
        manager.start()
        assert manager.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert ask(manager, "GET", "/tenants", verify=trusting)["items"] == []
        with pytest.raises(httpx.ConnectError):  # who does not know the certificate
            ask(manager, "GET", "/tenants")
        with pytest.raises(httpx.HTTPError):  # who speaks in clear
            httpx.get(manager.url.replace("https", "http") + "/v1/health", trust_env=False)
    finally:
        manager.close()


def test_a_certificate_that_cannot_be_used_is_named(folder: Path) -> None:
    certificate, _ = self_signed(folder)
    flags = ("--listen", "https://127.0.0.1:0", "--tls-certificate", str(certificate))
    status, said = Manager(folder).fail(*flags, "--tls-key", str(certificate))
    assert status == 1
    assert "the certificate or its key cannot be used" in said.splitlines()[-1]


def test_nothing_is_open_by_default(manager: Manager) -> None:
    manager.start()
    port = httpx.URL(manager.url).port
    assert port is not None
    bound = {
        socket.inet_ntoa(bytes.fromhex(line.split()[1].split(":")[0])[::-1])
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    }
    assert bound == {"127.0.0.1"}
    for path in ("tenants", "leases", "nodes", "metrics", "events"):
        answer = httpx.get(f"{manager.url}/v1/{path}", trust_env=False)
        assert answer.status_code == 401


def test_the_first_token_is_in_a_file_that_only_the_owner_reads(manager: Manager) -> None:
    manager.start()
    for name in ("admin.token", "lease.secret", "manager.db"):
        mode = (manager.state / name).stat().st_mode
        assert stat.S_IMODE(mode) == 0o600, name
    assert stat.S_IMODE(manager.state.stat().st_mode) == 0o700
    first = manager.admin
    assert ask(manager, "GET", "/tenants")["items"] == []
    manager.end()
    manager.start()
    assert manager.admin == first, "a second start makes no other"
    assert len(ask(manager, "GET", "/tokens")["items"]) == 1


def test_a_new_admin_token_is_a_way_back_in(manager: Manager) -> None:
    manager.start()
    first = manager.admin
    manager.end()
    (manager.state / "admin.token").unlink()
    manager.start("--new-admin-token")
    assert manager.admin != first
    tokens = ask(manager, "GET", "/tokens")["items"]
    assert len(tokens) == 2
    assert ask(manager, "GET", "/tokens", token=first)["items"] == tokens


def test_sigterm_ends_it_in_order_and_a_restart_keeps_everything(manager: Manager) -> None:
    manager.start()
    ask(manager, "POST", "/tenants", {"name": "a", "quota": {"gpus": 3}})
    manager.report("n1")
    ask(manager, "PATCH", "/nodes/n1", {"labels": {"zone": "b"}})
    ask(manager, "PATCH", "/gpus/GPU-n1-1", {"prio_ratio": 44})
    asked = {"tenant": "a", "memory_bytes": 100 * MIB, "share_permille": 1000, "ttl_seconds": 3600}
    for _ in range(2):
        ask(manager, "POST", "/leases", asked)
    ask(manager, "POST", "/leases", {**asked, "wait_seconds": 3600})
    paths = ("/tenants", "/gpus", "/queue", "/tokens", "/audit")

    def seen() -> list[Any]:
        leases = ask(manager, "GET", "/leases")["items"]
        for lease in leases:
            del lease["expires"], lease["idle"]  # a restart gives each a whole period again
        return [leases, *(ask(manager, "GET", path)["items"] for path in paths)]

    before = seen()
    assert manager.end() == 0
    manager.start()
    assert seen() == before
    events = [json.loads(line)["event"] for line in manager.log.read_text().splitlines()]
    assert events.count("stopping") == 1 and events[-1] != "stopping"


def test_who_watches_or_waits_does_not_keep_it_from_ending(manager: Manager) -> None:
    manager.start()
    headers = bearer(manager.admin)
    with (
        httpx.Client(trust_env=False, timeout=30, headers=headers) as client,
        client.stream("GET", f"{manager.url}/v1/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": watching"
        assert manager.end() == 0
        assert [line for line in lines if line] == [], "the stream ends, too"


def test_no_secret_is_in_the_log(manager: Manager) -> None:
    manager.flags = (*manager.flags, "--log-level", "debug")
    manager.start()
    secrets = [manager.admin, (manager.state / "lease.secret").read_text().strip()]
    ask(manager, "POST", "/tenants", {"name": "a"})
    for body in (
        {"scope": "tenant", "tenant": "a"},
        {"scope": "node", "node": "n"},
        {"scope": "admin"},
    ):
        made = ask(manager, "POST", "/tokens", body, headers={"Idempotency-Key": body["scope"]})
        secrets.append(made["secret"])
    manager.report("n1")
    asked = {"memory_bytes": 100 * MIB, "share_permille": 100}
    lease = ask(manager, "POST", "/leases", asked, token=secrets[2])
    secrets.append(lease["token"])
    secrets.append(ask(manager, "POST", f"/leases/{lease['id']}/renew")["token"])
    with httpx.Client(trust_env=False) as client:
        wrong = "gpp_" + "w" * 43
        assert client.get(f"{manager.url}/v1/tenants", headers=bearer(wrong)).status_code == 401
    manager.end()
    manager.start("--new-admin-token")
    secrets.append(manager.admin)
    manager.end()
    log = manager.log.read_text()
    assert "/v1/tokens" in log, "the log is not empty"
    for secret in [*secrets, wrong]:
        assert len(secret) > 20 and secret not in log
        assert secret.rpartition(".")[2] not in log


def test_one_request_id_goes_through_answer_log_and_audit(manager: Manager) -> None:
    manager.start()
    ask(manager, "POST", "/tenants", {"name": "a"}, headers={"X-Request-ID": "deploy-42"})
    [entry] = ask(manager, "GET", "/audit?action=tenant.created")["items"]
    assert entry["request_id"] == "deploy-42"
    lines = [json.loads(line) for line in manager.log.read_text().splitlines()]
    [logged] = [line for line in lines if line.get("request") == "deploy-42"]
    assert (logged["method"], logged["path"], logged["status"]) == ("POST", "/v1/tenants", 201)


def test_two_managers_do_not_share_a_database(manager: Manager) -> None:
    manager.start()
    elsewhere = ("--listen", "http://127.0.0.1:0", "--nodes", "tcp://127.0.0.1:*")
    status, said = manager.fail(*elsewhere)
    assert status == 1
    [line] = [line for line in said.splitlines() if line.startswith("gpupool-manager: ")]
    assert "another manager uses the database" in line


def test_an_emptied_database_is_not_a_new_pool(manager: Manager) -> None:
    """To go on with it would end what runs: the nodes would hear that no lease is there."""
    manager.start()
    manager.end()
    for path in manager.state.glob("manager.db*"):
        path.unlink()
    status, said = manager.fail()
    assert status == 1 and "the database is empty" in said and "restore it" in said


def test_a_database_of_another_pool_is_refused(manager: Manager, folder: Path) -> None:
    manager.start()
    manager.end()
    other = Manager(folder / "other")
    (folder / "other").mkdir()
    try:
        other.start()
        other.end()
        database = f"sqlite:///{other.state / 'manager.db'}"
        status, said = manager.fail("--database", database)
        assert status == 1 and "the database is of the pool" in said
    finally:
        other.close()


def test_a_lost_state_folder_begins_anew_with_its_database(manager: Manager, folder: Path) -> None:
    database = f"sqlite:///{folder / 'kept.db'}"
    manager.start("--database", database)
    manager.end()
    shutil.rmtree(manager.state)
    manager.start("--database", database)
    assert (manager.state / "pool.id").read_text().strip()


def test_a_state_folder_that_others_may_write_is_refused(manager: Manager) -> None:
    manager.state.mkdir()
    manager.state.chmod(0o777)
    status, said = manager.fail()
    assert status == 1 and "its mode must be 0700" in said


def test_a_secret_that_others_may_read_is_refused(manager: Manager) -> None:
    manager.start()
    manager.end()
    (manager.state / "lease.secret").chmod(0o644)
    status, said = manager.fail()
    assert status == 1 and "run: chmod 600" in said


def test_an_address_that_is_taken_is_named(manager: Manager) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status, said = manager.fail("--listen", address)
    assert (status, said.splitlines()[-1]) == (
        1,
        f"gpupool-manager: cannot listen at {address}: Address already in use",
    )


def test_a_wrong_setting_is_one_line_and_status_2(manager: Manager) -> None:
    path = manager.folder / "manager.toml"
    path.write_text("longest_queue = -1\n")
    status, said = manager.fail("--config", str(path))
    assert status == 2
    assert said.splitlines() == [
        f"gpupool-manager: {path}: key 'longest_queue': '-1' is not allowed;"
        " allowed: a whole number 0..100000"
    ]


def test_plain_http_beyond_loopback_is_refused_or_warned_of(manager: Manager) -> None:
    manager.start("--listen", "http://0.0.0.0:0", "--insecure-plain")
    assert "TOKENS TRAVEL IN CLEAR TEXT" in manager.log.read_text()
    manager.end()
    status, said = manager.fail("--listen", "http://0.0.0.0:0")
    assert status == 2 and "write https://" in said and "--insecure-plain" in said
    assert len(said.splitlines()) == 1
