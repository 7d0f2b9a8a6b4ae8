"""A clock that somebody sets ends nothing in use, and brings nothing back that has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupool_common.clock import SteadyClock
from gpupool_manager.pool import Pool
from gpupool_manager.store import Store
from lease_token_harness import NOW, Node, grant, issued
from manager_world import Clock, World
from server_harness import MakeOffice, accepted

HOUR, YEAR = 3600.0, 365 * 86400.0
STEPS = [HOUR, -HOUR, YEAR, -YEAR]


class Times:
    """A machine's wall clock, and how long it has been up."""

    def __init__(self) -> None:
        self.wall = Clock()
        self.passed = Clock(1000.0)

    def clock(self) -> SteadyClock:
        return SteadyClock(self.wall, self.passed)

    def pass_(self, seconds: float) -> None:
        self.wall.now += seconds
        self.passed.now += seconds


class SteadyWorld(World):
    """A manager that reads the clocks of a machine."""

    def __init__(self, url: str, times: Times) -> None:
        super().__init__(url, times.wall)
        self.times = times

    async def open(self) -> World:
        self.pool = Pool(Store(self.url), self.rules, self.times.clock())
        await self.pool.open()
        return self

    async def later(self, seconds: float) -> None:
        self.times.pass_(seconds)
        await self.pool.tick()


def test_it_goes_on_evenly() -> None:
    times = Times()
    clock = times.clock()
    began = clock()
    times.pass_(10)
    times.wall.now += YEAR
    assert clock() == began + 10
    assert clock.stepped == YEAR


def test_it_never_goes_back() -> None:
    clock = Times().clock()
    began = clock()
    assert clock.not_before(began - 5) == 0 and clock() == began
    assert clock.not_before(began + 5) == 5 and clock() == began + 5


@pytest.mark.parametrize("step", STEPS)
async def test_a_step_of_the_clock_ends_no_lease(tmp_path: Path, step: float) -> None:
    times = Times()
    world = SteadyWorld(f"sqlite:///{tmp_path / 'db'}", times)
    await world.open()
    await world.tenant("red")
    await world.join("one")
    lease = await world.ask("red", ttl=60.0)
    times.wall.now += step
    await world.later(30)
    assert world.state(lease) == "active"
    assert not world.pool.ledger.nodes["one"].lost
    # What nobody renews ends when it should, whatever the clock says.
    await world.later(31)
    assert world.state(lease) == "gone"
    await world.close()


@pytest.mark.parametrize("step", STEPS)
async def test_a_restart_behind_a_step_ends_no_lease(tmp_path: Path, step: float) -> None:
    times = Times()
    world = SteadyWorld(f"sqlite:///{tmp_path / 'db'}", times)
    await world.open()
    await world.tenant("red")
    await world.join("one")
    lease = await world.ask("red", ttl=60.0)
    before = world.pool.clock()
    times.wall.now += step
    await world.restart()
    assert world.pool.clock() >= before
    assert world.state(lease) == "active"
    await world.later(30)
    assert world.state(lease) == "active"
    await world.later(31)
    assert world.state(lease) == "gone"
    await world.close()


@pytest.mark.parametrize("step", STEPS)
async def test_a_server_takes_tokens_while_its_clock_is_set(
    make_office: MakeOffice, step: float
) -> None:
    times = Times()
    times.wall.now = NOW
    member = times.clock()
    node = Node(await make_office(), member)
    node.apply(grant())
    node.member.set_clock(0.0)
    times.wall.now += step
    accepted(await node.hello(issued()))
    # The next server reads the wall clock anew, and knows the difference.
    node.member.set_clock(0.0)
    node.member.close()
    after = Node(node.office, times.clock())
    accepted(await after.hello(issued()))
