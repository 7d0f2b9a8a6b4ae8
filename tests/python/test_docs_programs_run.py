"""Commands of the server and the manager that pages show are run as they stand there.

Only folders are others, and nothing is given to systemd. What serves until it is ended is started
in other tests, which EXEMPT names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpupool_common import certificate
from gpupool_manager.cli import PROGRAM as MANAGER
from gpupool_manager.state_dir import TOKEN_FILE
from gpupool_server.cli import PROGRAM as SERVER
from test_docs_commands import PAGES, commands

#: By how a command begins: where it is started.
EXEMPT = {
    "gpupool-manager --listen": "test_manager_start.py, and all of tests/e2e with a pool",
    "gpupool-manager …": "stands for any",
    "gpupool-server --listen": "all of tests/e2e; with UCX test_ucx.py, in a pool test_pool.py",
    "gpupool-server --driver soft": "test_first_steps.py",
}
#: How a command begins, and what makes its folders the test's own.
OWN = {
    "gpupool-manager token": ["--state-dir", "{state}"],
    "gpupool-manager certificate": ["--state-dir", "{state}"],
    "gpupool-manager install-service": ["--folder", "{units}", "--config", "{units}/own.toml"],
    "gpupool-server install-service": ["--folder", "{units}", "--config", "{units}/own.toml"],
    "gpupool-server doctor": ["--run-dir", "{run}", "--driver", "soft"],
    "gpupool-server --show-key": ["--run-dir", "{run}", "--listen", "tcp://0.0.0.0:7700"],
}
PROGRAMS = {"gpupool-manager": MANAGER, "gpupool-server": SERVER}
SHOWN = [" ".join(w) for page in PAGES for w in commands(page) if w[0] != "gpupool" and w[1:]]


def begins(text: str, known: Mapping[str, object]) -> str | None:
    return next((each for each in known if text.startswith(each)), None)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A manager's state directory as after its first start, and room for the rest."""
    found = {name: tmp_path_factory.mktemp(name) for name in ("state", "units", "run")}
    certificate.own_certificate(found["state"], "0.0.0.0", "gpupool-manager")
    (found["state"] / TOKEN_FILE).write_text("a token\n", encoding="utf-8")
    return found


@pytest.mark.parametrize("text", sorted({text for text in SHOWN if begins(text, EXEMPT) is None}))
def test_a_command_does_what_it_says(text: str, folders: dict[str, Path]) -> None:
    done = run(text, folders)
    if "doctor" in text:  # which layers a host has is its own
        assert done.exit_code in (0, 1) and "confinement of workers" in done.output
        return
    assert done.exit_code == 0, done.output
    if "fingerprint" in text:
        assert done.output.startswith("sha256:")
    elif "install-service" in text:
        assert "[Unit]\n" in (folders["units"] / f"{text.split()[0]}.service").read_text("utf-8")
    else:
        assert done.output.strip()


def run(text: str, folders: dict[str, Path]) -> Result:
    key = begins(text, OWN)
    assert key is not None, f"say how {text!r} is run, or why not"
    given = text.split()
    program = PROGRAMS[given[0]]
    word = given[1] if given[1] in program.commands else ""
    words = [each for each in given[1 + bool(word) :] if each != "--now"]
    if "--state-dir" in words:
        words = words[: words.index("--state-dir")]
    words += [each.format(**folders) for each in OWN[key]]
    return CliRunner().invoke(program.parser(word), words)


def test_every_exemption_is_of_something() -> None:
    assert {begins(text, EXEMPT) for text in SHOWN} - {None} == set(EXEMPT)
    assert {begins(text, OWN) for text in SHOWN} - {None} == set(OWN)
