"""What an installation's parts need of each other is made once, and again when it is lost."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from gpupool_common import certificate
from gpupool_common.errors import ConfigError, GpupoolError
from gpupool_kubernetes.setup import JOIN, POOL, TLS, Setup
from gpupool_kubernetes.setup_settings import SetupSettings, load_settings
from helm_chart import by_name, render, values_of
from kubernetes_world import KubernetesWorld, kubernetes_world

SECRETS = "/api/v1/namespaces/gpupool-system/secrets"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CHART_CASES = [
    ({}, [f"nvidia.com/gpu.count={count}" for count in (1, 2, 4, 8)]),
    ({"server__driver": "soft"}, [""]),
    ({"server__claim__enabled": True, "server__nodeSelector": {"a": "b", "c": "d"}}, ["a=b,c=d"]),
    ({"server__enabled": False}, []),
]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
    certificate.own_certificate(tmp_path, "127.0.0.1", "gpupool-manager")
    async with kubernetes_world(tmp_path) as found:
        for name, labels in (("gpu-1", {"gpu": "yes"}), ("gpu-2", {"gpu": "yes"}), ("plain", {})):
            body = {"metadata": {"name": name, "labels": labels}}
            await found.api.put(f"/api/v1/nodes/{name}", body)
        (hook,) = [x for x in render(values_of()) if x["kind"] == "MutatingWebhookConfiguration"]
        await found.api.put(f"{HOOKS}/gpupool", hook)
        yield found


def setup_of(world: KubernetesWorld, folder: Path, **more: Any) -> Setup:
    values = {"state_dir": folder, "node_selectors": ["gpu=yes"], **more}
    return Setup(world.cluster, world.manager, SetupSettings.model_validate(values))


def secret(world: KubernetesWorld, name: str) -> dict[str, bytes]:
    data = world.api.objects[f"{SECRETS}/{name}"]["data"]
    return {key: base64.b64decode(value, validate=True) for key, value in data.items()}


def bundle(world: KubernetesWorld) -> bytes:
    (hook,) = world.api.objects[f"{HOOKS}/gpupool"]["webhooks"]
    return base64.b64decode(hook["clientConfig"]["caBundle"], validate=True)


async def test_all_is_made_once(world: KubernetesWorld, tmp_path: Path) -> None:
    setup = setup_of(world, tmp_path)
    await setup.round()
    tls, pool, join = (secret(world, name) for name in (TLS, POOL, JOIN))
    made = x509.load_pem_x509_certificate(tls["tls.crt"])
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "gpupool-controller.gpupool-system.svc",
        "gpupool-webhook.gpupool-system.svc",
    ]
    assert tls["ca.crt"] == tls["tls.crt"] == bundle(world)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / f"made-{name}").write_bytes(tls[name])
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "made-tls.crt", tmp_path / "made-tls.key")
    assert pool["fingerprint"] == (tmp_path / "tls.fingerprint").read_bytes()
    assert pool["ca.crt"] == (tmp_path / "tls.crt").read_bytes()
    assert set(join) == {"gpu-1", "gpu-2"} and all(x.startswith(b"gpn_") for x in join.values())
    tokens = await world.manager.all("/tokens")
    assert sorted(token["scope"] for token in tokens) == [
        "admin",
        "admin",
        "metrics",
        "node",
        "node",
    ]

    nobody = setup_of(world, tmp_path, namespace="other", node_selectors=[])
    await nobody.round()
    assert world.api.objects["/api/v1/namespaces/other/secrets/gpupool-join"]["data"] == {}
    await setup.round()

    version = world.api.version
    await setup.round()
    assert world.api.version == version
    assert len(await world.manager.all("/tokens")) == 7


async def test_what_is_lost_is_made_again(world: KubernetesWorld, tmp_path: Path) -> None:
    setup = setup_of(world, tmp_path)
    await setup.round()
    before = {name: secret(world, name) for name in (TLS, POOL, JOIN)}
    data = world.api.objects[f"{SECRETS}/{POOL}"]["data"]
    data["token"] = base64.b64encode(b"gpp_of-another-manager").decode()
    data["metrics-token"] = "no base64"
    del world.api.objects[f"{SECRETS}/{JOIN}"]
    world.api.objects[f"{SECRETS}/{TLS}"]["data"]["tls.crt"] = base64.b64encode(b"torn").decode()
    await setup.round()
    pool, join, tls = secret(world, POOL), secret(world, JOIN), secret(world, TLS)
    assert await world.manager.knows(pool["token"].decode())
    assert await world.manager.knows(pool["metrics-token"].decode())
    assert pool["token"] != before[POOL]["token"]
    assert set(join) == {"gpu-1", "gpu-2"} and join != before[JOIN]
    assert tls["tls.crt"] != before[TLS]["tls.crt"]
    assert bundle(world) == tls["ca.crt"] and tls["ca.crt"].startswith(tls["tls.crt"])


async def test_a_certificate_for_other_names_is_replaced(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    await setup_of(world, tmp_path).round()
    old = secret(world, TLS)["tls.crt"]
    await setup_of(world, tmp_path, services=["gpupool-webhook"]).round()
    new = secret(world, TLS)
    assert new["tls.crt"] != old
    # Until all have the new one, both are trusted.
    assert new["ca.crt"] == new["tls.crt"] + old == bundle(world)


async def test_a_host_that_was_put_out_stays_out(world: KubernetesWorld, tmp_path: Path) -> None:
    setup = setup_of(world, tmp_path)
    await setup.round()
    (token, _) = await world.manager.all("/tokens", {"scope": "node"})
    await world.manager.do("DELETE", f"/tokens/{token['id']}")
    held = secret(world, JOIN)
    await setup.round()
    assert secret(world, JOIN) == held
    # Until an operator wants it again.
    del world.api.objects[f"{SECRETS}/{JOIN}"]["data"][token["node"]]
    await setup.round()
    again = secret(world, JOIN)
    assert set(again) == set(held) and again[token["node"]] != held[token["node"]]


async def test_a_name_that_no_node_can_have_stops_nobody(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    long = "n" * 65
    await world.api.put(f"/api/v1/nodes/{long}", {"metadata": {"name": long, "labels": {}}})
    await setup_of(world, tmp_path, node_selectors=[""]).round()
    assert set(secret(world, JOIN)) == {"gpu-1", "gpu-2", "plain"}


async def test_before_the_manager_has_begun_nothing_is_said_of_it(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    with pytest.raises(GpupoolError, match="the manager has not begun"):
        await setup_of(world, tmp_path, state_dir=tmp_path / "none").round()
    assert f"{SECRETS}/{POOL}" not in world.api.objects


@pytest.mark.parametrize(("changes", "selectors"), CHART_CASES)
def test_the_charts_settings(changes: dict[str, Any], selectors: list[str], tmp_path: Path) -> None:
    objects = by_name(render(values_of(**changes)))
    path = tmp_path / "setup.toml"
    path.write_text(objects["ConfigMap", "gpupool-setup"]["data"]["setup.toml"])
    settings = load_settings(path, {}, {})
    assert list(settings.node_selectors) == selectors
    assert ("MutatingWebhookConfiguration", settings.webhook) in objects
    assert all(("Service", service) in objects for service in settings.services)
    (rule,) = [
        rule
        for rule in objects["Role", "gpupool-setup"]["rules"]
        if rule["resources"] == ["secrets"] and "resourceNames" in rule
    ]
    assert sorted(rule["resourceNames"]) == sorted((TLS, POOL, JOIN))


@pytest.mark.parametrize(
    "text",
    ["namespace = '../x'", "services = []", "every_seconds = 0", "pool = 'ftp://x'", "other = 1"],
)
def test_settings_that_cannot_be(text: str, tmp_path: Path) -> None:
    path = tmp_path / "setup.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=text.partition(" ")[0]):
        load_settings(path, {}, {})
