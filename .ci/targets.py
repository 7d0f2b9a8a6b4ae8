"""The other machines that gpupool is built for, and what CMake is told for each.

The compiler is zig's, of the PyPI wheel ziglang (dependency group `targets`): a clang with the
headers and the symbols of each glibc and of musl. libzmq is the one of pyzmq's wheel for that
machine, by the hashes of constraints.txt. OpenSSL, lz4 and zstd are this machine's static
libraries, so what needs them is built for its own architecture alone: elsewhere there is the
client, which then takes ZeroMQ. A function that the older glibc lacks is an error of the linker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Headers of what is linked; of the C library none may be this machine's.
HEADERS = ("zmq.h", "lz4*.h", "zstd*.h", "zdict.h", "seccomp*.h", "openssl/*.h")
STATIC = {
    "LZ4_ARCHIVE": "liblz4.a",
    "LZ4_LIBRARY": "liblz4.a",
    "ZSTD_ARCHIVE": "libzstd.a",
    "ZSTD_LIBRARY": "libzstd.a",
    "OPENSSL_SSL_LIBRARY": "libssl.a",
    "OPENSSL_CRYPTO_LIBRARY": "libcrypto.a",
}
#: Whose licences go with what is linked in.
STATIC_PACKAGES = ("liblz4-1", "libzstd1", "libssl3")


@dataclass(frozen=True)
class Target:
    """A kind of machine; its own build has all, another only what programs load."""

    name: str
    triple: str  # as zig writes it
    processor: str
    platform: str  # of pyzmq's wheel, as pip writes it
    whole: bool = False


TARGETS = {
    target.name: target
    for target in (
        Target("x86_64-glibc", "x86_64-linux-gnu.2.28", "x86_64", "manylinux_2_28_x86_64", True),
        Target("aarch64-glibc", "aarch64-linux-gnu.2.28", "aarch64", "manylinux_2_28_aarch64"),
        Target("x86_64-musl", "x86_64-linux-musl", "x86_64", "musllinux_1_2_x86_64"),
    )
}


def must_have(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        sys.exit(f"targets: {name} is missing; install {package}")
    return found


def compiler(target: Target, work: Path) -> Path:
    """A program that is called as a C compiler is."""
    try:
        import ziglang
    except ImportError:
        sys.exit("targets: no ziglang; install the dependency group targets (make wheels does)")
    zig = Path(ziglang.__file__).parent / "zig"
    script = work / "cc"
    flags = f"-target {target.triple} -isystem '{work / 'include'}' -fno-sanitize=undefined"
    script.write_text(f"#!/bin/sh\nexec '{zig}' cc {flags} \"$@\"\n", encoding="utf-8")
    script.chmod(0o755)
    return script


def copy_headers(target: Target, folder: Path) -> None:
    places = [Path("/usr/include"), *Path("/usr/include").glob(f"{target.processor}-linux-gnu")]
    for pattern in HEADERS:
        for header in (path for place in places for path in place.glob(pattern)):
            to = folder / Path(pattern).parent / header.name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(header, to)
    if not (folder / "zmq.h").is_file():
        sys.exit("targets: no zmq.h in /usr/include; install libzmq3-dev")


def fetch_libzmq(target: Target, work: Path) -> Path:
    """The folder of the libraries that pyzmq's wheel for the target brings."""
    wheels, unpacked = work / "wheels", work / "pyzmq"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--platform", target.platform]
    command += ["--implementation", "cp", "--python-version", "3.11", "--abi", "cp311"]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(wheels), "pyzmq"]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"targets: PyPI has no wheel of pyzmq for {target.platform}")
    (wheel,) = wheels.glob("pyzmq-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    return unpacked / "pyzmq.libs"


def static_library(target: Target, name: str) -> str:
    for folder in (Path("/usr/lib") / f"{target.processor}-linux-gnu", Path("/usr/lib64")):
        if (folder / name).is_file():
            return str(folder / name)
    sys.exit(f"targets: no {name}; install libssl-dev, liblz4-dev and libzstd-dev")


def prepare(target: Target, work: Path) -> tuple[dict[str, str], Path]:
    """What CMake is told, and the folder of libzmq; `work` is made anew."""
    shutil.rmtree(work, ignore_errors=True)
    include = work / "include"
    include.mkdir(parents=True)
    copy_headers(target, include)
    libraries = fetch_libzmq(target, work)
    (zmq,) = libraries.glob("libzmq-*.so*")
    told = {
        "CMAKE_C_COMPILER": str(compiler(target, work)),
        "CMAKE_AR": must_have("llvm-ar", "llvm"),
        "CMAKE_RANLIB": must_have("llvm-ranlib", "llvm"),
        "CMAKE_STRIP": must_have("llvm-strip", "llvm"),
        "GPUPOOL_ZMQ_INCLUDE": str(include),
        "GPUPOOL_ZMQ_LIBRARY": str(zmq),
    }
    if target.whole and os.uname().machine == target.processor:
        told |= {key: static_library(target, name) for key, name in STATIC.items()}
        told |= {f"{key}_INCLUDE": str(include) for key in ("LZ4", "ZSTD")}
        told["OPENSSL_INCLUDE_DIR"] = str(include)
    else:
        told |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": target.processor}
        told |= {"GPUPOOL_CLIENT_ONLY": "ON", "CMAKE_DISABLE_FIND_PACKAGE_OpenSSL": "ON"}
    return told, libraries
