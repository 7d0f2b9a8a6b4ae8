"""Suites that pytest runs: a group is a file, and this process is one run of pytest.

Settings: `root` (the folder of the tests), `import_as` (its name as a package, where it is one
that is installed), `markers`, `module` (what must still work behind a test that failed: `cupy` or
`numba`).
"""

from __future__ import annotations

import contextlib
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

#: The file and the line, behind its folders.
WHERE = re.compile(r"(?:.*/)?([^/:]+:\d+): ")
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def groups(settings: dict[str, Any]) -> list[str]:
    """The files of tests, as the suite's patterns have them."""
    root = Path(settings["root"])
    found = {path for pattern in settings["files"] for path in root.glob(pattern)}
    for pattern in settings.get("not_files", ()):
        found -= set(root.glob(pattern))
    return sorted(str(path.relative_to(root)) for path in found)


def run(order: Order, teller: Teller) -> None:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # whatever that Python has of them
    import pytest

    module = MODULES[str(order.settings["module"])]
    root = Path(order.settings["root"])
    module.limit(int(order.settings.get("memory_gib", 0)) << 30)
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "pytest.ini"
        markers = "".join(f"    {name}\n" for name in order.settings.get("markers", ()))
        settings.write_text(f"[pytest]\nmarkers =\n{markers}")
        words = ["-c", str(settings), "--rootdir", str(root), "-p", "no:cacheprovider", "-q"]
        listener = Listener(order, teller, module.healthy)
        plugins: list[object] = [listener]
        if package := order.settings.get("import_as"):
            plugins.append(importer(root, str(package)))
        status = pytest.main([*words, str(root / order.group)], plugins=plugins)
    # 2: its time was over; 5: none was chosen
    if status not in (0, 1, 2 if listener.stopped else 0, 5) and not listener.imports_failed:
        sys.exit(f"pytest ended with {int(status)}")
    module.limit(int(order.settings.get("memory_gib", 0)) << 30)


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
        self.left = 0
        self.outcome, self.why = "passed", ""
        self.imports_failed = False
        self.stopped = False

    def pytest_sessionstart(self, session: Any) -> None:
        self.session = session

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Names of tests that have an address in them are numbered instead."""
        seen: Counter[str] = Counter()
        for item in items:
            name = ADDRESS.sub("0x", item.nodeid.partition("::")[2])
            seen[name] += 1
            again = f"#{seen[name]}" if seen[name] > 1 else ""
            self.names[item.nodeid] = name + again
        self.teller.ready(self.order, len(items))
        items[:] = [item for item in items if self.order.wants(self.names[item.nodeid])]
        items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
        self.left = len(items)

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
        self.left -= 1
        if self.left and not self.teller.has_time():
            self.stopped = True
            self.session.shouldstop = "the time is over"


def last_line(text: str) -> str:
    """What pytest says last is where; above it, behind an E, is what. A test may say the same at
    several places.
    """
    lines = text.strip().splitlines()
    said = [line[1:].strip() for line in lines if line.startswith("E ")]
    where = WHERE.match(lines[-1]) if said else None
    return (said or lines or [""])[0] + (f" ({where[1]})" if where else "")


class CuPy:
    @staticmethod
    def healthy() -> bool:
        import cupy

        try:
            cupy.cuda.runtime.deviceSynchronize()
        except cupy.cuda.runtime.CUDARuntimeError:
            return False
        return True

    @staticmethod
    def limit(size: int) -> None:
        """What CuPy may take of the GPU, which others use at the same time, and nothing of it yet.
        What a test has set for the whole process is over.
        """
        import cupy

        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            pool = cupy.get_default_memory_pool()
            cupy.cuda.set_allocator(pool.malloc)
            pool.free_all_blocks()
            pool.set_limit(size=size)
            cupy.fft.config.clear_plan_cache()


class Numba:
    @staticmethod
    def healthy() -> bool:
        from numba import cuda

        try:
            cuda.synchronize()
        except Exception:
            return False
        return True

    @staticmethod
    def limit(size: int) -> None:
        """Its tests take little."""


MODULES: dict[str, type[CuPy] | type[Numba]] = {"cupy": CuPy, "numba": Numba}
