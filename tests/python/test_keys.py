"""Key pairs that last, and addresses that name one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from answering import answering
from gpupool_common import keys, protocol
from gpupool_common.ask import Address, ask, check_url, with_key
from gpupool_common.errors import ConfigError, GpupoolError, InstallError, UnreachableError
from gpupool_common.keys import Keys, load_keys

KEY = "00112233445566778899aabbccddeeff00112233445566778899aabbccddee0f"


# The file ---------------------------------------------------------------------------


def test_a_pair_is_made_once(folder: Path) -> None:
    first = load_keys(folder)
    assert first == load_keys(folder)
    assert [len(bytes.fromhex(key)) for key in (first.public, first.secret)] == [32, 32]
    assert z85.decode(zmq.curve_public(z85.encode(bytes.fromhex(first.secret)))).hex() == (
        first.public
    )
    assert [path.name for path in folder.iterdir()] == [keys.NAME]
    assert (folder / keys.NAME).stat().st_mode & 0o777 == 0o600


def test_no_two_are_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for each in folders:
        each.mkdir()
    assert len({load_keys(each).secret for each in folders}) == 3


def test_the_umask_does_not_open_it(folder: Path) -> None:
    before = os.umask(0)
    try:
        load_keys(folder)
    finally:
        os.umask(before)
    assert (folder / keys.NAME).stat().st_mode & 0o777 == 0o600


def test_what_a_crash_left_is_replaced(folder: Path) -> None:
    (folder / "curve.new").write_text("half a k")
    load_keys(folder)
    assert [path.name for path in folder.iterdir()] == [keys.NAME]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o777])
def test_a_file_open_to_others_is_refused(folder: Path, mode: int) -> None:
    pair = load_keys(folder)
    (folder / keys.NAME).chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        load_keys(folder)
    assert pair.secret not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n",
        b"\xff\xfe\x00",
        KEY.encode(),
        f"{KEY}\n{KEY}\n".encode(),  # no pair
        f"{KEY}\n{KEY[:-1]}\n".encode(),
        f"{KEY.upper()}\n{KEY}\n".encode(),
        f"{KEY}\n{KEY}\n{KEY}\n".encode(),
        b"x" * 100_000,
    ],
)
def test_garbage_is_refused_in_one_line(folder: Path, text: bytes) -> None:
    path = folder / keys.NAME
    path.touch(mode=0o600)
    path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load_keys(folder)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)
    assert path.read_bytes() == text


def test_a_cut_file_is_refused(folder: Path) -> None:
    path = folder / keys.NAME
    load_keys(folder)
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) - 2, 66, 65, 64, 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match="no key pair"):
            load_keys(folder)


def test_a_folder_that_is_not_there(folder: Path) -> None:
    with pytest.raises(GpupoolError, match="cannot be written") as caught:
        load_keys(folder / "missing")
    assert "missing" in str(caught.value)


def test_the_secret_is_not_shown(folder: Path) -> None:
    pair = load_keys(folder)
    assert pair.secret not in repr(pair)
    assert pair.secret not in str(pair)
    assert Keys("a", "b") != Keys("a", "c")


def test_a_libzmq_that_cannot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda _name: False)
    with pytest.raises(InstallError, match="cannot encrypt"):
        load_keys(folder)
    assert list(folder.iterdir()) == []


# Addresses --------------------------------------------------------------------------


def test_an_address_may_have_a_key() -> None:
    url = f"tcp://host:7700?key={KEY}"
    assert Address.parse(url) == Address("tcp://host:7700", bytes.fromhex(KEY))
    assert Address.parse("tcp://host:7700") == Address("tcp://host:7700", None)
    assert Address.parse("ipc:///run/x") == Address("ipc:///run/x", None)
    assert with_key("tcp://host:7700", KEY) == url
    assert with_key("tcp://host:7700", "") == with_key("tcp://host:7700", None)


@pytest.mark.parametrize(
    "url",
    [
        "tcp://h:1?",
        "tcp://h:1?key",
        "tcp://h:1?key=",
        f"tcp://h:1?key={KEY[:-1]}",
        f"tcp://h:1?key={KEY}0",
        f"tcp://h:1?key={KEY.upper()}",
        f"tcp://h:1?key={KEY[:-1]}g",
        f"tcp://h:1?key={KEY}&key={KEY}",
        f"tcp://h:1?key={KEY}\n",
        f"tcp://h:1?keys={KEY}",
        f"tcp://h?key={KEY}",
        f"tcp://h:70000?key={KEY}",
        f"ipc:///x?key={KEY}",
        f"?key={KEY}",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="tcp://|port|key="):
        check_url(url)
    with pytest.raises(UnreachableError):
        ask(url, "info", {})


@given(st.text(max_size=100))
def test_no_text_is_half_an_address(text: str) -> None:
    try:
        address = Address.parse(f"tcp://h:1?{text}")
    except ValueError:
        return
    if text:
        assert address.key is not None
        assert text == f"key={address.key.hex()}"


# Asking -----------------------------------------------------------------------------


class Listener:
    """A front end that answers every question with ok, encrypted or not."""

    def __init__(self, encrypts: bool) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self.context.socket(zmq.ROUTER)
        self.key = None
        if encrypts:
            public, secret = zmq.curve_keypair()
            self.key = z85.decode(public).hex()
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.url = f"tcp://127.0.0.1:{port}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            if self._socket.poll(50):
                who, *rest = self._socket.recv_multipart()
                self._socket.send_multipart([who, *rest[:-1], protocol.encode("ok", {"it": "is"})])

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        self.context.destroy(linger=0)


@pytest.fixture(params=[True, False])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    made = Listener(request.param)
    yield made
    made.close()


def test_the_right_key_is_answered(listener: Listener) -> None:
    assert ask(with_key(listener.url, listener.key), "info", {}).fields == {"it": "is"}


def test_the_wrong_way_to_ask_is_named_at_once(listener: Listener) -> None:
    # The limit is far beyond what a test may take: nothing here waits for it to pass.
    if listener.key is None:
        with pytest.raises(UnreachableError, match="does not encrypt, and the address has a key"):
            ask(with_key(listener.url, KEY), "info", {}, timeout=600)
        return
    with pytest.raises(UnreachableError, match="encrypts, and the address has no key"):
        ask(listener.url, "info", {}, timeout=600)
    with pytest.raises(UnreachableError, match="does not have this key") as caught:
        ask(with_key(listener.url, KEY), "info", {}, timeout=600)
    assert KEY not in str(caught.value)
    assert ask(with_key(listener.url, listener.key), "info", {}).fields == {"it": "is"}


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 12])
def test_what_is_no_server_is_no_matter_of_keys(key: str | None, words: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = with_key(f"tcp://127.0.0.1:{listener.getsockname()[1]}", key)
    not_ours = r"in 0\.\d s; it may not be a gpupool"
    with answering(listener, [words]), pytest.raises(UnreachableError, match=not_ours):
        ask(url, "info", {}, timeout=0.5)
