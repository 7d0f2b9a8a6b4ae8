"""Every setting and every variable that a user may set is in the guides."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from gpupool_kubernetes.config import Settings as KubernetesSettings
from gpupool_manager.config import Settings as ManagerSettings
from gpupool_server.cli import TABLES
from gpupool_server.config import Settings as ServerSettings

ROOT = Path(__file__).resolve().parents[2]

#: Variables that we set for processes of our own, and those of soft GPUs.
OURS = {"GPUPOOL_HOME", "GPUPOOL_SOFT_"}


def keys_of(page: str) -> list[str]:
    """The keys in the first cells of a page's tables of settings."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    heads = r"^\| (?:key|setting of the server) \|.*\n\| ---.*\n((?:\|.*\n)+)"
    rows = "".join(re.findall(heads, text, re.M)).splitlines()
    return [key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])]


@pytest.mark.parametrize(
    ("pages", "settings", "elsewhere"),
    [
        (["server-guide.md", "pool-link.md"], ServerSettings, set(TABLES)),
        (["pool.md"], ManagerSettings, set()),
        (["kubernetes.md"], KubernetesSettings, set()),
    ],
)
def test_every_setting_is_in_a_table(
    pages: list[str], settings: type[BaseModel], elsewhere: set[str]
) -> None:
    found = {key for page in pages for key in keys_of(page)}
    assert set(settings.model_fields) - elsewhere - found == set()


def test_no_table_names_a_setting_that_is_none() -> None:
    assert set(keys_of("pool.md")) <= set(ManagerSettings.model_fields)
    assert set(keys_of("kubernetes.md")) <= set(KubernetesSettings.model_fields)
    assert set(keys_of("pool-link.md")) <= set(ServerSettings.model_fields)


def test_every_variable_is_in_a_guide() -> None:
    read = re.compile(r'"(GPUPOOL_[A-Z]+(?:_[A-Z]+)*)[="]')
    files = [
        path
        for folder in ("client_lib", "server/gpupool_server", "pool")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".c", ".h", ".py")
    ]
    names = {name for path in files for name in read.findall(path.read_text(encoding="utf-8"))}
    assert len(names) > 20
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    told = "".join(page.read_text(encoding="utf-8") for page in pages)
    missing = {name for name in names if not re.search(rf"{name}\b", told)}
    assert {name for name in missing if not name.startswith(tuple(OURS))} == set()
