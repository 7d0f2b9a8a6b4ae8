"""Placement against a table, and against a search that looks at everything."""

from __future__ import annotations

import random

import pytest

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_manager.index import Index
from gpupool_manager.placement_request import Hosts, PlacementRequest, Policy, Slot
from gpupool_manager.scheduler import NoRoom, Placement, could_ever, explain, judge, place

H200, A100 = ("NVIDIA H200", (9, 0), 143_771 * MIB), ("NVIDIA A100", (8, 0), 81_920 * MIB)


def pool(*nodes: tuple[str, tuple[str, tuple[int, int], int], int]) -> Index:
    return Index(
        Slot(f"{node}-{index}", node, index, *kind)
        for node, kind, gpus in nodes
        for index in range(gpus)
    )


def chosen(index: Index, want: PlacementRequest) -> list[str]:
    found = place(index, want)
    assert isinstance(found, Placement), found
    return [slot.uuid for slot in found.slots]


def refused(index: Index, want: PlacementRequest) -> str:
    found = place(index, want)
    assert isinstance(found, NoRoom), found
    return found.reason


def test_binpack_fills_what_is_begun_and_spread_does_not() -> None:
    index = pool(("a", H200, 2), ("b", H200, 2))
    index.take("b-1", 10_000 * MIB, 500)
    assert chosen(index, PlacementRequest(1, 10_000 * MIB, 500)) == ["b-1"]
    assert chosen(index, PlacementRequest(1, 10_000 * MIB, 500, policy="spread"))[0] != "b-1"
    assert chosen(index, PlacementRequest(1, 10_000 * MIB, 510)) != ["b-1"]  # 50% is left there


def test_several_go_to_one_node_or_to_as_many_as_asked() -> None:
    index = pool(("a", H200, 1), ("b", H200, 2), ("c", H200, 1))
    assert chosen(index, PlacementRequest(2, 1000 * MIB, 100, hosts="same")) == ["b-0", "b-1"]
    assert {
        name[0] for name in chosen(index, PlacementRequest(3, 1000 * MIB, 100, hosts="spread"))
    } == set("abc")
    assert len(chosen(index, PlacementRequest(4, 1000 * MIB, 100))) == 4
    assert "at most 2 GPUs of one node" in refused(
        index, PlacementRequest(3, 1000 * MIB, 100, hosts="same")
    )
    assert "4 must be different" in refused(
        index, PlacementRequest(4, 1000 * MIB, 100, hosts="spread")
    )
    assert "fits on 4 GPUs, asked 5" in refused(index, PlacementRequest(5, 1000 * MIB, 100))


@pytest.mark.parametrize("policy", ["binpack", "spread", "fragmentation"])
@pytest.mark.parametrize("hosts", ["any", "same"])
def test_a_leases_gpus_are_distinct_wherever_it_goes(policy: Policy, hosts: Hosts) -> None:
    """A GPU that is in use comes first and has room for all of them: NCCL takes none twice."""
    index = pool(("a", H200, 3))
    index.take("a-1", 1000 * MIB, 100)
    want = PlacementRequest(3, 1000 * MIB, 100, policy=policy, hosts=hosts)
    assert sorted(chosen(index, want)) == ["a-0", "a-1", "a-2"]
    want = PlacementRequest(4, 1000 * MIB, 100, policy=policy, hosts=hosts)
    assert "asked 4" in refused(index, want)


def test_a_whole_gpu_is_an_unused_one_of_the_kind_asked_for() -> None:
    index = pool(("a", H200, 1), ("b", A100, 1))
    index.take("a-0", 1 * MIB, 10)
    assert chosen(index, PlacementRequest(1, None, 1000)) == ["b-0"]
    assert refused(index, PlacementRequest(1, None, 1000, model="*h200*"))
    assert refused(index, PlacementRequest(1, None, 1000, capability=(9, 0)))
    index.give("a-0", 1 * MIB, 10)
    assert chosen(index, PlacementRequest(1, None, 1000, capability=(9, 0))) == ["a-0"]


def test_a_driver_is_a_nodes() -> None:
    index = pool(("a", H200, 1), ("b", H200, 2), ("c", H200, 1))
    for slot in index:
        slot.driver = {"a": (12, 4), "b": (13, 0), "c": (0, 0)}[slot.node]
    index.take("a-0", 1000 * MIB, 500)  # where it would go first
    assert chosen(index, PlacementRequest(1, 1000 * MIB, 100)) == ["a-0"]
    assert chosen(index, PlacementRequest(1, 1000 * MIB, 100, min_driver=(12, 4))) == ["a-0"]
    assert chosen(index, PlacementRequest(2, 1000 * MIB, 100, min_driver=(12, 10))) == [
        "b-0",
        "b-1",
    ]
    assert refused(index, PlacementRequest(3, 1000 * MIB, 100, min_driver=(13, 0)))
    want = PlacementRequest(1, 1000 * MIB, 100, min_driver=(13, 0))
    reasons = {verdict.slot.uuid: verdict.reason for verdict in explain(index, want)}
    assert reasons["b-0"] is None
    assert reasons["a-0"] == "driver: it knows CUDA 12.4, asked 13.0"
    assert reasons["c-0"] == "driver: it is unknown, asked 13.0"


def test_the_reasons_are_told_gpu_by_gpu() -> None:
    index = pool(("a", H200, 2), ("b", A100, 1))
    index.close("a-1", "cordoned: node a")
    verdicts = {
        verdict.slot.uuid: verdict
        for verdict in explain(index, PlacementRequest(1, 100_000 * MIB, 100))
    }
    assert verdicts["a-0"].rank == 1
    assert verdicts["a-1"].reason == "cordoned: node a"
    assert verdicts["b-0"].reason == "memory: it has 80GiB, asked 100000MiB"
    assert could_ever(index, PlacementRequest(3, 100_000 * MIB, 100)) is not None
    assert (
        could_ever(index, PlacementRequest(2, 100_000 * MIB, 100)) is None
    )  # the closed one may come back


@pytest.mark.parametrize(
    ("want", "reason"),
    [
        (
            PlacementRequest(1, 1000 * MIB, 100, model="*B200*"),
            "no GPU of model '*B200*'; the pool has NVIDIA A100, NVIDIA H200",
        ),
        (
            PlacementRequest(2, 1000 * MIB, 100, model="*a100"),
            "only 1 GPU (asked 2) of model '*a100'; the pool has NVIDIA A100, NVIDIA H200",
        ),
        (
            PlacementRequest(1, 1000 * MIB, 100, models=("NVIDIA T4",)),
            "no GPU of a model that the quota allows (NVIDIA T4); the pool has NVIDIA A100,"
            " NVIDIA H200",
        ),
        (
            PlacementRequest(1, 1000 * MIB, 100, capability=(10, 0)),
            "no GPU of compute capability 10.0 or more; the most that the pool has is 9.0",
        ),
        (
            PlacementRequest(1, 200 * 1024 * MIB, 100),
            "no GPU with 200GiB of memory; the largest of the pool has 143771MiB",
        ),
        (
            PlacementRequest(1, None, 1000, memory_most=1024 * MIB),
            "no GPU of no more memory than the 1GiB that the quota allows; the smallest of the pool"
            " has 80GiB; ask for a part with --memory",
        ),
        (
            PlacementRequest(1, 1000 * MIB, 100, labels=(("rack", "9"),)),
            "no GPU of a node with the label rack=9; nodes have rack=7",
        ),
        (
            PlacementRequest(1, 1000 * MIB, 100, labels=(("row", "9"),)),
            "no GPU of a node with the label row=9; no node has that one",
        ),
        (
            PlacementRequest(1, 1000 * MIB, 100, min_driver=(13, 1)),
            "no GPU with a driver of CUDA 13.1 or more; the pool has 12.4, 13.0",
        ),
        (
            PlacementRequest(3, 1000 * MIB, 100, min_driver=(12, 10)),
            "only 2 GPUs (asked 3) with a driver of CUDA 12.10 or more; the pool has 12.4, 13.0",
        ),
        (PlacementRequest(4, 1000 * MIB, 100), "the pool has 3 GPUs, asked 4"),
        (
            PlacementRequest(1, 100_000 * MIB, 100, model="*A100"),
            "no GPU of model '*A100' and with 100000MiB of memory; of 3 GPUs of the pool",
        ),
    ],
)
def test_what_can_never_be_names_the_condition_that_nobody_meets(
    want: PlacementRequest, reason: str
) -> None:
    index = Index(
        [
            Slot("a-0", "a", 0, *H200, labels={"rack": "7"}, driver=(13, 0)),
            Slot("a-1", "a", 1, *H200, labels={"rack": "7"}, driver=(13, 0)),
            Slot("b-0", "b", 0, *A100, driver=(12, 4)),
        ]
    )
    index.take("a-0", 1000 * MIB, 1000)
    assert could_ever(index, want) == reason
    index.close("b-0", "drained")  # it may come back
    assert could_ever(index, want) == reason


def test_a_pool_whose_nodes_are_all_closed_says_so() -> None:
    index = pool(("a", H200, 1), ("b", H200, 2))
    want = PlacementRequest(1, 1000 * MIB, 100)
    for slot in ("a-0", "b-0", "b-1"):
        index.close(slot, f"node: it is {'draining' if slot == 'a-0' else 'lost: silent for 9 s'}")
    said = "all 2 nodes with such GPUs take no new leases (1 draining, 1 lost); asked 1"
    assert refused(index, want) == said
    index.close("b-1", None)
    assert chosen(index, want) == ["b-1"]
    index.take("b-1", 1000 * MIB, 1000)
    assert "fits on 0 GPUs" in refused(index, want)  # here it is room that lacks


def test_an_empty_pool_says_so() -> None:
    assert (
        could_ever(Index(), PlacementRequest(1, 1000 * MIB, 100)) == "the pool has no GPUs, asked 1"
    )


def test_nothing_is_taken_or_given_that_is_not_there() -> None:
    index = pool(("a", H200, 1))
    with pytest.raises(ValueError, match="no room"):
        index.take("a-0", 143_771 * MIB + 1, 10)
    with pytest.raises(ValueError, match="no room"):
        index.take("a-0", 1 * MIB, 1001)
    index.take("a-0", 143_771 * MIB, 1000)
    with pytest.raises(ValueError, match="has not given"):
        index.give("a-0", 143_771 * MIB, 1001)
    with pytest.raises(ValueError, match="there already"):
        index.add(Slot("a-0", "a", 0, *H200))


def feasible(index: Index, want: PlacementRequest) -> bool:
    """By looking at every GPU."""
    by_node: dict[str, int] = {}
    for slot in index:
        if judge(want, slot) is None:
            by_node[slot.node] = by_node.get(slot.node, 0) + 1
    if want.hosts == "same":
        return max(by_node.values(), default=0) >= want.gpus
    return (len(by_node) if want.hosts == "spread" else sum(by_node.values())) >= want.gpus


@pytest.mark.parametrize("seed", range(20))
def test_a_place_is_found_whenever_there_is_one(seed: int) -> None:
    dice = random.Random(seed)
    index = pool(*((f"n{n}", dice.choice((H200, A100)), dice.randint(1, 4)) for n in range(12)))
    held: list[tuple[str, int, int]] = []
    policies: tuple[Policy, ...] = ("binpack", "spread", "fragmentation")
    hosts: tuple[Hosts, ...] = ("any", "same", "spread")
    for _ in range(300):
        memory = dice.choice((None, dice.randint(1, 90_000) * MIB))
        share = 1000 if memory is None else dice.randint(1, 1000)
        want = PlacementRequest(
            dice.randint(1, 4), memory, share, dice.choice(policies), dice.choice(hosts)
        )
        possible = feasible(index, want)
        found = place(index, want)
        assert isinstance(found, Placement) == possible, (want, found)
        assert place(index, want) == found  # nothing but the arguments decides
        if isinstance(found, Placement):
            slots = found.slots
            assert len({slot.uuid for slot in slots}) == want.gpus
            assert all(judge(want, slot) is None for slot in slots)
            nodes = {slot.node for slot in slots}
            assert want.hosts != "same" or len(nodes) == 1
            assert want.hosts != "spread" or len(nodes) == want.gpus
            for slot in slots:
                held.append((slot.uuid, want.takes(slot.total_bytes), want.share_permille))
                index.take(*held[-1])
        while held and dice.random() < 0.4:
            index.give(*held.pop(dice.randrange(len(held))))
    for grant in held:
        index.give(*grant)
    assert all(slot.whole and slot.free_permille == 1000 for slot in index)
