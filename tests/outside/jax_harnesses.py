"""JAX's own use cases of its primitives (`jax._src.internal_test_util.test_harnesses`).

Each is compiled and run twice on the GPU; where both runs have the same bits, these name the
result, and must be the same through the pool. Where they have not, it must be near the CPU's.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from typing import Any

from telling import Order, Teller, run_all

# Others use the GPU at the same time; and a choice by time would be another one each time.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.08")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")

PARTS = 96
SEED = 1234


def groups(settings: dict[str, Any]) -> list[str]:
    return [f"part-{number:02}" for number in range(PARTS)]


def run(order: Order, teller: Teller) -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    platform = str(order.settings.get("platform", "gpu"))
    device = jax.devices(platform)[0]
    from jax._src.internal_test_util.test_harnesses import all_harnesses

    part = int(order.group.rpartition("-")[2])
    cases = sorted(all_harnesses, key=lambda case: str(case.fullname))  # theirs comes out of sets
    wanted = [case for case in cases[part::PARTS] if case.filter(platform)]
    tests = {case.fullname: partial(check, case, device) for case in wanted}
    run_all(teller, order, tests, partial(healthy, device))
    jax.clear_caches()  # compiled programs hold memory of the GPU


def healthy(device: Any) -> bool:
    import jax
    import numpy

    try:
        return float(jax.device_put(numpy.ones(4), device).sum()) == 4
    except Exception:
        return False


def check(case: Any, device: Any) -> str:
    """The digest of the results; none where the GPU does not repeat itself."""
    first, second = results(case, device), results(case, device)
    bits = bits_of(first)
    if bits == bits_of(second):
        return hashlib.sha256(bits).hexdigest()[:16]
    near_the_cpu(case, first)
    return ""


def results(case: Any, device: Any) -> list[Any]:
    import jax
    import numpy

    arguments = case.dyn_args_maker(numpy.random.RandomState(SEED))
    with jax.default_device(device):
        found = jax.tree_util.tree_leaves(jax.jit(case.dyn_fun)(*arguments))
    return [numpy.asarray(plain(leaf)) for leaf in found]


def plain(leaf: Any) -> Any:
    """Keys of random numbers are arrays of a type that NumPy has not."""
    import jax

    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf


def bits_of(found: list[Any]) -> bytes:
    return b"".join(f"{a.shape}{a.dtype}".encode() + a.tobytes() for a in found)


def near_the_cpu(case: Any, found: list[Any]) -> None:
    import jax
    import numpy

    tolerance = float(case.params.get("tol") or 1e-3)
    for got, wanted in zip(found, results(case, jax.devices("cpu")[0]), strict=True):
        numpy.testing.assert_allclose(
            got.astype(wanted.dtype), wanted, rtol=tolerance, atol=tolerance
        )
