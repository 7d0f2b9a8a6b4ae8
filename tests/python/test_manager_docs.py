"""The examples of docs/pool-api.md, run as they stand there against a manager."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pool_process import Manager

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not (shutil.which("curl") and shutil.which("jq")), reason="curl and jq are not here"
    ),
]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pool-api.md"
MARK = "-- next example --"


def examples() -> list[tuple[str, str]]:
    """Each example with what it prints."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^```sh\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", text, re.M | re.S)
    return [(code, said) for code, said in found]


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    process = Manager(folder)
    process.start()
    yield process
    process.close()


def test_the_examples_do_what_the_page_says(manager: Manager) -> None:
    manager.report("n1")
    found = examples()
    assert len(found) >= 8
    script = f"\necho '{MARK}'\n".join(code for code, _ in found)
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        env={
            "PATH": manager.env["PATH"],
            "POOL": manager.url,
            "STATE": str(manager.state),
            "no_proxy": "*",
        },
        cwd=manager.folder,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(f"{MARK}\n") == [said for _, said in found]


def test_the_table_names_every_resource(manager: Manager) -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page[page.index("## Resources") : page.index("## A tenant with")]
    document = httpx.get(f"{manager.url}/v1/openapi.json", trust_env=False).json()
    kinds = {path.split("/")[2] for path in document["paths"]}
    assert len(kinds) >= 14
    for kind in kinds:
        assert f"| `{kind}" in table or f"`{kind}`" in table, kind


def test_the_page_names_every_problem(manager: Manager) -> None:
    from gpupool_manager.problems import TITLES

    page = PAGE.read_text(encoding="utf-8")
    refusals = page[page.index("## Refusals") : page.index("## Events")]
    for code in TITLES:
        assert f"`{code}`" in refusals, code
