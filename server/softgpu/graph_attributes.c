/* Attributes of kernel nodes: what a launch is given beside its shape. */
#include "softgpu.h"

/* Those that are a node's. */
static bool is_of_nodes(CUkernelNodeAttrID id)
{
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return true;
    default:
        return false;
    }
}

static bool is_kernel(CUgraphNode node)
{
    return sg_handle_is(node, SG_NODE) && node->type == CU_GRAPH_NODE_TYPE_KERNEL;
}

/* The node launches the same with these attributes, or stays as it is. */
static CUresult launch_with(CUgraphNode node, CUlaunchAttribute *list, unsigned count)
{
    const struct sg_kernel *k = &node->op->kernel;
    CUfunction handle = k->kernel ? (CUfunction)(void *)k->kernel : k->function;
    const CUlaunchConfig config = {.gridDimX = k->grid[0],
                                   .gridDimY = k->grid[1],
                                   .gridDimZ = k->grid[2],
                                   .blockDimX = k->block[0],
                                   .blockDimY = k->block[1],
                                   .blockDimZ = k->block[2],
                                   .sharedMemBytes = k->shared,
                                   .attrs = list,
                                   .numAttrs = count};
    struct sg_op *op;
    SG_TRY(sg_launch_prepare(&config, handle, k->pointers, NULL, node->op->context, &op));
    sg_node_replace(node, op);
    return CUDA_SUCCESS;
}

static CUresult set(CUgraphNode node, CUkernelNodeAttrID attr, const CUkernelNodeAttrValue *value)
{
    const struct sg_kernel *k = &node->op->kernel;
    unsigned count = 0;
    CUlaunchAttribute *list = calloc(k->attribute_count + 1, sizeof(*list));
    if (!list)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < k->attribute_count; i++)
        if (k->attributes[i].id != attr)
            list[count++] = k->attributes[i];
    list[count].id = attr;
    list[count++].value = *value;
    CUresult result = launch_with(node, list, count);
    free(list);
    return result;
}

/* Once a node may be updated, it stays so and keeps its name. */
static CUresult let_update(CUgraphNode node, CUkernelNodeAttrValue *value)
{
    CUgraphDeviceNode name = sg_updates_name(&node->op->kernel);
    if (name && value->deviceUpdatableKernelNode.deviceUpdatable != 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (!name) {
        CUkernelNodeAttrValue own = *value;
        own.deviceUpdatableKernelNode.devNode = NULL;
        SG_TRY(set(node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &own));
        name = sg_updates_name(&node->op->kernel);
    }
    value->deviceUpdatableKernelNode.devNode = name;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       const CUkernelNodeAttrValue *value)
{
    SG_LOCKED;
    SG_READY();
    if (!is_kernel(hNode) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
        return let_update(hNode, (CUkernelNodeAttrValue *)(uintptr_t)value);
    return is_of_nodes(attr) ? set(hNode, attr, value) : CUDA_ERROR_INVALID_VALUE;
}

/* What a node has that nobody has told. */
static CUkernelNodeAttrValue default_of(const struct sg_kernel *k, CUkernelNodeAttrID attr)
{
    CUkernelNodeAttrValue value = {.cooperative = 0};
    if (attr == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
        value.clusterDim.x = k->cluster[0];
        value.clusterDim.y = k->cluster[1];
        value.clusterDim.z = k->cluster[2];
    } else if (attr == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP) {
        value.memSyncDomainMap.remote = 1;
    }
    return value;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       CUkernelNodeAttrValue *value_out)
{
    SG_LOCKED;
    SG_READY();
    bool is_asked = is_of_nodes(attr) || attr == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
    if (!is_kernel(hNode) || !is_asked || !value_out)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_kernel *k = &hNode->op->kernel;
    *value_out = default_of(k, attr);
    for (unsigned i = 0; i < k->attribute_count; i++)
        if (k->attributes[i].id == attr)
            *value_out = k->attributes[i].value;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src)
{
    SG_LOCKED;
    SG_READY();
    if (!is_kernel(dst) || !is_kernel(src) || dst->op->context != src->op->context)
        return CUDA_ERROR_INVALID_VALUE;
    if (dst->op->kernel.updates || src->op->kernel.updates)
        return CUDA_ERROR_INVALID_VALUE;
    return launch_with(dst, src->op->kernel.attributes, src->op->kernel.attribute_count);
}
