"""Suites that pytest runs: a group is a file, and this process is one run of pytest.

Settings: `root` (the folder of the tests), `import_as` (its name as a package, where it is one
that is installed), `markers`, `module` (what must still work behind a test that failed: `cupy` or
`numba`).
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from telling import CONTEXT_LOST, Order, Teller

ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def groups(settings: dict[str, Any]) -> list[str]:
    """The files of tests, as the suite's patterns have them."""
    root = Path(settings["root"])
    found = {path for pattern in settings["files"] for path in root.glob(pattern)}
    for pattern in settings.get("not_files", ()):
        found -= set(root.glob(pattern))
    return sorted(str(path.relative_to(root)) for path in found)


def run(group: str, order: Order, teller: Teller) -> None:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # whatever that Python has of them
    import pytest

    root = Path(order.settings["root"])
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "pytest.ini"
        markers = "".join(f"    {name}\n" for name in order.settings.get("markers", ()))
        settings.write_text(f"[pytest]\nmarkers =\n{markers}")
        words = ["-c", str(settings), "--rootdir", str(root), "-p", "no:cacheprovider", "-q"]
        listener = Listener(order, teller, healthy_of(str(order.settings["module"])))
        plugins: list[object] = [listener]
        if package := order.settings.get("import_as"):
            plugins.append(importer(root, str(package)))
        status = pytest.main([*words, str(root / group)], plugins=plugins)
    if status not in (0, 1, 5) and not listener.imports_failed:  # 5: none was chosen
        sys.exit(f"pytest ended with {int(status)}")


def importer(root: Path, package: str) -> object:
    """A plugin of pytest: a file is the module of this name, whatever folder it lies in.

    pytest would find another name for it, and import a second time what is around it.
    """
    import pytest

    class Named(pytest.Module):
        def _getobj(self) -> object:
            words = self.path.relative_to(root).with_suffix("").parts
            return importlib.import_module(".".join((package, *words)))

    class Importer:
        def pytest_collect_directory(self, path: Path, parent: Any) -> Any:
            return pytest.Dir.from_parent(parent, path=path)

        def pytest_pycollect_makemodule(self, module_path: Path, parent: Any) -> Any:
            return Named.from_parent(parent, path=module_path)

        @pytest.fixture
        def initialize_from_pytest_config(self, request: Any) -> None:
            """Of Numba's conftest.py, which its wheel has not: what its options are."""
            request.cls._dump_failed_filechecks = False

    return Importer()


class Listener:
    """A plugin of pytest: takes what is ordered, and tells."""

    def __init__(self, order: Order, teller: Teller, healthy: Callable[[], bool]) -> None:
        self.order = order
        self.teller = teller
        self.healthy = healthy
        self.names: dict[str, str] = {}
        self.outcome, self.why = "passed", ""
        self.imports_failed = False

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Names of tests that have an address in them are numbered instead."""
        seen: Counter[str] = Counter()
        for item in items:
            name = ADDRESS.sub("0x", item.nodeid.partition("::")[2])
            seen[name] += 1
            again = f"#{seen[name]}" if seen[name] > 1 else ""
            self.names[item.nodeid] = name + again
        self.teller.ready()
        items[:] = [item for item in items if self.order.wants(self.names[item.nodeid])]

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported is one test that failed."""
        if report.failed and report.nodeid:
            self.imports_failed = True
            name = "(import)"
            if self.order.wants(name):
                self.teller.begin(name)
                self.teller.end(name, "failed", last_line(str(report.longrepr)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.outcome, self.why = "passed", ""
        self.teller.begin(self.names[nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.outcome, self.why = "failed", last_line(str(report.longrepr))
        elif report.skipped and self.outcome == "passed":
            self.outcome = "skipped"

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.teller.end(self.names[nodeid], self.outcome, self.why)
        if self.outcome == "failed" and not self.healthy():
            os._exit(CONTEXT_LOST)


def last_line(text: str) -> str:
    """What pytest says last is where; above it, behind an E, is what."""
    lines = text.strip().splitlines()
    said = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (said or lines or [""])[0]


def healthy_of(module: str) -> Callable[[], bool]:
    return {"cupy": cupy_healthy, "numba": numba_healthy}[module]


def cupy_healthy() -> bool:
    import cupy

    try:
        cupy.cuda.runtime.deviceSynchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        return False
    return True


def numba_healthy() -> bool:
    from numba import cuda

    try:
        cuda.synchronize()
    except Exception:
        return False
    return True
