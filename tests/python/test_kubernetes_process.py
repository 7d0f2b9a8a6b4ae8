"""The webhook and the controller as processes, over HTTPS, with a file of settings."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gpupool_common.certificate import own_certificate
from gpupool_common.errors import ConfigError
from gpupool_kubernetes import names
from gpupool_kubernetes.config import load_settings
from kubernetes_world import KubernetesWorld, kubernetes_world, pod, review
from pool_process import environment
from ports import free_port

HALF = {names.GPU: "1", names.MEMORY: "2Gi", names.COMPUTE: "50"}


def write_settings(world: KubernetesWorld, folder: Path, port: int) -> Path:
    path = folder / "settings.toml"
    lines = {
        "listen": f"127.0.0.1:{port}",
        "tls_certificate": folder / "tls.crt",
        "tls_key": folder / "tls.key",
        "pool": world.settings.pool,
        "pool_token_file": world.settings.pool_token_file,
        "api_server": world.settings.api_server,
        "namespace": "gpupool-system",
    }
    text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
    path.write_text(text + '[tenants]\nred = "red"\n')
    return path


@contextlib.asynccontextmanager
async def process(world: KubernetesWorld, folder: Path, command: str) -> AsyncIterator[str]:
    """A command until the test is over with it; it must end well when it is told to."""
    port = free_port()
    own_certificate(folder, "localhost", "gpupool-kubernetes")
    config = write_settings(world, folder, port)
    words = [sys.executable, "-m", "gpupool_kubernetes", command, "--config", str(config)]
    running = await asyncio.create_subprocess_exec(*words, env=environment())
    try:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                assert running.returncode is None
                await asyncio.sleep(0.05)
        yield f"https://localhost:{port}"
    finally:
        if running.returncode is None:
            running.terminate()
        code = await asyncio.wait_for(running.wait(), 60)
    assert code == 0


async def test_both_serve_and_end_when_they_are_told_to(tmp_path: Path) -> None:
    async with kubernetes_world(tmp_path) as world:
        await world.pool.tenant("red")
        await world.pool.join("n1", 1)
        await world.api.put("/api/v1/namespaces/kube-system", {"metadata": {"uid": "cluster-7"}})
        await world.make(pod("train", **HALF))
        async with (
            process(world, tmp_path, "webhook") as url,
            httpx.AsyncClient(verify=ssl.create_default_context(cafile=tmp_path / "tls.crt")) as to,
        ):
            answer = await to.post(f"{url}/admit", json=review(pod("other", **HALF)))
            assert answer.json()["response"]["allowed"]
            assert (await to.get(f"{url}/healthz")).text == "ok\n"
        async with process(world, tmp_path, "controller"):
            await world.until("train", "Active")
        folder = "/apis/coordination.k8s.io/v1/namespaces/gpupool-system/leases/"
        held = world.api.objects[folder + "gpupool-controller"]["spec"]
        assert held["holderIdentity"] == "", "the next one need not wait"
        (lease,) = world.pool.pool.ledger.leases.values()
        assert " cluster-7 " in lease.label


async def test_without_what_it_needs_it_ends_with_one_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gpupool_kubernetes", "webhook"]
    wrong = {
        ("--tls-certificate", str(tmp_path / "none")): "cannot be read: No such file",
        ("--resource-names", "gpupool,amd"): "flag --resource-names: ",
    }
    for flags, why in wrong.items():
        running = await asyncio.create_subprocess_exec(
            *words, *flags, env=environment(), stderr=asyncio.subprocess.PIPE
        )
        _, said = await asyncio.wait_for(running.communicate(), 60)
        assert why in said.decode() and said.count(b"\n") == 1
        assert running.returncode in (1, 2)


def test_a_token_goes_over_no_network_in_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="key 'pool': the token would travel in clear text"):
        load_settings(None, {"pool": "http://manager:7780"})
    monkeypatch.setenv("GPUPOOL_INSECURE_PLAIN", "1")
    assert load_settings(None, {"pool": "http://manager:7780"}).pool == "http://manager:7780"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('tenants = {red = "a b"}', "a namespace"),
        ('resource_names = ["amd"]', "a list of some of: gpupool, nvidia, aliyun, tencent"),
        ('listen = "8443"', "ADDRESS:PORT"),
        ('image_libraries = "../lib"', "folder of the libraries"),
        ("lease_seconds = 1", "60..86400"),
        ('pool = "ftp://x"', "the manager: http"),
        ("unknown = 1", "is unknown; the keys are"),
    ],
)
def test_settings_say_what_is_wrong_and_where(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError) as refused:
        load_settings(path, {})
    assert why in str(refused.value) and str(path) in str(refused.value)
