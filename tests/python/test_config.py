"""Settings: precedence, and errors that name source, key and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gpupool_common.errors import ConfigError
from gpupool_common.setting_options import setting_help
from gpupool_common.sizes import LARGEST, format_part, format_size, parse_part, parse_size
from gpupool_manager.config import Settings as ManagerSettings
from gpupool_server.config import Settings, load_settings
from gpupool_server.sharing import DEFAULTS


def write(folder: Path, text: str) -> Path:
    path = folder / "gpupool.toml"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(config: Path | None, flags: dict[str, object], env: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(config, flags, env)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_are_valid() -> None:
    settings = load_settings(None, {}, {})
    assert settings == Settings.model_validate({})
    assert settings.listen == "tcp://127.0.0.1:7700"
    assert settings.on_stop == "leave"


def test_flags_beat_the_environment_and_that_the_file(folder: Path) -> None:
    path = write(folder, 'token = "file"\nmax_sessions = 3\nsoft_memory = "2GiB"\n')
    settings = load_settings(path, {"max_sessions": "4"}, {"GPUPOOL_SERVER_TOKEN": "variable"})
    assert settings.token is not None
    assert settings.token.get_secret_value() == "variable"
    assert settings.max_sessions == 4
    assert settings.soft_memory == 2 << 30
    settings = load_settings(path, {"token": "flag"}, {"GPUPOOL_SERVER_TOKEN": "variable"})
    assert settings.token is not None
    assert settings.token.get_secret_value() == "flag"


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ("max_sessions = 0", "max_sessions", "a whole number 1..4096"),
        ('max_sessions = "many"', "max_sessions", "a whole number 1..4096"),
        ("soft_gpus = 17", "soft_gpus", "1..16"),
        ('soft_memory = "1 potato"', "soft_memory", "1MiB to 4TiB"),
        ('soft_memory = "1KiB"', "soft_memory", "1MiB to 4TiB"),
        ('listen = "http://x"', "listen", "tcp://ADDRESS:PORT"),
        ('listen = "tcp://x"', "listen", "tcp://ADDRESS:PORT"),
        ('listen = "tcp://x:70000"', "listen", "tcp://ADDRESS:PORT"),
        ('listen = "ipc://relative"', "listen", "ipc:///PATH"),
        ('data_listen = "tcp://0.0.0.0:80"', "data_listen", "tcp://ADDRESS:*"),
        ('data_listen = "tcp://0.0.0.0:2-1"', "data_listen", "tcp://ADDRESS:FIRST-LAST"),
        ('data_listen = "tcp://0.0.0.0:0-1"', "data_listen", "tcp://ADDRESS:FIRST-LAST"),
        ('data_listen = "tcp://0.0.0.0:1-65536"', "data_listen", "tcp://ADDRESS:FIRST-LAST"),
        ('data_listen = "tcp://0.0.0.0:1-2-3"', "data_listen", "tcp://ADDRESS:FIRST-LAST"),
        ('shm_listen = "run/s"', "shm_listen", "auto, none, or the absolute path"),
        ('shm_listen = "/run/s?x"', "shm_listen", "the absolute path of a socket"),
        (f'shm_listen = "/{"x" * 100}"', "shm_listen", "the absolute path of a socket"),
        ('shm_allow = ["a b"]', "shm_allow", "names or numbers of users"),
        ('shm_allow = [""]', "shm_allow", "names or numbers of users"),
        ('shm_listen = "none"\ndata_listen = "none"', "shm_listen", "need 'data_listen'"),
        ('driver = "best"', "driver", "auto, cuda, soft"),
        ('devices = "0,0"', "devices", "each once"),
        ("devices = []", "devices", "each once"),
        ("devices = [64]", "devices", "0..63"),
        ('on_stop = "maybe"', "on_stop", "leave (sessions continue"),
        ('log_level = "loud"', "log_level", "debug, info, warning or error"),
        ('run_dir = "here"', "run_dir", "an absolute path"),
        (f'run_dir = "/{"x" * 80}"', "run_dir", "at most 70 bytes"),
        ("worker_start_seconds = 0", "worker_start_seconds", "0.1..600"),
    ],
)
def test_bad_values_name_file_key_and_what_is_allowed(
    folder: Path, text: str, key: str, allowed: str
) -> None:
    path = write(folder, text)
    said = complaint(path, {}, {})
    assert said.startswith(f"{path}: key '{key}':")
    assert allowed in said


TENANT = '[tenants.research]\ntoken = "x"\n'


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ('memory = "40 potatoes"', "tenants.research.memory", "a size from 1MiB"),
        ("memory = 5", "tenants.research.memory", "a size from 1MiB"),
        ('share = "0%"', "tenants.research.share", "0.1% to 100%"),
        ("share = 101", "tenants.research.share", "0.1% to 100%"),
        ("share = true", "tenants.research.share", "0.1% to 100%"),
        ('share = "50%"\nceiling = "40%"', "tenants.research.ceiling", "not less than 'share'"),
        ("weight = 26", "tenants.research.weight", "0..25"),
        ('high_priority = "yes"', "tenants.research.high_priority", "true or false"),
        ("sessions = 0", "tenants.research.sessions", "1..4096"),
        ("gpus = [0, 0]", "tenants.research.gpus", "each once"),
        ("gpus = []", "tenants.research.gpus", "each once"),
        ("gpus = [64]", "tenants.research.gpus", "0..63"),
        ("[tenants.'a b']\ntoken = 'y'", "tenants.a b", "names of 1 to 32"),
        ("[gpu]\npolicy = 'best'", "gpu.policy", "average, preemptive"),
        ("[gpu]\npolicy = 7", "gpu.policy", "its number 0..6"),
        ("[gpu]\nmax_inst = 26", "gpu.max_inst", "1..25"),
        ("[gpus.1]\nprio_ratio = 10", "gpus.1.prio_ratio", "20..99"),
        ("[gpus.1]\ndefault_memory = 0", "gpus.1.default_memory", "or none"),
        ("[gpus.99]\npolicy = 0", "gpus.99", "0..63"),
        ("[gpus.x]\npolicy = 0", "gpus.x", "0..63"),
    ],
)
def test_bad_values_in_tables_name_their_whole_key(
    folder: Path, text: str, key: str, allowed: str
) -> None:
    path = write(folder, TENANT + text)
    said = complaint(path, {}, {})
    assert said.startswith(f"{path}: key '{key}':")
    assert allowed in said


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (TENANT + 'share = "150%"', "'150%'"),
        (TENANT + 'share = "0.5"\nceiling = ".4"', "'.4'"),
        (TENANT + 'memory = "8KiB"', "'8KiB'"),
        ('soft_memory = "8TiB"', "'8TiB'"),
    ],
)
def test_bad_sizes_and_parts_are_shown_as_they_were_written(
    folder: Path, text: str, written: str
) -> None:
    """150% was said to be '1500', in the thousandths that only the program knows."""
    assert f": {written} is not allowed" in complaint(write(folder, text), {}, {})


def test_unknown_keys_in_tables_are_errors(folder: Path) -> None:
    said = complaint(write(folder, TENANT + "memroy = 1"), {}, {})
    assert "key 'tenants.research.memroy' is unknown; the keys are: ceiling, disk, gpus" in said
    said = complaint(write(folder, "[gpus.0]\nweight = 1"), {}, {})
    assert "key 'gpus.0.weight' is unknown; the keys are: default_memory" in said
    assert "key 'tenants': is not allowed" in complaint(write(folder, "tenants = []"), {}, {})


def test_the_token_of_a_tenant_is_set_once_and_never_shown(folder: Path) -> None:
    said = complaint(write(folder, "[tenants.a]\nweight = 1"), {}, {})
    assert "key 'tenants.a': exactly one of 'token' and 'token_file'" in said
    both = "[tenants.a]\ntoken = 'x'\ntoken_file = '/y'"
    assert "exactly one of" in complaint(write(folder, both), {}, {})
    said = complaint(write(folder, "[tenants.default]\ntoken = 'x'"), {}, {})
    assert "the server's own" in said
    said = complaint(write(folder, "[tenants.a]\ntoken = 'hunter 2'"), {}, {})
    assert "key 'tenants.a.token'" in said
    assert "hunter" not in said
    said = complaint(write(folder, "[tenants.'a b']\ntoken = 'hunter2'"), {}, {})
    assert "hunter" not in said


def test_tables_of_tenants_and_gpus(folder: Path) -> None:
    text = """
[tenants.research]
token = "x"
memory = "40GiB"
share = "12.5%"
ceiling = 0.8
gpus = [0, 1]
[gpu]
policy = 1
default_memory = "8GiB"
max_inst = 10
[gpus.1]
policy = "weighted"
default_memory = "none"
"""
    settings = load_settings(write(folder, text), {}, {})
    tenant = settings.tenants["research"]
    assert (tenant.memory, tenant.share, tenant.ceiling) == (40 << 30, 125, 800)
    merged = settings.gpus[1].over(settings.gpu).over(DEFAULTS)
    assert (merged.policy, merged.max_inst, merged.prio_ratio) == ("weighted", 10, 90)
    assert (merged.default_memory, merged.hardware_slices) == (0, True)
    assert settings.gpu.over(DEFAULTS).policy == "preemptive"


def test_unknown_keys_are_errors_and_list_the_known(folder: Path) -> None:
    said = complaint(write(folder, "max_session = 1"), {}, {})
    assert "key 'max_session' is unknown" in said
    assert "max_sessions" in said


def test_all_wrong_keys_are_named_at_once(folder: Path) -> None:
    said = complaint(write(folder, "max_sessions = 0\nsoft_gpus = 0"), {}, {})
    assert "'max_sessions'" in said
    assert "'soft_gpus'" in said


def test_flags_and_variables_are_named_as_the_source() -> None:
    assert complaint(None, {"max_sessions": "0"}, {}).startswith("flag --max-sessions: '0'")
    said = complaint(None, {}, {"GPUPOOL_SERVER_TOKEN": "a b"})
    assert said.startswith("environment: GPUPOOL_SERVER_TOKEN")


def test_a_bad_token_is_not_repeated_in_the_error() -> None:
    assert "hunter 2" not in complaint(None, {"token": "hunter 2"}, {})


def test_token_and_token_file_from_one_source_exclude_each_other(folder: Path) -> None:
    both: dict[str, object] = {"token": "a", "token_file": "/b"}
    assert "exclude each other" in complaint(None, both, {})
    settings = load_settings(None, {"token_file": "/b"}, {"GPUPOOL_SERVER_TOKEN": "a"})
    assert settings.token is None
    assert settings.token_file == Path("/b")


def test_files_that_cannot_be_read_are_named(folder: Path) -> None:
    missing = folder / "none.toml"
    assert complaint(missing, {}, {}).startswith(f"{missing}: cannot be read")
    assert "not valid TOML" in complaint(write(folder, "a = = 1"), {}, {})
    binary = folder / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in complaint(binary, {}, {})


def test_a_file_may_begin_with_a_mark_as_some_editors_write_it(folder: Path) -> None:
    file = folder / "marked.toml"
    file.write_bytes(b"\xef\xbb\xbfnonsense = 1\n")
    assert "'nonsense' is unknown" in complaint(file, {}, {})


@pytest.mark.parametrize(
    ("listen", "data", "url"),
    [
        ("tcp://127.0.0.1:7700", "auto", "tcp://127.0.0.1:*"),
        ("tcp://*:7700", "auto", "tcp://0.0.0.0:*"),
        ("tcp://10.1.2.3:7700", "auto", "tcp://10.1.2.3:*"),
        ("ipc:///x/y.sock", "auto", None),
        ("tcp://0.0.0.0:7700", "none", None),
        ("ipc:///x/y.sock", "tcp://10.0.0.1:*", "tcp://10.0.0.1:*"),
    ],
)
def test_where_workers_listen(listen: str, data: str, url: str | None) -> None:
    flags = {"listen": listen, "data_listen": data, "insecure_plain": True}
    assert load_settings(None, flags, {}).data_url == url


def test_sizes() -> None:
    assert parse_size("4096") == 4096
    for text in ("1.5GiB", "1.5 GiB", "1.5gb", "1.5G", "1.5Gi", "1536MiB", "1536m"):
        assert parse_size(text) == 3 << 29
    for bad in ("", "-1", "1GX", "1e9", "99999TiB", "GiB", "\u0663GiB2", "1.5", "1,5GiB", "1._5G"):
        with pytest.raises(ValueError):
            parse_size(bad)


@given(st.integers(0, LARGEST) | st.integers(0, LARGEST >> 20).map(lambda mib: mib << 20))
def test_what_is_shown_can_be_typed(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    "text", ["8GiB", "80GiB", "79.6GiB", "0.3GiB", "1500MiB", "81559MiB", "1.5KiB", "12B", "1TiB"]
)
def test_a_size_is_given_back_as_it_was_typed(text: str) -> None:
    shown = format_size(parse_size(text))
    assert shown == {"0.3GiB": "307.2MiB"}.get(text, text)


@pytest.mark.parametrize(
    ("text", "permille"),
    [("50%", 500), ("50", 500), ("0.5", 500), (".5", 500), ("1", 1000), ("1%", 10), ("2.5", 2500)]
    + [("250%", 2500), ("250", 2500), ("0", 0), ("0.1%", 1), ("33.3 %", 333)],
)
def test_parts(text: str, permille: int) -> None:
    assert parse_part(text) == permille
    assert parse_part(format_part(permille)) == permille


@pytest.mark.parametrize("text", ["", "%", ".", "-1", "12.55%", "0.0001", "half", "1e2", "\u0665%"])
def test_no_parts(text: str) -> None:
    with pytest.raises(ValueError, match="is not a part of a GPU"):
        parse_part(text)


@pytest.mark.parametrize("settings", [Settings, ManagerSettings])
def test_help_says_defaults_as_people_write_them(settings: type[BaseModel]) -> None:
    for key in settings.model_fields:
        said = setting_help(settings, key)
        assert "Undefined" not in said and "{}" not in said, said
        # No number of bytes without its unit.
        assert re.search(r"default: [0-9]{7,}", said) is None, said
    if settings is Settings:
        assert setting_help(settings, "soft_memory").endswith("(default: 1GiB)")


def own_token(flags: Mapping[str, object], env: dict[str, str]) -> tuple[str | None, bool]:
    """The token, and whether it is the clients'."""
    settings = load_settings(None, flags, env)
    token = settings.token.get_secret_value() if settings.token is not None else None
    return token, settings.token_borrowed


def test_the_clients_token_serves_where_nothing_else_gives_one(tmp_path: Path) -> None:
    """One GPUPOOL_TOKEN for a server and the programs beside it, as newcomers export it."""
    env = {"GPUPOOL_TOKEN": "t"}
    assert own_token({}, env) == ("t", True)
    assert own_token({"token_file": "/b"}, env) == (None, False)
    assert own_token({"token": "flag"}, env) == ("flag", False)
    assert own_token({}, {**env, "GPUPOOL_SERVER_TOKEN": "own"}) == ("own", False)
    pool = {"pool": "tcp://m:7781", "join_token": "/j"}
    assert own_token(pool, env) == (None, False)
    config = tmp_path / "server.toml"
    config.write_text('token = "of-the-file"\n')
    assert load_settings(config, {}, env).token_borrowed is False


def test_a_clients_token_that_no_server_can_have() -> None:
    for token, what in (("gpl_x.y", "the token of a pool's lease"), ("a,b", "several tokens")):
        said = complaint(None, {}, {"GPUPOOL_TOKEN": token})
        assert f"GPUPOOL_TOKEN is what clients show, and holds {what}; give the server" in said
        assert token not in said
    said = complaint(None, {}, {"GPUPOOL_TOKEN": "a b"})
    assert said.startswith("environment: GPUPOOL_TOKEN: is not allowed; allowed: 1 to 256")


def test_a_variable_of_others_is_not_taken_for_the_server_s_own() -> None:
    said = complaint(None, {}, {"GPUPOOL_POOL_TOKEN": "gpn_x.0"})
    assert "set GPUPOOL_JOIN_TOKEN to it" in said
    assert load_settings(None, {}, {"GPUPOOL_POOL_TOKEN": "gpp_x"}).token is None
