"""The profile for collectives: its settings, the addresses of leases, and what the starter is
told."""

from __future__ import annotations

from ipaddress import IPv6Network
from pathlib import Path

import pytest

from gpupool_common.errors import ConfigError
from gpupool_server import jail_collectives, jail_limits
from gpupool_server.collectives_settings import CollectivesSettings
from gpupool_server.config import load_settings
from gpupool_server.jail_collectives import Part, address
from gpupool_server.jail_status import LAYERS, NOT_CHOSEN, lacks
from gpupool_server.tenants import LeasePart

NETWORK, OTHER = IPv6Network("fd00:67:70:1::/64"), IPv6Network("fd00:67:70:2::/64")
KEY = "ab" * 32


def settings(**changes: object) -> CollectivesSettings:
    return CollectivesSettings.model_validate({"interfaces": {"eth1": str(NETWORK)}, **changes})


def part(node: str = "one", nodes: tuple[str, ...] = ("one", "two"), key: str = KEY) -> LeasePart:
    return LeasePart("lease", "r", {}, key, node=node, nodes=nodes)


def test_every_host_finds_the_same_addresses() -> None:
    one, two = (Part(settings(), part(node)).lines([]) for node in ("one", "two"))
    (_, mine), (_, peer) = one
    (_, theirs), (_, back) = two
    assert str(mine).split() == ["eth1", "macvlan", str(back).split()[1]]
    assert str(theirs).split() == ["eth1", "macvlan", str(peer).split()[1]]


def test_no_two_are_the_same() -> None:
    found = {
        address(key, network, host)
        for key in (KEY, "cd" * 32)
        for network in (NETWORK, OTHER)
        for host in ("one", "two", "three")
    }
    assert len(found) == 12 and sum(each in NETWORK for each in found) == 6


def test_a_lease_of_many_hosts_on_several_interfaces() -> None:
    both = settings(interfaces={"eth1": str(NETWORK), "eth2": str(OTHER)}, kind="ipvlan")
    lines = Part(both, part(nodes=("one", "two", "three"))).lines([])
    assert [key for key, _ in lines] == ["link", "peer", "peer"] * 2
    assert str(lines[0][1]).startswith(f"eth1 ipvlan {NETWORK.network_address}"[:-1])
    assert len({str(value).split()[-1] for _, value in lines}) == 6


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (None, "of this host alone"),
        (part(nodes=("one",)), "of this host alone"),
        (part(key=""), "has not told the lease's key"),
        (part(nodes=tuple(f"host-{i}" for i in range(66))), "more than 65 hosts"),
    ],
)
def test_who_has_none_is_told_why(of: LeasePart | None, words: str) -> None:
    one = Part(settings(), of)
    assert words in one.off and one.lines(["/lib/libibverbs.so.1"]) == []
    assert one.locked_memory is None


def test_what_nobody_has_chosen_is_not_missing() -> None:
    one = Part(CollectivesSettings.model_validate({}), part())
    assert one.off == NOT_CHOSEN and one.lines([]) == []
    assert not lacks("collectives", f"off: {NOT_CHOSEN}") and lacks("collectives", "off: no link")
    assert not lacks("user-namespace", "off: x") and lacks("net", "off: x")
    assert not any(lacks(layer, "on") for layer in LAYERS)


def verbs(folder: Path, names: dict[str, str]) -> tuple[Path, Path]:
    """A host with these nodes, each of an RDMA device."""
    sys, dev = folder / "sys", folder / "dev"
    dev.mkdir()
    (dev / "rdma_cm").touch()
    for node, device in names.items():
        (sys / "infiniband_verbs" / node).mkdir(parents=True)
        (sys / "infiniband_verbs" / node / "ibdev").write_text(f"{device}\n")
        (dev / node).touch()
    return sys, dev


def test_the_nodes_of_the_chosen_devices_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys, dev = verbs(tmp_path, {"uverbs0": "mlx5_1", "uverbs1": "mlx5_0", "uverbs2": "mlx5_10"})
    monkeypatch.setattr(jail_collectives, "SYS", sys)
    monkeypatch.setattr(jail_collectives, "DEV", dev)
    lines = Part(settings(rdma=["mlx5_0"]), part()).lines(["/lib/libibverbs.so.1"])
    assert ("device", str(dev / "uverbs1")) in lines
    assert len([key for key, _ in lines if key == "device"]) == 1
    assert ("library", "/lib/libibverbs.so.1") in lines
    assert "no RDMA device mlx5_2" in Part(settings(rdma=["mlx5_0", "mlx5_2"]), part()).off
    (dev / "uverbs1").unlink()
    assert "no RDMA device mlx5_0" in Part(settings(rdma=["mlx5_0"]), part()).off


def test_a_worker_that_finds_the_hosts_devices_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the host's network, as UCX does: of any lease, and the devices that are chosen alone."""
    monkeypatch.setattr(jail_collectives, "nodes", lambda device: [f"/dev/infiniband/{device}"])
    monkeypatch.setattr(jail_collectives, "SYS", tmp_path)
    net = ("read", tmp_path / "net")
    assert Part(settings(), None, True).lines([]) == [net]
    assert Part(settings(), None, True).locked_memory is None
    chosen = Part(settings(rdma=["mlx5_0"]), None, True)
    assert chosen.lines([])[:2] == [net, ("device", "/dev/infiniband/mlx5_0")]
    assert chosen.locked_memory == settings().locked_memory
    assert not [line for line in chosen.lines([]) if line[0] in ("link", "peer")]


def test_memory_is_locked_for_that_profile_only() -> None:
    whole = load_settings(None, {}, {})
    spread = Part(settings(locked_memory="3GiB"), part()).locked_memory
    for locked, limit in ((None, 8 << 20), (spread, 3 << 30)):
        assert ("limit", f"memlock {limit}") in jail_limits.lines(whole, "soft", 0, -1, 256, locked)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('[collectives]\nkind = "veth"', "macvlan .* or ipvlan"),
        ('[collectives]\nrdma = ["mlx5_0"]', "with interfaces only"),
        ('[collectives]\ncolour = "blue"', "is unknown; the keys are: interfaces, kind"),
        ('[collectives.interfaces]\nlo = "fd00::/64"', "a table of up to 8 interfaces"),
        ('[collectives.interfaces]\n"../x" = "fd00::/64"', "a table of up to 8 interfaces"),
        ('[collectives.interfaces]\na-name-that-is-16 = "fd00::/64"', "a table of up to 8"),
        ('[collectives.interfaces]\neth1 = "fd00::/63"', "an IPv6 network of 64 bits"),
        ('[collectives.interfaces]\neth1 = "fd00::1/64"', "an IPv6 network of 64 bits"),
        ('[collectives.interfaces]\neth1 = "10.0.0.0/8"', "an IPv6 network of 64 bits"),
        ('[collectives.interfaces]\neth1 = "fe80::/64"', "an IPv6 network of 64 bits"),
        ('[collectives.interfaces]\neth1 = "ff02::/64"', "an IPv6 network of 64 bits"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, table: str, words: str) -> None:
    file = tmp_path / "server.toml"
    file.write_text(table)
    with pytest.raises(ConfigError, match=words):
        load_settings(file, {}, {})
