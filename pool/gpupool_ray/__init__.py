"""gpupool for Ray: workers that run under a lease of a pool (docs/ray.md)."""
