"""The targets of `make fuzz-python` without their fuzzer: what they begin with, and what that
becomes when a byte is changed or cut off."""

from __future__ import annotations

import random

import pytest

import console_decoders
import decoders
from decoders import SEEDS, TARGETS
from gpupool_common import lease_token, node_protocol, protocol
from gpupool_common.errors import ProtocolError
from gpupool_kubernetes import reviews
from gpupool_kubernetes.dra import claims
from lease_token_harness import KEYS


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_well_formed_and_nearly_so(name: str) -> None:
    choice = random.Random(name)
    for seed in [b"", *SEEDS[name]]:
        TARGETS[name](seed)
        for _ in range(100 if seed and len(seed) < 4000 else 0):
            at = choice.randrange(len(seed))
            TARGETS[name](seed[:at])
            TARGETS[name](seed[:at] + bytes([choice.randrange(256)]) + seed[at + 1 :])


def test_seeds_are_what_they_are_for() -> None:
    """Those that are refused at once would lead a fuzzer nowhere."""
    joined, *_ = SEEDS["link"]
    node_protocol.decode_from_node(decoders._packed(joined))
    shown, *_ = SEEDS["token"]
    lease_token.check(shown.decode(), KEYS)
    assert reviews.read(SEEDS["admission"][0]).object
    assert claims.read(decoders._json(SEEDS["claim"][0])) is not None
    decoders.BODIES[SEEDS["body"][-1][0]].model_validate(decoders._json(SEEDS["body"][-1][1:]))
    _, *said = SEEDS["vouched"]
    assert console_decoders.check(console_decoders.signed(said[0]))
    assert {"gpupool.io/memory", "memory_bytes", "report"} <= set(decoders.words())
    assert SEEDS.keys() == TARGETS.keys()


def test_an_exception_of_nobodys_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(data: bytes) -> None:
        raise KeyError("do")

    monkeypatch.setattr(node_protocol, "decode_from_node", careless)
    with pytest.raises(KeyError):
        TARGETS["link"](SEEDS["link"][0])
    monkeypatch.setattr(protocol, "decode", lambda data: (_ for _ in ()).throw(ProtocolError("no")))
    TARGETS["question"](b"x")
