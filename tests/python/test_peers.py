"""What workers need to be joined to those of other hosts: keys and addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpupool_common.errors import ConfigError
from gpupool_manager.lease_tokens import SECRET_BYTES, Signer
from gpupool_manager.signing_keys import KeyRing
from gpupool_server.config import load_settings
from gpupool_server.peers import NAME, Peers
from gpupool_server.tenants import LeasePart, Tenant

KEY = "0f" * 32
ALONE = Tenant("red")


def peers(folder: Path, **flags: Any) -> Peers:
    return Peers(load_settings(None, {"run_dir": str(folder), **flags}), folder)


def key_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "given"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_server_makes_a_key_of_its_own_and_keeps_it(folder: Path) -> None:
    key = peers(folder).key_for(ALONE)
    assert len(bytes.fromhex(key)) == 32
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600
    assert peers(folder).key_for(ALONE) == key


def test_the_operators_key(folder: Path) -> None:
    given = key_file(folder, KEY + "\n")
    assert peers(folder, peer_key=given).key_for(ALONE) == KEY
    assert not (folder / NAME).exists()


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (KEY, 0o644, "chmod 600"),
        (KEY[1:], 0o600, "64 hexadecimal digits"),
        ("", 0o600, "64 hexadecimal digits"),
        (KEY + KEY, 0o600, "64 hexadecimal digits"),
    ],
)
def test_a_key_file_that_is_none(folder: Path, text: str, mode: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        peers(folder, peer_key=key_file(folder, text, mode))
    with pytest.raises(ConfigError, match="cannot be read"):
        peers(folder, peer_key=str(folder / "nowhere"))


def test_a_lease_has_the_managers_key_or_none(folder: Path) -> None:
    """Never the server's: servers that are in a pool have nothing else in common."""
    mine = peers(folder)
    told = Tenant("red", lease=LeasePart("l", "r", {}, KEY))
    assert mine.key_for(told) == KEY
    assert mine.key_for(Tenant("red", lease=LeasePart("l", "r", {}))) == ""


def test_each_lease_has_a_key_that_is_no_token(folder: Path) -> None:
    one, other = (Signer(name * SECRET_BYTES, KeyRing.make(0.0), 60) for name in (b"a", b"b"))
    keys = {one.peer_key("l1"), one.peer_key("l2"), other.peer_key("l1")}
    assert len(keys) == 3
    assert one.peer_key("l1") in keys


@pytest.mark.parametrize(
    ("flags", "host"),
    [
        ({"listen": "tcp://10.1.2.3:7700"}, "10.1.2.3"),
        ({"listen": "tcp://0.0.0.0:7700", "data_listen": "tcp://10.9.9.9:*"}, "10.9.9.9"),
        ({"listen": "tcp://0.0.0.0:7700", "data_listen": "tcp://10.9.9.9:5-6"}, "10.9.9.9"),
    ],
)
def test_at_which_host_others_come(folder: Path, flags: dict[str, str], host: str) -> None:
    assert peers(folder, **flags).host == host


def test_what_is_advertised_counts_first(folder: Path) -> None:
    settings = load_settings(None, {"run_dir": str(folder), "listen": "tcp://10.1.2.3:7700"})
    shown = settings.model_copy(update={"advertise": "tcp://gpu-1:7700"})
    assert Peers(shown, folder).host == "gpu-1"


def test_a_wildcard_is_no_address(folder: Path) -> None:
    host = peers(folder, listen="tcp://0.0.0.0:7700").host
    assert host is None or host[0].isdigit() and host != "0.0.0.0"
