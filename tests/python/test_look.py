"""`gpupool smi`, `top` and `inspect`, against a socket that says what the test wants."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fake_admin import GIB, SESSION, FakeAdmin, command, shown, status_answer
from gpupool import show
from gpupool.admin import Admin
from gpupool.cli import make_app
from gpupool.status import POLICIES, Status
from gpupool.top import frame
from gpupool_common.errors import ProtocolError, RefusedError, UnreachableError
from server_harness import ROOT

# the socket ----------------------------------------------------------------------


def test_an_answer_in_pieces_is_put_together(admin: FakeAdmin) -> None:
    admin.status["padding"] = "x" * 1_000_000
    assert len(Admin(admin.run_dir).ask({"do": "status"})["padding"]) == 1_000_000


@pytest.mark.parametrize("answer", [b"\n", b"[]\n", b"{}\n", b"{\n", b'{"ok":1}\n', b"\xff\n"])
def test_an_answer_that_is_none(admin: FakeAdmin, answer: bytes) -> None:
    admin.answers = lambda _: answer
    with pytest.raises(ProtocolError, match="is not a gpupool server of this release"):
        Admin(admin.run_dir).ask({"do": "status"})


@pytest.mark.parametrize("answer", [b"", b'{"ok":true}'])
def test_a_server_that_hangs_up(admin: FakeAdmin, answer: bytes) -> None:
    admin.answers = lambda _: answer
    with pytest.raises(UnreachableError, match="closed the connection without an answer"):
        Admin(admin.run_dir).ask({"do": "status"})


def test_a_server_that_is_silent(admin: FakeAdmin) -> None:
    release = threading.Event()

    def answer(_: Any) -> bytes:
        release.wait(60)
        return b""

    admin.answers = answer
    with pytest.raises(UnreachableError, match=r"gave no answer within 0.05 s"):
        Admin(admin.run_dir).ask({"do": "status"}, timeout=0.05)
    release.set()


def test_no_server(folder: Path) -> None:
    result = CliRunner().invoke(make_app(), ["smi", "--run-dir", str(folder)])
    assert result.exit_code == 1
    assert f"no gpupool server answers at {folder}/admin.sock: No such file" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["top", "smi", "info"])
def test_who_has_a_pool_is_told_what_shows_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("gpupool.admin.default_run_dir", lambda: folder)
    monkeypatch.delenv("GPUPOOL_SERVER", raising=False)
    monkeypatch.setenv("GPUPOOL_POOL", "http://127.0.0.1:7780")
    result = CliRunner().invoke(make_app(), [command])
    assert "http://127.0.0.1:7780 is a pool: gpupool inspect shows it" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_refusal_is_one_line_and_exit_code_1(admin: FakeAdmin) -> None:
    text = "research/train uses 3.0 GiB,\nasked 1.0 GiB"
    admin.answers = lambda _: json.dumps({"error": text, "code": "in-use"}).encode() + b"\n"
    with pytest.raises(RefusedError) as caught:
        Admin(admin.run_dir).ask({"do": "tenant-set"})
    assert caught.value.code == "in-use"
    code, out, err = command(admin, "session", "set", SESSION, "--memory", "1GiB")
    assert (code, out) == (1, "")
    assert err == "gpupool: research/train uses 3.0 GiB, asked 1.0 GiB\n"


def test_a_status_of_another_release(admin: FakeAdmin) -> None:
    admin.status["gpus"][1]["memory_total_bytes"] = "much"
    code, out, err = command(admin, "smi")
    assert (code, out) == (1, "")
    assert "a status without a right 'gpus.1.memory_total_bytes'" in err


def test_policies_are_the_boards() -> None:
    header = (ROOT / "server/arbiter/board.h").read_text(encoding="utf-8")
    for number, name in enumerate(POLICIES):
        assert f"GP_POLICY_{name.upper()} = {number}," in header


# smi -----------------------------------------------------------------------------


def test_smi(admin: FakeAdmin) -> None:
    lines = shown(admin, "smi").splitlines()
    assert max(map(len, lines)) == 80
    assert {len(line) for line in lines} == {80}
    assert lines[0].startswith("gpupool 9.8.7 on gpu-host ")
    text = "\n".join(lines)

    def cells(start: str) -> list[str]:
        (row,) = [line for line in lines if line.startswith(start)]
        return [cell.strip() for cell in row.strip("|").split("|")]

    assert cells("|   0 | NVIDIA") == [
        "0",
        "NVIDIA H200",
        "99%",
        "5120MiB / 16384MiB",
        "weighted 3",
    ]
    assert cells("|   1 | a GPU")[2:] == ["?", "0MiB / 16384MiB", "native"]
    assert "too long" not in text
    assert cells("|   0 | research/train  ") == [
        "0",
        "research/train",
        "66.1%",
        "66.7%",
        "3072MiB / 8192MiB",
    ]
    assert cells("|   0 | default") == ["0", "default (high)", "?", "33.3%", "2048MiB / 16384MiB"]
    assert cells("|   0 |    4242") == ["0", "4242", "17", "research/train", "python3", "3072MiB"]


def test_smi_shows_no_limit_where_the_policy_has_none(admin: FakeAdmin) -> None:
    admin.status["gpus"][0]["policy"] = "native"
    (row,) = [line for line in shown(admin, "smi").splitlines() if "| default" in line]
    assert "none" in row


def test_smi_of_nobody(admin: FakeAdmin) -> None:
    admin.status["gpus"][0]["tenants"] = []
    text = shown(admin, "smi")
    assert "No tenant is on a GPU." in text
    assert "Worker" not in text


@pytest.mark.parametrize("name", ["smi", "top"])
def test_json_is_the_answer(admin: FakeAdmin, name: str) -> None:
    more = ["--once"] if name == "top" else []
    answer = json.loads(shown(admin, name, "--json", *more))
    assert answer == {key: value for key, value in admin.status.items() if key != "ok"}


# top -----------------------------------------------------------------------------


def render(status: Status, width: int, trouble: str = "") -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(frame(status, width, trouble))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_frame_fits_its_terminal(width: int) -> None:
    lines = render(Status.model_validate(status_answer()), width)
    assert max(map(len, lines)) <= width
    (train,) = [line for line in lines if line.startswith("  research/t")]
    assert "66.1% of 66.7%" in train
    assert "3/8 GiB" in train
    (gpu,) = [line for line in lines if line.startswith("GPU 0")]
    assert "5/16 GiB" in gpu


def test_bars_are_as_long_as_what_they_show() -> None:
    assert [show.bar(value, 4).plain for value in (0, 0.5, 1, 1.5, -1)] == [
        "    ",
        "██  ",
        "████",
        "████",
        "    ",
    ]
    assert show.bar(1 / 32, 4).plain == "▏   "
    assert show.bar(0.9, 4).plain == "███▋"


def test_a_frame_says_what_is_wrong() -> None:
    lines = render(Status.model_validate(status_answer()), 80, "no server [bold]answers[/bold]")
    assert lines[1] == "no server [bold]answers[/bold]"


def test_top_once(admin: FakeAdmin) -> None:
    assert "research/train" in shown(admin, "top", "--once")
    assert admin.questions == [{"do": "status"}]


class Terminal:
    """`gpupool top` with a terminal."""

    def __init__(self, admin: FakeAdmin) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpupool", "top", "--run-dir", str(admin.run_dir)],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'pool'}:{ROOT / 'server'}",
                "TERM": "xterm",
                "COLUMNS": "120",
                "LINES": "40",
            },
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
        )
        os.close(theirs)
        self._seen = b""

    def see(self, text: str) -> None:
        """Wait until the text stands in what has come since the last wait."""
        while text.encode() not in self._seen:
            assert select.select([self._ours], [], [], 60)[0], self._seen[-2000:]
            self._seen += os.read(self._ours, 1 << 16)
        self._seen = self._seen.partition(text.encode())[2]

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def end(self) -> int:
        """Its exit code; its terminal is read on so that it never waits for us."""
        while self.process.poll() is None:
            if select.select([self._ours], [], [], 0.05)[0]:
                try:
                    os.read(self._ours, 1 << 16)
                except OSError:
                    break
        code = self.process.wait(60)
        assert self.process.stderr is not None
        assert self.process.stderr.read() == b""
        os.close(self._ours)
        return code


def test_top_moves_and_outlives_its_server_and_ends_with_q(admin: FakeAdmin) -> None:
    terminal = Terminal(admin)
    terminal.see("66.1%")
    admin.status["gpus"][0]["tenants"][0]["utilisation_permille"] = 123
    terminal.see("12.3%")
    admin.close()
    terminal.see("no gpupool server answers")
    again = FakeAdmin(admin.run_dir)
    again.status["gpus"][0]["tenants"][0]["utilisation_permille"] = 456
    terminal.see("45.6%")
    terminal.press("q")
    assert terminal.end() == 0
    again.close()


def test_top_ends_with_ctrl_c(admin: FakeAdmin) -> None:
    terminal = Terminal(admin)
    terminal.see("66.1%")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0


# inspect -------------------------------------------------------------------------


def test_inspect(admin: FakeAdmin) -> None:
    lines = shown(admin, "inspect").splitlines()
    assert lines[0].split() == [
        "NAME",
        "IPADDRESS",
        "GPU0(Allocated/Total)",
        "GPU1(Allocated/Total)",
        "GPU",
        "Memory(GiB)",
    ]
    name, address, *cells = lines[1].split()
    assert name == "gpu-host"
    socket.inet_aton(address)
    # 8 GiB are promised to one tenant; the other has no limit and 2 GiB in use.
    assert cells == ["10/16", "0/16", "10/32"]
    assert lines[-2:] == ["Allocated/Total GPU Memory In Pool:", "10/32 (31%) GiB"]


def test_inspect_in_detail(admin: FakeAdmin) -> None:
    lines = [line.rstrip() for line in shown(admin, "inspect", "-d").splitlines()]
    assert lines[0] == "NAME:       gpu-host"
    assert [line.split() for line in lines[3:6]] == [
        ["NAME", "GPU0(Allocated)", "GPU1(Allocated)"],
        ["default", "2", "0"],
        ["research/train", "8", "0"],
    ]
    assert "GPU0 Allocated: 10/16 (62%) GiB" in lines
    assert lines[-1] == "10/32 (31%) GiB"


def test_inspect_as_json(admin: FakeAdmin) -> None:
    answer = json.loads(shown(admin, "inspect", "--json"))
    assert (answer["allocated_bytes"], answer["total_bytes"]) == (10 * GIB, 32 * GIB)
    assert answer["gpus"][0]["tenant_bytes"] == {"research/train": 8 * GIB, "default": 2 * GIB}
