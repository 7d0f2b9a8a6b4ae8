"""Which package may import which, and that no modules import each other in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Every package of ours: where it is, and which others it may import.
PACKAGES = {
    "gpupool_common": (ROOT / "pool", set[str]()),
    "gpupool": (ROOT / "pool", {"gpupool_common"}),
    "gpupool_kubernetes": (ROOT / "pool", {"gpupool", "gpupool_common"}),
    "gpupool_manager": (ROOT / "pool", {"gpupool_common"}),
    "gpupool_ray": (ROOT / "pool", {"gpupool", "gpupool_common"}),
    "gpupool_slurm": (ROOT / "pool", {"gpupool", "gpupool_common"}),
    "gpupool_server": (ROOT / "server", {"gpupool_common"}),
}

#: Packages that only the manager needs: the installation of a client does not have them.
MANAGER_ONLY = {"aiosqlite", "alembic", "asyncpg", "fastapi", "sqlalchemy", "starlette", "uvicorn"}


def modules() -> dict[str, Path]:
    found = {}
    for package, (folder, _) in PACKAGES.items():
        for path in (folder / package).rglob("*.py"):
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its head or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name of a module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph() -> dict[str, set[str]]:
    """Module → the modules of ours that it imports."""
    known = modules()
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        found[name] = set()
        for target in imported(path):
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target:
                found[name].add(target)
    return found


def test_each_package_imports_only_what_it_may() -> None:
    edges = graph()
    assert len(edges) > 100, "the packages have moved; this test reads none of them"
    for name, targets in edges.items():
        package = name.partition(".")[0]
        others = {target.partition(".")[0] for target in targets} - {package}
        assert others <= PACKAGES[package][1], f"{name} imports {sorted(targets)}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_name_is_imported_from_the_module_that_defines_it() -> None:
    known = modules()
    defined = {name: names_of(path) for name, path in known.items()}
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in known:
                for alias in node.names:
                    here = alias.name in defined[node.module]
                    assert here or f"{node.module}.{alias.name}" in known, (
                        f"{name} imports {alias.name} from {node.module}, which only imports it"
                    )


def names_of(path: Path) -> set[str]:
    """The names that a module defines itself, at its head."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
            found |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return found


def loaded_by(script: str) -> set[str]:
    """The modules that a program has imported in the end; of packages of others, their names."""
    script = f"import sys; {script}; print(*sys.modules)"
    names = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert "gpupool_common.errors" in names
    return {name if name.startswith("gpupool") else name.partition(".")[0] for name in names}


def test_a_client_needs_no_package_of_the_managers() -> None:
    loaded = loaded_by("import gpupool.cli, gpupool_server.cli; gpupool.cli.make_app()")
    assert not MANAGER_ONLY & loaded


#: What takes long to import, and what of ours brings it, by who has to do without it at start.
LATER = {
    "from gpupool.cli import make_app; make_app(['run'])": {
        *("asyncio", "cryptography", "httpx", "jwt", "pydantic", "rich", "structlog"),
        *("gpupool.pool_run", "gpupool.status"),
    },
    "from gpupool.cli import make_app; make_app(['info'])": {"asyncio", "httpx", "pydantic"},
    "from gpupool.cli import make_app; make_app(['smi'])": {"asyncio", "httpx", "zmq"},
    "import gpupool_common.relay_process": {"asyncio", "email", "pydantic", "structlog", "typer"},
    "import gpupool_server.cli": {"cryptography", "httpx", "jwt", "gpupool_server.doctor"},
    "import gpupool_manager.cli": {"fastapi", "starlette", "uvicorn", "gpupool_manager.app"},
    "import gpupool_manager.service": {"aiosqlite", "alembic", "asyncpg", "httpx", "mako"},
}


@pytest.mark.parametrize("script", LATER)
def test_what_takes_long_is_imported_when_it_is_needed(script: str) -> None:
    assert not LATER[script] & loaded_by(script)
