"""A pool's address that is wrong, and one where nobody is now: only the second is worth a wait."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from gpupool.pool_address import Where, check_plain, check_url
from gpupool.pool_client import PoolClient, in_words
from gpupool_common.errors import (
    FAILED,
    TRY_LATER,
    ConfigError,
    GpupoolError,
    PoolAddressError,
    PoolAwayError,
)
from ports import free_port
from test_manager_service import self_signed


class Nothing(http.server.BaseHTTPRequestHandler):
    """Answers every question with an empty object."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return self_signed(tmp_path)


@pytest.fixture
def secure(certificate: tuple[Path, Path]) -> Iterator[int]:
    """The port of who speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    class Server(http.server.ThreadingHTTPServer):
        def get_request(self) -> tuple[socket.socket, object]:
            connection, address = super().get_request()
            return context.wrap_socket(connection, server_side=True), address

        def handle_error(self, *_: object) -> None:
            pass

    with Server(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def refused(url: str, ca: Path | None = None) -> GpupoolError:
    with PoolClient(Where(url, "t", ca)) as client, pytest.raises(GpupoolError) as caught:
        client.get("/leases")
    return caught.value


def test_a_certificate_that_is_not_trusted(secure: int, certificate: tuple[Path, Path]) -> None:
    error = refused(f"https://127.0.0.1:{secure}")
    assert "its certificate is not trusted (certificate verify failed: self" in str(error)
    assert "SSL" not in str(error) and "_ssl.c" not in str(error)
    assert (type(error), error.exit_code) == (PoolAddressError, FAILED)
    with PoolClient(Where(f"https://127.0.0.1:{secure}", "t", certificate[0])) as client:
        assert client.get("/leases") == {}


def test_http_where_https_is_spoken(secure: int) -> None:
    error = refused(f"http://127.0.0.1:{secure}")
    assert "it speaks TLS; write https:// there" in str(error)
    assert error.exit_code == FAILED


def test_a_host_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    error = refused("http://gone.invalid:1")
    assert "Name or service not known; is the host's name right?" in str(error)
    assert error.exit_code == FAILED


def test_who_is_only_away_may_be_asked_again() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        error = refused(f"http://127.0.0.1:{probe.getsockname()[1]}")
    assert (type(error), error.exit_code) == (PoolAwayError, TRY_LATER)
    assert "Connection refused; is gpupool-manager running there" in str(error)
    assert "Errno" not in str(error)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("[Errno 111] Connection refused", "Connection refused"),
        ("[Errno -2] Name or service not known", "Name or service not known"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1000)", "wrong version number"),
        ("[SSL] internal error (_ssl.c:9)", "internal error"),
        ("(_ssl.c:9)", "(_ssl.c:9)"),
        ("timed out", "timed out"),
    ],
)
def test_a_system_s_error_is_told_in_words(raw: str, words: str) -> None:
    assert in_words(raw) == words


def test_https_where_http_is_spoken() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        error = refused(f"https://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
        thread.join()
    assert str(error).endswith("it does not speak TLS; write http:// there")
    assert error.exit_code == FAILED


def test_who_hangs_up_in_clear_is_only_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        error = refused(f"http://127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert isinstance(error, PoolAwayError)
    assert "it hung up" in str(error)


def test_the_port_of_nodes_or_of_a_server_is_said() -> None:
    """It speaks ZeroMQ, which a second question does not change."""
    context = zmq.Context()
    door = context.socket(zmq.ROUTER)
    try:
        _, secret = zmq.curve_keypair()
        door.setsockopt(zmq.CURVE_SERVER, 1)
        door.setsockopt(zmq.CURVE_SECRETKEY, secret)
        error = refused(f"http://127.0.0.1:{door.bind_to_random_port('tcp://127.0.0.1')}")
    finally:
        context.destroy(linger=0)
    assert isinstance(error, PoolAddressError) and error.exit_code == FAILED
    assert "servers and nodes are spoken to there (ZeroMQ)" in str(error)
    assert "usually port 7780" in str(error)


class Standby(http.server.BaseHTTPRequestHandler):
    """A manager that stands by."""

    def do_GET(self) -> None:
        body = b'{"type": "urn:gpupool:problem:standby", "detail": "another one leads"}'
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def listening(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_whichever_manager_leads_is_asked() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with listening(Standby) as standby, listening(Nothing) as leader:
        for urls in (
            (standby, leader),
            (nobody, leader),
            (leader, standby),
            (nobody, standby, leader),
        ):
            with PoolClient(Where(",".join(urls), "t")) as client:
                assert client.get("/leases") == {}
                assert client.url == leader
        with (
            PoolClient(Where(f"{nobody},{standby}", "t")) as client,
            pytest.raises(PoolAwayError, match="stands by"),
        ):
            client.get("/leases")


def test_addresses_of_several_managers() -> None:
    assert check_url("x", "https://a,https://b:1") == "https://a:7780,https://b:1"
    for wrong in ("https://a,http://b", "https://a,", ",".join(["https://a"] * 9), "https://a,b"):
        with pytest.raises(ConfigError):
            check_url("x", wrong)
    with pytest.raises(ConfigError, match="http://far.example:7780;"):
        check_plain("x", "http://127.0.0.1:7780,http://far.example:7780")
