"""`gpupool gpu` and `gpupool session` against a socket that says what the test wants."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fake_admin import GIB, OTHER, SESSION, FakeAdmin, command, shown

# gpu -----------------------------------------------------------------------------


def test_gpu_list(admin: FakeAdmin) -> None:
    lines = shown(admin, "gpu", "list").splitlines()
    assert lines[1].split() == [
        "0",
        "NVIDIA",
        "H200",
        "16GiB",
        "weighted",
        "3",
        "90%",
        "1",
        "4GiB",
        "yes",
    ]
    assert lines[2].split()[-3:] == ["3", "quota", "yes"]
    own = len(lines[2]) - len("a GPU whose name is far too long for a table")
    assert own + len("NVIDIA GeForce RTX 4090") <= 80
    answer = json.loads(shown(admin, "gpu", "list", "--json"))
    assert [gpu["uuid"] for gpu in answer] == ["GPU-1", "GPU-2"]
    assert "tenants" not in answer[0]


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        (["0", "--policy", "weighted"], {"gpu": 0, "policy": "weighted"}),
        (["1", "--policy", "3"], {"gpu": 1, "policy": "fixed"}),
        (["1", "--policy", "6"], {"gpu": 1, "policy": "share"}),
        (
            ["0", "--max-inst", "25", "--prio-ratio", "20"],
            {"gpu": 0, "max_inst": 25, "prio_ratio": 20},
        ),
        (["0", "--default-memory", "8GiB"], {"gpu": 0, "default_memory_bytes": 8 * GIB}),
        (["0", "--default-memory", "none"], {"gpu": 0, "default_memory_bytes": None}),
    ],
)
def test_gpu_set(admin: FakeAdmin, args: list[str], asked: dict[str, Any]) -> None:
    assert shown(admin, "gpu", "set", *args) == ""
    assert admin.questions == [{"do": "gpu-set", **asked}]
    assert json.loads(shown(admin, "gpu", "set", *args, "--json")) == {"ok": True, "done": 1}


def test_gpu_aside_and_open(admin: FakeAdmin) -> None:
    assert shown(admin, "gpu", "aside", "1", "--reason", "a fan") == ""
    assert shown(admin, "gpu", "open", "1") == ""
    assert admin.questions == [
        {"do": "gpu-aside", "gpu": 1, "reason": "a fan"},
        {"do": "gpu-open", "gpu": 1},
    ]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["0"], "say what to set: --policy, --max-inst"),
        (["x", "--policy", "share"], "INDEX: 'x' is not a whole number 0..63"),
        (["0", "--policy", "fair"], "--policy: 'fair' is not one of average, preemptive"),
        (["0", "--policy", "7"], "--policy: '7' is not one of"),
        (["0", "--max-inst", "26"], "--max-inst: '26' is not a whole number 1..25"),
        (["0", "--max-inst", "0"], "--max-inst: '0' is not"),
        (["0", "--prio-ratio", "19"], "--prio-ratio: '19' is not a whole number 20..99"),
        (["0", "--prio-ratio", "90%"], "--prio-ratio: '90%' is not"),
        (["0", "--default-memory", "8GX"], "--default-memory: '8GX' is not a size"),
        (["0", "--default-memory", "0"], "--default-memory: 0 would leave nothing"),
    ],
)
def test_gpu_set_refuses(admin: FakeAdmin, args: list[str], says: str) -> None:
    code, out, err = command(admin, "gpu", "set", *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert admin.questions == []


# session -------------------------------------------------------------------------


def test_session_list(admin: FakeAdmin) -> None:
    lines = shown(admin, "session", "list").splitlines()
    assert lines[1].split()[:6] == [SESSION, "research/train", "python3", "here:17", "0", "3GiB"]
    assert lines[1].split()[6] == "running"
    assert lines[1].split()[7].startswith("1:")
    assert lines[2].split()[:2] == [OTHER, "default"]
    answer = json.loads(shown(admin, "session", "list", "--json"))
    assert [(s["session"], s["tenant"]) for s in answer] == [
        (SESSION, "research/train"),
        (OTHER, "default"),
    ]


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        ([SESSION, "--memory", "2GiB"], {"session": SESSION, "memory_bytes": 2 * GIB}),
        (["research", "--weight", "0"], {"tenant": "research", "weight": 0}),
        (
            ["research/x", "--share", "0.25", "--ceiling", "80%", "--gpu", "1"],
            {"tenant": "research/x", "share_permille": 250, "ceiling_permille": 800, "gpu": 1},
        ),
        (["a/b", "--priority", "high"], {"tenant": "a/b", "high_priority": True}),
        (["a/b", "--priority", "normal"], {"tenant": "a/b", "high_priority": False}),
        (
            ["a/b", "--memory", "1MiB", "--wait", "2.5"],
            {"tenant": "a/b", "memory_bytes": 1 << 20, "wait": 2.5},
        ),
    ],
)
def test_session_set(admin: FakeAdmin, args: list[str], asked: dict[str, Any]) -> None:
    assert shown(admin, "session", "set", *args) == ""
    assert admin.questions == [{"do": "tenant-set", **asked}]
    assert json.loads(shown(admin, "session", "set", *args, "--json")) == {"ok": True, "done": 1}


def test_a_limit_that_changes_nothing_is_said(admin: FakeAdmin) -> None:
    note = "a weight of 3 changes nothing where the policy has no weights: GPU 0 ('share')"
    admin.answers = lambda _: json.dumps({"ok": True, "note": note}).encode() + b"\n"
    code, out, err = command(admin, "session", "set", SESSION, "--weight", "3")
    assert (code, out, err) == (0, "", f"gpupool: {note}\n")
    code, out, err = command(admin, "session", "set", SESSION, "--weight", "3", "--json")
    assert (code, json.loads(out)["note"]) == (0, note)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([SESSION], "say what to set: --memory, --share"),
        (["a/b/c", "--weight", "1"], "'a/b/c' is neither a session's ID nor TENANT"),
        ([SESSION, "--memory", "lots"], "--memory: 'lots' is not a size"),
        ([SESSION, "--memory", ""], "--memory: the value is empty"),
        ([SESSION, "--share", "0"], "--share: '0' is not a part of a GPU"),
        (["a", "--share", "50%", "--ceiling", "40%"], "--ceiling: '40%' is less than --share"),
        ([SESSION, "--weight", "26"], "--weight: '26' is not a whole number 0..25"),
        ([SESSION, "--priority", "urgent"], "--priority: 'urgent' is neither high nor normal"),
        ([SESSION, "--weight", "1", "--wait", "3"], "--wait is for --memory"),
        ([SESSION, "--memory", "1G", "--wait", "nan"], "--wait: 'nan' is not a number of seconds"),
        ([SESSION, "--memory", "1GiB", "--wait", "-1"], "--wait: '-1' is not a number of seconds"),
        ([SESSION, "--weight", "1", "--gpu", "-1"], "--gpu: '-1' is not a whole number 0..63"),
    ],
)
def test_session_set_refuses(admin: FakeAdmin, args: list[str], says: str) -> None:
    code, out, err = command(admin, "session", "set", *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert admin.questions == []
