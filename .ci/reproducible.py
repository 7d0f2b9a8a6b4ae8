"""Build the wheel twice, in two folders with two sets of paths, and compare the bytes.

The last line has the SHA-256 that both have; otherwise it names the files that differ and the
exit code is 1. What is compared is the committed state of the sources when it was started.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit("reproducible: it compares what git has committed, and this is no checkout")
    return done.stdout.strip()


def build(place: Path, commit: str) -> Path:
    """The wheel of a commit, made of a clone of its own."""
    shutil.rmtree(place, ignore_errors=True)
    git("clone", "--quiet", "--no-checkout", str(ROOT), str(place / "sources"))
    git("-C", str(place / "sources"), "checkout", "--quiet", "--detach", commit)
    print(f"building in {place}", flush=True)
    script = place / "sources" / ".ci" / "wheel.py"
    command = [sys.executable, str(script)]
    command += ["--build", str(place / "build"), "--out", str(place / "dist")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"reproducible: the build failed:\n{done.stdout[-2000:]}")
    return Path(done.stdout.strip().splitlines()[-1])


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def differing(one: Path, other: Path) -> list[str]:
    """What is not the same in both, by name."""
    inside = []
    for path in (one, other):
        with zipfile.ZipFile(path) as archive:
            files = archive.infolist()
            inside.append({f.filename: (digest(archive.read(f)), f.date_time) for f in files})
    names = sorted(set(inside[0]) | set(inside[1]))
    return [name for name in names if inside[0].get(name) != inside[1].get(name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="folder for both builds")
    work = parser.parse_args().build.absolute() / "reproducible"
    os.environ["CCACHE_DISABLE"] = "1"
    commit = git("rev-parse", "HEAD")  # of both, whatever is committed while they are built
    one, other = build(work / "one", commit), build(work / "and" / "another", commit)
    if one.name == other.name and one.read_bytes() == other.read_bytes():
        print(f"{one.name}: both builds have SHA-256 {digest(one.read_bytes())}")
        return 0
    for name in differing(one, other):
        print(f"differs: {name}")
    print("reproducible: the two builds are not the same")
    return 1


if __name__ == "__main__":
    sys.exit(main())
