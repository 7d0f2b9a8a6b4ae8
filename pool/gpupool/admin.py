"""Ask the server of this machine over its admin socket: one JSON line, one answered.

Only the user that runs the server can open RUN/admin.sock; there is no token.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpupool import contexts
from gpupool_common import json_text
from gpupool_common.errors import ProtocolError, RefusedError, UnreachableError
from gpupool_common.paths import default_run_dir
from gpupool_common.protocol import one_line

SOCKET = "admin.sock"
MAX_ANSWER = 64 << 20
TIMEOUT = 10.0


class Admin:
    """The admin socket of one run directory."""

    def __init__(self, run_dir: Path | None = None) -> None:
        self.path = (run_dir or default_run_dir()) / SOCKET
        self._chosen = run_dir is not None

    def ask(self, question: Mapping[str, Any], timeout: float = TIMEOUT) -> dict[str, Any]:
        """The answer to one question; every outcome but ``ok`` is an exception."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout)
                sock.connect(str(self.path))
                sock.sendall(json.dumps(question).encode() + b"\n")
                line = self._read_line(sock)
        except TimeoutError:
            raise UnreachableError(
                f"the server at {self.path} gave no answer within {timeout:g} s;"
                " its log may say why"
            ) from None
        except OSError as error:
            instead = "" if self._chosen else contexts.instead_of_a_server()
            asked = "is it running on this machine, as this user, and is --run-dir right?"
            raise UnreachableError(
                f"no gpupool server answers at {self.path}: {error.strerror or error};"
                f" {instead or asked}"
            ) from None
        return self._judge(line)

    def _read_line(self, sock: socket.socket) -> bytes:
        parts: list[bytes] = []
        size = 0
        while not (parts and b"\n" in parts[-1]):
            part = sock.recv(1 << 16)
            size += len(part)
            if not part:
                raise UnreachableError(
                    f"the server at {self.path} closed the connection without an answer;"
                    " is it stopping?"
                )
            if size > MAX_ANSWER:
                raise ProtocolError(
                    f"the server at {self.path} answered more than {MAX_ANSWER} bytes"
                )
            parts.append(part)
        return b"".join(parts).partition(b"\n")[0]

    def _judge(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json_text.parse(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and "error" in answer:
            raise RefusedError(
                str(answer.get("code", "bad-request")), one_line(str(answer["error"]))
            )
        if not isinstance(answer, dict) or answer.get("ok") is not True:
            raise ProtocolError(
                f"what answers at {self.path} is not a gpupool server of this release: no JSON"
            )
        return answer
