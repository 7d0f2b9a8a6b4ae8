"""Which groups a server has take their turns on several GPUs at once."""

from __future__ import annotations

from gpupool_common.lease_token import TokenGrant
from gpupool_server.board import Grant
from lease_token_harness import GPUS, MIB, Node, grant, issued, token_of
from server_harness import MakeOffice, accepted, hello


def on_boards(node: Node, name: str) -> list[Grant]:
    boards = node.office.boards
    return [boards.of(index).grants[name] for index in (0, 1) if name in boards.of(index).grants]


async def test_a_lease_on_two_gpus_is_a_gang(make_office: MakeOffice) -> None:
    node = Node(await make_office(gangs=True))
    node.apply(grant(ordinal=0, index=0), grant(ordinal=1, index=1))
    two = token_of(*(TokenGrant(place, uuid, 64 * MIB, 500) for place, uuid in enumerate(GPUS)))
    accepted(await node.hello(issued(two)))
    assert [each.gang for each in on_boards(node, "red/lease-1")] == [True, True]


async def test_without_the_setting_there_are_none(make_office: MakeOffice) -> None:
    node = Node(await make_office())
    node.apply(grant(ordinal=0, index=0), grant(ordinal=1, index=1))
    two = token_of(*(TokenGrant(place, uuid, 64 * MIB, 500) for place, uuid in enumerate(GPUS)))
    accepted(await node.hello(issued(two)))
    assert [each.gang for each in on_boards(node, "red/lease-1")] == [False, False]


async def test_a_lease_on_one_gpu_is_none(make_office: MakeOffice) -> None:
    node = Node(await make_office(gangs=True))
    node.apply(grant())
    accepted(await node.hello(issued()))
    assert [each.gang for each in on_boards(node, "red/lease-1")] == [False]


async def test_a_group_becomes_one_with_its_second_gpu(make_office: MakeOffice) -> None:
    """Ranks that take a GPU each, as those of a launcher may."""
    office = await make_office(gangs=True, tenants={"red": {"token": "the-token-of-red"}})
    asked = {"token": "the-token-of-red", "group": "job", "share": "500"}
    accepted(await office.handler.answer(hello(**asked, devices="0")))
    assert not office.boards.of(0).grants["red/job"].gang
    accepted(await office.handler.answer(hello(**asked, devices="1")))
    assert office.boards.of(1).grants["red/job"].gang
    office.gpus.look()
    assert office.boards.of(0).grants["red/job"].gang


async def test_programs_without_a_group_have_nothing_to_do_with_each_other(
    make_office: MakeOffice,
) -> None:
    office = await make_office(gangs=True, tenants={"red": {"token": "the-token-of-red"}})
    accepted(await office.handler.answer(hello(token="the-token-of-red")))
    assert [office.boards.of(index).grants["red"].gang for index in (0, 1)] == [False, False]
