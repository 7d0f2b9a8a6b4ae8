"""Daemons for tests, forked from a process that has imported them already.

To import a server costs half a second of a processor and a manager a whole one: with hundreds of
starts that was a quarter of the suite's time. One nursery for each test process imports them once;
a start is then a fork of it. What a daemon sees is what `python -m MODULE` gives it: arguments,
environment, folder, descriptors. Cold starts are tried where the wheel and the images are.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

#: What is kept warm, and what each imports at its start.
MODULES = {"gpupool_server": "gpupool_server.cli", "gpupool_manager": "gpupool_manager.cli"}

_MESSAGE = 1 << 20


class Started:
    """A process of the nursery's, with the methods of Popen that tests use."""

    def __init__(self, nursery: Nursery, command: Sequence[str], pid: int) -> None:
        self._nursery = nursery
        self.args = command
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.status(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._nursery.status(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the nursery has yet to say so
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that has imported the daemons, seen from the tests."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self.statuses: dict[int, int] = {}
        self.started: list[int] = []
        atexit.register(self.close, os.getpid())

    def close(self, owner: int) -> None:
        if os.getpid() == owner:
            self.socket.close()
            self.process.wait()

    def start(self, command: Sequence[str], env: Mapping[str, str], fds: Sequence[int]) -> Started:
        """`fds`: where it writes, and the descriptor that it says it is ready by."""
        module, *arguments = command[2:]
        wanted = {"module": module, "arguments": arguments, "cwd": os.getcwd(), "env": dict(env)}
        socket.send_fds(self.socket, [json.dumps(wanted).encode()], fds)
        while not self.started:
            self._hear(None)
        return Started(self, command, self.started.pop())

    def status(self, pid: int, timeout: float | None) -> int | None:
        """How it ended, as Popen says it; None if it has not, after so many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while pid not in self.statuses:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._hear(left):
                return None
        return self.statuses[pid]

    def _hear(self, timeout: float | None) -> bool:
        readable, _, _ = select.select([self.socket], [], [], timeout)
        if not readable:
            return False
        message = self.socket.recv(_MESSAGE)
        if not message:
            raise AssertionError(f"the nursery of daemons ended with {self.process.wait()}")
        told: dict[str, int] = json.loads(message)
        if "started" in told:
            self.started.append(told["started"])
            self.statuses.pop(told["started"], None)  # of one that had this number before
        else:
            self.statuses[told["ended"]] = os.waitstatus_to_exitcode(told["status"])
        return True


_of_this_process: tuple[int, Nursery] | None = None


def nursery() -> Nursery:
    """This test process's own, which is started when it is first asked for."""
    global _of_this_process
    if _of_this_process is None or _of_this_process[0] != os.getpid():
        _of_this_process = (os.getpid(), Nursery())
    return _of_this_process[1]


def is_warm(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the nursery has what this would run: our modules, by this Python, on this path.

    What the loader and the interpreter read from the environment, they read once.
    """
    if list(command[:2]) != [sys.executable, "-m"] or command[2] not in MODULES:
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
        if name.startswith(("LD_", "PYTHON", "MALLOC_", "ASAN_")) and name != "PYTHONPATH"
    }


# In the nursery ------------------------------------------------------------------------------


def become(wanted: dict[str, Any], fds: Sequence[int]) -> None:
    """In the forked process: what a new one has, but for what is imported."""
    log, ready = fds
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.set_inheritable(ready, True)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    time.tzset()
    sys.argv = [wanted["module"], *wanted["arguments"], "--ready-fd", str(ready)]


def raise_children(connection: socket.socket) -> dict[str, Any] | None:
    """Fork what is asked for, tell how it ends; in a forked process, what it is to run."""
    waiting = selectors.DefaultSelector()
    waiting.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is not connection:
                pid, pidfd = key.data, key.fd
                _, status = os.waitpid(pid, 0)
                waiting.unregister(pidfd)
                os.close(pidfd)
                connection.send(json.dumps({"ended": pid, "status": status}).encode())
                continue
            message, fds, _, _ = socket.recv_fds(connection, _MESSAGE, 2)
            if not message:
                return None
            wanted: dict[str, Any] = json.loads(message)
            pid = os.fork()
            if pid == 0:
                for other in [key for key in waiting.get_map().values() if key.data]:
                    os.close(other.fd)
                waiting.close()
                connection.close()
                become(wanted, fds)
                return wanted
            for fd in fds:
                os.close(fd)
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            connection.send(json.dumps({"started": pid}).encode())


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for module in MODULES.values():
        with suppress(ImportError):  # a manager's extra packages may be missing
            importlib.import_module(module)
    # The tests end it, by closing its socket.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    wanted = raise_children(connection)
    if wanted is not None:
        signal.signal(signal.SIGINT, before)
        runpy.run_module(wanted["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
