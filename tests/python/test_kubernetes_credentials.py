"""The token of a pod's lease: who gets it, and how it comes into the pod."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gpupool_common.certificate import own_certificate
from gpupool_common.errors import GpupoolError
from gpupool_common.paths import Home
from gpupool_kubernetes import names, pods
from gpupool_kubernetes.credentials import Credentials, make_app
from gpupool_kubernetes.pod_files import TokenKeeper, copy_libraries, write_preload
from gpupool_kubernetes.serving import Certificate
from kubernetes_api import served
from kubernetes_world import KubernetesWorld, kubernetes_world, path_of, pod

HALF = {names.GPU: "1", names.MEMORY: "2Gi", names.COMPUTE: "50"}


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
    async with kubernetes_world(tmp_path) as made:
        await made.pool.tenant("red")
        await made.pool.join("n1", 1)
        await made.make(pod("train", **HALF))
        await made.controller().pods.look(made.pod("train"))
        yield made


@pytest_asyncio.fixture
async def client(world: KubernetesWorld) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(Credentials(world.cluster, world.controller().leases, "cluster-1"))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://controller") as made:
        yield made


def reviewed(world: KubernetesWorld, name: str = "train", **changes: Any) -> dict[str, Any]:
    """What the API server says of a bound ServiceAccount token."""
    extra = {
        "authentication.kubernetes.io/pod-name": [name],
        "authentication.kubernetes.io/pod-uid": [pods.metadata(world.pod(name))["uid"]],
    }
    user = {"username": "system:serviceaccount:red:default", "uid": "u-1", "extra": extra}
    return {"authenticated": True, "audiences": ["gpupool.io"], "user": user, **changes}


async def ask(client: httpx.AsyncClient, token: str = "good") -> httpx.Response:
    return await client.post("/v1/token", headers={"Authorization": f"Bearer {token}"})


async def test_a_pod_gets_the_token_of_its_lease(
    world: KubernetesWorld, client: httpx.AsyncClient
) -> None:
    world.api.reviews["good"] = reviewed(world)
    answer = await ask(client)
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    token = answer.json()["token"]
    assert token.startswith("gpl_")


NO_PODS: list[tuple[dict[str, Any], int]] = [
    ({"authenticated": False}, 401),
    ({"authenticated": "yes"}, 401),
    ({"audiences": ["https://kubernetes.default.svc"]}, 401),
    ({"audiences": None}, 401),
    ({"user": {"username": "alice", "extra": {}}}, 403),
    ({"user": {"username": "system:serviceaccount:red:default"}}, 403),
    ({"user": None}, 403),
]


async def test_who_is_no_pod_gets_none(world: KubernetesWorld, client: httpx.AsyncClient) -> None:
    for changes, status in NO_PODS:
        world.api.reviews["good"] = reviewed(world, **changes)
        assert (await ask(client)).status_code == status, changes


OTHERS: list[dict[str, Any]] = [
    {"pod-name": ["train"], "pod-uid": ["another"]},
    {"pod-name": ["../../../../api/v1/secrets"], "pod-uid": ["x"]},
    {"pod-name": ["train", "other"], "pod-uid": ["x"]},
    {"pod-name": "train", "pod-uid": "x"},
    {"pod-name": [1], "pod-uid": [2]},
    {"pod-name": ["gone"], "pod-uid": ["x"]},
]


async def test_a_token_that_was_made_for_another_pod_gets_none(
    world: KubernetesWorld, client: httpx.AsyncClient
) -> None:
    for extra in OTHERS:
        named = {f"authentication.kubernetes.io/{key}": value for key, value in extra.items()}
        user = {"username": "system:serviceaccount:red:default", "extra": named}
        world.api.reviews["good"] = reviewed(world, user=user)
        assert (await ask(client)).status_code == 403, extra


async def test_nothing_shown_and_nonsense_are_401(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/token")).status_code == 401
    assert (await ask(client, "x" * 20000)).status_code == 401
    assert (await ask(client, "unknown")).status_code == 401
    basic = await client.post("/v1/token", headers={"Authorization": "Basic Z29vZA=="})
    assert basic.status_code == 401


async def test_what_is_written_on_a_pod_gives_no_token_of_others(
    world: KubernetesWorld, client: httpx.AsyncClient
) -> None:
    thief = pod("thief")
    lease = pods.notes(world.pod("train"))[names.LEASE]
    thief["metadata"]["annotations"] = {names.LEASE: lease}
    await world.api.put(path_of("thief"), thief)
    world.api.reviews["good"] = reviewed(world, "thief")
    assert (await ask(client)).status_code == 404


async def test_a_lease_that_has_ended_and_an_api_that_is_away(
    world: KubernetesWorld, client: httpx.AsyncClient
) -> None:
    world.api.reviews["good"] = reviewed(world)
    world.api.away = 1
    assert (await ask(client)).status_code == 503
    lease = pods.notes(world.pod("train"))[names.LEASE]
    await world.manager.do("POST", f"/leases/{lease}/release")
    answer = await ask(client)
    assert answer.status_code == 409 and "is released" in answer.json()["detail"]


# In the pod --------------------------------------------------------------------------------


async def test_the_token_is_written_and_written_anew(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    world.api.reviews["good"] = reviewed(world)
    credential, lease = tmp_path / "credential", tmp_path / "lease"
    credential.write_text("good\n")
    lease.mkdir()
    app = make_app(Credentials(world.cluster, world.controller().leases, "cluster-1"))
    async with served(app) as url:
        keeper = TokenKeeper(url, credential, lease, "")
        stop = threading.Event()
        keeping = asyncio.create_task(asyncio.to_thread(keeper.keep, stop, 0.01))
        async with asyncio.timeout(60):
            while not (lease / "token").exists():
                await asyncio.sleep(0.01)
            first = (lease / "token").read_text()
            (lease / "token").unlink()
            while not (lease / "token").exists():
                await asyncio.sleep(0.01)
        stop.set()
        await keeping
    assert first.startswith("gpl_") and (lease / "token").stat().st_mode & 0o777 == 0o644
    assert not (lease / "token.new").exists()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, b"{}", "without a token"),
        (200, b'{"token": 5}', "without a token"),
        (200, b'{"token": ""}', "without a token"),
        (200, '{"token": "\u00e9"}'.encode(), "without a token"),
        (200, b"[", "without a token"),
        (409, b'{"detail": "the lease\\nis queued"}', "answered 409: the lease"),
        (302, b"", "answered 302"),
    ],
)
async def test_an_answer_that_is_no_token_is_told(
    tmp_path: Path, status: int, body: bytes, why: str
) -> None:
    (tmp_path / "credential").write_text("good")
    keeper = TokenKeeper("https://controller", tmp_path / "credential", tmp_path, "")
    keeper._http = httpx.Client(
        transport=httpx.MockTransport(lambda request: httpx.Response(status, content=body))
    )
    with pytest.raises(GpupoolError, match=why):
        keeper.once()
    assert not (tmp_path / "token").exists()
    (tmp_path / "credential").unlink()
    with pytest.raises(GpupoolError, match="cannot be read: No such file"):
        keeper.once()


def test_libraries_are_copied_without_the_soft_gpu(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "to"
    for name in ("lib/libcuda.so.1", "lib/plugins/libgpupool_tcp.so", "lib/driver/soft.so"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    for _ in range(2):  # the container may start again
        copy_libraries(Home(home, "a test"), to)
    copied = sorted(str(path.relative_to(to)) for path in to.rglob("*") if path.is_file())
    assert copied == ["lib/libcuda.so.1", "lib/plugins/libgpupool_tcp.so"]
    write_preload(Home(home, "a test"), "/gpupool/lib", tmp_path)
    assert (tmp_path / "ld.so.preload").read_text() == "/gpupool/lib/libcuda.so.1\n"
    (to / "lib").rename(tmp_path / "away")
    (to / "lib").write_text("a file")
    with pytest.raises(GpupoolError, match="cannot be copied"):
        copy_libraries(Home(home, "a test"), to)


# Certificates ------------------------------------------------------------------------------


def test_a_certificate_is_read_again_and_half_of_one_is_not(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        own_certificate(folder, "localhost", "gpupool-kubernetes")
    served_files = (first / "tls.crt", first / "tls.key")
    certificate = Certificate(*served_files)
    assert not certificate.look()
    before = shown(certificate)
    served_files[0].write_bytes((second / "tls.crt").read_bytes())
    with pytest.raises(GpupoolError, match="cannot be used"):
        certificate.look()
    assert shown(certificate) == before, "the old pair is still shown"
    served_files[1].write_bytes((second / "tls.key").read_bytes())
    assert certificate.look()
    assert shown(certificate) != before
    served_files[1].unlink()
    with pytest.raises(GpupoolError, match="cannot be read: No such file"):
        certificate.look()


def shown(certificate: Certificate) -> bytes:
    """The certificate that a client sees, by a handshake in memory."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server)
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(8):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = client.getpeercert(binary_form=True)
    assert found
    return found
