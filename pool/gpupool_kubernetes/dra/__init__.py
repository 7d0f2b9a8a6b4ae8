"""Dynamic resource allocation: Kubernetes' own scheduler places on the pool's GPUs.

The driver (:mod:`driver`, one for a cluster) publishes the GPUs and takes a lease for what the
scheduler has chosen. The plug-in (:mod:`plugin`, one on each node) gives containers what they
need to use it. What the two have to say to each other stands in the claim and in a Secret.
"""
