"""The server and its arbiters, where these are installed."""

from __future__ import annotations

import errno
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpupool_common import paths
from gpupool_server.arbiter import PROGRAM, ArbitratedBoard, find_opener
from gpupool_server.board import Board, BoardError, BoardGpu, Grant, Turn
from gpupool_server.claims import Claim
from gpupool_server.device import Device
from gpupool_server.gpu import Gpu
from gpupool_server.sharing import GpuSettings

#: The environment before the tests clear it of GPUPOOL_HOME.
HOME = paths.find_home()
GPU = BoardGpu("share", 20, 90, True, 1 << 30)
MIB = 1 << 20

pytestmark = pytest.mark.skipif(
    not (HOME.root / PROGRAM).is_file(), reason=f"{PROGRAM} is not installed"
)


@pytest.fixture
def open_board() -> Callable[[Path], Board]:
    opener = find_opener(HOME)
    assert opener is not None
    return opener


def test_settings_and_grants_are_read_back(
    folder: Path, open_board: Callable[[Path], Board]
) -> None:
    board = open_board(folder / "0.arbiter")
    board.set_gpu(BoardGpu("weighted", 7, 55, False, 5 << 30))
    board.put("research/g", Grant(3 * MIB, 4, 300, 600, True))
    again = open_board(folder / "0.arbiter")
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


def test_nobodys_turn(folder: Path, open_board: Callable[[Path], Board]) -> None:
    board = open_board(folder / "0.arbiter")
    log = board.turns(0)
    assert (log.first, log.turns, log.now) == (0, (), Turn("", log.now_ns, log.now_ns))
    assert board.turns(1 << 63).first == 0
    board.close()


def test_work_in_others_turns_is_charged(folder: Path, open_board: Callable[[Path], Board]) -> None:
    board = open_board(folder / "0.arbiter")
    for name in ("research", "research/g"):
        board.put(name, Grant(share=250))
    board.charge("research", 10**9, "research/g")
    board.charge("research", 10**9, "")  # which has been removed
    with pytest.raises(BoardError) as caught:
        board.charge("nobody", 1, "research")
    assert caught.value.number == errno.ENOENT
    with pytest.raises(BoardError) as caught:
        board.charge("research", 61 * 10**9, "research/g")
    assert caught.value.number == errno.EINVAL
    assert [account.due for account in board.snapshot().tenants] == [250, 250]
    board.close()


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
    board = open_board(folder / "0.arbiter")
    with pytest.raises(BoardError) as caught:
        board.put("t", grant)
    assert caught.value.number == number
    with pytest.raises(BoardError) as caught:
        board.remove("t")
    assert caught.value.number == errno.ENOENT
    board.close()


def test_a_seat_is_given_back_when_its_worker_has_ended(
    folder: Path, open_board: Callable[[Path], Board]
) -> None:
    board = open_board(folder / "0.arbiter")
    board.set_gpu(GPU)
    board.put("t/g", Grant(memory=10 * MIB))
    seat = board.seat("t/g")
    with pytest.raises(BoardError) as caught:
        board.remove("t/g")
    assert caught.value.number == errno.EBUSY
    process = subprocess.Popen(["sleep", "100"])
    board.started(seat, process.pid)
    (member,) = board.snapshot().processes
    assert (member.pid, member.tenant, member.memory_used) == (process.pid, "t/g", 0)
    process.kill()
    process.wait()
    while board.snapshot().processes:
        time.sleep(0.01)
    assert board.reap(process.pid) == 0, "it went by itself"
    other = board.seat("t/g")
    board.leave(other)
    board.remove("t/g")
    with pytest.raises(BoardError) as caught:
        board.seat("t/g")
    assert caught.value.number == errno.ENOENT
    board.close()


def test_workers_come_over_to_another_arbiter(
    folder: Path, open_board: Callable[[Path], Board]
) -> None:
    """Also after a restart of the server, which gets their seats from the first one."""
    board = open_board(folder / "0.arbiter")
    board.put("t", Grant())
    process = subprocess.Popen(["sleep", "100"])
    board.started(board.seat("t"), process.pid)
    board.close()
    board = open_board(folder / "0.arbiter")
    assert [member.pid for member in board.snapshot().processes] == [process.pid]
    orphans = board.orphans()
    assert {pid: seat.tenant for pid, seat in orphans.items()} == {process.pid: "t"}
    other = open_board(folder / "1.arbiter")
    other.adopt(orphans)
    assert other.snapshot().processes == ()
    other.put("t", Grant())
    assert [member.pid for member in other.snapshot().processes] == [process.pid]
    process.kill()
    process.wait()
    board.close()
    other.close()


def test_many_tenants_are_all_described(folder: Path, open_board: Callable[[Path], Board]) -> None:
    board = open_board(folder / "0.arbiter")
    names = [f"{'t' * 32}/{number:032d}" for number in range(64)]
    for name in names:
        board.put(name, Grant(memory=(1 << 50) - 1))
    assert sorted(account.name for account in board.snapshot().tenants) == names
    with pytest.raises(BoardError, match="no room for more than 64"):
        board.put("one-more", Grant())
    before = board.snapshot().now_ns
    assert before <= time.monotonic_ns()
    board.close()


def make_gpu(folder: Path) -> Gpu:
    device = Device(0, "a GPU", "GPU-0", GPU.memory_total, "0")
    return Gpu(device, GpuSettings.model_construct(), folder)


def test_without_the_program_there_are_no_boards(folder: Path) -> None:
    assert find_opener(paths.Home(folder, "a test")) is None


def test_what_is_no_arbiter_is_replaced(folder: Path, open_board: Callable[[Path], Board]) -> None:
    (folder / "0.arbiter").write_bytes(b"of another release")
    gpu = make_gpu(folder)
    gpu.open(open_board)
    gpu.write_settings()
    snapshot = gpu.snapshot()
    assert snapshot is not None and snapshot.gpu == GPU
    with pytest.raises(BoardError, match="cannot be started"):
        open_board(folder / "none" / "0.arbiter")


def test_an_arbiter_that_ends_is_replaced(
    folder: Path, open_board: Callable[[Path], Board]
) -> None:
    gpu = make_gpu(folder)
    gpu.open(open_board)
    gpu.write_settings()
    gpu.claims["t/g"] = Claim(memory=MIB)
    for number in range(4):
        assert gpu.ruined == (number > 2)
        board = gpu.board
        assert isinstance(board, ArbitratedBoard)
        board.end()
        while gpu.snapshot() is not None:
            time.sleep(0.01)
        gpu.look()
        snapshot = gpu.snapshot()
        assert snapshot is not None and snapshot.gpu == GPU
        assert gpu.dirty == {"t"}, "its grants are to be written anew"
    assert gpu.ruined


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
    assert isinstance(gpu.board, ArbitratedBoard)
    gpu.board.end()
    while gpu.snapshot() is not None:
        time.sleep(0.01)
    with pytest.raises(BoardError, match="no space left"):
        gpu.look()
    assert gpu.snapshot() is None
    with pytest.raises(BoardError, match="no space left"):
        gpu.look()
    room = True
    gpu.look()
    snapshot = gpu.snapshot()
    assert snapshot is not None and snapshot.gpu == GPU
