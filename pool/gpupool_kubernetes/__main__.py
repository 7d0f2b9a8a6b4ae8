"""``python -m gpupool_kubernetes``."""

from gpupool_kubernetes.start import main

if __name__ == "__main__":
    main()
