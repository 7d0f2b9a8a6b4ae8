"""What one process does with two GPUs of one server; natively, with two GPUs of its own.

    python two_cards_programs.py NAME

Prints one line of JSON, which must be the same both ways, but for the keys that begin with
``_``. A warning about NVML is an error: where it does not answer, PyTorch warns and goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import two_hosts_programs

Report = dict[str, Any]


def nvml() -> Report:
    """Each card's facts, and how it lies to the other."""
    import pynvml as nv

    nv.nvmlInit()
    handles = [nv.nvmlDeviceGetHandleByIndex(i) for i in range(nv.nvmlDeviceGetCount())]
    read_and_write = (0, 1)  # by number: a constant of pynvml 13.615 is a tuple by mistake
    return {
        "uuids": sorted(nv.nvmlDeviceGetUUID(handle) for handle in handles),
        "names": [nv.nvmlDeviceGetName(handle) for handle in handles],
        "capability": [nv.nvmlDeviceGetCudaComputeCapability(handle) for handle in handles],
        "peers": [
            [nv.nvmlDeviceGetP2PStatus(one, other, index) for index in read_and_write]
            for one in handles
            for other in handles
            if one is not other
        ],
        "levels": [
            [ancestor(nv, one, other) for other in handles if one is not other] for one in handles
        ],
        "links": [nvlinks(nv, handle) for handle in handles],
        "_driver": nv.nvmlSystemGetDriverVersion(),
    }


def ancestor(nv: Any, one: Any, other: Any) -> Any:
    """What lies between two cards; some virtual machines do not say."""
    try:
        return nv.nvmlDeviceGetTopologyCommonAncestor(one, other)
    except nv.NVMLError as error:
        return str(error)


def nvlinks(nv: Any, handle: Any) -> list[Any]:
    found = []
    for link in range(18):
        try:
            found.append([link, nv.nvmlDeviceGetNvLinkState(handle, link)])
        except nv.NVMLError:
            break
    return found


def nvidia_smi() -> Report:
    """The list, and the table of what is requested, by NVIDIA's own program."""
    query = "--query-gpu=index,name,uuid,compute_cap,pci.bus_id"
    said = [
        subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        for command in (["nvidia-smi", "-L"], ["nvidia-smi", query, "--format=csv,noheader"])
    ]
    subprocess.run(["nvidia-smi"], capture_output=True, timeout=60, check=True)
    return {"list": said[0].splitlines(), "query": said[1].splitlines()}


def torch_counts() -> Report:
    """PyTorch counts by NVML where it is told to, and then each device works."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    report: Report = {"available": torch.cuda.is_available(), "count": torch.cuda.device_count()}
    report["utilisation"] = [0 <= torch.cuda.utilization(i) <= 100 for i in range(report["count"])]
    report["_peer"] = torch.cuda.can_device_access_peer(0, 1)
    return report | two_hosts_programs.devices()


def jax_devices() -> Report:
    """JAX asks NVML about the links of its devices at its start."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    report: Report = {"platform": jax.devices()[0].platform, "count": len(jax.devices())}
    values = [jax.device_put(jnp.arange(4096.0), device) for device in jax.devices()]
    squares = [jax.jit(lambda v: (v * v).sum())(value) for value in values]
    report["sums"] = [float(square) for square in squares]
    report["places"] = [str(square.devices()) for square in squares]
    moved = jax.device_put(values[0] * 3, jax.devices()[1])
    report["moved"] = [float(moved.sum()), str(moved.devices())]
    return report


PROGRAMS: dict[str, Callable[[], Report]] = {
    "nvml": nvml,
    "nvidia_smi": nvidia_smi,
    "torch_counts": torch_counts,
    "jax_devices": jax_devices,
    "copies": two_hosts_programs.copies,
    "ordering": two_hosts_programs.ordering,
    "training": two_hosts_programs.training,
}

if __name__ == "__main__":
    warnings.filterwarnings("error", message=".*nvml")
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
