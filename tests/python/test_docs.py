"""What the pages for contributors point at is there, and pages use the glossary's words."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("client_lib", "server", "pool", "proto", "tests", "bench", "docs", "docker", ".ci")
POINTING = (
    "docs/architecture.md",
    "CONTRIBUTING.md",
    "client_lib/README.md",
    "server/worker/README.md",
)
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "proto/wire-format.md")
)

#: A file, perhaps with folders before it; a folder with its slash.
_FILE = re.compile(r"(?<![\w./-])(?:[\w.*-]+/)*[\w*-]+\.(?:c|h|py|toml|md|json|lock)(?![\w/])")
_FOLDER = re.compile(r"(?<![\w./-])(?:[\w.-]+/)+(?![\w*])")
#: What is ours by its prefix, alone between backticks or in a picture.
_NAME = re.compile(r"(?<![\w/])(?:gp|gpc|gpw|gpz)_[a-z][a-z0-9_]*(?![\w.*])")
#: Made by a build, or of other people's; sources with the rest.
_ELSEWHERE = ("build/", "cuda.h")


@cache
def files() -> dict[str, str]:
    """Every source by its path, with its text."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    kinds = (".c", ".h", ".py", ".toml", ".md", ".cmake", ".json", ".lock")
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8", errors="replace")
        for path in found
        if path.suffix in kinds and "__pycache__" not in path.parts
    }


def pointers(page: str, pattern: re.Pattern[str]) -> set[str]:
    """What a page names so in its code: between backticks, and in its pictures."""
    text = (ROOT / page).read_text(encoding="utf-8")
    pictures = re.findall(r"^```\n(.*?)^```", text, re.M | re.S)
    words = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    return {found for part in (*pictures, *words) for found in pattern.findall(part)}


def is_there(name: str, page: str) -> bool:
    if name.startswith(_ELSEWHERE):
        return True
    if "*" in name:
        return any(ROOT.glob(name))
    if (ROOT / name).exists() or ((ROOT / page).parent / name).exists():
        return True
    if name.endswith("/"):
        return any(f"/{name}" in f"/{path}" for path in files())
    return any(f"/{path}".endswith(f"/{name}") for path in files())


@pytest.mark.parametrize("page", POINTING)
def test_the_files_that_a_page_names_are_there(page: str) -> None:
    named = pointers(page, _FILE) | {name for name in pointers(page, _FOLDER) if name != "/"}
    assert len(named) >= 4
    assert {name for name in named if not is_there(name, page)} == set()


@pytest.mark.parametrize("page", POINTING)
def test_the_names_that_a_page_names_are_in_the_code(page: str) -> None:
    code = "\n".join(text for path, text in files().items() if not path.endswith(".md"))
    words = set(re.findall(r"\w+", code))
    named = {name for name in pointers(page, _NAME) if not name.endswith("_")}
    assert named or page != "docs/architecture.md"
    assert {name for name in named if name not in words} == set()


def test_where_is_what() -> None:
    """The table of CONTRIBUTING.md leads to the function that it takes for its example."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| you look for | it is in |")[1].split("\n\n")[0]
    paths = re.findall(r"`([\w/]+\.(?:toml|c))`", table)
    assert len(paths) == 4
    for path in paths:
        file = ROOT / path
        assert file.is_file(), path
        if not path.startswith(("client_lib", "server/worker")):  # those may be generated
            assert "cuStreamWaitEvent" in file.read_text(encoding="utf-8"), path


def test_the_commands_for_contributors_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake ([a-z][a-z-]*)\b", "\n".join(re.findall(r"`([^`]+)`", text))))
    assert len(targets) > 8
    assert {each for each in targets if not re.search(rf"^{each}:", makefile, re.M)} == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


def test_every_page_is_reached_from_the_first() -> None:
    seen: set[Path] = set()
    ahead = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        ahead += [(page.parent / each).resolve() for each in targets if "://" not in each]
    assert {page for page in (ROOT / "docs").glob("*.md") if page not in seen} == set()


# Words --------------------------------------------------------------------------------------


def glossary() -> list[tuple[str, str, str]]:
    """Word, meaning, and what not to say instead."""
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    cells = [tuple(cell.strip() for cell in row) for row in rows]
    return [row for row in cells if len(row) == 3 and row[0] not in ("word", "---")]


def unwanted() -> set[str]:
    return {word for _, _, instead in glossary() for word in re.findall(r"“([^”]+)”", instead)}


def test_the_glossary_has_each_word_once() -> None:
    words = [word for row in glossary() for word in row[0].split(", ")]
    assert len(words) > 40
    assert len(words) == len(set(words))
    assert not set(words) & unwanted()
    for word, meaning, _ in glossary():
        assert meaning.endswith("."), word


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/glossary.md"])
def test_pages_use_the_words_of_the_glossary(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert len(unwanted()) > 10
    found = [w for w in unwanted() if re.search(rf"(?<![\w-]){re.escape(w)}(?![\w-])", text, re.I)]
    assert found == []


def test_pages_become_html_whose_links_lead_somewhere(tmp_path: Path) -> None:
    pictures, out = tmp_path / "pictures", tmp_path / "out"
    pictures.mkdir()
    (pictures / "queue-light.png").write_bytes(b"a picture")
    command = [sys.executable, str(ROOT / ".ci/docs.py"), "--out", str(out)]
    command += ["--pictures", str(pictures)]
    subprocess.run(command, check=True, capture_output=True)
    pages = {path.name: path.read_text(encoding="utf-8") for path in out.glob("*.html")}
    assert pages.keys() >= {"index.html", "console.html", "first-steps.html"}
    assert '<img src="console/queue-light.png" alt="queue"' in pages["console.html"]
    lost = []
    for name, text in pages.items():
        for link in re.findall(r'(?:href|src)="([^":]+)"', text):
            path, _, anchor = link.partition("#")
            is_there = (out / path).is_file() if path else True
            if not is_there or (anchor and f'id="{anchor}"' not in pages[path or name]):
                lost.append(f"{name}: {link}")
    assert lost == []
