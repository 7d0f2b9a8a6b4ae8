"""What workers ask the server of each other, with workers that say what they like."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from gpupool_common.relay_limits import Budgets
from gpupool_server.exchange import Exchange, same_lease
from gpupool_server.ranks import MOST_KEYS, MOST_LOST
from gpupool_server.rundir import Meta
from gpupool_server.session import Session
from gpupool_server.worker import Control
from lingering import lingering

TOKEN = "ab" * 16
PATIENCE = 30.0


def meta(session: str, **more: str) -> Meta:
    made = Meta(session, 2, 1, (0,), 0.0, 1, "here", "program", tenant="red")
    return replace(made, **more)  # type: ignore[arg-type]


class FakeWorker:
    """A control socket that answers `share`, and the session that it is of."""

    def __init__(self, folder: Path, about: Meta, line: bytes = b"memory 1 x\n") -> None:
        self.path = folder / f"{about.session}.sock"
        self.line = line
        self.asked: list[str] = []
        self.shares: list[int] = []
        self.questions: socket.socket | None = None
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.listener.setblocking(False)
        self.session = cast(Session, _Session(about, Control(self.path)))
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self.listener)
            connection.setblocking(True)
            data, fds, _, _ = await asyncio.to_thread(socket.recv_fds, connection, 256, 2)
            if data == b"questions\n":
                self.questions = socket.socket(fileno=fds[0])
            else:
                self.asked.append(data.decode())
                if self.line:
                    files = self.shares or [os.memfd_create("memory")]
                    socket.send_fds(connection, [self.line], files)
                    os.close(files[0])
            connection.close()

    async def ask(self, question: bytes) -> tuple[bytes, int]:
        """The answer, and how many descriptors came with it; nothing: it was cut off."""
        while self.questions is None:
            await asyncio.sleep(0.01)
        self.questions.settimeout(PATIENCE)
        self.questions.send(question)
        line, fds, _, _ = await asyncio.to_thread(socket.recv_fds, self.questions, 512, 2)
        for fd in fds:
            os.close(fd)
        return line, len(fds)

    def close(self) -> None:
        self.task.cancel()
        self.listener.close()
        if self.session.questions is not None:
            self.session.questions.cancel()
        if self.questions is not None:
            self.questions.close()


class _Session:
    """Of a session, what is looked at."""

    def __init__(self, about: Meta, control: Control) -> None:
        self.meta, self.control = about, control
        self.ending = False
        self.questions: asyncio.Task[None] | None = None


Make = Callable[..., FakeWorker]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    exchange, made = Exchange(), []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:

        def worker(session: str, line: bytes = b"memory 1 x\n", **more: str) -> FakeWorker:
            one = FakeWorker(Path(folder), meta(session, **more), line)
            made.append(one)
            exchange.admit(one.session)
            return one

        yield worker
        for one in made:
            one.close()
        exchange.close()


A, B = "aaaaaaaaaaaa", "bbbbbbbbbbbb"


def bring(session: str = A, number: int = 7) -> bytes:
    return f"bring {number} {session} {TOKEN}".encode()


async def test_an_answer_goes_to_who_asked(make: Make) -> None:
    a, b = make(A), make(B)
    assert await b.ask(bring()) == (b"7 memory 1 x\n", 1)
    assert a.asked == [f"share {TOKEN}\n"]
    assert await b.ask(bring(number=8)) == (b"8 memory 1 x\n", 1)


@pytest.mark.parametrize("other", [{"tenant": "blue"}, {"lease": "l1"}, {"group": "g1"}])
async def test_a_worker_of_another_lease_gets_nothing(make: Make, other: dict[str, str]) -> None:
    a, b = make(A), make(B, **other)
    assert await b.ask(bring()) == (b"7 none\n", 0)
    assert a.asked == []


async def test_a_session_that_is_not_there(make: Make) -> None:
    assert await make(B).ask(bring("cccccccccccc")) == (b"7 none\n", 0)


@pytest.mark.parametrize("count", [1, 3, 250])
async def test_what_is_shared_keeps_nobody(make: Make, count: int) -> None:
    """The last close of a descriptor may wait for who has sent it: not in the server."""
    a, b = make(A), make(B)
    with lingering() as one:
        a.shares = [one.end.detach()] * count
        assert await b.ask(bring()) == (b"7 memory 1 x\n", min(count, 2))
        assert not one.waited


async def test_who_asks_without_end_waits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has others to answer: a tenant's workers are heard so often."""
    spent: list[bytes] = []

    def spend(budgets: Budgets, tenant: bytes) -> bool:
        spent.append(tenant)
        return len(spent) > 2

    monkeypatch.setattr(Budgets, "spend", spend)
    a, b = make(A), make(B)
    assert await b.ask(bring()) == (b"7 memory 1 x\n", 1)
    assert spent == [b"red"] * 3
    assert len(a.asked) == 1
    assert b.questions is not None
    b.questions.send(b"rank " + TOKEN.encode())
    assert await b.ask(bring()) == (b"7 memory 1 x\n", 1)
    assert spent == [b"red"] * 5


async def test_a_worker_that_says_nothing(make: Make) -> None:
    a, b = make(A, line=b""), make(B)
    assert await b.ask(bring()) == (b"7 ", 0)
    a.listener.close()
    a.path.unlink()
    assert await b.ask(bring()) == (b"7 none\n", 0)


async def test_a_server_without_descriptors_answers_again_when_it_has_some(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(A)
    b = make(B)
    await say(b)
    with monkeypatch.context() as without:
        lacking = OSError(errno.EMFILE, "Too many open files")
        without.setattr("gpupool_server.worker.socket.socket", Mock(side_effect=lacking))
        assert await b.ask(bring()) == (b"7 none\n", 0)
    assert await b.ask(bring(number=8)) == (b"8 memory 1 x\n", 1)


@pytest.mark.parametrize(
    "question",
    [
        *(b"x", bring() + b"\n", bring().upper(), b"bring 7 ../../x " + TOKEN.encode()),
        *(bring(number=10**20), bring() + b" more", b"\0" * 128, b"bring -1 " + bring()[8:]),
    ],
)
async def test_a_worker_that_asks_anything_is_cut_off(make: Make, question: bytes) -> None:
    a, b = make(A), make(B)
    assert await b.ask(question) == (b"", 0)
    assert a.asked == []
    assert await make("dddddddddddd").ask(bring()) == (b"7 memory 1 x\n", 1)


def test_who_is_of_one_lease() -> None:
    assert same_lease(meta(A), meta(B))
    assert same_lease(meta(A, lease="l", group="g"), meta(B, lease="l", group="g"))
    assert not same_lease(meta(A, lease="l"), meta(B))


KEY = b"12" * 16


async def hears(worker: FakeWorker) -> bytes:
    """What it is told next; nothing: that its questions are not heard any more."""
    assert worker.questions is not None
    worker.questions.settimeout(PATIENCE)
    return await asyncio.to_thread(worker.questions.recv, 512)


async def say(worker: FakeWorker, *lines: bytes) -> None:
    """And wait until the server has heard it."""
    while worker.questions is None:
        await asyncio.sleep(0.01)
    for line in lines:
        await asyncio.to_thread(worker.questions.send, line)
    assert await worker.ask(bring("cccccccccccc", 9)) == (b"9 none\n", 0)


async def test_whoever_has_a_rank_hears_of_one_that_died(make: Make) -> None:
    a, b, c = make(A), make(B), make("cccccccccccd")
    await say(a, b"rank " + KEY, b"rank " + b"34" * 16)
    await say(b, b"rank " + KEY)
    await say(c, b"rank " + b"56" * 16)
    assert a.questions is not None
    a.questions.close()
    assert await hears(b) == b"lost " + KEY
    await say(c)  # nothing came before the answer
    await say(c, b"rank " + KEY[:31] + b"3")
    assert c.questions is not None
    c.questions.send(b"rank " + KEY)  # it begins later, and so late
    assert await hears(c) == b"lost " + KEY


async def test_a_rank_that_has_left_is_not_missed(make: Make) -> None:
    a, b = make(A), make(B)
    await say(a, b"rank " + KEY, b"left " + KEY, b"left " + KEY)
    await say(b, b"rank " + KEY)
    assert a.questions is not None
    a.questions.close()
    await asyncio.sleep(0)
    await say(b)


async def test_ranks_of_another_lease_are_none_of_its_own(make: Make) -> None:
    a, b, c = make(A), make(B, lease="other"), make("cccccccccccd")
    for each in (a, b, c):
        await say(each, b"rank " + KEY)
    assert a.questions is not None
    a.questions.close()
    assert await hears(c) == b"lost " + KEY
    await say(b)


async def test_a_server_that_ends_takes_no_rank_for_dead(make: Make) -> None:
    a, b = make(A), make(B)
    for each in (a, b):
        await say(each, b"rank " + KEY)
    assert a.session.questions is not None
    a.session.questions.cancel()
    assert await hears(a) == b""
    await say(b)


@pytest.mark.parametrize("line", [b"rank", b"rank " + KEY[1:], b"rank " + KEY.upper() + b"A"])
async def test_what_is_no_rank(make: Make, line: bytes) -> None:
    a = make(A)
    await say(a)
    assert a.questions is not None
    a.questions.send(line)
    assert await hears(a) == b""


async def test_of_too_many_ranks_the_oldest_is_forgotten(make: Make) -> None:
    a, b = make(A), make(B)
    await say(a, *(b"rank %032x" % number for number in range(MOST_KEYS + 1)))
    await say(b, b"rank %032x" % 0, b"rank %032x" % 1)
    assert a.questions is not None
    a.questions.close()
    assert await hears(b) == b"lost %032x" % 1
    await say(b)


async def test_what_one_lease_loses_lets_no_others_be_forgotten(make: Make) -> None:
    a, b = make(A), make(B)
    await say(a, b"rank " + KEY)
    await say(b)
    assert a.questions is not None
    a.questions.close()
    for number in range(0, MOST_LOST + 1, MOST_KEYS):
        other = make(f"{number:012x}", lease="other")
        await say(other, *(b"rank %032x" % (number + i) for i in range(MOST_KEYS)))
        assert other.questions is not None
        other.questions.close()
    await say(make("dddddddddddd", lease="other"))
    assert b.questions is not None
    b.questions.send(b"rank " + KEY)
    assert await hears(b) == b"lost " + KEY


async def test_a_loss_is_told_once(make: Make) -> None:
    """A worker that reads nothing for a while has room for so many words: none are said twice."""
    room, half = 250, 125  # of 256 communicators that a worker may have; a socket takes some more
    keys = [b"%032x" % number for number in range(room)]
    a, *others = (make(f"{number:012x}") for number in range(1, 5))
    await say(a, *(b"rank " + key for key in keys))
    for number, other in enumerate(others):
        await say(other, *(b"rank " + key for key in (keys if number == 2 else keys[:half])))
    for other in others:
        assert other.questions is not None
        other.questions.close()
        while other.session.questions is not None and not other.session.questions.done():
            await asyncio.sleep(0.01)
    assert [await hears(a) for _ in keys] == [b"lost " + key for key in keys]


async def test_who_does_not_read_is_answered_when_it_does(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers for which there is no room are dropped; those behind them are not."""
    heard: list[bytes] = []

    def spend(budgets: Budgets, tenant: bytes) -> bool:
        heard.append(tenant)
        return True

    monkeypatch.setattr(Budgets, "spend", spend)
    a = make(A)
    await say(a)
    assert a.questions is not None
    a.questions.setblocking(False)
    for number in range(400):
        await asyncio.get_running_loop().sock_sendall(a.questions, bring("cccccccccccc", number))
    while len(heard) < 401:
        await asyncio.sleep(0.01)
    with contextlib.suppress(BlockingIOError):
        while a.questions.recv(512):
            pass
    await say(a)


async def test_who_is_about_to_end_is_told_that_it_was_heard(make: Make) -> None:
    """Where no images are kept, too."""
    worker = make(A)
    assert await worker.ask(b"settle") == (b"settled", 0)
    assert await worker.ask(bring("cccccccccccc", 9)) == (b"9 none\n", 0)


async def test_who_ends_before_it_is_told_is_missed_at_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long others' images take, ranks that wait for it hear of its end."""
    never = asyncio.Event()
    monkeypatch.setattr("gpupool_server.exchange._settle", lambda *_: never.wait())
    a, b = make(A), make(B)
    for each in (a, b):
        await say(each, b"rank " + KEY)
    await say(a, b"settle", b"settle")
    assert a.questions is not None
    a.questions.close()
    assert await hears(b) == b"lost " + KEY


async def test_what_a_worker_says_last_is_heard_behind_its_end(make: Make) -> None:
    """A busy server sees the process end first, and lets go of the session: others were told that
    they had lost a rank which had ended its own."""
    a, b = make(A), make(B)
    for each in (a, b):
        await say(each, b"rank " + KEY)
    assert a.questions is not None and a.session.questions is not None
    a.questions.send(b"left " + KEY)
    a.questions.close()
    a.session.questions.cancel()
    await asyncio.wait((a.session.questions,))
    await say(b)
