"""The board of one GPU (server/arbiter/board.h), through libgpupool-board.so.

All workers on the GPU have the same file mapped. The server writes policy, weights and
limits there, reads the accounts, and takes out what died.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpupool_common.errors import GpupoolError
from gpupool_common.paths import Home
from gpupool_common.space import FULL, no_space

LIBRARY = "lib/server/libgpupool-board.so"

#: ``enum gp_policy``: a policy's number is its place here.
POLICIES = ("average", "preemptive", "weighted", "fixed", "weak", "native", "share")
#: Policies under which a tenant's part is counted in slices, of which there are max_inst.
SLICED = ("weighted", "fixed")

MAX_NAME = 95
MAX_TENANTS = 64

_MEANINGS = {
    errno.EPROTO: "it is of another release",
    errno.EUCLEAN: "it is damaged",
    errno.ENOSPC: f"it has no room for more than {MAX_TENANTS} tenants and groups",
    errno.EINVAL: "a value is out of its range",
    errno.EBUSY: "it is in use",
    errno.ENOENT: "there is no such tenant on it",
}


class BoardError(GpupoolError):
    """A board that cannot do what it was asked; ``number`` is the errno."""

    def __init__(self, number: int, what: str, meaning: str = "") -> None:
        super().__init__(f"{what}: {meaning or _MEANINGS.get(number) or os.strerror(number)}")
        self.number = number


@dataclass(frozen=True)
class BoardGpu:
    """Settings of the GPU (``struct gp_board_gpu``)."""

    policy: str
    max_inst: int
    prio_ratio: int
    hardware: bool
    memory_total: int


@dataclass(frozen=True)
class Grant:
    """What a tenant or group may have (``struct gp_board_grant``); 0 bytes: all there is."""

    memory: int = 0
    weight: int = 1
    share: int = 1000
    ceiling: int = 1000
    high_priority: bool = False


@dataclass(frozen=True)
class Account:
    """One tenant or group on the board: its grant and what it has had."""

    name: str
    memory_limit: int
    weight: int
    share: int
    ceiling: int
    high_priority: bool
    memory_used: int
    memory_peak: int
    memory_denied: int
    busy_ns: int
    waited_ns: int
    turns: int
    launches: int
    bytes_copied: int
    copy_ns: int
    members: int
    entitled: int
    host_used: int = 0


@dataclass(frozen=True)
class Member:
    """One worker on the board."""

    pid: int
    tenant: str
    memory_used: int
    slice_us: int


@dataclass(frozen=True)
class Snapshot:
    """Everything on a board at one moment."""

    gpu: BoardGpu
    tenants: tuple[Account, ...]
    processes: tuple[Member, ...]
    now_ns: int

    def account(self, name: str) -> Account | None:
        return next((account for account in self.tenants if account.name == name), None)


class Board(Protocol):
    """What the server asks of a board. Every method may raise :class:`BoardError`."""

    def set_gpu(self, gpu: BoardGpu) -> None: ...

    def put(self, name: str, grant: Grant) -> None:
        """Add or change; EBUSY if more memory is in use than the new limit."""

    def remove(self, name: str) -> None:
        """ENOENT; EBUSY while it has workers."""

    def reap(self, pid: int = 0) -> int:
        """Take out the worker ``pid``, or (0) all that are dead; returns how many."""

    def snapshot(self) -> Snapshot: ...

    def close(self) -> None: ...


#: Makes the board of a file, or opens the one that is there.
OpenBoard = Callable[[Path], Board]


class Library:
    """libgpupool-board.so with the types of what we call in it."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        except OSError as error:
            raise GpupoolError(f"{path} cannot be loaded: {error}") from None
        handle = ctypes.POINTER(c_void_p)
        self.open = self._typed("gp_board_open", c_int, c_char_p, handle)
        self.close = self._typed("gp_board_close", None, c_void_p)
        self.gpu_put = self._typed("gp_board_gpu_put", c_int, c_void_p, *[c_uint32] * 4, c_uint64)
        self.tenant_put = self._typed(
            "gp_board_tenant_put", c_int, c_void_p, c_char_p, c_uint64, *[c_uint32] * 4
        )
        self.tenant_remove = self._typed("gp_board_tenant_remove", c_int, c_void_p, c_char_p)
        self.reap = self._typed("gp_board_reap", c_int, c_void_p, c_int32)
        self.describe = self._typed("gp_board_describe", c_int, c_void_p, c_char_p, c_int)

    def _typed(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        function: Any = getattr(self._library, name)
        function.restype = result
        function.argtypes = arguments
        return function  # type: ignore[no-any-return]


class MappedBoard:
    """A board that this process has mapped."""

    def __init__(self, library: Library, path: Path) -> None:
        self._library = library
        self._path = path
        self._size = 1 << 16
        handle = c_void_p()
        result = library.open(os.fsencode(path), ctypes.byref(handle))
        if -result in FULL:
            raise BoardError(-result, "a GPU's board", no_space(path.parent))
        self._check(result, "open it")
        self._handle: c_void_p | None = handle

    def _check(self, result: int, what: str) -> None:
        if result < 0:
            raise BoardError(-result, f"the board {self._path}: cannot {what}")

    def _mapped(self) -> c_void_p:
        if self._handle is None:
            raise BoardError(errno.EBADF, f"the board {self._path} is closed")
        return self._handle

    def set_gpu(self, gpu: BoardGpu) -> None:
        result = self._library.gpu_put(
            self._mapped(),
            POLICIES.index(gpu.policy),
            gpu.max_inst,
            gpu.prio_ratio,
            int(gpu.hardware),
            gpu.memory_total,
        )
        self._check(result, f"set policy {gpu.policy}, max_inst {gpu.max_inst}")

    def put(self, name: str, grant: Grant) -> None:
        result = self._library.tenant_put(
            self._mapped(),
            name.encode(),
            grant.memory,
            grant.weight,
            grant.share,
            grant.ceiling,
            int(grant.high_priority),
        )
        self._check(result, f"set the limits of {name}")

    def remove(self, name: str) -> None:
        self._check(self._library.tenant_remove(self._mapped(), name.encode()), f"remove {name}")

    def reap(self, pid: int = 0) -> int:
        count = int(self._library.reap(self._mapped(), pid))
        self._check(count, "look for dead workers")
        return count

    def snapshot(self) -> Snapshot:
        return read_snapshot(self._describe())

    def _describe(self) -> bytes:
        while True:
            room = ctypes.create_string_buffer(self._size)
            length = int(self._library.describe(self._mapped(), room, self._size))
            self._check(length, "describe it")
            if length < self._size:
                return room.raw[:length]
            self._size = 2 * length

    def close(self) -> None:
        if self._handle is not None:
            self._library.close(self._handle)
            self._handle = None


def read_snapshot(text: bytes) -> Snapshot:
    """What ``gp_board_describe`` wrote; BoardError if it cannot be."""
    try:
        return _parse_snapshot(json.loads(text))
    except (ValueError, LookupError, TypeError) as error:
        raise BoardError(errno.EUCLEAN, f"a board cannot be read ({error})") from None


def _parse_snapshot(raw: dict[str, Any]) -> Snapshot:
    gpu = {**raw["gpu"], "policy": POLICIES[raw["gpu"]["policy"]]}
    return Snapshot(
        gpu=BoardGpu(**_fields(BoardGpu, gpu)),
        tenants=tuple(Account(**_fields(Account, tenant)) for tenant in raw["tenants"]),
        processes=tuple(Member(**_fields(Member, process)) for process in raw["processes"]),
        now_ns=int(raw["now_ns"]),
    )


def _fields(kind: Any, raw: dict[str, Any]) -> dict[str, Any]:
    """The fields that we know; a newer library may have more to say."""
    return {key: raw[key] for key in kind.__dataclass_fields__}


def find_opener(home: Home) -> OpenBoard | None:
    """How boards are opened here; None if the library is not installed."""
    path = home.root / LIBRARY
    if not path.is_file():
        return None
    library = Library(path)

    def open_board(path: Path) -> Board:
        return MappedBoard(library, path)

    return open_board
