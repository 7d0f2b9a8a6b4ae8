"""``install-service``: the unit of systemd that the package holds, for this installation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gpupool_common import paths
from gpupool_common.errors import ConfigError, GpupoolError

UNITS = Path("/etc/systemd/system")
#: Folders that ``ProtectHome=yes`` hides from a unit.
HIDDEN = ("/home", "/root", "/run/user")

_EXEC = re.compile(r"^ExecStart=(\S+) --config (\S+)", re.M)


@dataclass(frozen=True)
class Service:
    """One of our programs as a service."""

    program: str
    config: Path

    @property
    def unit(self) -> str:
        return f"{self.program}.service"

    def text(self, config: Path) -> str:
        """The unit with this installation's program and that configuration."""
        program = Path(sys.executable).absolute().parent / self.program
        for path in (program, config):
            if not path.is_absolute() or re.search(r"[\s%\"'\\$]", str(path)):
                raise ConfigError(f"{path}: systemd wants an absolute path without blanks, % or $")
        if not program.is_file():
            raise GpupoolError(
                f"{program} is not there; install gpupool with pip, in an environment"
            )
        template = paths.find_home().part(f"share/systemd/{self.unit}").read_text(encoding="utf-8")
        text, count = _EXEC.subn(lambda _: f"ExecStart={program} --config {config}", template)
        assert count == 1
        return text


def hidden(text: str) -> str | None:
    """Why a unit could not start its program; None: nothing is known to keep it from that."""
    found = _EXEC.search(text)
    places = (found[1], str(Path(found[1]).resolve()), found[2]) if found else ()
    for path in places:
        if any(path.startswith(f"{folder}/") for folder in HIDDEN):
            return (
                f"{path} is in a home directory, which the unit does not see (ProtectHome=yes);"
                " install into /opt: python3 -m venv /opt/gpupool"
            )
    return None


def install_of(service: Service) -> Callable[..., None]:
    def install_service(
        config: Annotated[
            Path, typer.Option(help="the TOML file that it reads; made if it is missing")
        ] = service.config,
        folder: Annotated[Path, typer.Option(help="where units are")] = UNITS,
        show: Annotated[
            bool, typer.Option("--print", help="print the unit, and write nothing")
        ] = False,
        force: Annotated[
            bool, typer.Option("--force", help="replace a unit that differs from this one")
        ] = False,
        now: Annotated[bool, typer.Option("--now", help="enable and start it, too")] = False,
    ) -> None:
        """Write the unit of systemd for this installation, and a configuration to begin with."""
        try:
            text = service.text(config)
            if show:
                print(text, end="")
                return
            if (why := hidden(text)) is not None:
                raise ConfigError(why)
            _install(service, text, config, folder, force)
            _start(service, folder, now)
        except GpupoolError as error:
            print(f"{service.program}: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None

    return install_service


def _install(service: Service, text: str, config: Path, folder: Path, force: bool) -> None:
    path = folder / service.unit
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text and not force:
        raise ConfigError(
            f"{path} is there and differs; --force replaces it, --print shows the new"
        )
    _write(path, text)
    print(f"wrote {path}")
    if not config.exists():
        head = f"# Keys are the options of {service.program} --help, with _ for -. None is needed."
        _write(config, f"{head}\n")
        print(f"wrote {config}: everything is as by default; see {service.program} --help")


def _write(path: Path, text: str) -> None:
    """As a whole, readable by everybody: there are no secrets in it."""
    draft = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o644)
        draft.replace(path)
    except OSError as error:
        root = "" if os.geteuid() == 0 else "; run it as root"
        raise GpupoolError(f"{path}: cannot be written: {error.strerror}{root}") from None


def _start(service: Service, folder: Path, now: bool) -> None:
    """What is left to do: done where it is wanted, else said."""
    if not now:
        print(f"now: systemctl daemon-reload && systemctl enable --now {service.program}")
        return
    if folder != UNITS:
        raise ConfigError(f"--now is for units in {UNITS}")
    for words in (("daemon-reload",), ("enable", "--now", service.unit)):
        try:
            done = subprocess.run(["systemctl", *words], check=False)
        except OSError as error:
            raise GpupoolError(f"systemctl cannot be run: {error.strerror}") from None
        if done.returncode != 0:
            raise GpupoolError(f"systemctl {' '.join(words)} failed; its message is above")
