"""Servers and programs that run as users of their own, where the tests run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from gpupool_common.ask import ask
from harness import TOKEN, PoolServer, Result, run_program
from toolchain import Toolchain

#: Users that no machine has: nothing else runs as one of them.
SERVER, TENANT, NEIGHBOUR = 64101, 64102, 64103


def as_user(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]


#: A server imports itself, and starts its interpreter again.
STARTS = (
    "import gpupool_server.server, subprocess, sys; subprocess.check_call([sys.executable, '-V'])"
)


class UsersServer(PoolServer):
    """A server of SERVER's, with a socket to which every user gets."""

    uid = SERVER

    def __init__(self, python: str, **settings: str) -> None:
        super().__init__(**settings)
        self.python = python
        self.prefix = as_user(self.uid) if self.uid else []
        self.settings.pop("peer-key")
        self.folder.chmod(0o755)
        (self.folder / "run").mkdir()
        shared = self.folder / "shm"
        shared.mkdir()
        shared.chmod(0o755)
        for path in (self.folder, self.folder / "run", shared):
            os.chown(path, self.uid, self.uid)
        self.socket = shared / "server.sock"
        self.settings["shm-listen"] = str(self.socket)

    def program(self, toolchain: Toolchain, name: str) -> str:
        """A program where all users may run it."""
        built = toolchain.driver_program(name)
        copy = self.folder / name
        if not copy.exists():
            shutil.copy(built, copy)
            copy.chmod(0o755)
        return str(copy)

    def run_as(self, uid: int, program: str, transport: str, **extra: str) -> Result:
        return run_program([*as_user(uid), program], self.environment(transport, **extra))

    def open_session(self) -> tuple[str, bytes]:
        """A session that waits for its client: its id, and the word for the socket."""
        fields = {"wire": "1", "token": TOKEN, "pid": "1", "program": "raw", "host": "here"}
        said = ask(self.address, "hello", fields).fields
        path, _, word = said["shm"].removeprefix("shm://").partition("?door=")
        assert path == str(self.socket)
        return said["session"], bytes.fromhex(word)


def find_python() -> str:
    """An interpreter that other users can run; why there is none, as a LookupError."""
    if os.geteuid() != 0:
        raise LookupError("needs root, to run as several users")
    if shutil.which("setpriv") is None:
        raise LookupError("needs setpriv, of util-linux")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for each in (sys.executable, "/usr/bin/python3"):
        command = [*as_user(SERVER), each, "-c", STARTS]
        if subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0:
            return each
    raise LookupError("other users cannot get to this build or its Python: a folder is private")
