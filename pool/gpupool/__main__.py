"""``python -m gpupool`` is ``gpupool``."""

from __future__ import annotations

from gpupool.start import main

if __name__ == "__main__":
    main()
