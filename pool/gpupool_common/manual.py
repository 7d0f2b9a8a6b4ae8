"""Manual pages and completion of a command, both made from its own parser.

``COMMAND man`` shows a page or writes all of them, ``COMMAND completion SHELL`` prints what a
shell reads. A page can say nothing that the command does not do, and is never out of date.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gpupool_common import __version__

DOCUMENTATION = "https://github.com/gpupool/gpupool/tree/main/docs"

SHELLS = ("bash", "zsh", "fish")

#: What programs for people are in, and what operators run.
USERS, OPERATORS = 1, 8
_SECTION_NAMES = {USERS: "User Commands", OPERATORS: "System Administration"}


# Pages ------------------------------------------------------------------------------------


def pages(commands: Mapping[str, Any], section: int) -> dict[str, str]:
    """The pages of commands, which are given by their words, by the names of their files."""
    files = {words: f"{words.replace(' ', '-')}.{section}" for words in commands}
    return {
        files[words]: page(each, words, section, set(files.values()) - {files[words]})
        for words, each in commands.items()
    }


def page(command: Any, name: str, section: int, others: Iterable[str] = ()) -> str:
    """One page, as man reads it. The commands of a group are within its page."""
    title = name.replace(" ", "-")
    summary, _, rest = (command.help or "").partition("\n\n")
    lines = [
        f'.TH "{_text(title.upper())}" "{section}" "" "gpupool {_text(__version__)}"'
        f' "{_SECTION_NAMES[section]}"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(' '.join(summary.split()).rstrip('.'))}",
        ".SH SYNOPSIS",
        *_synopsis(command, name),
    ]
    if rest:
        lines += [".SH DESCRIPTION", *_paragraphs(rest)]
    lines += _options("OPTIONS", command, name)
    for word, each in getattr(command, "commands", {}).items():
        if " " in name:
            lines += _command(each, f"{name} {word}")
    also = ", ".join(f"{_text(file[:-2])}({section})" for file in sorted(others))
    lines += [".SH SEE ALSO", *([also, ".PP"] if also else []), _text(DOCUMENTATION)]
    return "\n".join(lines) + "\n"


def _command(command: Any, name: str) -> Iterator[str]:
    """One command of a group, as a section of the group's page."""
    yield f".SH {_text(name.upper())}"
    yield from _synopsis(command, name)
    yield from _paragraphs(command.help or "")
    yield from _options("", command, name)


def _synopsis(command: Any, name: str) -> list[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    return [
        f"\\fB{_text(name)}\\fR {_text(' '.join(command.collect_usage_pieces(context)))}",
        ".PP",
    ]


def _options(title: str, command: Any, name: str) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    told = [each.get_help_record(context) for each in command.get_params(context)]
    records = [record for record in told if record is not None]
    if records and title:
        yield f".SH {title}"
    for declared, text in records:
        yield from (".TP", f"\\fB{_text(declared)}\\fR", _text(" ".join(text.split())))


def _paragraphs(text: str) -> Iterator[str]:
    for part in re.split(r"\n\s*\n", text.strip()):
        yield from (_text(" ".join(part.split())), ".PP")


def _text(text: str) -> str:
    """Text in which man finds nothing to do: no escapes, no requests, real hyphens."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


# Commands ---------------------------------------------------------------------------------


def completion_variable(program: str) -> str:
    """By what a shell's script asks a program for words."""
    return f"_{program.replace('-', '_').upper()}_COMPLETE"


def prepare(program: str) -> None:
    """Before a program's parser runs: let it answer a shell, if one asks."""
    if completion_variable(program) in os.environ:
        from typer import completion

        completion.completion_init()  # type: ignore[attr-defined]


def completion_of(program: str) -> Callable[[str], None]:
    def completion(
        shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish")],
    ) -> None:
        """Print what makes a shell complete this command's words."""
        from typer import completion as scripts

        if shell not in SHELLS:
            print(f"{program}: {shell!r} is not one of {', '.join(SHELLS)}", file=sys.stderr)
            raise typer.Exit(2)
        variable = completion_variable(program)
        print(
            scripts.get_completion_script(  # type: ignore[attr-defined]
                prog_name=program, complete_var=variable, shell=shell
            )
        )

    return completion


def man_of(
    program: str, section: int, commands: Callable[[], Mapping[str, Any]]
) -> Callable[..., None]:
    """The command that shows the pages of ``commands``, the parsers by their words."""

    def man(
        command: Annotated[
            str | None, typer.Argument(metavar="COMMAND", help="of which; else of all together")
        ] = None,
        out: Annotated[
            Path | None,
            typer.Option(help="write all pages below this folder, e.g. ~/.local/share/man"),
        ] = None,
    ) -> None:
        """Show a manual page, or write all of them to a folder."""
        made = pages(commands(), section)
        if out is not None:
            _write(out / f"man{section}", made)
            return
        name = f"{program}-{command}" if command else program
        if f"{name}.{section}" not in made:
            print(f"{program}: there is no page {name}({section})", file=sys.stderr)
            raise typer.Exit(2)
        _show(made[f"{name}.{section}"])

    return man


def _write(folder: Path, made: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"gpupool: {folder}: cannot be written: {error.strerror}", file=sys.stderr)
        raise typer.Exit(1) from None


def _show(text: str) -> None:
    """By man where there is one, else as it is."""
    if shutil.which("man") is None:
        print(text, end="")
        return
    with tempfile.NamedTemporaryFile("w", suffix=".1", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        subprocess.run(["man", "-l", file.name], check=False)
