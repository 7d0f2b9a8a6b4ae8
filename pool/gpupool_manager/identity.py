"""Which pool a database and a state folder are of: both have its id, or neither.

The folder has the secrets that nodes and leases rely on, the database what they were given. One
without the other is not this pool, and continuing as if it were would end everybody's leases.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from gpupool_common.errors import GpupoolError
from gpupool_common.secret_file import write_secret
from gpupool_manager.pool import Pool
from gpupool_manager.records import Note

#: The note in the database, and the file in the state folder.
NOTE = "pool"
FILE = "pool.id"


async def check_identity(pool: Pool, state_dir: Path) -> str:
    """The pool's id, made at its first start; GpupoolError if the two are not of one pool."""
    path = state_dir / FILE
    kept = _read(path)
    known = pool.notes.get(NOTE)
    if known is None and kept is not None:
        raise GpupoolError(
            f"the database is empty, and {state_dir} is of the pool {kept}: name the database of"
            " that pool, or restore it; for a new pool take another state folder"
        )
    if known is not None and kept is not None and known != kept:
        raise GpupoolError(
            f"the database is of the pool {known}, and {state_dir} of the pool {kept}: name the"
            " database or the state folder that belongs to the other"
        )
    found = known or kept or secrets.token_hex(8)
    if known is None:
        await pool.commands.do(lambda transaction: transaction.put(Note(NOTE, found)))
    if kept is None:
        write_secret(path, found)
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise GpupoolError(f"{path}: cannot be read: {error}") from None
