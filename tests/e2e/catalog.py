"""The programs of this folder: what each is given, and in which builds it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toolchain import Toolchain


@dataclass(frozen=True)
class Program:
    """One run: `source` with `arguments`; on a real GPU `gpu_arguments`, where they differ."""

    name: str
    source: str
    driver: bool = False
    arguments: tuple[str, ...] = ()
    gpu_arguments: tuple[str, ...] | None = None
    flags: tuple[str, ...] = ()
    #: What it asks is answered by our library alone: a soft GPU by itself has no answer.
    ours: bool = False

    def build(self, toolchain: Toolchain, variant: str) -> Path:
        if self.driver:
            return toolchain.driver_program(self.source)
        return toolchain.runtime_program(self.source, variant, self.flags)

    def command(self, binary: Path, real_gpu: bool = False) -> list[str]:
        arguments = self.arguments
        if real_gpu and self.gpu_arguments is not None:
            arguments = self.gpu_arguments
        return [str(binary), *arguments]


RUNTIME_PROGRAMS = (
    Program("vector_add", "vector_add"),
    Program("matmul", "matmul"),
    Program("reduction", "reduction"),
    Program("histogram", "histogram"),
    Program("stencil", "stencil"),
    Program("device_functions", "device_functions"),
    Program("symbols", "symbols"),
    Program("captured", "captured"),
    Program("managed", "managed"),
    Program("managed_variables", "managed_variables"),
    Program("threads", "threads"),
    Program("overrun", "overrun"),
    # On a real card, pieces of 2 GiB and 4 GiB left for others.
    Program("exhaust", "exhaust", arguments=("64",), gpu_arguments=("2048", "4096")),
    Program("round_trips", "round_trips", arguments=("iterations", "5")),
)

# A second default-stream mode is a matter of the compiler, not of the runtime.
PER_THREAD = Program(
    "threads_per_thread_stream", "threads", flags=("-default-stream", "per-thread")
)

# Beside compute_75: what only cards from 9.0 on have.
HOPPER = ("-gencode", "arch=compute_90,code=compute_90", "--expt-relaxed-constexpr")
WARPGROUPS = ("-gencode", "arch=compute_90a,code=compute_90a")

# Built once only: they are about kernels, and CUDA 13's C++ headers refuse CUDA 12's.
ONCE_PROGRAMS = (
    PER_THREAD,
    Program("grid_sync", "grid_sync"),
    Program("linked", "linked", flags=("-rdc=true",)),
    Program("launching", "launching", flags=("-rdc=true",)),
    Program("nested", "nested", flags=("-rdc=true",)),
    Program("graph_updates", "graph_updates", flags=("-rdc=true",)),
    Program("textures", "textures"),
    Program("matrices", "matrices"),
    Program("async_copies", "async_copies", flags=HOPPER),
    Program("warp_specialized", "warp_specialized", flags=WARPGROUPS),
)

# What the soft GPU refuses by name.
CARD_PROGRAMS = (Program("graph_launch", "graph_launch", flags=("-rdc=true",)),)

DRIVER_PROGRAMS = (
    Program("driver_jit", "driver_jit", driver=True),
    Program("driver_link", "driver_link", driver=True),
    Program("driver_same_images", "driver_same_images", driver=True),
    Program("driver_answers", "driver_answers", driver=True, ours=True),
    Program("driver_queries", "driver_queries", driver=True, ours=True),
    Program("driver_texture_references", "driver_texture_references", driver=True),
    Program("driver_logs", "driver_logs", driver=True, ours=True),
    Program("driver_superseded", "driver_superseded", driver=True),
    Program("driver_forms32", "driver_forms32", driver=True),
    Program("driver_forms32_context", "driver_forms32", driver=True, arguments=("context",)),
    Program("driver_module", "driver_module", driver=True),
    Program("driver_variables", "driver_variables", driver=True),
    Program("driver_occupancy", "driver_occupancy", driver=True),
    Program("driver_attributes", "driver_attributes", driver=True),
    Program("driver_memory", "driver_memory", driver=True),
    Program("driver_copies", "driver_copies", driver=True),
    Program("driver_pointers", "driver_pointers", driver=True),
    Program("driver_tensor_maps", "driver_tensor_maps", driver=True),
    Program("driver_tensor_copies", "driver_tensor_copies", driver=True),
    Program("driver_tensor_made", "driver_tensor_made", driver=True),
    Program("driver_green", "driver_green", driver=True),
    Program("driver_arrays", "driver_arrays", driver=True),
    Program("driver_sparse", "driver_sparse", driver=True),
    Program("driver_sparse_kept", "driver_sparse_kept", driver=True),
    Program("driver_textures", "driver_textures", driver=True),
    Program("driver_events", "driver_events", driver=True),
    Program("driver_polled", "driver_polled", driver=True),
    Program("uploads_behind_legacy", "uploads", driver=True, arguments=("3", "legacy")),
    Program("driver_polled_fault", "driver_polled", driver=True, arguments=("fault",)),
    Program("driver_waits", "driver_waits", driver=True),
    Program(
        "driver_waits_looks", "driver_waits", driver=True, arguments=("looks", "10"), ours=True
    ),
    Program("driver_waits_rests", "driver_waits", driver=True, arguments=("rests", "5")),
    Program("driver_waits_fault", "driver_waits", driver=True, arguments=("fault",)),
    Program("driver_streams", "driver_streams", driver=True),
    Program("driver_both_ways", "driver_both_ways", driver=True),
    Program("driver_reset", "driver_reset", driver=True),
    Program("driver_held", "driver_held", driver=True),
    Program("driver_reuse", "driver_reuse", driver=True),
    Program("driver_freed", "driver_freed", driver=True),
    Program("driver_forks", "driver_forks", driver=True),
    Program("driver_context_memory", "driver_context_memory", driver=True),
    Program("driver_contextless", "driver_contextless", driver=True),
    Program("driver_graph", "driver_graph", driver=True),
    Program("driver_graph_nodes", "driver_graph_nodes", driver=True),
    Program("driver_graph_device", "driver_graph_device", driver=True),
    Program("driver_graph_edges", "driver_graph_edges", driver=True),
    Program("driver_graph_host", "driver_graph_host", driver=True),
    Program("driver_graph_again", "driver_graph_again", driver=True),
    Program("driver_graph_conditions", "driver_graph_conditions", driver=True),
    Program("driver_graph_memory", "driver_graph_memory", driver=True),
    Program("driver_graph_told", "driver_graph_told", driver=True),
    Program("driver_batch", "driver_batch", driver=True),
    Program("driver_user_objects", "driver_user_objects", driver=True),
    Program("driver_graph_drawn", "driver_graph_drawn", driver=True),
    Program("driver_graph_flags", "driver_graph_drawn", True, ("flags",), ours=True),
    Program("driver_captures", "driver_captures", driver=True),
    Program("driver_relaxed", "driver_relaxed", driver=True),
    Program("driver_vmm", "driver_vmm", driver=True),
    Program("driver_ipc", "driver_ipc", driver=True),
    Program("driver_pools", "driver_pools", driver=True),
    Program("driver_mapped", "driver_mapped", driver=True),
    Program("driver_managed", "driver_managed", driver=True),
    Program("driver_managed_variables", "driver_managed_variables", driver=True),
    Program("driver_managed_random", "driver_managed_random", driver=True),
    Program("driver_managed_hints", "driver_managed_hints", driver=True),
    Program("driver_managed_handlers", "driver_managed_handlers", driver=True),
    Program("driver_managed_files", "driver_managed_files", driver=True),
    Program("driver_limits", "driver_limits", driver=True),
    Program("driver_profile", "driver_profile", driver=True),
    Program("driver_errors", "driver_errors", driver=True),
    Program("driver_fault", "driver_fault", driver=True),
    Program("driver_fault_copied", "driver_fault", driver=True, arguments=("copied",)),
    Program("driver_fault_function", "driver_fault", driver=True, arguments=("function",)),
    Program("driver_fault_unseen", "driver_fault", driver=True, arguments=("unseen",)),
    Program("driver_fork", "driver_fork", driver=True),
    Program("driver_exit", "driver_exit", driver=True),
    Program("driver_exit_hard", "driver_exit", driver=True, arguments=("_exit",)),
    Program("driver_exit_thread", "driver_exit", driver=True, arguments=("thread",)),
    Program("driver_exit_busy", "driver_exit", driver=True, arguments=("busy",), ours=True),
)


def all_runs(variants: tuple[str, ...]) -> list[tuple[Program, str]]:
    """Every program with every build it has: (program, variant or "driver")."""
    runs = [(p, v) for v in variants for p in RUNTIME_PROGRAMS]
    runs += [(p, "static13") for p in ONCE_PROGRAMS]
    runs += [(p, "driver") for p in DRIVER_PROGRAMS]
    return runs
