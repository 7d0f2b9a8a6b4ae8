"""What a GPU's model says."""

from __future__ import annotations

#: Between a GPU's model and the profile of an instance of it: "NVIDIA H200 MIG 1g.18gb".
MIG = " MIG "


def is_instance(model: str) -> bool:
    """Whether this is an instance of a GPU, of which CUDA shows a process one and nothing else."""
    return MIG in model
