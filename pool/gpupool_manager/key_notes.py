"""By which keys a pool is known: a manager that takes over has them, or takes nothing over.

Keys are files of the state folder and never in the database, so a manager whose folder is a copy
may have old ones. With those, nodes would not know it and everybody's leases would end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from gpupool_common.errors import GpupoolError

#: The note in the database: ids and digests, by which nobody is anybody.
NOTE = "keys"


def describe(secret: bytes, signing: str, link: str) -> str:
    """What the note says: of the secret a digest, of the keys in use their public names."""
    digest = hashlib.sha256(b"gpupool keys\0" + secret).hexdigest()
    return json.dumps({"secret": digest, "signing": signing, "link": link}, sort_keys=True)


def check(known: str, secret: bytes, signing: Iterable[str], link: Iterable[str]) -> None:
    """GpupoolError unless the keys that the pool is known by are among ours."""
    told = json.loads(known)
    ours = json.loads(describe(secret, "", ""))
    right = {
        "the secret": told["secret"] == ours["secret"],
        "the signing key": told["signing"] in signing,
        "the key of the link": told["link"] in ("", *link),
    }
    missing = [name for name, found in right.items() if not found]
    if missing:
        raise GpupoolError(
            f"this state folder lacks {', '.join(missing)} of the pool; copy the other manager's"
            " state folder here, as after each roll of a key, and start again"
        )


def check_files(state_dir: Path, names: Iterable[str]) -> None:
    """GpupoolError where one is missing, which a start would make anew."""
    missing = [name for name in names if not (state_dir / name).exists()]
    if missing:
        raise GpupoolError(
            f"{state_dir} lacks {', '.join(missing)}: a manager that stands by needs a copy of the"
            " other manager's state folder"
        )
