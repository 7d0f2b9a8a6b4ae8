"""The environment as a request: of the launcher, and as a client sends it to a server."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool_common import protocol, request, request_variables
from gpupool_common.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import emit_request  # noqa: E402

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
        # The order, too: logs and tests read them in this one.
        assert list(request.fields(vector["env"]).items()) == list(vector["fields"].items())


def as_sent(env: dict[str, str]) -> dict[str, str]:
    """The lines of a question, as client_lib/session/request.c writes them."""
    lines = {}
    for name, value in env.items():
        data = value.strip(" \t\r\n").encode()
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "?" for byte in data)
        if text:
            lines[name.lower().replace("_", "-")] = text
    return lines


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_vector_as_a_server_reads_it(vector: dict[str, Any]) -> None:
    sent = protocol.decode(protocol.encode("hello", {"pid": "7", **as_sent(vector["env"])}))
    if "error" in vector:
        with pytest.raises(ConfigError) as caught:
            request.expand(sent.fields)
        assert str(caught.value) == vector["error"]
    else:
        assert request.expand(sent.fields) == {"pid": "7", **vector["fields"]}


def test_nothing_is_asked_for_twice() -> None:
    with pytest.raises(ConfigError, match=r"^'memory' is requested twice"):
        request.expand({"gpupool-memory": "1GiB", "memory": "1"})


def test_the_client_sends_every_variable() -> None:
    source = ROOT / "client_lib/session/request.c"
    assert "variables[] = {GPC_REQUEST_VARIABLES};" in source.read_text(encoding="utf-8")
    table = emit_request.read(ROOT / "pool/gpupool_common/request_variables.py")
    sent = re.findall(r'^    "([A-Z_]+)"', emit_request.header(table), re.MULTILINE)
    assert sorted(sent) == sorted(request.KEYS.values())
    assert all(protocol.encode("hello", {key: "1"}) for key in request.KEYS)


def test_the_vectors_name_every_variable_in_a_good_and_in_a_bad_request() -> None:
    variables = set(request_variables.VARIABLES)
    for outcome in ("fields", "error"):
        named = {name for vector in VECTORS if outcome in vector for name in vector["env"]}
        assert variables <= named, outcome
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS)


def test_errors_name_the_option_that_set_the_variable() -> None:
    names = {request_variables.SHARE: "--share", request_variables.CEILING: "--ceiling"}
    with pytest.raises(ConfigError, match=r"^--share: '200' is not a part of a GPU"):
        request.fields({request_variables.SHARE: "200"}, names)
    with pytest.raises(ConfigError, match=r"^--ceiling: '0.1' is less than --share$"):
        request.fields({request_variables.SHARE: "0.2", request_variables.CEILING: "0.1"}, names)


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
        st.sampled_from(request_variables.VARIABLES),
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
