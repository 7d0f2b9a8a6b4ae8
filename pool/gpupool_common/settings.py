"""Settings from a file, the environment and flags: gathered, checked, and errors with their source.

pydantic-settings does not fit: of a value that is wrong it does not tell where it came from.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gpupool_common.errors import ConfigError
from gpupool_common.protocol import one_line
from gpupool_common.toml_file import read_toml


@dataclass
class Given:
    """What an operator wrote, and where each key of it is."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    @classmethod
    def gather(
        cls,
        config: Path | None,
        flags: Mapping[str, object],
        variables: Mapping[str, str],
        env: Mapping[str, str] | None = None,
    ) -> Given:
        """A TOML file, then the environment, then flags; the later ones win.

        ``variables`` names the variable of each key that has one. A flag that is None was
        not given.
        """
        given = cls()
        if config is not None:
            for key, value in read_toml(config).items():
                given.put(key, value, f"{config}: key '{key}'")
        environment = os.environ if env is None else env
        for key, variable in variables.items():
            if environment.get(variable):
                given.put(key, environment[variable], f"environment: {variable}")
        for key, flag in flags.items():
            if flag is not None:
                given.put(key, flag, f"flag --{key.replace('_', '-')}")
        return given

    def put(self, key: str, value: object, source: str) -> None:
        self.values[key] = value
        self.sources[key] = source

    def drop(self, key: str) -> None:
        del self.values[key], self.sources[key]

    def explain(
        self,
        error: ValidationError,
        model: type[BaseModel],
        secret: Collection[str],
        tables: Mapping[str, tuple[int, type[BaseModel]]] | None = None,
    ) -> ConfigError:
        """One line that says of each wrong key its source, and what is allowed there.

        Keys in ``secret`` hold secrets: their values are not shown. ``tables`` are the keys
        whose value is a table: how many names lead to a key in it, and its model.
        """
        lines: dict[str, None] = {}
        for problem in error.errors():
            place = problem["loc"]
            written = self._written(place, problem["input"])
            names, inner = _locate(place, model, tables or {})
            key = names[0] if inner is model else names[-1]
            hidden = key in secret or isinstance(written, dict | list)  # it may hold a token
            shown = "" if hidden else f"{one_line(str(written))[:80]!r} "
            lines[self._explain_one(problem["type"], names, inner, key, shown)] = None
        return ConfigError("; ".join(lines))

    def _explain_one(
        self,
        kind: str,
        names: tuple[str, ...],
        model: type[BaseModel],
        key: str,
        shown: str,
    ) -> str:
        source = self.sources.get(names[0], f"key '{names[0]}'")
        if len(names) > 1:
            source = source.replace(f"'{names[0]}'", f"'{'.'.join(names)}'")
        if kind == "extra_forbidden":
            return f"{source} is unknown; the keys are: {', '.join(sorted(model.model_fields))}"
        allowed = model.model_fields[key].description
        return f"{source}: {shown}is not allowed; allowed: {allowed}"

    def _written(self, place: tuple[int | str, ...], read: object) -> object:
        """What the operator wrote there, and not what was made of it (bytes, thousandths)."""
        at: object = self.values
        for name in place:
            if not isinstance(at, Mapping) or name not in at:
                return read
            at = at[name]
        return at


def _locate(
    place: tuple[int | str, ...],
    model: type[BaseModel],
    tables: Mapping[str, tuple[int, type[BaseModel]]],
) -> tuple[tuple[str, ...], type[BaseModel]]:
    """The names that lead to a wrong key, and the model that it belongs to."""
    names = place[:1]
    if str(place[0]) in tables:
        depth, inner = tables[str(place[0])]
        names = place[:depth]
        if len(names) == depth and names[-1] != "[key]":
            model = inner
    return tuple(str(name) for name in names if name != "[key]"), model
