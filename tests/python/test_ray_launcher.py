"""What a runtime environment of Ray asks of a pool; tests/e2e/test_ray.py has a real Ray."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from gpupool_common.errors import ConfigError
from gpupool_ray.launcher import FIELDS, Request


def test_a_request_is_a_command_that_starts_workers() -> None:
    asked = Request(
        {
            "gpus": 1,
            "memory": "8GiB",
            "share": "50%",
            "model": "NVIDIA H100*",
            "label": ["zone=b c"],
            "same_host": True,
            "spread": False,
            "token_file": "/etc/pool token",
        }
    )
    assert asked.body["memory_bytes"] == 8 << 30
    assert (asked.body["share_permille"], asked.body["hosts"]) == (500, "same")
    command = asked.command()
    assert command[:4] == [sys.executable, "-m", "gpupool", "run"] and command[-1] == "--"
    assert {"--gpus=1", "--share=50%", "--wait=45", "--name=ray", "--same-host"} <= set(command)
    assert "--spread" not in command
    # Through a shell, as Ray starts it, every option is one word.
    echoed = ["printf", "%s\\n", *command]
    shown = subprocess.run(["bash", "-c", shlex.join(echoed)], capture_output=True, text=True)
    assert shown.stdout.splitlines() == command


def test_every_field_is_an_option_of_gpupool_run() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "gpupool", "run", "--help"], capture_output=True, text=True
    ).stdout
    for field in FIELDS:
        assert f"--{field.replace('_', '-')} " in shown, field


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (1, "no dict"),
        ({"gpu": 1}, "'gpu' is not one of gpus, memory"),
        ({"gpus": True}, "gpus: True is neither"),
        ({"gpus": [1]}, "gpus"),
        ({"gpus": 0}, "--gpus"),
        ({"memory": " "}, "memory"),
        ({"memory": "8 apples"}, "--memory"),
        ({"share": "50%"}, "needs --memory"),
        ({"label": "zone=b"}, "no list"),
        ({"label": ["zone"]}, "--label"),
        ({"same_host": "yes"}, "neither True nor False"),
        ({"wait": "; rm -rf /"}, "--wait"),
        ({"policy": "$(id)"}, "--policy"),
    ],
)
def test_a_mistake_is_found_before_a_worker_starts(asked: object, why: str) -> None:
    with pytest.raises(ConfigError, match=r".*") as refused:
        Request(asked)
    assert why in str(refused.value)
