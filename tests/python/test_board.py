"""The Python wrapper of the board, against the real library where it is installed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpupool_common import paths
from gpupool_server.board import LIBRARY, Board, BoardError, BoardGpu, Grant, find_opener
from gpupool_server.claims import Claim
from gpupool_server.gpu import Gpu
from gpupool_server.inventory import Device
from gpupool_server.sharing import GpuSettings

#: The environment before the tests clear it of GPUPOOL_HOME.
HOME = paths.find_home()
GPU = BoardGpu("share", 20, 90, True, 1 << 30)
MIB = 1 << 20

pytestmark = pytest.mark.skipif(
    not (HOME.root / LIBRARY).is_file(), reason=f"{LIBRARY} is not installed"
)

#: Joins as a worker does, takes memory, says so, and waits to be ended.
WORKER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
board = ctypes.c_void_p()
assert library.gp_board_open(sys.argv[2].encode(), ctypes.byref(board)) == 0
library.gp_board_join.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
member = library.gp_board_join(board, sys.argv[3].encode())
take = library.gp_board_memory_take
take.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
take.restype = ctypes.c_bool
print(member, [take(board, member, int(size)) for size in sys.argv[4:]], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def open_board() -> Callable[[Path], Board]:
    opener = find_opener(HOME)
    assert opener is not None
    return opener


def worker(path: Path, tenant: str, *sizes: int) -> tuple[subprocess.Popen[str], str]:
    words = [sys.executable, "-c", WORKER, str(HOME.root / LIBRARY), str(path), tenant]
    words += map(str, sizes)
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_settings_and_grants_are_read_back(
    folder: Path, open_board: Callable[[Path], Board]
) -> None:
    board = open_board(folder / "0.board")
    board.set_gpu(BoardGpu("weighted", 7, 55, False, 5 << 30))
    board.put("research/g", Grant(3 * MIB, 4, 300, 600, True))
    again = open_board(folder / "0.board")
    snapshot = again.snapshot()
    assert snapshot.gpu == BoardGpu("weighted", 7, 55, False, 5 << 30)
    account = snapshot.account("research/g")
    assert account is not None
    assert (account.memory_limit, account.weight, account.share) == (3 * MIB, 4, 300)
    assert (account.ceiling, account.high_priority, account.members) == (600, True, 0)
    again.remove("research/g")
    assert board.snapshot().tenants == ()
    board.close()
    board.close()
    with pytest.raises(BoardError, match="closed"):
        board.snapshot()
    again.close()


@pytest.mark.parametrize(
    ("grant", "number"),
    [
        (Grant(share=0), errno.EINVAL),
        (Grant(share=500, ceiling=400), errno.EINVAL),
        (Grant(weight=26), errno.EINVAL),
    ],
)
def test_bad_grants(
    folder: Path, open_board: Callable[[Path], Board], grant: Grant, number: int
) -> None:
    board = open_board(folder / "0.board")
    with pytest.raises(BoardError) as caught:
        board.put("t", grant)
    assert caught.value.number == number
    with pytest.raises(BoardError) as caught:
        board.remove("t")
    assert caught.value.number == errno.ENOENT
    board.close()


def test_a_worker_is_held_to_its_limit_and_reaped(
    folder: Path, open_board: Callable[[Path], Board]
) -> None:
    board = open_board(folder / "0.board")
    board.set_gpu(GPU)
    board.put("t/g", Grant(memory=10 * MIB))
    process, said = worker(folder / "0.board", "t/g", 8 * MIB, 3 * MIB, 2 * MIB)
    try:
        assert said == "0 [True, False, True]"
        account = board.snapshot().account("t/g")
        assert account is not None
        assert (account.memory_used, account.memory_denied, account.members) == (10 * MIB, 1, 1)
        (member,) = board.snapshot().processes
        assert (member.pid, member.tenant, member.memory_used) == (process.pid, "t/g", 10 * MIB)
        with pytest.raises(BoardError) as caught:
            board.put("t/g", Grant(memory=9 * MIB))
        assert caught.value.number == errno.EBUSY
        with pytest.raises(BoardError) as caught:
            board.remove("t/g")
        assert caught.value.number == errno.EBUSY
        assert board.reap() == 0, "it lives"
    finally:
        end(process)
    assert board.reap() == 1
    account = board.snapshot().account("t/g")
    assert account is not None and account.memory_used == 0
    board.remove("t/g")
    board.close()


def test_one_worker_is_reaped_by_its_pid(folder: Path, open_board: Callable[[Path], Board]) -> None:
    board = open_board(folder / "0.board")
    board.set_gpu(GPU)
    board.put("a", Grant())
    board.put("b", Grant())
    one, _ = worker(folder / "0.board", "a", MIB)
    two, _ = worker(folder / "0.board", "b", MIB)
    try:
        end(one)
        assert board.reap(one.pid) == 1
        assert [member.tenant for member in board.snapshot().processes] == ["b"]
    finally:
        end(two)
    board.close()


def test_many_tenants_are_all_described(folder: Path, open_board: Callable[[Path], Board]) -> None:
    board = open_board(folder / "0.board")
    names = [f"{'t' * 32}/{number:032d}" for number in range(64)]
    for name in names:
        board.put(name, Grant(memory=(1 << 50) - 1))
    assert sorted(account.name for account in board.snapshot().tenants) == names
    with pytest.raises(BoardError, match="no room for more than 64"):
        board.put("one-more", Grant())
    before = board.snapshot().now_ns
    assert before <= time.monotonic_ns()
    board.close()


def test_what_is_no_board(folder: Path, open_board: Callable[[Path], Board]) -> None:
    path = folder / "0.board"
    path.write_bytes(b"of another release")
    with pytest.raises(BoardError, match="another release") as caught:
        open_board(path)
    assert caught.value.number == errno.EPROTO
    with pytest.raises(BoardError):
        open_board(folder / "none" / "0.board")


def test_without_the_library_there_are_no_boards(folder: Path) -> None:
    assert find_opener(paths.Home(folder, "a test")) is None


def test_a_board_of_another_release_is_replaced(
    folder: Path, open_board: Callable[[Path], Board]
) -> None:
    (folder / "0.board").write_bytes(b"of another release")
    gpu = Gpu(
        Device(0, "a GPU", "GPU-0", GPU.memory_total, "0"), GpuSettings.model_construct(), folder
    )
    gpu.open(open_board)
    gpu.write_settings()
    snapshot = gpu.snapshot()
    assert snapshot is not None and snapshot.gpu == GPU


def make_gpu(folder: Path) -> Gpu:
    device = Device(0, "a GPU", "GPU-0", GPU.memory_total, "0")
    return Gpu(device, GpuSettings.model_construct(), folder)


def damage(path: Path, value: int = 0xFF) -> None:
    """What any worker on the board can do: write."""
    with path.open("r+b") as board:
        board.write(bytes([value]) * path.stat().st_size)


@pytest.mark.parametrize("value", [0, 1, 0x41, 0xFF])
def test_a_damaged_board_at_the_start(
    folder: Path, open_board: Callable[[Path], Board], value: int
) -> None:
    """An index out of range ended the server, and the next one at its start again."""
    open_board(folder / "0.board").close()
    damage(folder / "0.board", value)
    gpu = make_gpu(folder)
    gpu.open(open_board)
    gpu.write_settings()
    snapshot = gpu.snapshot()
    assert snapshot is not None and snapshot.gpu == GPU
    assert (folder / "0.board.damaged").is_file()


def test_a_board_that_is_damaged_while_it_is_in_use(
    folder: Path, open_board: Callable[[Path], Board]
) -> None:
    gpu = make_gpu(folder)
    gpu.open(open_board)
    gpu.write_settings()
    gpu.claims["t/g"] = Claim(memory=MIB)
    for number in range(4):
        assert gpu.ruined == (number > 2)
        damage(folder / "0.board")
        assert gpu.snapshot() is None
        gpu.look()
        snapshot = gpu.snapshot()
        assert snapshot is not None and snapshot.gpu == GPU
        assert gpu.dirty == {"t"}, "its grants are to be written anew"
    assert gpu.ruined


def test_a_board_that_is_cut_short(folder: Path, open_board: Callable[[Path], Board]) -> None:
    """Touching what is no longer there is SIGBUS, where nobody minds it."""
    gpu = make_gpu(folder)
    gpu.open(open_board)
    gpu.write_settings()
    os.truncate(folder / "0.board", 0)
    gpu.look()
    snapshot = gpu.snapshot()
    assert snapshot is not None and snapshot.gpu == GPU


def test_a_board_for_which_there_is_no_space(
    folder: Path, open_board: Callable[[Path], Board]
) -> None:
    """It could not be made anew for a while: then it is made when it can be."""
    room = False

    def opener(path: Path) -> Board:
        if not room:
            raise BoardError(errno.ENOSPC, "a GPU's board", "no space left")
        return open_board(path)

    gpu = make_gpu(folder)
    gpu.open(open_board)
    gpu.write_settings()
    gpu._open_board = opener
    damage(folder / "0.board")
    with pytest.raises(BoardError, match="no space left"):
        gpu.look()
    assert gpu.snapshot() is None
    with pytest.raises(BoardError, match="no space left"):
        gpu.look()
    room = True
    gpu.look()
    snapshot = gpu.snapshot()
    assert snapshot is not None and snapshot.gpu == GPU
