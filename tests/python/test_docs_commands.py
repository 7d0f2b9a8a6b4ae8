"""Every command of ours that a page shows is one, and has the options that it is shown with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpupool.cli import _parsers
from gpupool_manager.cli import PROGRAM as MANAGER
from gpupool_manager.config import load_settings
from gpupool_server.cli import PROGRAM as SERVER

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: Parsers by the words before their options.
PARSERS: Mapping[str, Any] = {**_parsers(), **SERVER.parsers(), **MANAGER.parsers()}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_CODE = re.compile(r"`([^`\n]*)`")
#: At the beginning of a line, of a pipe's part or of a substitution.
_COMMAND = re.compile(
    r"(?:^|\$\(|[|&(] ?)\s*(?:\w+=\S* )*(gpupool(?:-server|-manager)? [^\n|&;()]*)", re.M
)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command: in blocks, and between backticks if there are several words."""
    yield from in_blocks(page)
    yield from in_text(page)


def in_blocks(page: Path) -> Iterator[list[str]]:
    text = page.read_text(encoding="utf-8")
    shells = [code for kind, code in _BLOCK.findall(text) if kind in ("", "sh", "bash")]
    whole = "".join(shells).replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#.*", "", line) for line in whole.splitlines() if "─" not in line]
    yield from _words("\n".join(lines))


def in_text(page: Path) -> Iterator[list[str]]:
    text = page.read_text(encoding="utf-8")
    yield from _words("\n".join(_CODE.findall(_BLOCK.sub("", text))))


def _words(code: str) -> Iterator[list[str]]:
    for found in _COMMAND.findall(code):
        try:
            words = shlex.split(found)
        except ValueError:
            words = found.split()
        yield words


def wrong(words: list[str]) -> str | None:
    """What is not there of a command; None: all is."""
    words = words[: words.index("--")] if "--" in words else words
    if words[1:2] == ["--context"]:
        words = [words[0], *words[3:]]
    name = " ".join(words[:2])
    if name not in PARSERS:
        if len(words) > 1 and not words[1].startswith(("-", "…", "[")):
            return f"{words[1]} is no command"
        name = words[0]
    parser, rest = PARSERS[name], words[len(name.split()) :]
    inner = getattr(parser, "commands", {})
    if inner and rest and " " in name and rest[0] in inner:
        parser, rest = inner[rest[0]], rest[1:]
    elif inner and rest and " " in name and re.fullmatch(r"[a-z-]+", rest[0]):
        return f"{rest[0]} is no command of {name}"
    known = {option for each in parser.params for option in (*each.opts, *each.secondary_opts)}
    given = {word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)}
    lacking = given - known - {"--help"}
    return f"{name} has no {', '.join(sorted(lacking))}" if lacking else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_are_there(page: Path) -> None:
    found = [f"{' '.join(words)}: {why}" for words in commands(page) if (why := wrong(words))]
    assert found == []


def test_commands_are_found() -> None:
    assert sum(1 for page in PAGES for _ in commands(page)) > 100
    assert wrong(["gpupool", "fly"]) == "fly is no command"
    assert wrong(["gpupool", "lease", "fly"]) == "fly is no command of gpupool lease"
    assert (
        wrong(["gpupool", "run", "--wings", "2", "--", "x", "--y"]) == "gpupool run has no --wings"
    )
    assert wrong(["gpupool-server", "doctor", "--json"]) is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_addresses_are_whole(page: Path) -> None:
    """Beyond the loopback a server encrypts and its address has a key, and a pool has TLS."""
    text = page.read_text(encoding="utf-8")
    there = r"(?:--server[ =]|login |GPUPOOL_SERVER=)['\"]?(tcp://[^\s`'\"]+)"
    pools = r"(?:--pool[ =]|login |GPUPOOL_POOL=)['\"]?(http://[^\s`'\"]+)"
    found = [url for url in re.findall(there, text) if "?key=" not in url]
    found += re.findall(pools, text)
    assert [url for url in found if not re.search(r"//(127\.|localhost|HOST)", url)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_vcuda_s_two_options_come_together(page: Path) -> None:
    """One alone is refused."""
    shown = [code for code in _CODE.findall(page.read_text(encoding="utf-8")) if "-vcuda-" in code]
    assert [
        code
        for code in shown
        if re.search(r"-vcuda-\w+ \d", code)
        and "--" in code
        and not ("-core" in code and "-memory" in code)
    ] == []


def test_operators_get_a_manager_that_others_reach(tmp_path: Path) -> None:
    """By default it listens on the loopback, in clear, and has no certificate."""
    page = (ROOT / "docs/operators.md").read_text(encoding="utf-8")
    found = re.search(r"^echo '(.*)' > /etc/gpupool/manager.toml", page, re.M)
    assert found is not None
    (tmp_path / "manager.toml").write_text(found[1])
    listen = load_settings(tmp_path / "manager.toml", {}, {}).listen
    assert f"gpupool login {listen} " in page
    assert page.index(found[0]) < page.index("gpupool-manager install-service")
