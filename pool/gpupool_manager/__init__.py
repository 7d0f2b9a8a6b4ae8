"""The manager: tenants, quotas, leases and placement over all servers of a pool."""
