"""``gpupool run``: a program with our library in its way, and a server for it if need be."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.lease_files import private_folder
from gpupool.options import TOKEN, TOKEN_FILE
from gpupool_common import paths, request
from gpupool_common.ask import check, check_url
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_common.helper_process import command_of

#: A real driver may take a minute to wake up all of a big machine's GPUs.
START_SECONDS = 180.0
STOP_SECONDS = 20.0

#: Signals that a user or a supervisor sends to a program; passed on to it.
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)

_SI_KERNEL = 0x80


@dataclass(frozen=True)
class LocalOptions:
    """What the embedded server of ``--local`` is to be like."""

    soft: bool
    gpus: int | None
    log: str


def client_environment(
    home: paths.Home, server: str, token: str | Path, env: Mapping[str, str], log: str | None
) -> dict[str, str]:
    """The environment in which a program finds our library first, and the library its server.

    A token that is a path is in that file, and read there whenever a session is opened.
    """
    lib = str(home.lib_path)
    rest = [part for part in env.get("LD_LIBRARY_PATH", "").split(":") if part and part != lib]
    preloaded = [str(home.root / name) for name in paths.PRELOADED if (home.root / name).is_file()]
    others = [part for part in env.get("LD_PRELOAD", "").split(":") if part not in ("", *preloaded)]
    changed = {
        **env,
        "LD_LIBRARY_PATH": ":".join([lib, *rest]),
        "LD_PRELOAD": ":".join([*preloaded, *others]),
        "GPUPOOL_SERVER": server,
    }
    if isinstance(token, Path):
        changed[TOKEN_FILE] = str(token)
        changed.pop(TOKEN, None)  # it would come before the file
    else:
        changed[TOKEN] = token
    if log is not None:
        changed["GPUPOOL_LOG"] = log
    return changed


def with_timeline(env: Mapping[str, str], path: Path | None) -> Mapping[str, str]:
    """``env`` for a program whose processes write a timeline to ``path``, a new file.

    Not the old one emptied: another program may have it mapped.
    """
    if path is None:
        return env
    try:
        path.unlink(missing_ok=True)
        path.write_bytes(b"")
    except OSError as error:
        raise ConfigError(f"--timeline: cannot write {path}: {error.strerror}") from None
    return {**env, "GPUPOOL_TIMELINE": str(path.absolute())}


def check_servers(text: str) -> str:
    """``text`` if it is one or several server addresses; ConfigError otherwise."""
    for url in text.split(","):
        try:
            check_url(url)
        except ValueError as error:
            raise ConfigError(f"--server: {error}") from None
    return text


def check_answers(servers: str, tokens: str, env: Mapping[str, str]) -> None:
    """Before anything is started: an exception that says which server would not serve, and why.

    As the library reads them, one token is for all servers, else each has its own; and each is
    asked for what ``env`` asks for.
    """
    asked = {key: env[name] for key, name in request.KEYS.items() if env.get(name)}
    urls, words = servers.split(","), tokens.split(",")
    if len(words) not in (1, len(urls)):
        raise ConfigError(f"GPUPOOL_TOKEN has {len(words)} tokens for {len(urls)} servers")
    for place, url in enumerate(urls):
        check(url, words[place if len(words) > 1 else 0].strip(), asked)


def replace_process(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Become the program; nothing of ours stays between it and whoever started it."""
    try:
        os.execvpe(command[0], list(command), dict(env))
    except OSError as error:
        raise _not_startable(command[0], error) from None


class StartError(GpupoolError):
    """The program cannot be started; ``exit_code`` is what a shell would give."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def _not_startable(name: str, error: OSError) -> StartError:
    missing = isinstance(error, FileNotFoundError)
    return StartError(f"cannot run {name}: {error.strerror}", 127 if missing else 126)


def run_child(
    command: Sequence[str], env: Mapping[str, str], mask: Iterable[int] | None = None
) -> int:
    """Run a program in our place: it gets the signals, we give back its exit code.

    ``mask``: the signals that are blocked in it; else those that were in us.
    """
    awaited = {*FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        try:
            pid = os.posix_spawnp(
                command[0], list(command), dict(env), setsigmask=before if mask is None else mask
            )
        except OSError as error:
            raise _not_startable(command[0], error) from None
        return _relay(pid, awaited)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _relay(pid: int, awaited: set[signal.Signals]) -> int:
    while True:
        info = signal.sigwaitinfo(awaited)
        if info.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif info.si_code != _SI_KERNEL:
            # What the terminal sends (Ctrl-C) reaches the program without us.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, info.si_signo)


@contextlib.contextmanager
def local_server(options: LocalOptions) -> Iterator[tuple[str, str]]:
    """A server for us alone: yields its address and token, ends it and its sessions after."""
    folder = private_folder()
    try:
        token = secrets.token_urlsafe(24)
        url = f"ipc://{folder}/front.sock"
        server, ready = _start_server(_server_command(options, folder, url), token)
        try:
            _await_ready(server, ready)
            yield url, token
        finally:
            os.close(ready)
            _stop_server(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _server_command(options: LocalOptions, folder: Path, url: str) -> list[str]:
    command = [*command_of("gpupool_server"), "--listen", url]
    # The network transport stays reachable on this machine for GPUPOOL_TRANSPORT=zmq.
    command += ["--data-listen", "tcp://127.0.0.1:*", "--run-dir", str(folder)]
    command += ["--on-stop", "end", "--log-level", options.log, "--private"]
    if options.soft:
        command += ["--driver", "soft", "--soft-gpus", str(options.gpus or 1)]
    elif options.gpus is not None:
        command += ["--devices", ",".join(map(str, range(options.gpus)))]
    return command


def _start_server(command: Sequence[str], token: str) -> tuple[subprocess.Popen[bytes], int]:
    ready, theirs = os.pipe()
    path = ":".join(filter(None, sys.path))
    env = {**os.environ, "GPUPOOL_SERVER_TOKEN": token, "PYTHONPATH": path}
    try:
        # Its stdin ends when we do, however we end, and that ends it. A process
        # session of its own keeps the terminal's Ctrl-C from it.
        server = subprocess.Popen(
            [*command, "--ready-fd", str(theirs)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(ready)
        raise GpupoolError(f"the embedded server cannot be started: {error.strerror}") from None
    finally:
        os.close(theirs)
    return server, ready


def _await_ready(server: subprocess.Popen[bytes], ready: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([ready], [], [], left)
        if readable:
            if os.read(ready, 512):
                return
            raise GpupoolError(
                f"the embedded server ended with code {server.wait()}; its message is above"
            )
    raise GpupoolError(f"the embedded server was not ready within {START_SECONDS:g} s")


def _stop_server(server: subprocess.Popen[bytes]) -> None:
    if server.stdin is not None:
        server.stdin.close()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
