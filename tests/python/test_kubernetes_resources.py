"""What manifests ask for: quantities, and the names of each system that people come from."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool_common.quantities import MEBIBYTE as MIB
from gpupool_kubernetes import quantities, resources
from gpupool_kubernetes.resources import Asked, Defaults, ResourceError

GIB = 1024 * MIB
ALL = tuple(resources.FAMILIES)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8Gi", 8 * GIB),
        ("1.5Gi", 3 * GIB // 2),
        ("500m", Fraction(1, 2)),
        ("1e3", 1000),
        ("1E3", 1000),
        ("2E", 2 * 10**18),
        ("12500u", Fraction(1, 80)),
        (7, 7),
        (".5", Fraction(1, 2)),
        ("+3k", 3000),
        ("1e-2", Fraction(1, 100)),
    ],
)
def test_quantities_are_read_exactly(text: str | int, value: Fraction | int) -> None:
    assert quantities.parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "Gi",
        "8 Gi",
        "8GiB",
        "-1",
        "1e",
        "0x8",
        "nan",
        "inf",
        "１",
        True,
        None,
        1.5,
        [],
        "1e99",
    ],
)
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="no quantity|larger"):
        quantities.parse(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "8Ei", "1e19", "9999999999999999999E"])
def test_a_quantity_that_overflows_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="larger than a quantity may be"):
        quantities.parse(text)


@given(st.text(max_size=40) | st.integers() | st.floats() | st.binary())
def test_whatever_is_written_there_is_a_number_or_refused(value: object) -> None:
    with contextlib.suppress(ValueError):
        assert 0 <= quantities.parse(value) <= quantities.LARGEST


def read(limits: dict[str, object], defaults: Defaults | None = None) -> Asked:
    found = resources.amounts("main", {"limits": limits}, ALL)
    return resources.read("main", found, defaults or Defaults())


@pytest.mark.parametrize(
    ("limits", "gpus", "memory", "share"),
    [
        ({"gpupool.io/gpu": 1}, 1, None, 1000),
        ({"gpupool.io/gpu": "2", "gpupool.io/memory": "8Gi"}, 2, 8 * GIB, 1000),
        ({"gpupool.io/memory": "8Gi", "gpupool.io/compute": "50"}, 1, 8 * GIB, 500),
        ({"gpupool.io/memory": "8Gi", "gpupool.io/compute": "12500m"}, 1, 8 * GIB, 125),
        ({"nvidia.com/gpu": "4"}, 4, None, 1000),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}, 1, 3000 * MIB, 1000),
        ({"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, 1, 3000 * MIB, 300),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}, 1, None, 1000),
        ({"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 0}, 1, 3000 * MIB, 1000),
        ({"aliyun.com/gpu-mem": 3}, 1, 3 * GIB, 1000),
        ({"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 30}, 1, 7680 * MIB, 500),
        ({"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 60}, 2, None, 1000),
    ],
)
def test_each_system_names_mean_what_they_mean_there(
    limits: dict[str, object], gpus: int, memory: int | None, share: int
) -> None:
    assert read(limits) == Asked(gpus, memory, share)


def test_what_a_manifest_leaves_out_is_a_setting() -> None:
    defaults = Defaults(share_permille=100, card_bytes=80 * GIB)
    assert read({"aliyun.com/gpu-mem": 3}, defaults).share_permille == 100
    assert read({"gpupool.io/memory": "8Gi"}, defaults).share_permille == 100
    assert read({"gpupool.io/gpu": 1}, defaults).share_permille == 1000
    assert read({"nvidia.com/gpumem-percentage": 25}, defaults).memory_bytes == 20 * GIB


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"gpupool.io/gpu": "0.5"}, "gpupool.io/gpu: '0.5' is not a whole number 1..64"),
        ({"gpupool.io/gpu": 65}, "not a whole number 1..64"),
        ({"gpupool.io/gpu": "1e18"}, "not a whole number 1..64"),
        ({"gpupool.io/gpu": "one"}, "is no quantity"),
        ({"gpupool.io/gpu": -1}, "is no quantity"),
        ({"gpupool.io/memory": "8GiB"}, "is no quantity"),
        ({"gpupool.io/memory": "1k"}, "allowed are 1MiB..1024TiB"),
        ({"gpupool.io/memory": "7Ei"}, "allowed are 1MiB..1024TiB"),
        ({"gpupool.io/memory": "500m"}, "is not a whole number"),
        ({"gpupool.io/compute": 50}, "say gpupool.io/memory as well"),
        ({"gpupool.io/memory": "1Gi", "gpupool.io/compute": 101}, "0.1..100"),
        ({"gpupool.io/memory": "1Gi", "gpupool.io/compute": "1u"}, "in steps of 0.1"),
        ({"nvidia.com/gpumem-percentage": 25}, "card_memory"),
        ({"nvidia.com/gpumem": 1, "nvidia.com/gpumem-percentage": 25}, "both ask for memory"),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30}, "say nvidia.com/gpumem as well"),
        ({"aliyun.com/gpu-mem": "9223372036854775807"}, "allowed are"),
        ({"tencent.com/vcuda-core": 150, "tencent.com/vcuda-memory": 1}, "multiple of 100"),
        ({"tencent.com/vcuda-core": 50}, "needs tencent.com/vcuda-memory beside it"),
        ({"tencent.com/vcuda-memory": 1}, "needs tencent.com/vcuda-core beside it"),
        ({"gpupool.io/gpu": 1, "nvidia.com/gpu": 1}, "ask for GPUs twice"),
    ],
)
def test_what_cannot_be_is_refused_by_name(limits: dict[str, object], why: str) -> None:
    with pytest.raises(ResourceError) as refused:
        read(limits)
    assert why in str(refused.value) and str(refused.value).startswith("container 'main': ")


def test_a_request_is_its_limit() -> None:
    name = "gpupool.io/gpu"
    both = {"limits": {name: "1"}, "requests": {name: 1}}
    assert resources.amounts("main", both, ALL) == {name: "1"}
    with pytest.raises(ResourceError, match="stands in requests only"):
        resources.amounts("main", {"requests": {name: 1}}, ALL)
    with pytest.raises(ResourceError, match="is not the limit"):
        resources.amounts("main", {"limits": {name: 2}, "requests": {name: 1}}, ALL)
    with pytest.raises(ResourceError, match="are no object"):
        resources.amounts("main", {"limits": [name]}, ALL)


def test_names_of_others_are_read_where_they_are_switched_on() -> None:
    limits = {"limits": {"nvidia.com/gpu": 1, "gpupool.io/gpu": 0}}
    assert resources.amounts("main", limits, ("gpupool",)) == {}
    assert resources.amounts("main", limits, ("gpupool", "nvidia")) == {"nvidia.com/gpu": 1}
