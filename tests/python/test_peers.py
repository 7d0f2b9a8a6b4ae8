"""What workers need to be joined to those of other hosts: keys and addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpupool.errors import ConfigError
from gpupool_manager.lease_tokens import SECRET_BYTES, Signer
from gpupool_server.config import load_settings
from gpupool_server.peers import NAME, Peers
from gpupool_server.tenants import PoolLease, Tenant

KEY = "0f" * 32
ALONE = Tenant("red")


def peers(folder: Path, **flags: Any) -> Peers:
    return Peers(load_settings(None, {"run_dir": str(folder), **flags}), folder)


def key_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "given"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_server_makes_a_key_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    key = peers(tmp_path).key_for(ALONE)
    assert len(bytes.fromhex(key)) == 32
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert peers(tmp_path).key_for(ALONE) == key


def test_the_operators_key(tmp_path: Path) -> None:
    given = key_file(tmp_path, KEY + "\n")
    assert peers(tmp_path, peer_key=given).key_for(ALONE) == KEY
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (KEY, 0o644, "chmod 600"),
        (KEY[1:], 0o600, "64 hexadecimal digits"),
        ("", 0o600, "64 hexadecimal digits"),
        (KEY + KEY, 0o600, "64 hexadecimal digits"),
    ],
)
def test_a_key_file_that_is_none(tmp_path: Path, text: str, mode: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        peers(tmp_path, peer_key=key_file(tmp_path, text, mode))
    with pytest.raises(ConfigError, match="cannot be read"):
        peers(tmp_path, peer_key=str(tmp_path / "nowhere"))


def test_a_lease_has_the_managers_key_or_none(tmp_path: Path) -> None:
    """Never the server's: servers that are in a pool have nothing else in common."""
    mine = peers(tmp_path)
    told = Tenant("red", lease=PoolLease("l", "r", {}, KEY))
    assert mine.key_for(told) == KEY
    assert mine.key_for(Tenant("red", lease=PoolLease("l", "r", {}))) == ""


def test_each_lease_has_a_key_that_is_no_token(tmp_path: Path) -> None:
    one, other = Signer(b"a" * SECRET_BYTES, 60), Signer(b"b" * SECRET_BYTES, 60)
    keys = {one.peer_key("l1"), one.peer_key("l2"), other.peer_key("l1")}
    assert len(keys) == 3
    assert one.peer_key("l1") in keys


@pytest.mark.parametrize(
    ("flags", "host"),
    [
        ({"listen": "tcp://10.1.2.3:7700"}, "10.1.2.3"),
        ({"listen": "tcp://0.0.0.0:7700", "data_listen": "tcp://10.9.9.9:*"}, "10.9.9.9"),
    ],
)
def test_at_which_host_others_come(tmp_path: Path, flags: dict[str, str], host: str) -> None:
    assert peers(tmp_path, **flags).host == host


def test_what_is_advertised_counts_first(tmp_path: Path) -> None:
    settings = load_settings(None, {"run_dir": str(tmp_path), "listen": "tcp://10.1.2.3:7700"})
    shown = settings.model_copy(update={"advertise": "tcp://gpu-1:7700"})
    assert Peers(shown, tmp_path).host == "gpu-1"


def test_a_wildcard_is_no_address(tmp_path: Path) -> None:
    host = peers(tmp_path, listen="tcp://0.0.0.0:7700").host
    assert host is None or host[0].isdigit() and host != "0.0.0.0"
