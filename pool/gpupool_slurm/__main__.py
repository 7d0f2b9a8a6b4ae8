"""``python -m gpupool_slurm`` is ``gpupool-slurm``."""

from __future__ import annotations

from gpupool_slurm.cli import main

if __name__ == "__main__":
    main()
