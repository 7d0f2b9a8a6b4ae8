"""The wheel, as a user has it: installed into an empty environment of every Python.

It is packed once per run by the script that `make wheel` runs, in a folder of its own, from the
libraries and programs that all tests use; where these are of another version, it compiles its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from gpupool_common import paths
from harness import PATIENCE, Result, run_program
from ports import free_port
from ready_process import start_ready
from toolchain import Toolchain

ROOT = Path(__file__).resolve().parents[2]
TESTED = ("--constraint", ROOT / "constraints.txt")
NEEDS_SCRIPT = ROOT / ".ci" / "needs.py"
BUILD_SCRIPT = ROOT / ".ci" / "wheel.py"

#: Long enough for a busy machine; only what hangs runs into it.
BUILD_PATIENCE = 500.0
pytestmark = pytest.mark.timeout(600)

PYTHONS = sorted({(3, 11), (3, 12), (3, 13), sys.version_info[:2]})

#: The C library and its own parts: the dynamic linker, what older ones had beside libc.
LIBC = re.compile(r"(libc|libdl|libpthread|librt|ld-linux-[\w-]+)\.so\.\d+")

#: Debian 12's. A newer machine's libraries, which the wheel carries, ask for its own.
OLDEST_SUPPORTED = (2, 36)


def clean_environment(**extra: str) -> dict[str, str]:
    """A user's: nothing of the caller's Python, libraries or gpupool."""
    dropped = ("GPUPOOL_", "PYTHON", "LD_", "VIRTUAL_ENV", "PIP_REQUIRE")
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped)} | extra


def must_run(*command: str | Path) -> str:
    words = [str(word) for word in command]
    result = run_program(words, clean_environment(), BUILD_PATIENCE)
    assert result.returncode == 0, f"{' '.join(words)}\n{result.explain()}"
    return result.stdout


def candidates(version: tuple[int, int]) -> Iterator[Path]:
    name = f"python{version[0]}.{version[1]}"
    yield Path(sys.executable)
    if found := shutil.which(name):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version[0]}.{version[1]}.*/bin/{name}"))


@cache
def find_python(version: tuple[int, int]) -> Path | None:
    """An interpreter of that version that runs: a pyenv shim may not."""
    probe = "import sys, venv; print(*sys.version_info[:2])"
    for candidate in candidates(version):
        done = subprocess.run([candidate, "-c", probe], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.split() == [str(part) for part in version]:
            return candidate
    return None


@pytest.fixture(scope="session")
def wheel_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


def compiled(home: paths.Home) -> list[str | Path]:
    """What there is to be packed: `make build` knows the version of when it configured."""
    version = must_run(sys.executable, "-m", "setuptools_scm", "--root", ROOT).strip()
    said = must_run(home.part(paths.WORKER), "--version")
    return ["--compiled", home.root] if said.split()[1] == version else []


@pytest.fixture(scope="session")
def wheel(wheel_work: Path, home: paths.Home) -> Path:
    folders = ("--build", wheel_work / "build", "--out", wheel_work / "dist")
    said = must_run(sys.executable, BUILD_SCRIPT, *folders, *compiled(home))
    return Path(said.splitlines()[-1])


@pytest.fixture(scope="session")
def unpacked(wheel: Path, wheel_work: Path) -> Path:
    folder = wheel_work / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and what it depends on, and nothing else."""

    root: Path

    def gpupool(self, *arguments: str, **env: str) -> Result:
        command = [str(self.root / "bin" / "gpupool"), *arguments]
        return run_program(command, clean_environment(**env))


@pytest.fixture(scope="module", params=PYTHONS, ids=lambda v: f"{v[0]}.{v[1]}")
def installed(request: pytest.FixtureRequest, wheel: Path, wheel_work: Path) -> Installed:
    version: tuple[int, int] = request.param
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine")
    root = wheel_work / f"python{version[0]}.{version[1]}"
    must_run(python, "-m", "venv", "--without-pip", root)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        root / "bin" / "python",
        "install",
    ]
    pip += ["--quiet", "--disable-pip-version-check", "--no-compile"]
    needs = root / "needs.txt"
    needs.write_text(must_run(sys.executable, NEEDS_SCRIPT), encoding="utf-8")
    must_run(*pip, *TESTED, "--requirement", needs)
    must_run(*pip, "--no-deps", wheel)
    return Installed(root)


# --- what is in it -----------------------------------------------------------------


def test_name_says_where_it_runs(wheel: Path) -> None:
    matched = re.fullmatch(r"gpupool-[\w.]+-py3-none-(.+)\.whl", wheel.name)
    assert matched, f"{wheel.name}: not a wheel for every Python 3 and one kind of machine"
    glibc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    here = tuple(int(part) for part in glibc.split()[-1].split(".")[:2])
    tags = re.findall(r"manylinux_(\d+)_(\d+)_\w+?(?=\.manylinux|$)", matched[1])
    assert tags, f"{wheel.name} is for no manylinux"
    assert min((int(a), int(b)) for a, b in tags) <= max(OLDEST_SUPPORTED, here)


def test_all_of_it_is_one_version(wheel: Path, unpacked: Path) -> None:
    """The packages have the wheel's, and what CMake built has it, too."""
    version = wheel.name.split("-")[1]
    (information,) = unpacked.glob("gpupool-*.dist-info")
    assert information.name == f"gpupool-{version}.dist-info"
    assert (information / "licenses/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    worker = unpacked / "gpupool/libexec/gpupool-worker"
    worker.chmod(0o755)
    assert must_run(worker, "--version").startswith(f"gpupool-worker {version} wire ")


def needed(path: Path) -> list[str]:
    """The libraries that a library or a program is linked to."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", must_run("readelf", "-d", path))


def test_brings_the_units_of_its_services(unpacked: Path) -> None:
    for name in ("gpupool-server", "gpupool-manager"):
        text = (unpacked / f"gpupool/share/systemd/{name}.service").read_text(encoding="utf-8")
        assert f"/{name} --config " in text


@pytest.mark.parametrize(
    "part", ["lib/libcuda.so.1", "lib/libnvidia-ml.so.1", "libexec/gpupool-worker"]
)
def test_needs_the_c_library_only(part: str, unpacked: Path) -> None:
    found = needed(unpacked / "gpupool" / part)
    assert found, f"{part} needs nothing at all, so it was not read as it should be"
    assert [name for name in found if not LIBC.fullmatch(name)] == []


def test_its_files_are_hardened(unpacked: Path) -> None:
    """As tests/python/test_hardening.py has it, after all that was done to them since."""
    files = [path for path in (unpacked / "gpupool").rglob("*") if path.is_file()]
    ours = [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]
    assert len(ours) > 5
    for path in ours:
        said = must_run("readelf", "-hldW", path)
        assert re.search(r"Type: +DYN", said), path
        assert re.search(r"FLAGS.*BIND_NOW", said), path
        assert "GNU_RELRO" in said, path
        assert re.search(r"GNU_STACK .* RW ", said), path


def test_brings_the_libraries_of_its_plug_ins(unpacked: Path) -> None:
    """Under changed names, so that they do not meet the application's own."""
    inside = {path.name for path in (unpacked / "gpupool.libs").iterdir()}
    parts = (
        "plugins/libgpupool_zmq.so",
        "plugins/libgpupool_tcp.so",
        "driver/libgpupool_softgpu.so",
    )
    for part in (f"lib/{part}" for part in parts):
        own = [
            n for n in needed(unpacked / "gpupool" / part) if re.match(r"lib(zmq|ssl|lz4|zstd)", n)
        ]
        assert own, part
        assert set(own) <= inside, part
    plain = {"libzmq.so.5", "libssl.so.3", "liblz4.so.1", "libzstd.so.1", "libsodium.so.23"}
    assert not inside & plain
    assert any(name.startswith("libsodium-") for name in inside), "libzmq cannot encrypt"


def test_has_the_licences_of_the_libraries_that_it_brings(unpacked: Path) -> None:
    (information,) = unpacked.glob("gpupool-*.dist-info")
    metadata = (information / "METADATA").read_text(encoding="utf-8")
    named = re.findall(r"^License-File: (.+)$", metadata, re.MULTILINE)
    there = [p for p in (information / "licenses").rglob("*") if p.is_file()]
    assert {str(p.relative_to(information / "licenses")) for p in there} == set(named)
    for library in ("libzmq5", "libssl3", "libsodium23", "liblz4-1", "libzstd1"):
        assert f"third_party/{library}.txt" in named
    bill = json.loads((information / "sboms/auditwheel.cdx.json").read_text(encoding="utf-8"))
    brought = {part["name"] for part in bill["components"]}
    assert {"libzmq5", "libssl3", "libsodium23", "liblz4-1", "libzstd1"} <= brought


def test_names_no_path_of_the_machine_that_built_it(unpacked: Path, wheel_work: Path) -> None:
    places = {os.fsencode(path) for path in (ROOT, wheel_work, Path(sys.prefix))}
    files = [path for path in unpacked.rglob("*") if path.is_file()]
    assert len(files) > 20
    telling = [
        f"{path.relative_to(unpacked)}: {place.decode()}"
        for path in files
        for place in places
        if place in path.read_bytes()
    ]
    assert telling == []


# --- what it does ------------------------------------------------------------------


def test_says_the_version_of_its_wheel(wheel: Path, installed: Installed) -> None:
    result = installed.gpupool("--version")
    assert result.stdout == f"gpupool {wheel.name.split('-')[1]}\n", result.explain()


def test_lib_path(installed: Installed) -> None:
    result = installed.gpupool("lib-path")
    assert result.returncode == 0, result.explain()
    folder = Path(result.stdout.rstrip("\n"))
    assert (folder / "libcuda.so.1").is_file()
    assert installed.root in folder.parents


def test_info_without_a_server(installed: Installed) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    result = installed.gpupool("info", "--server", url, GPUPOOL_TOKEN="any")
    assert result.returncode != 0
    said = result.stderr.strip()
    assert url in said, result.explain()
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1, said


@pytest.mark.parametrize("wanted", ["shm", "tcp", "zmq"])
def test_run_a_program(
    wanted: str, installed: Installed, toolchain: Toolchain, tmp_path: Path
) -> None:
    program = toolchain.runtime_program("vector_add", "static13")
    stats = tmp_path / "stats.json"
    env = {"GPUPOOL_STATS": str(stats)}
    if wanted != "shm":  # which a program beside its server gets without asking
        env["GPUPOOL_TRANSPORT"] = wanted
    result = installed.gpupool("run", "--local", "--soft", "--", str(program), **env)
    assert result.returncode == 0, result.explain()
    assert result.stdout.splitlines()[-1].startswith("PASS "), result.explain()
    counted = json.loads(stats.read_text())
    assert counted["transport"] == wanted
    assert counted["round_trips"] > 0


@pytest.fixture
def encrypting(installed: Installed) -> Iterator[str]:
    """The address of the wheel's own server, with its key."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: Unix sockets
        command = [str(installed.root / "bin" / "gpupool-server"), "--curve", "--driver", "soft"]
        command += ["--listen", f"tcp://127.0.0.1:{free_port()}", "--on-stop", "end"]
        command += ["--run-dir", f"{folder}/run"]
        env = clean_environment(GPUPOOL_SERVER_TOKEN="any")
        process, url = start_ready(command, Path(folder) / "log", PATIENCE, env)
        try:
            yield url
        finally:
            process.terminate()
            process.wait(PATIENCE)


@pytest.mark.parametrize("wanted", ["tcp", "zmq"])
def test_run_a_program_encrypted(
    wanted: str, installed: Installed, encrypting: str, toolchain: Toolchain, tmp_path: Path
) -> None:
    """Both ends with the libraries that the wheel brings."""
    assert "?key=" in encrypting
    program = toolchain.runtime_program("vector_add", "static13")
    stats = tmp_path / "stats.json"
    env = {"GPUPOOL_TOKEN": "any", "GPUPOOL_TRANSPORT": wanted, "GPUPOOL_STATS": str(stats)}
    result = installed.gpupool("run", "--server", encrypting, "--", str(program), **env)
    assert result.returncode == 0, result.explain()
    assert result.stdout.splitlines()[-1].startswith("PASS "), result.explain()
    assert json.loads(stats.read_text())["transport"] == wanted
    plain = encrypting.partition("?")[0]
    result = installed.gpupool("run", "--server", plain, "--", str(program), **env)
    assert "the address has no key" in result.stderr, result.explain()
