"""Each reading is the fact that the server says it is: against a front end that says them all."""

from __future__ import annotations

import json
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from gpupool_common import paths, protocol
from harness import TOKEN, client_environment, run_program

HERE = Path(__file__).resolve().parent
FACTS = tomllib.loads((HERE.parents[1] / "proto/spec_nvml/facts.toml").read_text(encoding="utf-8"))
HEAD = {"driver-version": "580.1", "nvml-version": "13.580.1", "cuda-version": "13000"}
UUID = "GPU-00000000-0000-0000-0000-000000000001"


def told() -> dict[str, str]:
    """A value of its own for each fact."""
    found = {}
    for number, (word, fact) in enumerate(FACTS.items(), 1000):
        found[word] = f"text-{number}" if fact["kind"] == "text" else str(number)
    return {**found, "uuid": UUID, "pci": "00000000:18:00.0"}


@pytest.fixture
def front() -> Iterator[str]:
    """The address of something that answers every question with one device."""
    line = " ".join(f"{word}={value}" for word, value in told().items() if word != "name")
    answer = protocol.encode("ok", {**HEAD, "devices": "1", "gpu0": line, "gpu0-name": "A GPU"})
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                if router.poll(100):
                    asker, *_ = router.recv_multipart()
                    router.send_multipart([asker, answer])

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"tcp://127.0.0.1:{port}"
        over.set()
        thread.join()


def test_every_reading_is_its_fact(front: str, home: paths.Home) -> None:
    if not (home.root / "lib/libnvidia-ml.so.1").is_file():
        pytest.skip("this build has no libnvidia-ml.so.1: nvidia-nvml-dev was not installed")
    env = client_environment(home, front, TOKEN, "")
    done = run_program([sys.executable, str(HERE / "nvml_readings.py")], env)
    assert done.returncode == 0, done.explain()
    seen = json.loads(done.stdout.splitlines()[-1])
    expected = told()
    assert {word: str(value) for word, value in seen["facts"].items()} == {
        word: expected[word] for word in seen["facts"]
    }
    assert seen["nothing"] == {"encoder": [0, 0, 0], "frames": [0, 0, 0], "sessions": [0, 0]}
    assert seen["wrong"] == {
        "clock": "InvalidArgument",
        "no clock": "InvalidArgument",
        "place": "NotSupported",
        "no place": "InvalidArgument",
        "part": "NotSupported",
        "no part": "InvalidArgument",
        "no room": "InsufficientSize",
        "margin": "ArgumentVersionMismatch",
        "addressing": "ArgumentVersionMismatch",
        "no rows": "InvalidArgument",
    }
