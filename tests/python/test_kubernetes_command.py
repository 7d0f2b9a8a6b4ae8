"""The command gpupool-kubernetes: what it says of itself, and where parts of it are missing."""

from __future__ import annotations

import re
import subprocess
import sys

from gpupool_kubernetes import names


def command(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"{script}\nfrom gpupool_kubernetes.start import main; main()"]
        + list(arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_says_its_version() -> None:
    done = command("", "--version")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"gpupool-kubernetes \S+\n", done.stdout)


def test_without_its_extra_it_says_what_to_install() -> None:
    done = command("import sys; sys.modules['typer'] = None", "--version")
    assert done.returncode == 1
    assert "-m pip install 'gpupool[kubernetes]'" in done.stderr


def test_our_names_are_qualified_names_of_kubernetes() -> None:
    qualified = re.compile(r"[a-z0-9.]+/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
    ours = (*names.RESOURCES, *names.OURS, names.GATE, names.FINALIZER, names.CONDITION)
    assert all(qualified.fullmatch(name) for name in ours)
    assert len(set(names.RESOURCES) | set(names.OURS)) == 6
