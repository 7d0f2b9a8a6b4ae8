"""What tenants and groups are promised, and what exceeds a quota."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool_server.claims import Claim, Headroom, LimitsRequest, Refusal, claim, grants
from gpupool_server.tenants import Quota

GIB = 1 << 30
MIB = 1 << 20


def headroom(quota: Quota, *others: Claim, free: int | None = None, default: int = 0) -> Headroom:
    return Headroom("here", quota, others, 16 * GIB, default, free)


@pytest.mark.parametrize(
    ("place", "request_", "says"),
    [
        (
            headroom(Quota(memory=8 * GIB)),
            LimitsRequest(memory=9 * GIB),
            "9GiB are requested, 0B are in",
        ),
        (
            headroom(Quota(memory=8 * GIB), Claim(memory=6 * GIB)),
            LimitsRequest(memory=3 * GIB),
            "3GiB are requested, 6GiB are in use by its groups, its quota is 8GiB",
        ),
        (
            headroom(Quota(memory=8 * GIB), Claim(memory=8 * GIB)),
            LimitsRequest(),
            "no memory is left",
        ),
        (
            headroom(Quota(share=500), Claim(share=300)),
            LimitsRequest(share=201),
            "a share of 20.1% is requested, 30% are in use by its groups, its quota is 50%",
        ),
        (headroom(Quota(ceiling=800)), LimitsRequest(ceiling=900), "ceiling of 90%"),
        (headroom(Quota(weight=4), Claim(weight=3)), LimitsRequest(weight=2), "3 are in use"),
        (
            headroom(Quota(weight=9), free=3),
            LimitsRequest(weight=4),
            "3 of the GPU's slices are free",
        ),
        (headroom(Quota(weight=1), Claim(weight=1), free=5), LimitsRequest(), "no weight is left"),
        (headroom(Quota(high_priority=False)), LimitsRequest(high_priority=True), "priority"),
    ],
)
def test_what_exceeds_a_quota_is_refused_with_the_numbers(
    place: Headroom, request_: LimitsRequest, says: str
) -> None:
    with pytest.raises(Refusal, match=says) as caught:
        claim(place, request_)
    assert caught.value.code == "over-quota"


def test_more_memory_than_a_gpu_has_is_a_wrong_request() -> None:
    """It fits at no time, whoever waits and whatever the quota."""
    with pytest.raises(Refusal, match="17GiB are requested and the GPU has 16GiB") as caught:
        claim(headroom(Quota()), LimitsRequest(memory=17 * GIB))
    assert caught.value.code == "bad-request"


@pytest.mark.parametrize(
    ("place", "request_", "expected"),
    [
        (headroom(Quota()), LimitsRequest(), Claim()),
        (headroom(Quota(), default=2 * GIB), LimitsRequest(), Claim(memory=2 * GIB)),
        (headroom(Quota(memory=8 * GIB)), LimitsRequest(), Claim(memory=8 * GIB)),
        (headroom(Quota(memory=99 * GIB)), LimitsRequest(), Claim(memory=16 * GIB)),
        (
            headroom(Quota(memory=8 * GIB), Claim(memory=7 * GIB), default=2 * GIB),
            LimitsRequest(),
            Claim(memory=GIB),
        ),
        (headroom(Quota(memory=8 * GIB)), LimitsRequest(memory=8 * GIB), Claim(memory=8 * GIB)),
        (headroom(Quota(), free=0), LimitsRequest(weight=5), Claim(weight=0)),
        (headroom(Quota(), free=0), LimitsRequest(), Claim(weight=0)),
        (headroom(Quota(), free=7), LimitsRequest(weight=5), Claim(weight=5)),
        (headroom(Quota(), free=7), LimitsRequest(), Claim(weight=1)),
        (headroom(Quota()), LimitsRequest(high_priority=True), Claim(high_priority=True)),
    ],
)
def test_claims(place: Headroom, request_: LimitsRequest, expected: Claim) -> None:
    assert claim(place, request_) == expected


def test_fractions_are_of_each_card_and_the_last_holds_for_the_rest() -> None:
    t4 = 15109 * MIB + 4096
    request = LimitsRequest(fractions=((6, 15), (15, 15)))
    assert request.memory_on(0, t4) == 6043 * MIB  # what cGPU's manual shows
    assert request.memory_on(1, t4) == t4
    assert request.memory_on(5, t4) == t4


def test_groups_without_a_share_divide_what_is_left() -> None:
    claims = {"t/a": Claim(share=200), "t/b": Claim(), "t/c": Claim()}
    given = grants(Quota(share=500), claims)
    assert {name: grant.share for name, grant in given.items()} == {
        "t/a": 200,
        "t/b": 150,
        "t/c": 150,
    }
    assert {grant.ceiling for grant in given.values()} == {1000}


_CLAIMS = st.dictionaries(
    st.text("abc", min_size=1),
    st.builds(
        Claim,
        share=st.none() | st.integers(1, 300),
        ceiling=st.none() | st.integers(300, 1000),
    ),
    max_size=8,
)


@given(share=st.integers(1, 1000), more=st.integers(0, 1000), claims=_CLAIMS)
def test_more_groups_never_get_a_tenant_more(
    share: int, more: int, claims: dict[str, Claim]
) -> None:
    """Whatever is asked for: each grant is one a board takes, and a ceiling holds for all."""
    quota = Quota(share=share, ceiling=min(1000, share + more))
    asked = {name: c for name, c in claims.items() if (c.ceiling or 0) <= quota.ceiling}
    if sum(c.share or 0 for c in asked.values()) > share:
        return  # admission would have refused it
    given = grants(quota, asked)
    for grant in given.values():
        assert 1 <= grant.share <= grant.ceiling <= 1000
    least = len(given)  # a thousandth for each is the least a board can give
    assert sum(grant.share for grant in given.values()) <= share + least
    if quota.ceiling < 1000:
        assert sum(grant.ceiling for grant in given.values()) <= quota.ceiling + least


def test_a_claim_is_written_as_an_older_server_knows_it() -> None:
    """It refuses fields that it does not know, and with them all that it has of the GPU."""
    plain = Claim(memory=64, weight=2)
    assert plain.as_dict() == {"memory": 64, "weight": 2}
    forced = Claim(memory=32, share=500, pooled=True, forced=True, before=64)
    assert [Claim.parse(each.as_dict()) for each in (plain, Claim(), forced)] == [
        plain,
        Claim(),
        forced,
    ]
