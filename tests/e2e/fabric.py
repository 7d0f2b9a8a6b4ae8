"""Hosts of a test: network namespaces of this machine, joined by one Ethernet."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

#: What the interface is called on each host.
LINK = "fabric0"
PREFIX = "fd00:67:70::"


def missing() -> str:
    """Why no such hosts can be made here; empty: they can."""
    if lacking := [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]:
        return f"no {lacking[0]} here"
    make = "ip link add name one type veth peer name two && ip link add link one name three"
    tried = subprocess.run(
        ["unshare", "-n", "sh", "-c", f"{make} type macvlan"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no interfaces can be made: {tried.stderr.strip()}" if tried.returncode else ""


class Host:
    """A network namespace, as long as a process holds it."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", "echo; exec sleep 3600"],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert self._holder.stdout is not None and self._holder.stdout.readline()
        self.pid = self._holder.pid
        self.enter = ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]

    def do(self, command: str) -> None:
        done = subprocess.run(
            [*self.enter, *command.split()], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


#: Every frame that comes to the switch, one a line: from which port, what, from whom, to whom.
_LISTEN = r"""
import json, socket, sys, threading
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
def read():
    while True:
        frame, about = tap.recvfrom(65536)
        if about[0] == "switch" or about[2] == 4:  # what the switch itself has sent on
            continue
        cuts = (22, 38) if len(frame) >= 54 and about[1] == 0x86dd else ()
        ends = [socket.inet_ntop(socket.AF_INET6, frame[at:at + 16]) for at in cuts]
        print(json.dumps([about[0], hex(about[1]), *ends]), flush=True)
threading.Thread(target=read, daemon=True).start()
print("[]", flush=True)
sys.stdin.read()
"""


class Fabric:
    """A switch with hosts on it, and an ear on the switch."""

    def __init__(self, python: str, *names: str) -> None:
        self._switch = Host()
        self._switch.do("ip link add name switch type bridge mcast_snooping 0")
        self._switch.do("ip link set dev switch up")
        self.hosts: dict[str, Host] = {}
        self._attached: list[str] = []
        for name in names:
            host = self.hosts[name] = Host()
            make = f"ip link add name {name} type veth peer name {LINK} netns {host.pid}"
            self._switch.do(make)
            self._switch.do(f"ip link set dev {name} master switch up")
            host.do(f"ip link set {LINK} addrgenmode none")  # older kernels bring it up first
            host.do(f"ip link set {LINK} up")
            host.do("ip link set lo up")
        self._ear = subprocess.Popen(
            [*self._switch.enter, python, "-IS", "-c", _LISTEN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._ear.stdout is not None and self._ear.stdout.readline()

    def attach(self, name: str) -> str:
        """An interface of this machine's own by this name; it goes with the switch."""
        port = f"p{len(self._attached)}"
        self._attached.append(name)
        make = f"ip link add name {name} type veth peer name {port} netns {self._switch.pid}"
        subprocess.run(make.split(), check=True)
        up = f"ip link set dev {name} addrgenmode none up"
        subprocess.run(up.split(), check=True)
        self._switch.do(f"ip link set dev {port} master switch up")
        return name

    def cut(self, name: str) -> None:
        """A host off the switch: its interface stays as it is, and nothing arrives any more."""
        self._switch.do(f"ip link set dev {name} nomaster")

    def mend(self, name: str) -> None:
        """It is on the switch again."""
        self._switch.do(f"ip link set dev {name} master switch")

    def heard(self) -> list[list[Any]]:
        """All frames so far; nothing is heard after that."""
        said, _ = self._ear.communicate()
        return [json.loads(line) for line in said.splitlines()]

    def close(self) -> None:
        self._ear.kill()
        self._ear.communicate()
        for name in self._attached:
            subprocess.run(["ip", "link", "del", "dev", name], check=False)
        for host in (*self.hosts.values(), self._switch):
            host.close()
