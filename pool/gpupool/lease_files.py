"""Files that the processes of a lease read: its token, renewed, and what they must know in time.

A program's environment is what it was at its start; a process that is started hours later needs a
token of its own time, so the environment names a file. It is this user's alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from gpupool_common.errors import GpupoolError
from gpupool_common.secret_file import replace_secret

LEASE = "GPUPOOL_LEASE"
#: A file that is there while a host of the lease is being drained.
NOTICE = "GPUPOOL_NOTICE"


def private_folder() -> Path:
    """A new folder of this user's alone, where files of the session are kept if there is such."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    base = base if base and len(base) < 40 and os.access(base, os.W_OK) else "/tmp"
    return Path(tempfile.mkdtemp(prefix="gpupool-", dir=base))


class LeaseFiles:
    """A folder for one run of one program, which ends with it."""

    def __enter__(self) -> LeaseFiles:
        self._folder = private_folder()
        self.token = self._folder / "token"
        self.notice = self._folder / "notice.json"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def write_token(self, token: str) -> None:
        replace_secret(self.token, token)

    def write_notice(self, notice: Mapping[str, Any] | None) -> None:
        """As a whole, for who reads it meanwhile; None: there is nothing to know any more."""
        if notice is None:
            with contextlib.suppress(FileNotFoundError):
                self.notice.unlink()
            return
        draft = self.notice.with_suffix(".new")
        try:
            draft.write_text(json.dumps(notice) + "\n", encoding="utf-8")
            draft.replace(self.notice)
        except OSError as error:
            raise GpupoolError(f"{self.notice}: cannot be written: {error.strerror}") from None
