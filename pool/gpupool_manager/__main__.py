"""``python -m gpupool_manager`` is the command ``gpupool-manager``."""

from gpupool_manager.start import main

if __name__ == "__main__":
    main()
