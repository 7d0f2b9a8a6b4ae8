"""The variables by which a program asks for GPUs: gpupool's own, and those of cGPU and of vCUDA.

The C client sends those of VARIABLES that are set; its list is made from this one
(proto/gpgen/emit_request.py). request.py says what they mean.
"""

from __future__ import annotations

GROUP = "GPUPOOL_GROUP"
GPUS = "GPUPOOL_GPUS"
DEVICES = "GPUPOOL_DEVICES"
MEMORY = "GPUPOOL_MEMORY"
SHARE = "GPUPOOL_SHARE"
CEILING = "GPUPOOL_CEILING"
WEIGHT = "GPUPOOL_WEIGHT"
PRIORITY = "GPUPOOL_PRIORITY"

#: Any of these is a request of gpupool's own, and the old names are not looked at.
#: GPUPOOL_GROUP is none: it says with whom a request is shared.
OWN = (GPUS, DEVICES, MEMORY, SHARE, CEILING, WEIGHT, PRIORITY)

CGPU_DEV = "ALIYUN_COM_GPU_MEM_DEV"
CGPU_CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
CGPU_DEVICES = "ALIYUN_COM_GPU_VISIBLE_DEVICES"
CGPU_WEIGHT = "ALIYUN_COM_GPU_SCHD_WEIGHT"
CGPU_PRIORITY = "ALIYUN_COM_GPU_HIGH_PRIO"
CGPU_DISABLE = "CGPU_DISABLE"
CGPU = (CGPU_DEV, CGPU_CONTAINER, CGPU_DEVICES, CGPU_WEIGHT, CGPU_PRIORITY, CGPU_DISABLE)

VCUDA_CORE = "TENCENT_VCUDA_CORE"
VCUDA_MEMORY = "TENCENT_VCUDA_MEMORY"
VCUDA = (VCUDA_CORE, VCUDA_MEMORY)

#: All, in the order in which a question has them.
VARIABLES = (GROUP, *OWN, *CGPU, *VCUDA)
