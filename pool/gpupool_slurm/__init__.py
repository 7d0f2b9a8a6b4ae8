"""gpupool for Slurm: jobs with leases of a pool, by prolog and epilog (docs/slurm.md)."""
