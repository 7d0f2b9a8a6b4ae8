"""User lands of other distributions, for `make test-lands`: a root folder each, by debootstrap.

debootstrap and Ubuntu's keys are unpacked into BUILD/lands/tools and not installed. A mirror that
does not answer, or has a release no more, leaves its land out, with a line. BUILD/lands/wheels has
what the Python of each land takes of gpupool's dependencies (constraints.txt), so that pip needs no
network there. Root alone can make them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"
#: The oldest Python that gpupool's own takes (pyproject.toml).
OLDEST = (3, 11)


@dataclass(frozen=True)
class Land:
    """A release of a distribution, and its Python."""

    name: str
    suite: str
    mirror: str
    python: tuple[int, int]

    @property
    def keys(self) -> str:
        return "debian" if self.mirror == DEBIAN else "ubuntu"

    @property
    def components(self) -> str:
        return "main" if self.mirror == DEBIAN else "main,universe"

    @property
    def script(self) -> str:
        """How debootstrap goes about it; it knows no release that is newer than itself by name."""
        return "sid" if self.mirror == DEBIAN else "gutsy"

    @property
    def has_launcher(self) -> bool:
        return self.python >= OLDEST


LANDS = (
    Land("debian-11", "bullseye", DEBIAN, (3, 9)),
    Land("debian-12", "bookworm", DEBIAN, (3, 11)),
    Land("debian-13", "trixie", DEBIAN, (3, 13)),
    Land("ubuntu-20.04", "focal", UBUNTU, (3, 8)),
    Land("ubuntu-22.04", "jammy", UBUNTU, (3, 10)),
    Land("ubuntu-24.04", "noble", UBUNTU, (3, 12)),
)
TOOLS = ("debootstrap", "debian-archive-keyring")
#: Debian has no package of Ubuntu's keys; this one is Ubuntu's, by its hash.
UBUNTU_KEYS = f"{UBUNTU}/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
UBUNTU_KEYS_HASH = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"


def succeeds(*command: str | Path, log: Path, **extra: str) -> bool:
    with log.open("ab") as file:
        done = subprocess.run(
            command, env={**os.environ, **extra}, stdout=file, stderr=file, check=False
        )
    return done.returncode == 0


def fetch_tools(tools: Path, log: Path) -> None:
    shutil.rmtree(tools, ignore_errors=True)
    tools.mkdir(parents=True)
    fetch = ("sh", "-c", 'cd "$0" && apt-get -q download "$@"', tools, *TOOLS)
    if not succeeds(*fetch, log=log):
        sys.exit(f"lands: apt-get has no {' or '.join(TOOLS)}; {log} says why")
    try:
        with urllib.request.urlopen(UBUNTU_KEYS, timeout=60) as answer:
            keys = answer.read(1 << 20)
        if hashlib.sha256(keys).hexdigest() == UBUNTU_KEYS_HASH:
            (tools / "ubuntu-keyring.deb").write_bytes(keys)
    except OSError as error:
        print(f"lands: Ubuntu's mirror does not answer: {error}", flush=True)
    for deb in tools.glob("*.deb"):
        succeeds("dpkg", "-x", deb, tools, log=log)


def bootstrap(land: Land, work: Path) -> bool:
    """Make BUILD/lands/NAME, which is there only when it is whole."""
    root, fresh = work / land.name, work / "half" / land.name
    tools, log = work / "tools", work / "lands.log"
    share = tools / "usr/share/debootstrap"
    if root.exists():
        return True
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.parent.mkdir(exist_ok=True)
    keys = tools / f"usr/share/keyrings/{land.keys}-archive-keyring.gpg"
    made = succeeds(
        *("sh", tools / "usr/sbin/debootstrap", "--variant=minbase", f"--keyring={keys}"),
        *("--include=python3,python3-venv", f"--components={land.components}"),
        *(land.suite, fresh, land.mirror, share / "scripts" / land.script),
        log=log,
        DEBOOTSTRAP_DIR=str(share),
    )
    if made:
        shutil.rmtree(fresh / "var/cache/apt/archives", ignore_errors=True)
        fresh.rename(root)
    return made


def fetch_wheels(land: Land, wheel: Path, work: Path) -> bool:
    """What the land's Python takes of what the wheel depends on."""
    to = work / "wheels" / f"{land.python[0]}.{land.python[1]}"
    if list(to.glob("pydantic-*.whl")):
        return True
    return succeeds(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--only-binary", ":all:", "--implementation", "cp", "--dest", to),
        *("--python-version", ".".join(map(str, land.python))),
        *("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"),
        *("--platform", "manylinux_2_17_x86_64", "--platform", "manylinux_2_27_x86_64"),
        *("--find-links", wheel.parent, "--requirement", work / "asked.txt"),
        log=work / "lands.log",
    )


def write_asked(wheel: Path, work: Path) -> None:
    """The wheel, and the versions of constraints.txt without their hashes, which it has none of."""
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    versions = [line.split()[0] for line in pinned if re.match(r"[\w.-]+==", line)]
    (work / "pinned.txt").write_text("\n".join(versions) + "\n", encoding="utf-8")
    (work / "asked.txt").write_text(f"--constraint pinned.txt\n{wheel}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--wheels", type=Path, required=True, help="folder of x86_64-glibc's")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("lands: only root can make a user land; run as root")
    work = args.build.absolute() / "lands"
    work.mkdir(parents=True, exist_ok=True)
    (wheel,) = args.wheels.absolute().glob("gpupool-*.whl")
    fetch_tools(work / "tools", work / "lands.log")
    write_asked(wheel, work)
    for land in LANDS:
        if not bootstrap(land, work):
            print(f"lands: {land.name} is left out: {work / 'lands.log'} says why", flush=True)
        elif land.has_launcher and not fetch_wheels(land, wheel, work):
            sys.exit(f"lands: no wheels for Python of {land.name}; {work / 'lands.log'} says why")


if __name__ == "__main__":
    main()
