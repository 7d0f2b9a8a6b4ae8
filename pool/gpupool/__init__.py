"""gpupool: CUDA programs on GPUs that their machine does not have.

This package holds the ``gpupool`` command. The server is :mod:`gpupool_server`, the manager
:mod:`gpupool_manager`; :mod:`gpupool_common` is what all three share.
"""
