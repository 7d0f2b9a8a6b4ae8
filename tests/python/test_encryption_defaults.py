"""TLS and CURVE are on beyond the loopback; who wants neither has to say so."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpupool.cli import make_app
from gpupool.pool_address import FINGERPRINT, PLAIN, Where, choose
from gpupool.pool_client import PoolClient
from gpupool_common import certificate, fingerprint
from gpupool_common.errors import ConfigError, GpupoolError, PoolAddressError
from gpupool_manager import config as manager_config
from gpupool_server.config import load_settings
from pool_process import Manager
from warm_start import run

# The server --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "curve"),
    [
        ({}, False),
        ({"listen": "tcp://127.0.0.1:7700"}, False),
        ({"listen": "tcp://[::1]:7700"}, False),
        ({"listen": "tcp://localhost:7700"}, False),
        ({"listen": "ipc:///tmp/x"}, False),
        ({"curve": True}, True),
        ({"listen": "tcp://*:7700"}, True),
        ({"listen": "tcp://0.0.0.0:7700"}, True),
        ({"listen": "tcp://[::]:7700"}, True),
        ({"listen": "tcp://10.0.0.1:7700"}, True),
        ({"listen": "tcp://gpu-1:7700"}, True),
        ({"data_listen": "tcp://0.0.0.0:*"}, True),
        ({"data_listen": "tcp://0.0.0.0:40000-40999"}, True),
        ({"data_listen": "tcp://127.0.0.1:40000-40999"}, False),
        ({"listen": "ipc:///tmp/x", "data_listen": "tcp://10.0.0.1:*"}, True),
        ({"listen": "tcp://0.0.0.0:7700", "insecure_plain": True}, False),
        ({"listen": "tcp://0.0.0.0:7700", "insecure_plain": True, "curve": True}, True),
    ],
)
def test_a_server_encrypts_beyond_the_loopback(flags: dict[str, Any], curve: bool) -> None:
    assert load_settings(None, flags, {}).curve is curve


def test_a_server_in_clear_has_to_be_told_twice(folder: Path) -> None:
    path = folder / "server.toml"
    path.write_text('listen = "tcp://0.0.0.0:7700"\ncurve = false\n')
    with pytest.raises(ConfigError, match=r"server.toml: key 'curve': .*--insecure-plain"):
        load_settings(path, {}, {})
    assert not load_settings(path, {"insecure_plain": True}, {}).curve


# The manager -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "10.0.0.1", "[::]", "pool.example.org"])
def test_a_manager_in_clear_has_to_be_told(host: str) -> None:
    flags = {"listen": f"http://{host}:7780"}
    with pytest.raises(ConfigError, match=r"write https://.*--insecure-plain"):
        manager_config.load_settings(None, flags, {})
    assert not manager_config.load_settings(None, {**flags, "insecure_plain": True}, {}).is_tls
    assert manager_config.load_settings(None, {"listen": f"https://{host}:7780"}, {}).is_tls


def test_a_certificate_is_made_once_and_its_key_kept_to_ourselves(folder: Path) -> None:
    made = certificate.own_certificate(folder, "10.1.2.3", "gpupool-manager")
    assert (folder / "tls.key").stat().st_mode & 0o777 == 0o600
    assert certificate.own_certificate(folder, "other", "gpupool-manager") == made
    assert (folder / "tls.fingerprint").read_text() == made.fingerprint + "\n"
    assert re.fullmatch("sha256:[0-9a-f]{64}", made.fingerprint)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made.path, made.key)


def test_half_a_pair_is_named_and_left(folder: Path) -> None:
    certificate.own_certificate(folder, "h", "gpupool-manager")
    (folder / "tls.key").unlink()
    with pytest.raises(GpupoolError, match=r"only one of tls\.crt and tls\.key"):
        certificate.own_certificate(folder, "h", "gpupool-manager")
    (folder / "tls.key").write_text("")
    (folder / "tls.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(GpupoolError, match="it holds no certificate"):
        certificate.own_certificate(folder, "h", "gpupool-manager")


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    made = Manager(tmp_path_factory.mktemp("tls"), "--listen", "https://127.0.0.1:0")
    made.start()
    yield made
    made.close()


def shown(manager: Manager) -> str:
    return (manager.state / "tls.fingerprint").read_text().strip()


def ask(manager: Manager, monkeypatch: pytest.MonkeyPatch, **variables: str) -> Any:
    for name in (FINGERPRINT, "GPUPOOL_POOL_CA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    where = choose(manager.url, manager.state / "admin.token", None)
    with PoolClient(where) as client:
        return client.all("/keys")


def test_clients_know_it_by_its_fingerprint(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shown(manager)
    assert f"fingerprint={found}" in manager.log.read_text()
    bare = found.removeprefix("sha256:").upper()
    pairs = ":".join(bare[place : place + 2] for place in range(0, 64, 2))
    path = str(manager.state / "tls.fingerprint")
    for text in (found, bare, pairs, f"SHA256:{pairs}", path):
        assert len(ask(manager, monkeypatch, **{FINGERPRINT: text})) == 1
    assert len(ask(manager, monkeypatch, GPUPOOL_POOL_CA=str(manager.state / "tls.crt"))) == 1


def test_who_cannot_know_it_says_what_to_do(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PoolAddressError, match=f"not trusted.*--ca.*{FINGERPRINT}"):
        ask(manager, monkeypatch)
    wrong = "sha256:" + "0a" * 32
    with pytest.raises(PoolAddressError, match=f"another than {FINGERPRINT} says.*in between"):
        ask(manager, monkeypatch, **{FINGERPRINT: wrong})
    for text in ("0a", "md5:" + "0a" * 32, "/nowhere/at/all", "0g" * 32, "0a" * 33):
        with pytest.raises(ConfigError, match=FINGERPRINT):
            ask(manager, monkeypatch, **{FINGERPRINT: text})


def test_the_command_prints_it(manager: Manager) -> None:
    import sys

    command = [sys.executable, "-m", "gpupool_manager", "certificate", "fingerprint"]
    command += ["--state-dir", str(manager.state)]
    done = run(command, 60, manager.env)
    assert done.stdout.strip() == shown(manager), done.stderr


def test_nothing_is_said_to_who_has_another_certificate(folder: Path) -> None:
    """Not even the request's first line: the token is in it."""
    made = certificate.own_certificate(folder, "127.0.0.1", "gpupool-manager")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.path, made.key)
    heard: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        try:
            with context.wrap_socket(connection, server_side=True) as tls:
                heard.append(tls.recv(100))
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        where = Where(url, "gpp_secret", fingerprint="sha256:" + "0a" * 32)
        with pytest.raises(PoolAddressError), PoolClient(where) as client:
            client.get("/keys")
        thread.join(30)
    assert b"".join(heard) == b""


# Clients -----------------------------------------------------------------------------------------


def test_no_token_leaves_this_machine_in_clear() -> None:
    where = ["node", "list", "--pool", "http://pool.invalid:7780"]
    env = {"GPUPOOL_POOL_TOKEN": "gpp_x", "GPUPOOL_POOL": "", PLAIN: ""}
    done = CliRunner().invoke(make_app(), where, env=env)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "write https://" in line and f"{PLAIN}=1" in line and "gpp_x" not in line
    meant = CliRunner().invoke(make_app(), where, env={**env, PLAIN: "1"})
    assert "clear" not in meant.stderr and meant.exit_code != 0  # there is no such host


@pytest.mark.parametrize("text", ["", "sha256:", "sha256:" + "0" * 63, "0" * 65, "ab cd" * 16])
def test_what_is_no_fingerprint(text: str) -> None:
    with pytest.raises(ValueError):
        fingerprint.parse(text)
