"""Where a manager keeps what must outlive it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpupool_common.errors import GpupoolError

TOKEN_FILE = "admin.token"


def default_state_dir(env: Mapping[str, str] | None = None) -> Path:
    """The folder for this user when none was configured."""
    if os.geteuid() == 0:
        return Path("/var/lib/gpupool")
    values = os.environ if env is None else env
    base = values.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = str(Path(values.get("HOME") or "~").expanduser() / ".local" / "state")
    return Path(base) / "gpupool"


def make_state_dir(path: Path) -> None:
    """A folder that is nobody else's; GpupoolError otherwise."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise GpupoolError(f"{path}: cannot be made: {error.strerror}") from None
    if found.st_uid != os.geteuid():
        raise GpupoolError(f"{path}: belongs to the user {found.st_uid}, not to us")
    if found.st_mode & 0o022:
        raise GpupoolError(f"{path}: others may write there; its mode must be 0700")
