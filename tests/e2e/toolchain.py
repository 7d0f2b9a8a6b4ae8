"""Compile the programs of this folder with the compiler that the PyPI wheels bring.

The wheels (nvidia-cuda-nvcc, -crt, -cccl, nvidia-nvvm, nvidia-cuda-runtime, all 13.0, and
nvidia-cuda-runtime-cu12) lie in site-packages/nvidia. Where they are missing, CUDA_HOME, the
nvcc of PATH or /usr/local/cuda serves. Every program embeds PTX only (compute_75), so that the
soft GPU can run it and any real GPU compiles it at load.

Runtime variants of a .cu program:
  static13  CUDA 13's runtime inside the program
  shared13  CUDA 13's libcudart.so.13, found by rpath
  static12  CUDA 12's runtime inside: nvcc 13 with CUDA 12's headers first and its library
  shared12  likewise with libcudart.so.12
Programs in C use the driver API alone and are linked to libcuda.so.1 by name, through an empty
library that has exactly the names they import: so no driver is needed to build them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent / "programs"
TARGET = ("-gencode", "arch=compute_75,code=compute_75")
VARIANTS = ("static13", "shared13", "static12", "shared12")


class ToolchainError(Exception):
    """A compiler is missing, or a program does not compile."""


@dataclass(frozen=True)
class Runtime:
    """One CUDA runtime: where its headers and its libraries are."""

    include: Path
    lib: Path


def _wheel_roots() -> list[Path]:
    return [Path(p) / "nvidia" for p in sys.path if p and (Path(p) / "nvidia").is_dir()]


def _find_toolkit() -> Path:
    """The folder that has bin/nvcc, include/ and lib/ or lib64/."""
    candidates = [root / "cu13" for root in _wheel_roots()]
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(Path(home))
    if found := shutil.which("nvcc"):
        candidates.append(Path(found).resolve().parent.parent)
    candidates.append(Path("/usr/local/cuda"))
    for candidate in candidates:
        if (candidate / "bin" / "nvcc").is_file():
            return candidate
    raise ToolchainError(
        "no nvcc: pip install nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.*"
        " nvidia-cuda-cccl==13.0.* nvidia-cuda-runtime==13.0.*, or set CUDA_HOME"
    )


def _first_dir(*candidates: Path) -> Path:
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise ToolchainError(f"none of these folders is there: {', '.join(map(str, candidates))}")


class Toolchain:
    """Compiles into `cache`; a program whose sources and flags are unchanged is kept."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.cache.mkdir(parents=True, exist_ok=True)
        self.home = _find_toolkit()
        self._driver_programs: dict[tuple[str, Path, tuple[str, ...]], Path] = {}

    @cached_property
    def cuda13(self) -> Runtime:
        return Runtime(
            self.home / "include",
            _first_dir(
                self.home / "lib", self.home / "lib64", self.home / "targets/x86_64-linux/lib"
            ),
        )

    @cached_property
    def cuda12(self) -> Runtime | None:
        for root in _wheel_roots():
            place = root / "cuda_runtime"
            if (place / "lib" / "libcudart.so.12").is_file():
                return Runtime(place / "include", place / "lib")
        return None

    def variants(self) -> tuple[str, ...]:
        """The runtime variants that this machine can build."""
        return VARIANTS if self.cuda12 else VARIANTS[:2]

    def nvcc(self, *arguments: str) -> list[str]:
        return [str(self.home / "bin" / "nvcc"), "-std=c++17", "-O2", "-w", *arguments]

    def runtime_program(
        self, name: str, variant: str = "static13", flags: tuple[str, ...] = ()
    ) -> Path:
        """Build programs/NAME.cu against one of VARIANTS; `flags` go to nvcc as they are."""
        kind, version = variant[:-2], variant[-2:]
        runtime = self.cuda13 if version == "13" else self.cuda12
        if variant not in VARIANTS or runtime is None:
            raise ToolchainError(f"no runtime for variant {variant!r}; choose of {self.variants()}")
        said = [flag.strip("-") for flag in flags]
        made = "-".join([name, version, *said])
        units = [self._runtime_object(made, name, runtime, flags)]
        if "-rdc=true" in flags:
            units += self._device_link(made, name, runtime, flags)
        # The runtime library is named in full: a wheel has no libcudart.so to ask for.
        command = ["g++", *map(str, units)]
        if kind == "static":
            command += [str(runtime.lib / "libcudart_static.a"), "-lrt", "-lpthread", "-ldl"]
            if (culibos := runtime.lib / "libculibos.a").is_file():
                command.append(str(culibos))
        else:
            command += [f"-L{runtime.lib}", f"-l:libcudart.so.{version}"]
            command += [f"-Wl,-rpath={runtime.lib}"]
        return self._build("-".join([name, variant, *said]), units, command)

    def _device_link(
        self, made: str, name: str, runtime: Runtime, flags: tuple[str, ...]
    ) -> list[Path]:
        """programs/NAME_part.cu, and what nvcc leaves of it and NAME.cu to the driver's linker."""
        part = self._runtime_object(f"{made}-part", f"{name}_part", runtime, flags)
        units = [self.cache / f"{made}.o", part]
        command = self.nvcc(*TARGET, *flags, f"-L{runtime.lib}", "-dlink", *map(str, units))
        linked = self._build(f"{made}-linked.o", units, [*command, "-lcudadevrt"])
        return [part, linked, runtime.lib / "libcudadevrt.a"]

    def _runtime_object(
        self, made: str, name: str, runtime: Runtime, flags: tuple[str, ...]
    ) -> Path:
        """What the programs of the static and of the shared runtime have in common."""
        command = self.nvcc(
            *TARGET,
            f"-I{runtime.include}",
            f"-I{self.home / 'include'}",
            f"-I{self.home / 'include' / 'cccl'}",
            f"-DE2E_RUNTIME={12 if runtime is self.cuda12 else 13}",
            *flags,
        )
        source = PROGRAMS / f"{name}.cu"
        return self._build(f"{made}.o", [source], [*command, "-c", str(source)])

    def ptx(self, name: str) -> Path:
        """programs/NAME.cu as PTX text."""
        return self.ptx_of(PROGRAMS / f"{name}.cu")

    def ptx_of(self, source: Path) -> Path:
        """Any .cu file as PTX text."""
        include = f"-I{self.home / 'include'}"
        command = self.nvcc("-arch=compute_75", "-ptx", include, str(source))
        return self._build(f"{source.stem}.ptx", [source], command)

    def driver_program(self, name: str, compiler: tuple[str, ...] = ("gcc",)) -> Path:
        """Build programs/NAME.c, which imports from libcuda.so.1 only."""
        return self.driver_source(name, PROGRAMS / f"{name}.c", compiler)

    def driver_source(self, name: str, source: Path, compiler: tuple[str, ...] = ("gcc",)) -> Path:
        """Build any C file that imports from libcuda.so.1 only; in a process once."""
        made = self._driver_programs.get((name, source, compiler))
        if made is None:
            made = self._driver_source(name, source, compiler)
            self._driver_programs[name, source, compiler] = made
        return made

    def _driver_source(self, name: str, source: Path, compiler: tuple[str, ...]) -> Path:
        kernels = self.ptx("kernels")
        unit = self._build(
            f"{name}.o",
            [source],
            [*compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-c"]
            + [f"-I{self.cuda13.include}", str(source)],
        )
        data = self._kernels_object(kernels)
        stub = self._stub(unit)
        command = [*compiler, str(unit), str(data), f"-L{stub.parent}", "-l:libcuda.so.1"]
        command += ["-Wl,--no-as-needed", "-lpthread", "-ldl", "-lm"]
        return self._build(name, [unit, data, stub], command)

    def _kernels_object(self, ptx: Path) -> Path:
        text = self.cache / f"{ptx.name}.S"
        body = (
            ".section .rodata\n.globl kernels_ptx\nkernels_ptx:\n"
            f'.incbin "{ptx}"\n.byte 0\n.section .note.GNU-stack,"",@progbits\n'
        )
        _write_if_changed(text, body)
        return self._build("kernels.o", [ptx, text], ["gcc", "-c", str(text)])

    def _stub(self, unit: Path) -> Path:
        """An empty libcuda.so.1 that has the names `unit` imports."""
        listing = _run(["nm", "-u", str(unit)])
        names = sorted({w for w in listing.split() if w.startswith("cu")})
        folder = self.cache / f"stub-{unit.stem}"
        folder.mkdir(exist_ok=True)
        source = folder / "stub.c"
        body = "".join(f"int {n}(void); int {n}(void) {{ return 999; }}\n" for n in names)
        _write_if_changed(source, body)
        command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source)]
        return self._build(f"{folder.name}/libcuda.so.1", [source], command)

    def _build(self, output: str, inputs: list[Path], command: list[str]) -> Path:
        """Run `command -o OUTPUT` unless the same command already made it from the same inputs."""
        digest = hashlib.sha256("\0".join(command).encode())
        for path in [*inputs, *sorted(PROGRAMS.glob("*.h"))]:
            digest.update(path.read_bytes())
        made, stamp = self.cache / output, self.cache / f"{output}.stamp"
        # Several test processes may want the same program: one of them builds it.
        with _locked(self.cache / f"{output}.lock"):
            if made.exists() and stamp.exists() and stamp.read_text() == digest.hexdigest():
                return made
            with tempfile.TemporaryDirectory(dir=self.cache) as scratch:
                fresh = Path(scratch) / made.name
                _run([*command, "-o", str(fresh)])
                fresh.replace(made)
            stamp.write_text(digest.hexdigest())
        return made


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_if_changed(path: Path, text: str) -> None:
    """Whole at once: another process may be reading it."""
    if not path.exists() or path.read_text() != text:
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.replace(path)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolchainError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout
