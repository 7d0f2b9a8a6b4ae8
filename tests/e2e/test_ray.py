"""Workers of a real Ray, each with a lease of a pool; `make test-ray` has a Ray for it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import wait_until
from pool_site import Site
from tenants import MIB

ray: Any = pytest.importorskip("ray", reason="Ray is not here; make test-ray installs it")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ray.md"
HALF = {"memory": "64MiB", "share": "50%"}
#: A lease expires within 60 s where Ray, in a hurry, has killed the launcher with its worker.
EXPIRED = 90.0


def look() -> tuple[int, int, int]:
    """In a worker: how many GPUs it has, how much memory, and its process."""
    cuda, count, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_size_t()
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0) == 0
    return count.value, size.value, os.getpid()


@pytest.fixture(scope="module")
def cluster(standing: Site) -> Iterator[Site]:
    site = standing
    with pytest.MonkeyPatch.context() as patch:
        plugin = [{"class": "gpupool_ray.plugin.GpupoolPlugin"}]
        patch.setenv("RAY_RUNTIME_ENV_PLUGINS", json.dumps(plugin))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token into our home
        patch.setenv("GPUPOOL_POOL", site.manager.url)
        patch.setenv("GPUPOOL_POOL_TOKEN", site.red)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * MIB)
        yield site
        ray.shutdown()  # it kills launchers as well: their leases expire


def leases(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.manager.do("GET", "/leases?state=active")["items"]
    return found


def test_each_worker_has_a_lease_of_its_own(cluster: Site) -> None:
    actor = ray.remote(num_cpus=1, runtime_env={"gpupool": {"gpus": 1, **HALF}})(Looker)
    both = [actor.remote(), actor.remote()]
    seen = ray.get([each.look.remote() for each in both])
    assert [found[:2] for found in seen] == [(1, 64 * MIB)] * 2
    found = leases(cluster)
    assert [lease["label"] for lease in found] == ["ray", "ray"]
    ray.kill(both[0])  # with SIGKILL
    wait_until(lambda: len(leases(cluster)) == 1, "a killed worker's lease was released", EXPIRED)
    both[1].__ray_terminate__.remote()  # ends by itself, as when nobody refers to it any more
    wait_until(lambda: not leases(cluster), "the lease of the other one was released", EXPIRED)


class Looker:
    def look(self) -> tuple[int, int, int]:
        return look()


def test_who_asks_too_much_is_told_by_ray(cluster: Site) -> None:
    task = ray.remote(num_cpus=1, max_retries=0)(look)
    cluster.manager.do("PUT", "/tenants/red/quota", {"gpus": 1})
    for asked, why in (
        ({"gpus": 2, **HALF}, "over the quota"),
        ({"gpu": 2}, "'gpu' is not one of gpus"),
    ):
        with pytest.raises(ray.exceptions.RuntimeEnvSetupError) as refused:
            ray.get(task.options(runtime_env={"gpupool": asked}).remote())
        assert why in str(refused.value)
    cluster.manager.do("PUT", "/tenants/red/quota", {})
    assert not leases(cluster)


def test_the_example_of_the_page_works(cluster: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__page__"})
    assert "GPUs: 1" in capsys.readouterr().out
