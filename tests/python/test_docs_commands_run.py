"""Commands that pages show to a pool's users are run, against a pool, as they stand there.

Only names of things are others: a page's lease, token or GPU stands for one that is there, and a
program that is to be run for one that does nothing. What is run in another test, or nowhere, is in
EXEMPT, with the reason.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpupool import contexts
from gpupool.cli import make_app
from gpupool_common.quantities import MEBIBYTE as MIB
from pool_process import STEADY, Manager
from test_docs_commands import PAGES, commands, in_blocks, in_text

pytestmark = pytest.mark.timeout(300)

#: By how a command begins: why it is not run here.
EXEMPT = {
    "run --local": "test_first_steps.py runs one, and others of tests/e2e",
    "login": "wants a server or a pool with TLS: test_contexts.py, test_first_steps.py",
    "doctor": "in test_first_steps.py",
    "info": "is of one server: test_first_steps.py",
    "smi": "is of one server: test_sharing.py",
    "top": "is of one server: test_budgets.py",
    "session set": "is of one server: test_sharing.py",
    "gpu set": "is of one server: test_sharing.py",
    "gpu aside": "is of one server: test_prometheus.py",
    "key": "rolls wait for every node: test_key_rolls.py, test_link_key_rolls.py",
}

#: What stands for something else, by how its command begins, or in all.
NAMES = {
    "token revoke": {"ID": "{token}"},
    "reservation cancel": {"lease-38rr…": "{reservation}"},
    "gpu open": {"NODE/INDEX": "gpu-7/0", "INDEX": "gpu-7/0"},
    "node drain": {"server": "gpu-7", "NODE": "gpu-7"},
    "node open": {"NODE": "gpu-7"},
    "node join": {"N": "n1", "NAME": "n2", "gpu-7": "gpu-9"},
    "reserve --tenant": {"2027-01-15T08:00Z": "{later}"},
    "node roll-key": {"NAME": "gpu-7"},
    "tenant create": {"…": ""},
    "": {
        "ID": "{lease}",
        "lease-38rr...": "{lease}",
        "GPU-5d2b…": "GPU-gpu-7-0",
        "URL": "{url}",
        "https://10.0.0.1:7780": "{url}",
        "https://manager:7780": "{url}",
        "FILE": "some.file",
        "red.token": "red.file",
        "N": "2",
    },
}

#: Where the contexts are that pages name.
CONFIG = "config.toml"

#: Words of a page's grammar.
_GRAMMAR = re.compile(r"^\[|\]$")

#: What is said of a command that is not whole.
_LACKS = ("Missing argument", "Missing option", "requires an argument", "say what to change")


@dataclass
class World:
    """A pool in which all is there that pages name."""

    manager: Manager
    folder: Path
    tenant: str
    made: dict[str, str] = field(default_factory=dict)
    #: What came of each command; pages have many of them in common.
    known: dict[str, Result] = field(default_factory=dict)

    def prepare(self, words: list[str]) -> None:
        """As if nothing had been run before."""
        do = self.manager.do
        for lease in self.manager.leases("active", "queued"):
            do("POST", f"/leases/{lease['id']}/release")
        for each in do("GET", "/reservations")["items"]:
            do("DELETE", f"/reservations/{each['id']}")
        for node in do("GET", "/nodes")["items"]:
            do("PATCH", f"/nodes/{node['name']}", {"mode": "open"})
        for name in ("red", "research", "site-b"):
            self._have(name, not (words[:2] == ["tenant", "create"] and name in words))
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        place = contexts.Context(pool=self.manager.url, token=self.tenant)
        places = contexts.Contexts("desk", {"desk": place, "first-steps": place})
        contexts.change(self.folder / CONFIG, lambda _: places)
        later = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="minutes")
        lease = {"tenant": "own", "memory_bytes": 8192 * MIB, "share_permille": 300}
        made = {"lease": do("POST", "/leases", lease)["id"], "url": self.manager.url}
        made["token"] = do("POST", "/tokens", {"scope": "tenant", "tenant": "own"})["id"]
        kept = {"tenant": "own", "start": later, "seconds": 60}
        made["reservation"] = do("POST", "/reservations", kept)["id"]
        self.made = {**made, "later": later}

    def _have(self, name: str, wanted: bool) -> None:
        is_there = self.manager.ask("GET", f"/tenants/{name}").is_success
        if is_there and not wanted:
            self.manager.do("DELETE", f"/tenants/{name}")
        elif wanted and not is_there:
            self.manager.do("POST", "/tenants", {"name": name})
        if wanted:
            quota = {"priority": 100, "borrow": True}
            self.manager.do("PUT", f"/tenants/{name}/quota", quota)

    def result_of(self, words: list[str], env: dict[str, str]) -> Result:
        text = " ".join(words)
        if text not in self.known:
            self.known[text] = self._run(words, env)
        return self.known[text]

    def _run(self, words: list[str], env: dict[str, str]) -> Result:
        self.prepare(words)
        # A shell takes the rest.
        given = [text for word in words if (text := self._meant(words, word))]
        given = [word.replace("~", str(self.folder)) for word in given]
        given = given[: given.index(">")] if ">" in given else given
        if given[0] == "events":
            given += ["--help"]  # it does not end; test_pool_cli.py has what it says
        asks = given[0] == "run" or given[:2] == ["lease", "create"]
        token = self.tenant if asks and "--tenant" not in given else self.manager.admin
        if "context" not in given[0]:
            env |= {"GPUPOOL_POOL": self.manager.url, "GPUPOOL_POOL_TOKEN": token}
        env |= {contexts.FILE: str(self.folder / CONFIG), "HOME": str(self.folder)}
        return CliRunner().invoke(make_app(), given, env=env)

    def _meant(self, words: list[str], word: str) -> str:
        text = _GRAMMAR.sub("", word)
        names = {**NAMES[""], **NAMES.get(" ".join(words[:2]), {})}
        return names.get(text, text).format(**self.made)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    manager = Manager(tmp_path_factory.mktemp("pool"), *STEADY)
    manager.start()
    try:
        for name in ("gpu-7", "gpu-8"):
            manager.node(name, gpus=8, memory_bytes=143_771 * MIB)
        yield World(manager, tmp_path_factory.mktemp("here"), manager.tenant("own", priority=100))
    finally:
        manager.close()


def is_exempt(words: list[str]) -> str | None:
    text = " ".join(words)
    return next((each for each in EXEMPT if f"{text} ".startswith(f"{each} ")), None)


def of_clients(found: Iterable[list[str]]) -> list[list[str]]:
    return [words[1:] for words in found if words[0] == "gpupool" and len(words) > 1]


def is_only_named(words: list[str], done: Result) -> bool:
    """A page may name a command without all that it takes."""
    return done.exit_code == 2 and (len(words) <= 2 or any(t in done.output for t in _LACKS))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_do_what_they_say(
    world: World, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.pool_run.run_child", lambda *_, **__: 0)
    monkeypatch.chdir(world.folder)
    blocks, text = of_clients(in_blocks(page)), of_clients(in_text(page))
    wrong = []
    for words in [*blocks, *(words for words in text if words not in blocks)]:
        if is_exempt(words) is None:
            done = world.result_of(words, {"COLUMNS": "200"})
            named = words not in blocks and is_only_named(words, done)
            if done.exit_code != 0 and not named:
                wrong.append(f"gpupool {' '.join(words)}: {done.exit_code} {done.output}")
    assert wrong == []


def test_every_exemption_is_of_something() -> None:
    found = {is_exempt(words) for page in PAGES for words in of_clients(commands(page))}
    assert found - {None} == set(EXEMPT)
