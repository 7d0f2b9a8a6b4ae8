"""A program that does one thing, and has some commands beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer

from gpupool_common import manual, nearly

#: What people type to start a service, and what starts it.
ELSEWHERE = {"start": "", "run": "", "serve": "", "check": "doctor", "install": "install-service"}


@dataclass(frozen=True)
class Program:
    """``main`` is what it does without a command; ``beside`` has commands, or groups of them."""

    name: str
    main: Callable[..., None]
    beside: Mapping[str, Callable[..., None] | typer.Typer]
    section: int = manual.OPERATORS

    @property
    def commands(self) -> dict[str, Callable[..., None] | typer.Typer]:
        return {
            **self.beside,
            "completion": manual.completion_of(self.name),
            "man": manual.man_of(self.name, self.section, self.parsers),
        }

    def parser(self, word: str = "") -> typer.Typer:
        """Of the program itself, or of a command beside it."""
        commands = self.commands
        part = commands[word] if word else self.main
        if isinstance(part, typer.Typer):
            return part
        app = typer.Typer(
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,  # its tables cut names and defaults at 80 columns
        )
        app.command(epilog=None if word else f"Beside it: {', '.join(commands)}.")(part)
        return app

    def parsers(self) -> dict[str, Any]:
        """All parsers by their words, for pages."""
        found = {f"{self.name} {word}".strip(): self.parser(word) for word in ("", *self.commands)}
        return {words: typer.main.get_command(app) for words, app in found.items()}

    def run(self) -> None:
        """The entry point."""
        manual.prepare(self.name)
        word = sys.argv[1] if len(sys.argv) > 1 else ""
        commands = self.commands
        if word in commands:
            self.parser(word)(sys.argv[2:], prog_name=f"{self.name} {word}")
        if word and not word.startswith("-"):
            other = nearly.meant(word, commands, ELSEWHERE)
            if ELSEWHERE.get(word) == "":
                told = f"there is no command '{word}': {self.name} alone does it"
            else:
                told = nearly.refusal(self.name, word, other)
            print(f"{self.name}: {told}", file=sys.stderr)
            sys.exit(2)
        self.parser()(prog_name=self.name)
