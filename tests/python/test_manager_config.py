"""The manager's settings: precedence, and errors that name source, key and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_manager.config import Settings, load_settings


def write(folder: Path, text: str) -> Path:
    path = folder / "manager.toml"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(config: Path | None, flags: dict[str, object], env: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(config, flags, env)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_are_valid_and_open_nothing() -> None:
    settings = load_settings(None, {}, {})
    assert settings == Settings.model_validate({})
    assert settings.is_loopback and not settings.is_tls and not settings.open_metrics
    assert settings.nodes_url == "tcp://127.0.0.1:7781"


def test_flags_beat_the_environment_and_that_the_file(folder: Path) -> None:
    path = write(folder, 'database = "sqlite:////f"\nlongest_queue = 3\nhistory_days = 7\n')
    env = {"GPUPOOL_MANAGER_DATABASE": "sqlite:////e"}
    settings = load_settings(path, {"longest_queue": "4"}, env)
    assert settings.database is not None
    assert settings.database.get_secret_value() == "sqlite:////e"
    assert (settings.longest_queue, settings.history_days) == (4, 7)
    settings = load_settings(path, {"database": "sqlite:////g"}, env)
    assert settings.database is not None
    assert settings.database.get_secret_value() == "sqlite:////g"


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ('listen = "tcp://x:1"', "listen", "http://ADDRESS:PORT"),
        ('listen = "http://x"', "listen", "http://ADDRESS:PORT"),
        ('listen = "http://x:65536"', "listen", "http://ADDRESS:PORT"),
        ('nodes = "http://x:1"', "nodes", "tcp://ADDRESS:PORT, none, or auto"),
        ('database = "mysql://x/y"', "database", "postgresql://"),
        ('database = "sqlite://"', "database", "sqlite:////PATH"),
        ('state_dir = "here"', "state_dir", "an absolute path"),
        ("heartbeat_seconds = 0", "heartbeat_seconds", "0.1 .. 600"),
        ("lost_after_seconds = nan", "lost_after_seconds", "0.3 .. 3600"),
        ("longest_queue = 1.5", "longest_queue", "0..100000"),
        ("history_days = 0", "history_days", "how long"),
        ("tenant_requests = 0", "tenant_requests", "0.1 .. 1000000"),
        ("tenant_requests = inf", "tenant_requests", "0.1 .. 1000000"),
        ('tenant_requests = "many"', "tenant_requests", "0.1 .. 1000000"),
        ('log_level = "loud"', "log_level", "debug, info, warning or error"),
        ('open_metrics = "perhaps"', "open_metrics", "true"),
        ("listne = 1", "listne", "the keys are: aging_seconds,"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, text: str, key: str, allowed: str) -> None:
    path = write(folder, text + "\n")
    said = complaint(path, {}, {})
    assert said.startswith(f"{path}: key '{key}'") and allowed in said
    if key != "listne":
        flag: dict[str, object] = {key: text.partition(" = ")[2].strip('"')}
        assert complaint(None, flag, {}).startswith(f"flag --{key.replace('_', '-')}: ")


def test_a_databases_password_is_in_no_complaint() -> None:
    env = {"GPUPOOL_MANAGER_DATABASE": "oracle://user:hunter2@host/name"}
    said = complaint(None, {}, env)
    assert said.startswith("environment: GPUPOOL_MANAGER_DATABASE: ") and "hunter2" not in said
    env = {"GPUPOOL_MANAGER_DATABASE": "postgresql://user:hunter2@host/name"}
    assert "hunter2" not in repr(load_settings(None, {}, env))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"listen": "https://127.0.0.1:1", "tls_key": "/k"}, "go together"),
        ({"tls_certificate": "/c"}, "'tls_certificate': is only used with https"),
        ({"heartbeat_seconds": "30"}, "'lost_after_seconds': must be at least twice"),
        (
            {"listen": "http://*:1"},
            "write https:// (the manager makes a certificate), or set --insecure-plain",
        ),
    ],
)
def test_what_does_not_go_together_is_named(flags: dict[str, object], said: str) -> None:
    assert said in complaint(None, flags, {})


@pytest.mark.parametrize("text", ["=", "\udcff", 'a = "'])
def test_a_file_that_is_no_toml_is_named(folder: Path, text: str) -> None:
    path = folder / "manager.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert complaint(path, {}, {}).startswith(f"{path}: is not ")
    assert complaint(folder / "none", {}, {}).startswith(f"{folder / 'none'}: cannot be read: ")


@pytest.mark.parametrize(
    ("listen", "nodes", "url"),
    [
        ("http://127.0.0.1:7780", "auto", "tcp://127.0.0.1:7781"),
        ("https://[::1]:80", "auto", "tcp://[::1]:81"),
        ("http://127.0.0.1:0", "auto", "tcp://127.0.0.1:*"),
        ("http://127.0.0.1:65535", "auto", "tcp://127.0.0.1:*"),
        ("http://127.0.0.1:80", "tcp://0.0.0.0:9", "tcp://0.0.0.0:9"),
        ("http://127.0.0.1:80", "none", None),
    ],
)
def test_where_servers_join(listen: str, nodes: str, url: str | None) -> None:
    settings = Settings.model_validate({"listen": listen, "nodes": nodes})
    assert settings.nodes_url == url


def test_a_databases_password_can_be_in_a_file(folder: Path) -> None:
    path = folder / "password"
    path.write_text("a:b/c@d %é\n")
    flags: dict[str, object] = {
        "database": "postgresql://me@host:5/name",
        "database_password_file": str(path),
    }
    settings = load_settings(None, flags, {})
    url = make_url(settings.database_url() or "")
    assert (url.username, url.password, url.host, url.port) == ("me", "a:b/c@d %é", "host", 5)
    assert "a:b" not in repr(settings)
    path.unlink()
    with pytest.raises(GpupoolError, match=f"^{path}: cannot be read: No such file"):
        settings.database_url()
    said = complaint(None, {"database_password_file": str(path)}, {})
    assert "'database_password_file': is only used with a PostgreSQL" in said
