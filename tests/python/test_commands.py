"""The two commands as a user runs them: processes, exit codes, restarts."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from command_harness import StartServer, environment, gpupool
from gpupool_common import protocol
from gpupool_common.ask import ask_info
from gpupool_common.errors import RefusedError, UnreachableError
from gpupool_common.paths import Home
from server_harness import TOKEN, process_lives
from warm_start import run

# gpupool-server ----------------------------------------------------------------


def test_sigterm_ends_the_server_and_no_session(start_server: StartServer) -> None:
    server = start_server()
    worker = server.open_session()
    assert server.stop() == 0
    assert process_lives(worker)
    with pytest.raises(UnreachableError, match="is gpupool-server running there"):
        ask_info(server.url, TOKEN)
    again = start_server()
    (session,) = ask_info(again.url, TOKEN)["sessions"]
    assert session["pid"] == worker


def test_kill_9_of_the_server_harms_no_session(start_server: StartServer) -> None:
    server = start_server()
    worker = server.open_session()
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert process_lives(worker)
    again = start_server()
    (session,) = ask_info(again.url, TOKEN)["sessions"]
    assert session["pid"] == worker
    assert session["calls"] == 7
    assert any(event["event"] == "session adopted" for event in again.events())


def test_on_stop_end_ends_the_sessions(start_server: StartServer) -> None:
    server = start_server("--on-stop", "end")
    worker = server.open_session()
    assert server.stop(signal.SIGINT) == 0
    assert not process_lives(worker)


def test_a_token_is_made_and_its_file_named(start_server: StartServer) -> None:
    server = start_server(GPUPOOL_SERVER_TOKEN="")
    path = server.run_dir / "token"
    token = path.read_text().strip()
    assert ask_info(server.url, token)["sessions"] == []
    with pytest.raises(RefusedError, match="in GPUPOOL_TOKEN, or to gpupool login"):
        ask_info(server.url, "x")
    assert str(path) in server.log.read_text()
    assert token not in server.log.read_text()


def test_one_token_for_the_server_and_the_programs_beside_it(
    start_server: StartServer, home: Home
) -> None:
    token = {"GPUPOOL_TOKEN": "of-both"}
    server = start_server(**token)
    done = gpupool(home, "info", "--json", GPUPOOL_SERVER=server.url, **token)
    assert done.returncode == 0, done.stderr
    (line,) = [e for e in server.events() if "GPUPOOL_SERVER_TOKEN" in str(e["event"])]
    assert line["level"] == "warning"
    assert "of-both" not in server.log.read_text()
    assert not (server.run_dir / "token").exists()


def test_the_token_survives_a_reboot(start_server: StartServer, folder: Path) -> None:
    """It lay in the run directory, which is in memory: after a reboot nobody was let in."""
    state = folder / "state"
    server = start_server("--state-dir", str(state), GPUPOOL_SERVER_TOKEN="")
    token = (state / "token").read_text().strip()
    assert not (server.run_dir / "token").exists()
    server.stop()
    shutil.rmtree(server.run_dir)
    again = start_server("--state-dir", str(state), GPUPOOL_SERVER_TOKEN="")
    assert ask_info(again.url, token)["sessions"] == []


def test_askers_that_hang_up_leave_no_traceback(start_server: StartServer) -> None:
    """At both doors: before the answer, in its middle, and with more questions than read."""
    server = start_server()
    for path, lines in (("admin.sock", 1), ("admin.sock", 50), ("../front.sock", 1)):
        for _ in range(10):
            with socket.socket(socket.AF_UNIX) as asker:
                asker.connect(str((server.run_dir / path).resolve()))
                asker.sendall(b'{"do": "status"}\n' * lines)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for _ in range(10):
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect(server.url)
            dealer.send(protocol.encode("info", {"token": TOKEN}))
            dealer.close(linger=100)
    context.term()
    assert ask_info(server.url, TOKEN)["sessions"] == []
    assert server.stop() == 0
    said = server.log.read_text()
    assert "Traceback" not in said and "could not be" not in said, said


def test_the_token_never_reaches_the_log(start_server: StartServer) -> None:
    server = start_server("--log-level", "debug")
    server.open_session()
    with pytest.raises(RefusedError):
        ask_info(server.url, "some-other-secret")
    server.stop()
    assert TOKEN not in server.log.read_text()
    assert "some-other-secret" not in server.log.read_text()


def server_command(home: Home, *flags: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "gpupool_server", *flags], 60, environment(home))


def test_config_errors_are_one_line_and_code_2(home: Home, folder: Path) -> None:
    config = folder / "bad.toml"
    config.write_text("max_sessions = -1\n")
    done = server_command(home, "--config", str(config))
    assert done.returncode == 2
    assert done.stderr.startswith(f"gpupool-server: {config}: key 'max_sessions': '-1'")
    assert done.stderr.count("\n") == 1
    done = server_command(home, "--on-stop", "explode")
    assert (done.returncode, "flag --on-stop: 'explode'" in done.stderr) == (2, True)
    done = server_command(home, "--pool", "http://x")
    assert (done.returncode, "flag --pool" in done.stderr) == (2, True)


def test_a_second_server_on_the_run_dir_is_told(
    start_server: StartServer, home: Home, folder: Path
) -> None:
    server = start_server()
    done = server_command(
        home, "--run-dir", str(server.run_dir), "--driver", "soft", "--listen", "tcp://127.0.0.1:1"
    )
    assert done.returncode == 1
    assert f"another gpupool-server (pid {server.process.pid})" in done.stderr


def test_a_missing_worker_is_told(home: Home, folder: Path) -> None:
    done = server_command(home, "--worker", str(folder / "none"), "--run-dir", str(folder / "run"))
    assert done.returncode == 1
    assert "cannot be run: No such file" in done.stderr


# gpupool -----------------------------------------------------------------------


def test_lib_path_and_version(home: Home) -> None:
    assert gpupool(home, "lib-path").stdout == f"{home.root}/lib\n"
    assert gpupool(home, "--version").stdout.startswith("gpupool 0.")
    (home.root / "lib/libcuda.so.1").unlink()
    done = gpupool(home, "lib-path")
    assert (done.returncode, done.stdout) == (1, "")
    assert "libcuda.so.1 is missing" in done.stderr


def test_info(start_server: StartServer, home: Home) -> None:
    server = start_server("--soft-gpus", "2")
    server.open_session()
    env = {"GPUPOOL_SERVER": server.url, "GPUPOOL_TOKEN": TOKEN, "COLUMNS": "200"}
    (answer,) = json.loads(gpupool(home, "info", "--json", **env).stdout)
    assert answer["url"] == server.url
    assert [device["index"] for device in answer["devices"]] == [0, 1]
    assert answer["sessions"][0]["program"] == "test"
    shown = gpupool(home, "info", **env).stdout
    assert "1 of 64 sessions" in shown
    assert "fake GPU 1" in shown
    assert answer["sessions"][0]["session"] in shown


def test_info_of_nobody_is_one_line(home: Home) -> None:
    done = gpupool(home, "info", "--server", "tcp://127.0.0.1:1", "--token", "t")
    assert done.returncode == 75
    assert "no gpupool server answers at tcp://127.0.0.1:1: Connection refused" in done.stderr
    done = gpupool(home, "info", "--server", "tcp://no-such-host.invalid:1", "--token", "t")
    assert done.returncode == 1
    assert "no gpupool server answers at tcp://no-such-host.invalid:1" in done.stderr
