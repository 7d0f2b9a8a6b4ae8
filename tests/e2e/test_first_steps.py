"""docs/first-steps.md, run as it stands there, but for a free port and a home of its own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import run_program
from ports import free_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "first-steps.md"
MARK = "-- next example --"
#: What is another one on every machine and in every release.
OWN = re.compile(r"gpupool \S+ on \S+,")


def examples() -> list[tuple[str, str]]:
    """Each example with what it prints."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```sh\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", text, re.M | re.S)


@pytest.mark.timeout(200)
def test_the_page_runs_as_it_stands(tmp_path: Path, home: paths.Home) -> None:
    found, port = examples(), str(free_port())
    assert len(found) == 6
    script = f"\necho '{MARK}'\n".join(code for code, _ in found).replace("7700", port)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GPUPOOL_")}
    env = {
        **kept,
        "GPUPOOL_HOME": str(home.root),
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": "",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = ["bash", "-eu", "-o", "pipefail", "-c", f"cd {tmp_path}\n{script}"]
    done = run_program(command, env, timeout=180)
    assert done.returncode == 0, done.explain()
    said = done.stdout.replace(port, "7700").replace(str(tmp_path), "/home/me")
    parts = said.split(f"{MARK}\n")
    for (_, wanted), part in zip(found, parts, strict=True):
        if wanted:
            lines = [line.rstrip() for line in OWN.sub("", part).splitlines()]
            assert lines == OWN.sub("", wanted).splitlines()
    assert " NOT " not in parts[-2]
