"""Every name of ours that a cluster knows, in one place.

What is written into objects of other people's is prefixed with the group, as Kubernetes asks.
"""

from __future__ import annotations

from typing import Final

#: The API group of our own resources, and the version that is served and stored.
GROUP: Final = "gpupool.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

# Resources that a container asks for, under ``resources.limits`` -----------------------------

#: Virtual GPUs.
GPU: Final = f"{GROUP}/gpu"
#: Memory of each of them: a quantity of bytes, ``8Gi``.
MEMORY: Final = f"{GROUP}/memory"
#: Compute of each of them, in percent of a GPU.
COMPUTE: Final = f"{GROUP}/compute"
RESOURCES: Final = (GPU, MEMORY, COMPUTE)

# On pods ------------------------------------------------------------------------------------

#: A label: the pod has a request. What watches pods selects by it.
MANAGED: Final = f"{GROUP}/managed"
#: Annotations that the webhook writes. JSON: what is asked of the pool, and by which container.
REQUEST: Final = f"{GROUP}/request"
#: Annotations that the controller writes: the lease's id, and where its clients go.
LEASE: Final = f"{GROUP}/lease"
SERVERS: Final = f"{GROUP}/servers"
#: The same name as a scheduling gate, as a finalizer and as the type of a pod's condition.
GATE: Final = LEASE
FINALIZER: Final = LEASE
CONDITION: Final = LEASE
#: Annotations that only we may write: whoever else tries is refused.
OURS: Final = (REQUEST, LEASE, SERVERS)

#: Annotations by which a user says more than resources can.
POLICY: Final = f"{GROUP}/policy"
HOSTS: Final = f"{GROUP}/hosts"
MODEL: Final = f"{GROUP}/model"
PRIORITY: Final = f"{GROUP}/priority"
CAPABILITY: Final = f"{GROUP}/capability"
MIN_DRIVER: Final = f"{GROUP}/min-driver"
#: ``"false"``: the webhook leaves this pod alone.
INJECT: Final = f"{GROUP}/inject"

#: Who a projected ServiceAccount token is for: nobody but our credential service takes it.
AUDIENCE: Final = GROUP

# In a pod -----------------------------------------------------------------------------------

#: Volumes of ours, the init container of ours, and where they are.
LIBRARIES_VOLUME: Final = "gpupool"
LEASE_VOLUME: Final = "gpupool-lease"
CREDENTIAL_VOLUME: Final = "gpupool-credential"
CONTAINER: Final = "gpupool"
LIBRARIES_PATH: Final = "/gpupool"
#: The lease's token is there, which is written anew before it expires.
LEASE_PATH: Final = "/var/run/gpupool-lease"
CREDENTIAL_PATH: Final = "/var/run/secrets/gpupool.io"
#: A variable of it: whom it trusts to be the credential service, in PEM.
CREDENTIAL_CA: Final = "GPUPOOL_CREDENTIAL_CA"

# Dynamic resource allocation ----------------------------------------------------------------

DRA_DRIVER: Final = f"gpu.{GROUP}"

# Our own resources: kind and plural ---------------------------------------------------------

TENANT_QUOTA: Final = ("TenantQuota", "tenantquotas")
LEASE_MIRROR: Final = ("Lease", "leases")
NODE_MIRROR: Final = ("Node", "nodes")
#: All three belong to the cluster, as tenants and GPU hosts do.
CLUSTER_SCOPED: Final = (TENANT_QUOTA, LEASE_MIRROR, NODE_MIRROR)
