"""The environment as a request, held to the vectors that the C library is held to."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool import request
from gpupool_common import protocol
from gpupool_common.errors import ConfigError

VECTORS: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "request_vectors.toml").read_text(encoding="utf-8")
)["vector"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_vector(vector: dict[str, Any]) -> None:
    if "error" in vector:
        with pytest.raises(ConfigError) as caught:
            request.fields(vector["env"])
        assert str(caught.value) == vector["error"]
    else:
        # The order, too: the C library writes them in this one.
        assert list(request.fields(vector["env"]).items()) == list(vector["fields"].items())


def test_the_vectors_name_every_variable_in_a_good_and_in_a_bad_request() -> None:
    variables = {request.GROUP, *request.OWN, *request.CGPU, *request.VCUDA}
    for outcome in ("fields", "error"):
        named = {name for vector in VECTORS if outcome in vector for name in vector["env"]}
        assert variables <= named, outcome
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS)


def test_errors_name_the_option_that_set_the_variable() -> None:
    names = {request.SHARE: "--share", request.CEILING: "--ceiling"}
    with pytest.raises(ConfigError, match=r"^--share: '200' is no part of a GPU"):
        request.fields({request.SHARE: "200"}, names)
    with pytest.raises(ConfigError, match=r"^--ceiling: '0.1' is less than --share$"):
        request.fields({request.SHARE: "0.2", request.CEILING: "0.1"}, names)


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        ({}, False),
        ({"group": "g", "gpus": "2", "devices": "0,1"}, False),
        ({"memory": "1048576"}, True),
        ({"memory-fraction": "1/1"}, True),
        ({"priority": "0"}, True),
    ],
)
def test_what_a_group_is_for(asked: dict[str, str], limits: bool) -> None:
    assert request.has_limits(asked) is limits


@given(
    st.dictionaries(
        st.sampled_from((request.GROUP, *request.OWN, *request.CGPU, *request.VCUDA)),
        st.text(max_size=12) | st.from_regex(r"[0-9.,%/GiB-]{1,6}", fullmatch=True),
    )
)
def test_any_environment_is_a_hello_or_one_line(env: dict[str, str]) -> None:
    try:
        asked = request.fields(env)
    except ConfigError as error:
        assert str(error).isprintable()
        assert str(error).isascii()
    else:
        assert protocol.decode(protocol.encode("hello", asked)).fields == asked
