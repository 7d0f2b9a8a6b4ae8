"""``python -m gpupool_server`` is ``gpupool-server``."""

from __future__ import annotations

from gpupool_server.start import main

if __name__ == "__main__":
    main()
