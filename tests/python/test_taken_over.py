"""Workers that lie: what an arbiter has found is ended by the server."""

from __future__ import annotations

import dataclasses

from server_harness import MakeOffice, eventually, process_lives
from test_sessions import opened


async def test_a_worker_that_was_taken_over_is_ended(
    make_office: MakeOffice,
) -> None:
    """What its arbiter has found no worker of ours does."""
    office = await make_office()
    office.supervisor.adopt()
    _, liar = await opened(office)
    _, honest = await opened(office)
    board = office.boards.of(0)
    board.join(liar, "default")
    board.join(honest, "default")
    board.members[liar] = dataclasses.replace(board.members[liar], fault="its page goes back")
    await eventually(lambda: not process_lives(liar))
    assert process_lives(honest)
