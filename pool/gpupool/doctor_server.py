"""What the doctor looks at elsewhere: servers or a pool, the network, and a session."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpupool.doctor_machine import probe
from gpupool.run import check_answers, client_environment
from gpupool_common import __version__, paths
from gpupool_common.ask import Address, ask_info, split_tcp
from gpupool_common.errors import GpupoolError
from gpupool_common.findings import Finding
from gpupool_common.protocol import one_line
from gpupool_common.sizes import short_size

CONNECTS = 5
CONNECT_SECONDS = 5.0
#: From here on a program that waits for each of its steps is slower than its GPU.
FAR_SECONDS = 1e-3

#: What was measured, by name.
Measured = dict[str, Any]


def check_servers(urls: str, token: str, env: Mapping[str, str]) -> list[Finding]:
    """Whether each of them answers, and would serve a program that is started now."""
    words = token.split(",")
    found = []
    for place, url in enumerate(urls.split(",")):
        secret = words[place if len(words) > 1 else 0].strip()
        try:
            info = ask_info(url, secret)
            found.append(Finding("server", True, _server(url, info)))
        except (GpupoolError, IndexError) as error:
            found.append(Finding("server", False, one_line(str(error))))
    if all(each.good for each in found):
        try:
            check_answers(urls, token, env)
        except GpupoolError as error:
            found.append(Finding("request", False, one_line(str(error))))
    return found


def _server(url: str, info: Mapping[str, Any]) -> str:
    """What is shown of a server; it may have answered anything."""
    sessions, devices = info.get("sessions"), info.get("devices")
    taken = len(sessions) if isinstance(sessions, list) else "?"
    gpus = count_gpus(len(devices)) if isinstance(devices, list) else "?"
    release = one_line(str(info.get("server", "?")))
    other = "" if release == __version__ else f" (here it is {__version__})"
    host = one_line(str(info.get("host", "?")))
    return (
        f"{url.partition('?')[0]}: gpupool {release}{other} on {host}, {gpus},"
        f" {taken} of {info.get('max_sessions', '?')} sessions"
    )


def count_gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def check_network(urls: str, measured: Measured) -> list[Finding]:
    """How long a connection takes: one round trip of the network, and names looked up."""
    found = []
    for url in urls.split(","):
        endpoint = Address.parse(url).endpoint
        if not endpoint.startswith("tcp://"):
            continue
        try:
            best = min(_connect(endpoint) for _ in range(CONNECTS))
        except OSError as error:
            text = f"{endpoint}: {error.strerror or error}"
            found.append(Finding("network", False, text))
            continue
        measured.setdefault("connect_seconds", {})[endpoint] = best
        found.append(Finding("network", True, f"{endpoint} connects in {_duration(best)}"))
    return found


def _connect(endpoint: str) -> float:
    started = time.perf_counter()
    socket.create_connection(split_tcp(endpoint), timeout=CONNECT_SECONDS).close()
    return time.perf_counter() - started


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def check_session(
    home: paths.Home, urls: str, token: str | Path, measured: Measured
) -> list[Finding]:
    """A program with a context on each device: what it sees, and how fast it is reached."""
    with tempfile.TemporaryDirectory(prefix="gpupool-doctor-") as folder:
        stats = Path(folder) / "stats.json"
        given = {**os.environ, "GPUPOOL_STATS": str(stats)}
        try:
            told = probe(("session",), client_environment(home, urls, token, given, None))
        except GpupoolError as error:
            return [Finding("session", False, str(error))]
        try:
            transport = str(json.loads(stats.read_text(encoding="utf-8"))["transport"])
        except (OSError, ValueError, LookupError, TypeError):
            text = "a program had GPUs, but not by gpupool's library, which wrote no statistics"
            return [Finding("session", False, text)]
    measured["session"] = {**told, "transport": transport}
    major, minor = divmod(told["cuda"], 1000)
    text = f"{count_gpus(len(told['devices']))} by {transport}, CUDA {major}.{minor // 10}"
    found = [Finding("session", True, text)]
    return found + [_device(index, each) for index, each in enumerate(told["devices"])]


def _device(index: int, device: Mapping[str, Any]) -> Finding:
    wait = float(device["round_trip_seconds"])
    there, back = (
        f"{short_size(int(device[key]))}/s"
        for key in ("to_gpu_bytes_per_second", "from_gpu_bytes_per_second")
    )
    text = (
        f"{one_line(device['name'])}, {short_size(device['memory_bytes'])}; a wait takes"
        f" {_duration(wait)}, copies {there} there and {back} back"
    )
    if wait >= FAR_SECONDS:
        text += "; programs that wait for each step will be slow"
    return Finding(f"GPU {index}", True, text)
