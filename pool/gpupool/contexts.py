"""Places that a user comes back to: addresses and tokens by name, in a file of the user's own.

Options come before variables, and variables before this file. A variable that names a server or
a pool stands for the whole place, and a token of the file goes to its own place alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.protocol import one_line
from gpupool_common.secret_file import read_secret, replace_secret

#: Another file than the usual one, and another context than the current one.
FILE, CONTEXT = "GPUPOOL_CONFIG", "GPUPOOL_CONTEXT"
#: Any of these names a place by itself.
PLACES = ("GPUPOOL_SERVER", "GPUPOOL_POOL")
#: What an option that names a context takes the place of.
OVERRIDDEN = (
    *PLACES,
    "GPUPOOL_TOKEN",
    "GPUPOOL_TOKEN_FILE",
    "GPUPOOL_POOL_TOKEN",
    "GPUPOOL_POOL_CA",
    "GPUPOOL_POOL_FINGERPRINT",
)

MOST_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

HEAD = "# gpupool's contexts: written by `gpupool login` and `gpupool context`, not to be shared."


@dataclass(frozen=True)
class Context:
    """One place: a pool or a server, and with what one comes to it."""

    pool: str = ""
    server: str = ""
    token: str = field(default="", repr=False)
    ca: str = ""
    fingerprint: str = ""

    @property
    def place(self) -> str:
        return self.pool or self.server


@dataclass(frozen=True)
class Contexts:
    """All of a file; ``current`` is empty, or one of them."""

    current: str = ""
    named: Mapping[str, Context] = field(default_factory=dict)

    def of(self, name: str) -> Context:
        found = self.named.get(name)
        if found is None:
            known = ", ".join(sorted(self.named))
            what = f"choose one of {known}" if known else "gpupool login makes one"
            raise ConfigError(f"there is no context {one_line(name)!r}; {what}")
        return found

    def with_one(self, name: str, context: Context) -> Contexts:
        return replace(self, current=name, named={**self.named, name: context})

    def without(self, name: str) -> Contexts:
        self.of(name)
        rest = {key: value for key, value in self.named.items() if key != name}
        return Contexts("" if self.current == name else self.current, rest)


def default_path(env: Mapping[str, str] | None = None) -> Path:
    env = os.environ if env is None else env
    if chosen := env.get(FILE):
        return Path(chosen)
    base = env.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(base) if base and os.path.isabs(base) else Path.home() / ".config"
    except RuntimeError:
        raise ConfigError(f"there is no home directory; {FILE} names the file instead") from None
    return folder / "gpupool" / "config.toml"


def load(path: Path) -> Contexts:
    """What a file holds, nothing if there is none; ConfigError says what is wrong with it."""
    try:
        if not path.exists():
            return Contexts()
    except OSError as error:
        what = f"cannot be looked for: {error.strerror}; {FILE} names another file"
        raise ConfigError(f"{path}: {what}") from None
    text = read_secret(path, "configuration file", MOST_BYTES)
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {one_line(str(error))}") from None
    named = told.pop("contexts", {})
    current = told.pop("current", "")
    if told or not isinstance(named, dict) or not isinstance(current, str):
        raise ConfigError(f"{path}: has `current` and tables [contexts.NAME], and nothing else")
    found = Contexts(current, {name: _read(path, name, each) for name, each in named.items()})
    if current:
        found.of(current)
    return found


def _read(path: Path, name: str, told: Any) -> Context:
    where = f"{path}: [contexts.{one_line(name)}]"
    known = [each.name for each in fields(Context)]
    if NAME.fullmatch(name) is None or not isinstance(told, dict):
        raise ConfigError(f"{where}: a context is a table, and its name of letters and digits")
    for key, value in told.items():
        if key not in known:
            raise ConfigError(f"{where}: '{one_line(key)}' is none of {', '.join(known)}")
        if not isinstance(value, str) or not value.isprintable():
            raise ConfigError(f"{where}: '{key}' is to be one line of text")
    found = Context(**told)
    if bool(found.pool) == bool(found.server):
        raise ConfigError(f"{where}: has to have one of `pool` and `server`")
    return found


def change(path: Path, how: Callable[[Contexts], Contexts]) -> None:
    """The file anew from what it holds by then: two shells lose nothing of each other's."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise GpupoolError(f"{path.parent}: cannot be made: {error.strerror}") from None
    with _alone(path.with_name(f"{path.name}.lock")):
        _save(path, how(load(path)))


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """As no other command that changes the file; a file system without locks has none."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise GpupoolError(f"{lock}: cannot be written: {error.strerror}") from None
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _save(path: Path, contexts: Contexts) -> None:
    """The file as a whole, mode 0600, in a folder that only its user may enter."""
    lines = [HEAD]
    if contexts.current:
        lines.append(f"current = {_quoted(contexts.current)}")
    for name, context in sorted(contexts.named.items()):
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [
            f"{each.name} = {_quoted(value)}"
            for each in fields(context)
            if (value := getattr(context, each.name))
        ]
    replace_secret(path, "\n".join(lines))


def _quoted(text: str) -> str:
    """A text as TOML has it; JSON writes the same for what can be printed."""
    return json.dumps(text, ensure_ascii=False)


def with_token(context: Context, token: str) -> Context:
    return replace(context, token=token)


def place_variable() -> str:
    """The variable that comes before the file in this shell; empty if there is none."""
    return next((name for name in PLACES if os.environ.get(name)), "")


def chosen() -> tuple[str, Context] | None:
    """The context that is meant where no option says more, and its name.

    None where a variable names a place: whoever set it does not mean the file's.
    """
    if place_variable():
        return None
    wanted = os.environ.get(CONTEXT, "")
    try:
        path = default_path()
    except ConfigError:
        if wanted:
            raise
        return None  # who has no home has no file there
    contexts = load(path)
    name = wanted or contexts.current
    return (name, contexts.of(name)) if name else None


def of_server() -> Context | None:
    """The chosen one if it is a server."""
    found = chosen()
    return found[1] if found is not None and found[1].server else None


def of_pool() -> Context | None:
    """The chosen one if it is a pool."""
    found = chosen()
    return found[1] if found is not None and found[1].pool else None


def instead_of_a_server() -> str:
    """What to do, for who asks a server and has a pool; empty for who has none."""
    pool = os.environ.get("GPUPOOL_POOL", "")
    with contextlib.suppress(GpupoolError):
        saved = of_pool()
        pool = pool or (saved.pool if saved is not None else "")
    if not pool:
        return ""
    return f"{one_line(pool)} is a pool: gpupool inspect shows it, and so does its console there"
