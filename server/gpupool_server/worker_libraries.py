"""What a worker opens beside its driver and its plug-ins, where this host has it."""

from __future__ import annotations

from pathlib import Path

from gpupool_server import cupti, nccl, ucx
from gpupool_server.config import Settings


def opened(settings: Settings, kind: str) -> dict[str, Path]:
    """By the worker's option that names each; InstallError if what an operator named is missing."""
    found = {
        "--cupti": cupti.find(settings.cupti, kind),
        "--nccl": nccl.find(settings.nccl, kind),
    }
    return {option: path for option, path in found.items() if path is not None}


def files(settings: Settings, kind: str) -> list[Path]:
    """All of these, and what UCX has, which finds its parts itself."""
    library = ucx.find(settings.ucx_library) if settings.ucx else None
    return [*opened(settings, kind).values(), *(ucx.files(library) if library else ())]
