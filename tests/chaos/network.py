"""Hosts on one machine: network namespaces with addresses of their own, on one bridge.

The process that makes them must be in a network namespace of its own already (``unshare
--net``), so that nothing of the machine's own network is touched; all of it is gone when the
processes in it are.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field

#: The network of these hosts; its first address is that of the bridge, where the manager is.
NETWORK = "10.83.0"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class Host:
    """One host: what runs in it is started behind `prefix`."""

    number: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"{NETWORK}.{10 + self.number}"

    @property
    def link(self) -> str:
        return f"host{self.number}"

    @property
    def prefix(self) -> list[str]:
        return ["nsenter", "--target", str(self.process.pid), "--net"]

    def cut(self) -> None:
        """Nothing reaches it or comes from it."""
        ip("link", "set", self.link, "down")

    def mend(self) -> None:
        ip("link", "set", self.link, "up")


@dataclass
class Network:
    """A bridge and its hosts."""

    hosts: list[Host] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Of the bridge."""
        return f"{NETWORK}.1"

    def start(self, count: int) -> None:
        ip("link", "set", "lo", "up")
        ip("link", "add", "pool", "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", "pool")
        ip("link", "set", "pool", "up")
        for number in range(count):
            self.hosts.append(self._host(number))

    def _host(self, number: int) -> Host:
        # It says when it is in its namespace, and ends with its standard input.
        command = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        host = Host(number, process)
        inside = f"inside{number}"
        ip("link", "add", host.link, "type", "veth", "peer", "name", inside)
        ip("link", "set", host.link, "master", "pool")
        ip("link", "set", host.link, "up")
        ip("link", "set", inside, "netns", str(process.pid))
        for words in (
            ["link", "set", "lo", "up"],
            ["addr", "add", f"{host.address}/24", "dev", inside],
            ["link", "set", inside, "up"],
        ):
            subprocess.run([*host.prefix, "ip", *words], check=True, capture_output=True)
        return host

    def close(self) -> None:
        for host in self.hosts:
            host.process.kill()
            host.process.wait()
