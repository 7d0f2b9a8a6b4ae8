"""What processes of one lease have in common: a worker asks for what another one has named.

A client hands a name on to another client in its own way (CUDA's IPC handles, files of memory).
That one's worker asks here, on a socket that it was given, one question at a time::

    bring NUMBER SESSION TOKEN

It also says there of which communicators it has ranks, ``rank KEY`` and ``left KEY``, and is told
``lost KEY`` (ranks.py), and which images it offers (image_keeper.py). Before it ends it says
``settle``, and is told ``settled`` when what it has offered was fetched or will not be.

The session's worker is asked for what it has behind the token (server/worker/ipc/shareable.h), and
its answer goes to who asked, behind the number, with the driver's descriptors. Nothing of it is
kept here, so a restart of the server loses nothing. It is given to sessions of the same lease
alone: who guesses a token, or has seen one, has nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import select
import socket
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from gpupool_common import logs
from gpupool_common.closer import Closer, take_no_descriptors
from gpupool_common.relay_limits import Budgets
from gpupool_server.image_keeper import ImageKeeper, Offers
from gpupool_server.image_store import ImageStore
from gpupool_server.ranks import Ranks
from gpupool_server.rundir import Meta
from gpupool_server.session import Session
from gpupool_server.worker import WorkerError, readable

_QUESTION = re.compile(rb"bring ([0-9]{1,20}) ([0-9a-f]{12}) ([0-9a-f]{32})")
_RANK = re.compile(rb"(rank|left) ([0-9a-f]{32})")
MOST = 128

#: What is heard of one tenant's workers a second, and at once; who says more waits, as each word
#: keeps the loop from others and may lead to another worker.
QUESTION_RATE, QUESTION_BURST = 500.0, 2000.0
PAUSE = 0.02

#: What a worker says that is about to end, and what it waits for.
SETTLE, SETTLED = b"settle", b"settled"

#: What a worker says that has nothing behind a token, and what is said of one that is none's.
NOTHING = b"none\n"


def same_lease(one: Meta, other: Meta) -> bool:
    """Whether two sessions may have memory and events in common: it is charged to both alike."""
    return (one.tenant, one.group, one.lease) == (other.tenant, other.group, other.lease)


def _tell(connection: socket.socket, line: bytes) -> None:
    """To a worker that reads; one that does not, or has gone, needs to be told nothing."""
    with contextlib.suppress(OSError):
        connection.send(line, socket.MSG_DONTWAIT)


async def _settle(connection: socket.socket, offers: Offers | None) -> None:
    if offers is not None:
        await offers.settle()
    _tell(connection, SETTLED)


def _is_over(connection: socket.socket) -> bool:
    """Whether the worker has ended, and not just we to hear it. What it has said last may lie in
    front of its end, so nothing is read here."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


class Exchange:
    """Answers the questions of workers. For the event loop's thread only."""

    def __init__(self, store: ImageStore | None = None, limit: int = 0) -> None:
        self._sessions: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._closer = Closer()
        self._ranks = Ranks()
        self._keeper = None if store is None else ImageKeeper(store, limit, self._closer)
        self._budgets = Budgets(QUESTION_RATE, QUESTION_BURST)
        self._log = logs.get("exchange")

    def close(self) -> None:
        """End the process that closes what workers have shared."""
        self._closer.end()

    def admit(self, session: Session, images: Path | None = None) -> None:
        """Let the worker of a session ask, and be asked, until it is let go of.

        ``images`` is where those of its tenant are kept.
        """
        self._sessions[session.meta.session] = session
        session.questions = asyncio.get_running_loop().create_task(self._serve(session, images))

    async def _serve(self, session: Session, images: Path | None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        take_no_descriptors(ours)
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    await session.control.listen_to(theirs.fileno())
                except WorkerError as error:
                    self._log.debug("a worker cannot ask", reason=str(error))
                    return
            self._ranks.admit(session.meta, partial(_tell, ours))
            try:
                offers = None
                if self._keeper is not None and images is not None:
                    offers = self._keeper.listen(session, images)
                await self._hear(session, ours, offers)
            finally:
                if _is_over(ours):
                    self._hear_last(session, ours)
                    self._ranks.over(session.meta.session)
                else:
                    self._ranks.forget(session.meta.session)

    def _hear_last(self, session: Session, ours: socket.socket) -> None:
        """What it said of its ranks in front of its end, which may be heard before these words."""
        with contextlib.suppress(OSError):
            while word := ours.recv(MOST):
                self._note(session, word)

    async def _hear(self, session: Session, ours: socket.socket, offers: Offers | None) -> None:
        loop = asyncio.get_running_loop()
        settling: asyncio.Task[None] | None = None
        try:
            while True:
                await readable(ours)
                while not self._budgets.spend(session.meta.tenant.encode()):
                    await asyncio.sleep(PAUSE)
                # At once: a word that was taken is not lost when this is ended.
                question = ours.recv(MOST)
                if not question:
                    break
                if offers is not None and offers.hear(question):
                    continue
                if question == SETTLE:
                    # Its end is heard meanwhile: who has ranks with it waits for that.
                    if settling is None or settling.done():
                        settling = loop.create_task(_settle(ours, offers))
                elif not await self._answer(session, ours, question):
                    break
        except OSError:  # it has gone
            pass
        finally:
            if settling is not None:
                settling.cancel()

    async def _answer(self, session: Session, ours: socket.socket, question: bytes) -> bool:
        """False: it is none, and no other is read."""
        if self._note(session, question):
            return True
        found = _QUESTION.fullmatch(question)
        if found is None:
            self._log.warning("a worker asks what no worker asks", session=session.meta.session)
            return False
        number, owner, token = found.groups()
        line, descriptors = await self._bring(session, owner.decode(), token.decode())
        with contextlib.suppress(OSError):  # it does not read, or has gone
            socket.send_fds(ours, [number + b" " + line], descriptors)
        self._closer.close(*descriptors)
        return True

    def _note(self, session: Session, word: bytes) -> bool:
        """Whether it was of ranks."""
        rank = _RANK.fullmatch(word)
        if rank is None:
            return False
        note = self._ranks.begun if rank[1] == b"rank" else self._ranks.ended
        note(session.meta.session, rank[2])
        return True

    async def _bring(self, session: Session, owner: str, token: str) -> tuple[bytes, list[int]]:
        other = self._sessions.get(owner)
        if other is None or other.ending or not same_lease(session.meta, other.meta):
            return NOTHING, []
        try:
            return await other.control.share(token, self._closer)
        except WorkerError as error:
            self._log.debug("a worker does not share", session=owner, reason=str(error))
            return NOTHING, []
