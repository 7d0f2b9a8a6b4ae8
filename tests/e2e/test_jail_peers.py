"""The profile for collectives: what a worker reaches over an interface of its host's, and who
reaches it. Hosts are network namespaces of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabric import LINK, PREFIX, Fabric, missing
from gpupool_common import paths
from harness import wait_until
from jail_harness import PYTHON, Started, Starter, holder_line

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make interfaces"),
    pytest.mark.skipif(os.geteuid() == 0 and bool(missing()), reason=missing() or "not root"),
]

A, B, C = (PREFIX + name for name in "abc")
PORT = 7000


@pytest.fixture
def starter(tmp_path: Path, home: paths.Home) -> Iterator[Starter]:
    one = Starter(tmp_path, home)
    yield one
    one.close()


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    one = Fabric(PYTHON, "a", "b", "c")
    yield one
    one.close()


def link(own: str, *peers: str, kind: str = "macvlan", name: str = LINK) -> list[str]:
    return [f"link {name} {kind} {own}", *(f"peer {name} {peer}" for peer in peers)]


def put(starter: Starter, fabric: Fabric, host: str, lines: list[str], code: str) -> Started:
    """A program in a jail on a host."""
    command = [PYTHON, "-IS", "-c", code]
    return starter.run(starter.lines(*lines), command, prefix=fabric.hosts[host].enter)


#: Answers each byte that comes, by TCP and UDP, and says from whom it had it.
ANSWERS = r"""
import select, socket
tcp, udp = socket.create_server(("::", PORT), family=socket.AF_INET6), socket.socket(10, 2)
udp.bind(("::", PORT))
print("ready", flush=True)
while True:
    for one in select.select([tcp, udp], [], [])[0]:
        if one is udp:
            said, who = udp.recvfrom(100)
            print("udp", who[0], flush=True)
            udp.sendto(said, who)
        else:
            connection, who = tcp.accept()
            print("tcp", who[0], flush=True)
            connection.sendall(connection.recv(100))
            connection.close()
""".replace("PORT", str(PORT))

#: What each of these came to: an answer, silence, or the name of an error.
ASKS = r"""
import json, socket
def ask(kind, to, *options, source=None, family=10, wait=SECONDS):
    with socket.socket(family, kind) as one:
        one.settimeout(wait)
        try:
            for option in options:
                one.setsockopt(*option)
            if source:
                one.bind((source, 0))
            if kind == socket.SOCK_STREAM:
                one.connect((to, PORT))
                one.sendall(b"x")
            else:
                one.sendto(b"x", (to, PORT))
            return one.recv(10).decode()
        except TimeoutError:
            return "silence"
        except OSError as error:
            return error.strerror
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
bound = (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"LINK")
free = (socket.IPPROTO_IPV6, 78, 1)
out = (socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex("LINK"))
broad = (socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
"""


def asks(*questions: str, seconds: float = 20) -> str:
    """A program that asks these, one after the other."""
    code = ASKS.replace("LINK", LINK).replace("PORT", str(PORT)).replace("SECONDS", str(seconds))
    return code + f"print(json.dumps([{', '.join(questions)}]))"


def join(starter: Starter, first: Started, lines: list[str], code: str) -> Started:
    """Another worker of a lease."""
    line, holder = holder_line(first)
    one = starter.look(code, *lines, line, keep=[holder])
    os.close(holder)
    return one


def listens(one: Started) -> None:
    wait_until(lambda: "ready" in one.output.read_text(), "it listens")


def both(starter: Starter, fabric: Fabric, kind: str = "macvlan") -> tuple[Started, Started]:
    """Workers of one lease on two hosts, that answer who reaches them."""
    of_a = put(starter, fabric, "a", link(A, B, kind=kind), ANSWERS)
    if "CONFIG_IPVLAN" in of_a.report.off.get("collectives", ""):
        pytest.skip(f"the layer collectives: {of_a.report.off['collectives']}")
    of_b = put(starter, fabric, "b", link(B, A, kind=kind), ANSWERS)
    for one in (of_a, of_b):
        assert one.report.layers["collectives"] == "on"
        listens(one)
    return of_a, of_b


@pytest.mark.parametrize("kind", ["macvlan", "ipvlan"])
def test_peers_reach_each_other_and_nobody_else_reaches_them(
    starter: Starter, fabric: Fabric, kind: str
) -> None:
    of_a, of_b = both(starter, fabric, kind)
    for first, lines, to in ((of_a, link(A, B), B), (of_b, link(B, A), A)):
        other = join(starter, first, lines, asks(f"ask(TCP, '{to}')", f"ask(UDP, '{to}')"))
        assert other.report.layers["collectives"] == "on" and other.seen() == ["x", "x"]
    # A lease of C's whose own filter lets it go to both.
    questions = [f"ask({way}, '{to}')" for way in ("TCP", "UDP") for to in (A, B)]
    third = put(starter, fabric, "c", link(C, A, B, kind=kind), asks(*questions, seconds=2))
    assert third.report.layers["collectives"] == "on" and "x" not in third.seen()
    assert C not in of_a.output.read_text() + of_b.output.read_text()
    heard = fabric.heard()
    assert ["a", "0x86dd", A, B] in heard and ["b", "0x86dd", B, A] in heard
    assert any(frame[0] == "c" for frame in heard)  # it did ask
    assert not [frame for frame in heard if frame[0] in "ab" and C in frame]


#: What a worker that was taken over may try, to be heard by others than its lease's peers.
ATTEMPTS = (
    f"ask(UDP, '{C}')",
    f"ask(UDP, '{C}', bound)",
    f"ask(TCP, '{C}', bound)",
    "ask(UDP, '10.9.9.3', bound, family=2)",
    "ask(TCP, '10.9.9.3', bound, family=2)",
    "ask(UDP, '255.255.255.255', bound, broad, family=2)",
    "ask(UDP, 'ff02::1', out)",
    "ask(UDP, 'ff05::2', out, bound)",
    f"ask(UDP, 'fe80::1%{LINK}', bound)",
    f"ask(UDP, '{B}', free, source='{C}')",
    f"ask(TCP, '{B}', free, source='{C}')",
)


def test_a_worker_is_heard_by_its_peers_alone(starter: Starter, fabric: Fabric) -> None:
    fabric.hosts["c"].do(f"ip addr add {C}/64 dev {LINK} nodad")
    fabric.hosts["c"].do(f"ip addr add 10.9.9.3/24 dev {LINK}")
    of_a, of_b = both(starter, fabric)
    code = asks(f"ask(UDP, '{B}', wait=20)", *ATTEMPTS, seconds=0.5)
    found = join(starter, of_a, link(A, B), code).seen()
    assert found[0] == "x" and "x" not in found[1:], found
    # The same on a host without any of it: attempts that cannot succeed would prove nothing.
    fabric.hosts["c"].do(f"ip addr del {C}/64 dev {LINK}")
    fabric.hosts["c"].do(f"ip addr add {A} dev {LINK} nodad")
    fabric.hosts["c"].do(f"ip route add {PREFIX}/64 dev {LINK}")
    become = "socket\nimport os; os.setuid(65534)"
    plain = code.replace("socket", become, 1)
    subprocess.run([*fabric.hosts["c"].enter, PYTHON, "-IS", "-c", plain], check=True)
    heard = fabric.heard()
    solicited = "ff02::1:ff00:b"
    assert {tuple(frame[1:]) for frame in heard if frame[0] == "a"} <= {
        ("0x86dd", A, B),
        ("0x86dd", A, solicited),
    }
    assert C not in of_b.output.read_text()
    could = {("0x86dd", A, "ff02::1"), ("0x86dd", A, "ff02::1:ff00:c"), ("0x86dd", C, B)}
    assert could | {("0x800",)} <= {tuple(frame[1:]) for frame in heard if frame[0] == "c"}


# What cannot be made ------------------------------------------------------------------------

LINKS = "import json, socket; print(json.dumps([name for _, name in socket.if_nameindex()]))"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*link(A, B), *link(A, B, name="nowhere0")], "the interface nowhere0 is none of this"),
        ([*link(A, B), "off net of the test"], "the layer net is off"),
        ([*link(A, B), "off collectives of the test"], "of the test"),
        ([], "no interface is chosen"),
    ],
)
def test_what_cannot_be_made_is_off_and_leaves_nothing(
    starter: Starter, fabric: Fabric, lines: list[str], words: str
) -> None:
    one = put(starter, fabric, "a", lines, LINKS)
    assert words in one.report.off["collectives"]
    if one.report.layers["net"] == "on":
        assert one.seen() == ["lo"]


def test_a_host_that_has_no_ipvlan_says_so(starter: Starter, fabric: Fabric) -> None:
    one = put(starter, fabric, "a", link(A, B, kind="ipvlan"), LINKS)
    if one.report.layers["collectives"] == "on":
        assert one.seen() == ["lo", LINK]
    else:
        assert one.report.off["collectives"] == (
            f"the interface {LINK} cannot have a child (CONFIG_IPVLAN): Operation not supported"
        )
        assert one.seen() == ["lo"]


def test_a_lease_that_began_without_has_none_later(starter: Starter, fabric: Fabric) -> None:
    first = put(starter, fabric, "a", [], "import time; time.sleep(600)")
    second = join(starter, first, link(A, B), LINKS)
    assert "first worker could make no interfaces" in second.report.off["collectives"]
    assert second.seen() == ["lo"]


def test_without_it_nothing_starts_where_it_is_required(starter: Starter, fabric: Fabric) -> None:
    lines = [*link(A, B, name="nowhere0"), "require collectives"]
    one = put(starter, fabric, "a", lines, "print('it ran')")
    assert "'collectives' is required and cannot be made" in one.report.error
    assert one.output.read_text() == ""


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([f"link x macvlan {A}"], "a 'link' without a 'peer'"),
        ([f"link lo macvlan {A}"], "needs the name of an interface"),
        ([f"link ../x macvlan {A}"], "needs the name of an interface"),
        ([f"link {'x' * 16} macvlan {A}"], "needs the name of an interface"),
        ([f"link x veth {A}"], "must be of the kind"),
        (["link x macvlan"], "needs the name of an interface"),
        (["link x macvlan 10.0.0.1"], "needs the name of an interface"),
        (["link x macvlan ff02::1"], "needs the name of an interface"),
        (["link x macvlan fe80::1"], "needs the name of an interface"),
        (["link x macvlan ::"], "needs the name of an interface"),
        (["link x macvlan ::1"], "needs the name of an interface"),
        (["link x macvlan ::ffff:10.0.0.1"], "needs the name of an interface"),
        ([f"link x macvlan {A}", f"link x macvlan {B}"], "comes twice"),
        ([f"link x{i} macvlan {A}" for i in range(9)], "comes too often"),
        ([f"peer x {A}"], "is for a link that does not come before it"),
        ([f"link x macvlan {A}", "peer x"], "needs the name of an interface"),
        ([f"link x macvlan {A}", "peer x ff02::1"], "needs the name of an interface"),
        ([f"link x macvlan {A}", *[f"peer x {B}"] * 65], "comes too often"),
    ],
)
def test_links_that_cannot_be_start_nothing(starter: Starter, lines: list[str], words: str) -> None:
    one = starter.run(starter.lines(*lines), [PYTHON, "-IS", "-c", "print('it ran')"])
    assert words in one.report.error and one.output.read_text() == ""
