"""gpupool: CUDA programs on GPUs that their machine does not have.

This package holds what a client needs: where the libraries are, how a server is
asked, and the ``gpupool`` command. The daemon is :mod:`gpupool_server`.
"""

from __future__ import annotations

__version__ = "0.1.0"
