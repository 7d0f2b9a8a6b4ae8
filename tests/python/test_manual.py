"""Manual pages and completion, which are made from the parsers; words that are nearly right."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gpupool.cli import COMMANDS, _parsers, main, make_app
from gpupool.nearly_right import ELSEWHERE
from gpupool_common import manual
from gpupool_manager.cli import PROGRAM as MANAGER
from gpupool_server.cli import PROGRAM as SERVER

Said = Callable[..., tuple[object, str, str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """What an entry point prints when it is called with these words and variables."""

    def run(main: Callable[[], None], *words: str, **env: str) -> tuple[object, str, str]:
        monkeypatch.setattr("sys.argv", ["program", *words])
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {
        **manual.pages(_parsers(), manual.USERS),
        **manual.pages(SERVER.parsers(), manual.OPERATORS),
        **manual.pages(MANAGER.parsers(), manual.OPERATORS),
    }


def test_every_command_has_a_page(pages: dict[str, str]) -> None:
    wanted = {f"gpupool-{name}.1" for name in COMMANDS}
    wanted |= {"gpupool.1", "gpupool-server.8", "gpupool-server-doctor.8", "gpupool-manager.8"}
    assert wanted - set(pages) == set()


def test_a_page_has_every_option(pages: dict[str, str]) -> None:
    for words, command in {**_parsers(), **SERVER.parsers()}.items():
        section = manual.OPERATORS if words.startswith("gpupool-server") else manual.USERS
        text = pages[f"{words.replace(' ', '-')}.{section}"].replace("\\-", "-")
        for each in command.params:
            for name in each.opts if not getattr(each, "hidden", False) else ():
                assert name in text if name.startswith("-") else True, (words, name)


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_man_understands_them(pages: dict[str, str], tmp_path: Path) -> None:
    paths = []
    for name, text in pages.items():
        (path := tmp_path / name).write_text(text, encoding="utf-8")
        paths.append(path)
    command = ["groff", "-K", "utf8", "-man", "-Tutf8", "-ww", "-z", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_text_that_man_would_read_as_its_own() -> None:
    app = typer.Typer()

    @app.command()
    def command(option: str = typer.Option("", help="'.so /etc/passwd' or \\n")) -> None:
        """Do it.

        .so /etc/passwd
        """

    text = manual.page(typer.main.get_command(app), "x", 1)
    assert re.findall(r"^\.so.*|^'.*", text, re.M) == []
    assert "\\&.so /etc/passwd" in text and "\\en" in text


def test_pages_are_written_and_missed(tmp_path: Path) -> None:
    done = CliRunner().invoke(make_app(), ["man", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert (tmp_path / "man1" / "gpupool-run.1").read_text().startswith('.TH "GPUPOOL\\-RUN" "1"')
    (tmp_path / "file").touch()
    done = CliRunner().invoke(make_app(), ["man", "--out", str(tmp_path / "file")])
    assert (done.exit_code, "cannot be written" in done.stderr) == (1, True)
    done = CliRunner().invoke(make_app(), ["man", "zzz"])
    assert (done.exit_code, done.stderr) == (2, "gpupool: there is no page gpupool-zzz(1)\n")


@pytest.mark.parametrize("shell", manual.SHELLS)
def test_scripts_of_shells(shell: str) -> None:
    done = CliRunner().invoke(make_app(), ["completion", shell])
    assert done.exit_code == 0 and "_GPUPOOL_COMPLETE" in done.stdout
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True)


def test_no_script_of_another_shell() -> None:
    done = CliRunner().invoke(make_app(), ["completion", "tcsh"])
    assert (done.exit_code, done.stderr) == (2, "gpupool: 'tcsh' is not one of bash, zsh, fish\n")


@pytest.mark.parametrize(
    ("main", "line", "word"),
    [
        (main, "gpupool le", "lease"),
        (main, "gpupool run --ti", "--timeline"),
        (SERVER.run, "gpupool-server --li", "--listen"),
        (MANAGER.run, "gpupool-manager --datab", "--database"),
    ],
)
def test_a_shell_asks(said: Said, main: Callable[[], None], line: str, word: str) -> None:
    variable = manual.completion_variable(line.partition(" ")[0])
    env = {variable: "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    assert word in said(main, **env)[1].split()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["leases"], "gpupool lease"),
        (["ps"], "gpupool session list"),
        (["nvidia-smi"], "gpupool smi"),
        (["version"], "gpupool --version"),
        (["sh", "-c", "true"], "gpupool run -- sh"),
    ],
)
def test_what_is_nearly_right(words: list[str], meant: str) -> None:
    done = CliRunner().invoke(make_app(), words, prog_name="gpupool")
    assert done.exit_code == 2
    assert f"there is no command '{words[0]}'; is `{meant}` meant?" in done.stderr


def test_what_is_meant_is_there() -> None:
    commands = _parsers()
    for meant in ELSEWHERE.values():
        first, _, second = meant.partition(" ")
        if not meant.startswith("--"):
            command = commands[f"gpupool {first}"]
            assert not second or second in command.commands, meant


def test_what_nobody_knows() -> None:
    done = CliRunner().invoke(make_app(), ["qqqqq"])
    assert done.exit_code == 2 and "there is no command 'qqqqq'\n" in done.stderr


@pytest.mark.parametrize(
    ("main", "word", "says"),
    [
        (SERVER.run, "start", "there is no command 'start': gpupool-server alone does it"),
        (SERVER.run, "doctr", "is `gpupool-server doctor` meant?"),
        (MANAGER.run, "tokens", "is `gpupool-manager token` meant?"),
    ],
)
def test_services_know_their_commands(
    said: Said, main: Callable[[], None], word: str, says: str
) -> None:
    code, out, error = said(main, word)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert says in error
