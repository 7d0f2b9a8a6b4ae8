"""The manager: tenants, quotas, leases and placement over all servers of a pool."""

from gpupool import __version__

__all__ = ["__version__"]
