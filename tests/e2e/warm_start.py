"""Our programs for tests, forked from a process that has imported them already.

To import a command costs half a second of a processor, a server one and a manager more: with
hundreds of starts that was a third of the suite's time. One nursery for each test process imports
once what is asked for; a start is then a fork of it. What a program sees is what `python -m MODULE`
gives it: arguments, environment, folder, descriptors, group. The server that `gpupool run --local`
starts is forked, too. Cold starts are tried where the wheel and the images are, and where there is
a terminal.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, AnyStr

#: What is kept warm.
MODULES = ("gpupool", "gpupool_manager", "gpupool_server")

_MESSAGE = 1 << 20
_MOST_DESCRIPTORS = 16
#: What Popen has of how to start a process, by name.
_HOW: inspect.Signature = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
#: Of that, what no forked process is given.
_COLD = {"preexec_fn": None, "shell": False, "gid": None, "gids": None, "uid": None, "umask": -1}


class Popen(subprocess.Popen[AnyStr]):
    """As subprocess has it, but forked where a nursery can run it."""

    #: By which the process says that it is there, and the nursery how it ended.
    _told: socket.socket | None = None
    _reading: threading.Lock

    def _execute_child(self, *given: Any) -> None:
        how: dict[str, Any] = _HOW.bind(self, *given).arguments
        env = os.environ if how["env"] is None else how["env"]
        given_ends = [how[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        ends: list[int] = [own if end < 0 else end for own, end in enumerate(given_ends)]
        plain = all(how[name] == value for name, value in _COLD.items())
        if not plain or not is_warm(how["args"], env) or any(map(os.isatty, ends)):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        place = how["args"].index("-m") + 1
        wanted = {
            "module": how["args"][place],
            "arguments": how["args"][place + 1 :],
            "cwd": os.path.abspath(how["cwd"] or "."),
            "env": dict(env),
            "own_session": how["start_new_session"],
            "group": how["process_group"],
            "numbers": [0, 1, 2, *how["pass_fds"]],
        }
        self._reading = threading.Lock()
        self._told = nursery().start(wanted, [*ends, *how["pass_fds"]])
        self.pid = int(self._told.recv(64) or _lost())
        self._child_created = True
        self._close_pipe_fds(*(how[name] for name in _ENDS))  # type: ignore[attr-defined]

    @property
    def is_forked(self) -> bool:
        return self._told is not None

    def poll(self) -> int | None:
        return super().poll() if self._told is None else self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        if self._told is None:
            return super().wait(timeout)
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        assert self._told is not None
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            with self._reading:
                if self.returncode is None:  # nor has another thread read it
                    status = int(self._told.recv(64) or _lost())
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def run(
    command: Sequence[str],
    timeout: float,
    env: Mapping[str, str] | None = None,
    *,
    text: bool = True,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[Any]:
    """As of subprocess, with an empty stdin, and what it wrote."""
    to: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": cwd}
    with Popen[Any](command, env=env, text=text, stdin=subprocess.DEVNULL, **to) as process:
        try:
            said, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, said, errors)


def _lost() -> int:
    raise AssertionError("the nursery has ended")


class Nursery:
    """The process that has imported our programs, seen from what starts them."""

    def __init__(self, door: socket.socket) -> None:
        self.door = door

    @staticmethod
    def make() -> Nursery:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        owner = os.getpid()

        def close() -> None:
            if os.getpid() == owner:
                ours.close()
                process.wait()

        atexit.register(close)
        return Nursery(ours)

    def start(self, wanted: Mapping[str, Any], fds: Sequence[int]) -> socket.socket:
        """What tells of the new process: its number, and then its status."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self.door, [json.dumps(wanted).encode()], [theirs.fileno(), *fds])
        return ours


_of_this_process: tuple[int, Nursery] | None = None


def nursery() -> Nursery:
    """This test process's own, which is started when it is first asked for."""
    global _of_this_process
    if _of_this_process is None or _of_this_process[0] != os.getpid():
        _of_this_process = (os.getpid(), Nursery.make())
    return _of_this_process[1]


def is_warm(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the nursery has what this would run: our modules, by this Python, on this path.

    What the loader and the interpreter read from the environment, they read once.
    """
    python, *words = command
    words = words[1:] if words[:1] == ["-P"] else words
    if python != sys.executable or words[:1] != ["-m"] or words[1] not in MODULES:
        return False
    path = env.get("PYTHONPATH", "").split(os.pathsep)
    return (
        set(path) <= set(sys.path)
        and at_start(env) == at_start(os.environ)
        and "PYTEST_VERSION" in os.environ  # a demonstration and measurements start them
    )


def at_start(env: Mapping[str, str]) -> dict[str, str]:
    """Of an environment: what is read before a program's first line."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(("LD_", "PYTHON", "MALLOC_", "ASAN_", "LC_", "LANG"))
        and name != "PYTHONPATH"
    }


# In the nursery ------------------------------------------------------------------------------


@functools.cache
def import_all(module: str) -> None:
    """What a program imports, at its start or when it is told what to do."""
    if module == "gpupool":  # each of its commands has a module of its own
        package = importlib.import_module(module)
        for each in pkgutil.iter_modules(package.__path__):
            if each.name != "__main__":  # which is run
                importlib.import_module(f"{module}.{each.name}")
    else:
        with suppress(ImportError):  # a manager's extra packages may be missing
            importlib.import_module(f"{module}.cli")
    gc.collect()
    gc.freeze()  # else each process copies it all to look for garbage in it


def above(fd: int, number: int) -> int:
    """The same descriptor out of the way of all up to `number`, and of programs to come."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, number + 1)
    os.close(fd)
    return moved


def become(wanted: dict[str, Any], fds: Sequence[int], door: socket.socket) -> None:
    """In the forked process: what a new one has, but for what is imported."""
    if wanted["own_session"]:
        os.setsid()
    if wanted["group"] >= 0:
        os.setpgid(0, wanted["group"])
    highest = max(wanted["numbers"])
    ask, told, *given = [above(fd, highest) for fd in (door.detach(), *fds)]
    for fd, number in zip(given, wanted["numbers"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    time.tzset()
    sys.argv = [wanted["module"], *wanted["arguments"]]
    if wanted["module"] == "gpupool":
        start_warm(ask)
    else:
        os.close(ask)
    with socket.socket(fileno=told) as says:
        says.send(str(os.getpid()).encode())


def start_warm(door: int) -> None:
    """The server that a command starts comes out of the nursery, too."""
    global _of_this_process
    _of_this_process = (os.getpid(), Nursery(socket.socket(fileno=door)))
    subprocess.Popen = Popen  # type: ignore[misc]


def raise_children(outer: socket.socket) -> dict[str, Any] | None:
    """Fork what is asked for, tell how it ends; in a forked process, what it is to run."""
    inner, door = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    waiting = selectors.DefaultSelector()
    for asked in (outer, inner):
        waiting.register(asked, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.data:
                pid, told = key.data
                _, status = os.waitpid(pid, 0)
                waiting.unregister(key.fd)
                os.close(key.fd)
                with told, suppress(OSError):  # who started it may have gone
                    told.send(str(status).encode())
                continue
            assert isinstance(key.fileobj, socket.socket)
            message, fds, _, _ = socket.recv_fds(key.fileobj, _MESSAGE, _MOST_DESCRIPTORS)
            if not message:
                return None
            wanted: dict[str, Any] = json.loads(message)
            import_all(wanted["module"])
            pid = os.fork()
            if pid == 0:
                for other in [key for key in waiting.get_map().values() if key.data]:
                    os.close(other.fd)
                    other.data[1].close()
                for ours in (waiting, outer, inner):
                    ours.close()
                become(wanted, fds, door)
                return wanted
            for fd in fds[1:]:
                os.close(fd)
            told = socket.socket(fileno=fds[0])
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))


def main() -> None:
    # The tests end it, by closing its socket.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    wanted = raise_children(socket.socket(fileno=int(sys.argv[1])))
    if wanted is not None:
        signal.signal(signal.SIGINT, before)
        runpy.run_module(wanted["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
