"""The environment of a worker in a jail: by an allow-list, and what only makes sense there."""

from __future__ import annotations

from collections.abc import Mapping

#: Variables that a worker in a jail gets, if the server has them for it.
_VARIABLES = ("LD_LIBRARY_PATH", "PATH", "LANG", "LC_ALL", "TZ")
_PREFIXES = ("GPUPOOL_", "CUDA_", "NVIDIA_", "NCCL_")

#: But not these where there is a loopback alone: what they choose is not there.
_OF_NETWORKS = ("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY")


def inside(env: Mapping[str, str], cache: int, alone: bool) -> dict[str, str]:
    """What a worker gets of ``env``; ``cache``: bytes, ``alone``: its network is a loopback."""
    left_out = _OF_NETWORKS if alone else ()
    kept = {
        name: value
        for name, value in env.items()
        if (name in _VARIABLES or name.startswith(_PREFIXES))
        and name not in left_out
        and "\n" not in value
    }
    own = {"HOME": "/tmp", "TMPDIR": "/tmp", "CUDA_CACHE_PATH": "/cache"}
    return {**kept, **own, "CUDA_CACHE_MAXSIZE": str(cache // 2)}
