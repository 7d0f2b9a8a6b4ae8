"""What a server must be told to be a node of a pool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpupool_common.errors import ConfigError
from gpupool_common.keys import load_keys
from gpupool_server.config import Settings, load_settings
from gpupool_server.rundir import make_state_dir

TOKEN = "gpn_" + "x" * 43 + "." + "ab" * 32
POOL = {"pool": "tcp://manager:7781", "join_token": "/etc/gpupool/join"}


def load(env: dict[str, str] | None = None, /, **flags: object) -> Settings:
    return load_settings(None, flags, env or {})


def refused(env: dict[str, str] | None = None, /, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(env, **flags)
    assert TOKEN not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_pool_and_its_token() -> None:
    settings = load(**POOL, labels="rack=7, zone=a=b", node_name="gpu-7.example")
    assert settings.join_token is not None
    assert settings.join_token.get_secret_value() == "/etc/gpupool/join"
    assert settings.labels == {"rack": "7", "zone": "a=b"}
    assert settings.node == "gpu-7.example"
    assert TOKEN not in repr(load({"GPUPOOL_JOIN_TOKEN": TOKEN}, pool="tcp://m:1"))


def test_a_host_without_a_name_of_its_own_has_the_hosts() -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", load(**POOL).node)


def test_the_token_may_be_in_the_environment_or_a_file_but_not_in_a_command(
    tmp_path: Path,
) -> None:
    assert load({"GPUPOOL_JOIN_TOKEN": TOKEN}, pool="tcp://m:1").join_token is not None
    config = tmp_path / "server.toml"
    config.write_text(f'pool = "tcp://m:1"\njoin_token = "{TOKEN}"\n[labels]\na = "b"\n')
    settings = load_settings(config, {}, {})
    assert settings.join_token is not None and settings.labels == {"a": "b"}
    assert "every user" in refused(pool="tcp://m:1", join_token=TOKEN)


def test_what_goes_together() -> None:
    assert "'join_token'" in refused(pool="tcp://m:1")
    assert "only used with 'pool'" in refused(join_token="/x")
    assert "only used with 'pool'" in refused(advertise="tcp://h:1")
    assert "--labels: is only used with 'pool'" in refused(labels="zone=a")
    assert "--own-token: is only used with 'pool'" in refused(own_token=True)
    assert load({"GPUPOOL_JOIN_TOKEN": TOKEN}).pool is None  # a variable may be there for others
    assert "'advertise'" in refused(**POOL, listen="ipc:///run/x.sock")
    assert load(**POOL, listen="ipc:///run/x.sock", advertise="tcp://h:1").advertise


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pool", "manager:7781"),
        ("pool", "http://manager:7781"),
        ("pool", "tcp://manager"),
        ("pool", "tcp://*:7781"),
        ("pool", "tcp://0.0.0.0:7781"),
        ("pool", "tcp://m:0"),
        ("advertise", "tcp://0.0.0.0:1"),
        ("advertise", "h"),
        ("node_name", ""),
        ("node_name", "a b"),
        ("node_name", "x" * 65),
        ("labels", "a"),
        ("labels", "a=1,a=2"),
        ("labels", "a b=c"),
        ("labels", "a=\x01"),
        ("state_dir", "here"),
    ],
)
def test_values_that_cannot_be(key: str, value: str) -> None:
    message = refused(**{**POOL, key: value})
    assert f"--{key.replace('_', '-')}" in message or f"'{key}" in message
    assert "allowed" in message


def test_where_the_key_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, state = folder / "run", tmp_path / "state"
    run.mkdir()
    assert make_state_dir(load(**POOL, run_dir=str(run)), run) == run
    chosen = load(**POOL, run_dir=str(run), state_dir=str(state))
    assert make_state_dir(chosen, run) == state
    assert state.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("os.geteuid", lambda: state.stat().st_uid)
    if state.stat().st_uid:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert make_state_dir(load(**POOL), run) == tmp_path / "gpupool-server"
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigError, match="--state-dir"):
        make_state_dir(load(**POOL, state_dir=str(blocked / "x")), run)


def test_a_key_pair_lasts(tmp_path: Path) -> None:
    first = load_keys(tmp_path)
    assert load_keys(tmp_path) == first
    assert first.secret not in repr(first)
