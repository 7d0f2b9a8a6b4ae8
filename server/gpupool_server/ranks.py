"""Which workers have ranks of the same communicators of NCCL, so that one hears of another's end.

Ranks on one host reach each other over NVLink or shared memory, where nothing breaks when one of
them dies: the others' kernels would wait for ever. A worker says of each communicator that it has
begun or ended, by a key that all of its ranks find by themselves
(server/worker/collective/ranks.h), and is told when a session that has not ended its own is
over. All of this is of one lease alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from gpupool_server.rundir import Meta

#: Of a session. A worker has at most 256 at a time (server/worker/collective/nccl.h), and of more
#: the oldest is forgotten: it may have ended, and the word of that been lost.
MOST_KEYS = 512

#: A lease's communicators that have lost a rank, and are told so to a rank that begins later.
MOST_LOST = 1024

Tell = Callable[[bytes], None]

#: A lease, and a communicator: whose, and its key.
Owner = tuple[str | None, str | None, str | None]
Where = tuple[Owner, bytes]


@dataclass
class _Member:
    meta: Meta
    tell: Tell
    keys: dict[bytes, None] = field(default_factory=dict)  # the oldest first

    @property
    def owner(self) -> Owner:
        return (self.meta.tenant, self.meta.group, self.meta.lease)

    def where(self, key: bytes) -> Where:
        return (self.owner, key)


class Ranks:
    """For the event loop's thread only."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._sessions: dict[Where, set[str]] = {}
        #: Of leases that have a session, so that none can make another's be forgotten.
        self._lost: dict[Owner, OrderedDict[bytes, None]] = {}

    def admit(self, meta: Meta, tell: Tell) -> None:
        """A session begins to say what it has, and can be told."""
        self.forget(meta.session)
        self._members[meta.session] = _Member(meta, tell)

    def begun(self, session: str, key: bytes) -> None:
        """It has a rank of this communicator."""
        member = self._members[session]
        if key not in member.keys and len(member.keys) >= MOST_KEYS:
            self.ended(session, next(iter(member.keys)))
        where = member.where(key)
        member.keys[key] = None
        self._sessions.setdefault(where, set()).add(session)
        if key in self._lost.get(member.owner, ()):
            member.tell(b"lost " + key)

    def ended(self, session: str, key: bytes) -> None:
        """It has none any more, by its program's will."""
        member = self._members[session]
        if key in member.keys:
            del member.keys[key]
            self._leave(session, member.where(key))

    def forget(self, session: str) -> None:
        """It is not heard any more, and may well go on."""
        member = self._members.pop(session, None)
        for key in member.keys if member else ():
            assert member is not None
            self._leave(session, member.where(key))
        if member and all(other.owner != member.owner for other in self._members.values()):
            self._lost.pop(member.owner, None)

    def over(self, session: str) -> None:
        """It is over: whoever has ranks of its communicators is told, once of each of these."""
        member = self._members[session]
        lost = self._lost.setdefault(member.owner, OrderedDict())
        news = [key for key in member.keys if key not in lost]
        for key in member.keys:
            lost[key] = None
            lost.move_to_end(key)
        while len(lost) > MOST_LOST:
            lost.popitem(last=False)
        self.forget(session)
        for key in news:
            for other in self._sessions.get(member.where(key), ()):
                self._members[other].tell(b"lost " + key)

    def _leave(self, session: str, where: Where) -> None:
        others = self._sessions[where]
        others.discard(session)
        if not others:
            del self._sessions[where]
