"""What a node has for the containers of a claim: a folder with the token, and a CDI file.

Everything is in files, so a plug-in that starts anew has nothing to remember.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool_common.errors import GpupoolError
from gpupool_kubernetes import names
from gpupool_kubernetes.dra.claims import UID

#: What the container runtime calls our devices: vendor and class.
KIND = f"{names.GROUP}/claim"
#: The oldest version of the specification that has all that we write.
CDI_VERSION = "0.6.0"

TOKEN, ABOUT = "token", "claim.json"


@dataclass(frozen=True)
class Folders:
    """Where things are on the node; each path is the same in the plug-in's container."""

    #: Of the plug-in alone (mode 0700): a folder for each claim, which is mounted into containers.
    data: Path
    #: Where the container runtime looks for CDI files.
    cdi: Path
    #: The client libraries, which are mounted as well.
    libraries: Path

    def claim(self, uid: str) -> Path:
        return self.data / "claims" / uid

    def spec(self, uid: str) -> Path:
        return self.cdi / f"{names.DRA_DRIVER}-{uid}.json"


def device_id(uid: str, number: int) -> str:
    """The CDI name of a claim's device."""
    return f"{KIND}={uid}-{number}"


def prepare(
    folders: Folders, about: dict[str, str], devices: list[str], servers: str, token: str
) -> None:
    """Let a claim's containers find servers and token. ``about``: uid, namespace and name."""
    uid = about["uid"]
    try:
        folders.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        folders.data.chmod(0o700)
        folder = folders.claim(uid)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        _write(folder / TOKEN, token + "\n")
        _write(folder / ABOUT, json.dumps(about))
        folders.cdi.mkdir(parents=True, exist_ok=True)
        _write(folders.spec(uid), json.dumps(_spec(folders, uid, devices, servers), indent=1))
    except OSError as error:
        raise GpupoolError(f"{error.filename}: cannot be written: {error.strerror}") from None


def renew(folders: Folders, uid: str, token: str) -> bool:
    """Put another token where a claim's containers read it; whether it was another."""
    path = folders.claim(uid) / TOKEN
    try:
        if path.read_text(encoding="ascii") == token + "\n":
            return False
        _write(path, token + "\n")
    except FileNotFoundError:
        return False  # it was unprepared meanwhile
    except OSError as error:
        raise GpupoolError(f"{path}: cannot be written: {error.strerror}") from None
    return True


def unprepare(folders: Folders, uid: str) -> None:
    """Take all of it away; what is not there any more is none to complain of."""
    try:
        folders.spec(uid).unlink(missing_ok=True)
        folder = folders.claim(uid)
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise GpupoolError(f"{error.filename}: cannot be removed: {error.strerror}") from None


def prepared(folders: Folders) -> Iterator[dict[str, str]]:
    """What is prepared on this node: uid, namespace and name of each claim."""
    for path in sorted((folders.data / "claims").glob(f"*/{ABOUT}")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # half written, or just gone; preparing it again mends it
        if isinstance(found, dict) and found.get("uid") == path.parent.name:
            yield {key: str(found.get(key)) for key in ("uid", "namespace", "name")}


def _spec(folders: Folders, uid: str, devices: list[str], servers: str) -> dict[str, Any]:
    """The edits are the claim's, so that two devices of it do not make them twice."""
    assert UID.fullmatch(uid)
    lib = f"{names.LIBRARIES_PATH}/lib"
    env = [
        f"GPUPOOL_SERVER={servers}",
        f"GPUPOOL_TOKEN_FILE={names.LEASE_PATH}/{TOKEN}",
        f"LD_LIBRARY_PATH={lib}",
    ]
    mounts = [
        _mount(folders.libraries, names.LIBRARIES_PATH),
        _mount(folders.claim(uid), names.LEASE_PATH),
    ]
    return {
        "cdiVersion": CDI_VERSION,
        "kind": KIND,
        "containerEdits": {"env": env, "mounts": mounts},
        "devices": [
            # The specification wants edits of each device.
            {
                "name": f"{uid}-{number}",
                "containerEdits": {"env": [f"GPUPOOL_CLAIM_DEVICE_{number}={device}"]},
            }
            for number, device in enumerate(devices)
        ],
    }


def _mount(host: Path, container: str) -> dict[str, Any]:
    options = ["ro", "nosuid", "nodev", "bind"]
    return {"hostPath": str(host), "containerPath": container, "options": options}


def _write(path: Path, text: str) -> None:
    """As a whole; readable for all who get at it: a container's user may be anybody.

    A CDI file holds no secret, and the folder of a claim is below one that is ours alone.
    """
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
