"""Contexts: what `gpupool login` keeps, what comes before it, and to whom its token goes."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner, Result

from command_harness import Front
from gpupool import contexts, options
from gpupool.cli import make_app
from gpupool.contexts import Context, Contexts
from gpupool_common.errors import ConfigError


class Pool:
    """Answers every question with an empty list; remembers which tokens it was shown."""

    def __init__(self) -> None:
        shown: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                shown.append(self.headers["Authorization"].removeprefix("Bearer "))
                body = json.dumps({"items": [], "next": None}).encode()
                self.send_response(401 if shown[-1] == "wrong" else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.shown = shown
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(scope="module")
def pools() -> Iterator[tuple[Pool, Pool]]:
    found = Pool(), Pool()
    yield found
    for pool in found:
        pool.close()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual file of a user without variables."""
    monkeypatch.delenv("GPUPOOL_CONFIG", raising=False)
    for name in (*contexts.OVERRIDDEN, contexts.CONTEXT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "gpupool" / "config.toml"


def invoke(words: tuple[str, ...], token: str, env: Mapping[str, str]) -> Result:
    with patch.dict(os.environ):  # which --context changes for this command
        return CliRunner().invoke(make_app(), list(words), input=f"{token}\n", env=env)


def do(*words: str, token: str = "", **env: str) -> str:
    """What a command prints that succeeds."""
    done = invoke(words, token, env)
    assert done.exit_code == 0, f"{words}: {done.output} {done.exception!r}"
    return done.stdout


def refused(*words: str, token: str = "", **env: str) -> str:
    """What one says on stderr that the user must change."""
    done = invoke(words, token, env)
    assert done.exit_code == 2, f"{words}: {done.exit_code} {done.output} {done.exception!r}"
    return done.stderr


def shown(pool: Pool, *words: str, **env: str) -> list[str]:
    """The tokens that a pool is shown by a command."""
    pool.shown.clear()
    do(*words, **env)
    return pool.shown


def test_login_keeps_a_place_for_all_commands(pools: tuple[Pool, Pool], path: Path) -> None:
    pool = pools[0]
    do("login", pool.url, "--name", "lab", token="secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert shown(pool, "lease", "list") == ["secret"]
    assert shown(pool, "gpu", "list") == ["secret"]
    assert "secret" not in do("context", "list") + do("context", "show") + do(
        "context", "list", "--json"
    )


def test_what_comes_before_the_file(pools: tuple[Pool, Pool], path: Path, tmp_path: Path) -> None:
    """Options, then variables; and no other pool is ever shown its token."""
    pool, other = pools
    do("login", pool.url, "--name", "lab", token="secret")
    file = tmp_path / "token"
    file.write_text("of-a-file\n")
    assert shown(pool, "lease", "list", GPUPOOL_POOL_TOKEN="of-a-variable") == ["of-a-variable"]
    assert shown(pool, "lease", "list", "--token-file", str(file)) == ["of-a-file"]
    there = {"GPUPOOL_POOL": other.url, "GPUPOOL_POOL_TOKEN": "of-a-variable"}
    assert shown(other, "lease", "list", **there) == ["of-a-variable"]
    assert shown(pool, "--context", "lab", "lease", "list", **there) == ["secret"]
    assert shown(pool, "lease", "list", "--pool", pool.url) == ["secret"]
    for words, env in ((("--pool", other.url), {}), ((), {"GPUPOOL_POOL": other.url})):
        assert "a pool wants a token" in refused("lease", "list", *words, **env)
    assert other.shown == ["of-a-variable"]


def test_several_contexts(pools: tuple[Pool, Pool], path: Path) -> None:
    pool, other = pools
    do("login", pool.url, "--name", "one", token="first")
    do("login", other.url, "--name", "two", token="second")
    assert [line.split() for line in do("context", "list").splitlines()[1:]] == [
        ["one", pool.url],
        ["*", "two", other.url],
    ]
    assert shown(pool, "--context", "one", "lease", "list") == ["first"]
    assert shown(pool, "lease", "list", GPUPOOL_CONTEXT="one") == ["first"]
    do("context", "use", "one")
    assert json.loads(do("context", "show", "--json"))["name"] == "one"
    do("context", "remove", "one")
    assert "first" not in path.read_text()
    assert "no context is in use" in refused("context", "show")
    assert "there is no context 'one'; choose one of two" in refused("context", "use", "one")
    assert "there is no context 'three'" in refused("--context", "three", "lease", "list")


def test_a_server(front: Front, path: Path) -> None:
    """Its token goes to the server of the context, and to no other address."""
    front.says.update(host="h", server="1", sessions=[], max_sessions=1, devices=[])
    do("login", front.url, token="secret")
    front.asked.clear()
    assert "gpupool 1 on h" in do("info")
    assert front.asked == ["secret"]
    other = front.url.replace("127.0.0.1", "localhost")
    assert "no token for the server" in refused("info", "--server", other)
    assert "no token for the server" in refused("info", GPUPOOL_SERVER=other)
    assert json.loads(do("context", "show", "--json"))["name"] == "127.0.0.1"


def test_nothing_is_kept_that_is_refused(pools: tuple[Pool, Pool], path: Path) -> None:
    url = pools[0].url
    for words, token, says in (
        ((url,), "wrong", "answered 401"),
        ((url,), "two words", "that is no token"),
        ((url,), "", "no token was given; type it"),
        ((url, "--name", "a b"), "secret", "--name: 'a b' is not of letters"),
        ((url, "--fingerprint", "sha256:1"), "secret", "--fingerprint: is not sha256:"),
        (("http://10.0.0.1",), "secret", "the token would travel in clear text"),
        (("tcp://host",), "secret", "is not tcp://HOST:PORT"),
        (("tcp://host:1", "--ca", "f"), "secret", "--ca and --fingerprint are for a pool"),
    ):
        done = CliRunner().invoke(make_app(), ["login", *words], input=f"{token}\n")
        assert done.exit_code in (1, 2) and says in done.stderr, (words, done.output)
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("current = ", "is not valid TOML"),
        ("color = 1", "has `current` and tables"),
        ("contexts = 1", "has `current` and tables"),
        ("current = 1", "has `current` and tables"),
        ("current = 'a'", "there is no context 'a'"),
        ("[contexts.a]", "has to have one of"),
        ("[contexts.a]\npool = 'p'\nserver = 's'", "has to have one of"),
        ("[contexts.a]\npool = 1", "'pool' is to be one line"),
        ('[contexts.a]\npool = "a\\nb"', "'pool' is to be one line"),
        ("[contexts.a]\npassword = 'p'", "'password' is none of pool, server"),
        ("[contexts.'a b']\npool = 'p'", "a context is a table, and its name"),
        ("[contexts]\na = 1", "a context is a table, and its name"),
    ],
)
def test_a_file_that_is_wrong(path: Path, text: str, says: str) -> None:
    path.parent.mkdir()
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(ConfigError, match="config.toml|there is no context") as caught:
        contexts.load(path)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert "gpupool: " in refused("lease", "list")


def test_a_file_that_others_may_read(path: Path) -> None:
    there = {"a": Context(pool="https://h:1", token="t")}
    contexts.change(path, lambda _: Contexts("a", there))
    path.chmod(0o640)
    assert f"chmod 600 {path}" in refused("lease", "list")


def test_what_is_written_is_read(path: Path) -> None:
    context: Any = Context(server="tcp://h:1?key=ab", token='"\\', ca='/a "b"/ü')
    kept = Contexts("b.c", {"b.c": context, "d": Context(pool="https://h:1")})
    contexts.change(path, lambda _: kept)
    assert contexts.load(path) == kept
    assert "token" not in repr(context)


def test_who_has_no_home_has_no_contexts(
    pools: tuple[Pool, Pool], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose user is a number: with all options a command works."""
    monkeypatch.delenv("XDG_CONFIG_HOME")
    url = pools[0].url
    with patch.object(Path, "home", side_effect=RuntimeError):
        assert shown(pools[0], "lease", "list", GPUPOOL_POOL=url, GPUPOOL_POOL_TOKEN="t") == ["t"]
        assert shown(pools[0], "lease", "list", "--pool", url, GPUPOOL_POOL_TOKEN="t") == ["t"]
        assert "name the pool with" in refused("lease", "list")
        for words in (("login", url), ("--context", "lab", "lease", "list"), ("context", "list")):
            assert "there is no home directory; GPUPOOL_CONFIG names" in refused(*words)


def test_a_place_where_no_file_can_be(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_CONFIG", "/tmp/" + "x" * 300)
    assert "cannot be looked for: File name too long" in refused("lease", "list")


def test_two_shells_log_in_at_once(pools: tuple[Pool, Pool], path: Path) -> None:
    """The second one comes while the first asks the pool whether its token is taken."""

    def second(_: Context) -> None:
        contexts.change(path, lambda known: known.with_one("second", Context(server="tcp://b:1")))

    with patch("gpupool.login._try", second):
        do("login", pools[0].url, "--name", "first", token="secret")
    assert sorted(contexts.load(path).named) == ["first", "second"]


def test_nobody_changes_the_file_meanwhile(path: Path) -> None:
    def how(known: Contexts) -> Contexts:
        with path.with_name(f"{path.name}.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return known

    contexts.change(path, how)
    assert contexts.load(path) == Contexts()


def test_blanks_around_a_token_do_not_count() -> None:
    assert options.need_token(" a,b\r\n", "tcp://a:1") == "a,b"
    assert options.need_token("a, b", "tcp://a:1,tcp://b:1") == "a, b"
    with pytest.raises(ConfigError, match="no line's end within"):
        options.need_token("a\nb", "tcp://a:1")
