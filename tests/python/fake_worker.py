"""A worker that keeps the worker's contract with the server and serves no CUDA.

FAKE_WORKER chooses how it misbehaves: ``good``, ``exit`` (ends with code 3 before it
is ready), ``silent`` (is never ready), ``garbage`` (says something else), ``badurl``
(gives addresses that are none), ``deaf`` (never answers on the control socket), ``loud``
(writes more than a FIFO holds), ``stubborn`` (ignores stop and SIGTERM), ``old`` (of a
release that knows no seats), ``alone`` (its client never comes), ``hung`` (says on SIGUSR1
that its session is over, and stays).

It outlives its server, as a worker does, but not the process FAKE_WORKER_OWNER of the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time

VERSION = "gpupool-worker 0.1.0 wire 3 spec 0123456789abcdef oldest 2"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--session", required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--listen", required=True, action="append")
    parser.add_argument("--control", required=True)
    parser.add_argument("--devices", required=True)
    parser.add_argument("--log-level", required=True)
    if os.environ.get("FAKE_WORKER") != "old":
        parser.add_argument("--budget", action="append", default=[])
        parser.add_argument("--peer-host")
        parser.add_argument("--nccl")
        parser.add_argument("--cupti")
        parser.add_argument("--images")
        parser.add_argument("--alone", action="store_true")
        parser.add_argument("--seat", action="append", default=[])
    args = parser.parse_args()
    if getattr(args, "seat", None):
        assert len(args.seat) == len(args.devices.split(",")), args
        for descriptor in ",".join(args.seat).split(","):
            os.fstat(int(descriptor))  # it was handed in
    return args


def end_with(owner: int) -> None:
    """Whatever this process is doing, it ends when its owner has."""
    try:
        owned = os.pidfd_open(owner)
    except ProcessLookupError:
        sys.exit("the tests have ended")

    def watch() -> None:
        select.select([owned], [], [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def unix_listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    return listener


def tcp_listener(url: str) -> tuple[socket.socket, int]:
    address, _, handed = url.partition("?fd=")
    host, _, port = address.partition("://")[2].rpartition(":")
    assert port == "*", url
    listener = socket.socket(fileno=int(handed)) if handed else socket.create_server((host, 0))
    return listener, int(listener.getsockname()[1])


def status(args: argparse.Namespace) -> bytes:
    answer = {
        "session": args.session,
        "pid": os.getpid(),
        "client_pid": 0,
        "program": "",
        "tenant": None,
        "devices": [int(index) for index in args.devices.split(",")],
        "memory_bytes": 4096,
        "calls": 7,
        "connected": True,
    }
    return json.dumps(answer).encode() + b"\n"


def serve_control(listener: socket.socket, args: argparse.Namespace, mode: str) -> None:
    while True:
        connection, _ = listener.accept()
        # Who asks may have given up: that ends its connection, and not the worker.
        with contextlib.suppress(ConnectionError), connection, connection.makefile("rb") as lines:
            for line in lines:
                if line.split()[:1] == [b"stop"] and mode != "stubborn":
                    return
                if line == b"status\n" and mode != "deaf":
                    connection.sendall(status(args))


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(VERSION)
        return
    if sys.argv[1:] == ["--transports"]:
        if os.environ.get("FAKE_WORKER") == "old":
            sys.exit(2)
        print("shm\ntcp\nzmq")
        return
    end_with(int(os.environ["FAKE_WORKER_OWNER"]))
    mode = os.environ.get("FAKE_WORKER", "good")
    args = arguments()
    assert len(sys.stdin.read()) in (32, 32 + 64)
    assert "GPUPOOL_TOKEN" not in os.environ
    assert os.path.isdir(os.environ["GPUPOOL_PLUGINS"])
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert os.getsid(0) == os.getpid(), "a worker leads its own process session"
    print(json.dumps({"level": "info", "event": "fake worker", "mode": mode}), file=sys.stderr)
    if mode == "exit":
        print("the driver has a headache", file=sys.stderr)
        sys.exit(3)
    if mode == "silent":
        time.sleep(600)
    if mode == "garbage":
        print("hello there", flush=True)
        time.sleep(600)
    if mode == "hung":
        signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"leaving\n") and None)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    urls: dict[str, str] = {}
    kept = []
    for url in args.listen:
        if url == "shm://handed":
            urls["shm"] = url
        else:
            listener, port = tcp_listener(url)
            kept.append(listener)
            urls["zmq" if url.startswith("tcp:") else "tcp"] = (
                url.partition("*")[0] + f"{port}?door={'0123456789abcdef' * 2}"
            )
    if mode == "badurl":
        urls["shm"] = "http://example.org"
    control = unix_listener(args.control)
    print("ready " + json.dumps(urls), flush=True)
    if mode != "alone":
        print("joined", flush=True)
    if mode == "loud":
        for number in range(20_000):
            try:
                os.write(2, f"line {number} {'x' * 80}\n".encode())
            except BlockingIOError:
                continue
    serve_control(control, args, mode)


if __name__ == "__main__":
    main()
