/*
 * Kernel nodes that kernels update: such a node has a name for them, and what they have changed is
 * kept beside its operation, from the moment its graph is instantiated. A launch takes what is
 * there when it comes to the node.
 */
#include "softgpu.h"

struct sg_updates {
    struct sg_updates *next;
    uint64_t name;
    int refs;  /* operations */
    bool runs; /* an executable has the node */
    bool disabled;
    const struct sg_kernel *its; /* what the node launches; it may be gone */
    uint32_t grid[3];
    uint32_t bytes;
    unsigned char *parameters;
};

static struct sg_updates *all;                           /* under sg.lock and this */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for kernels, which have no other */

static struct sg_updates *find(uint64_t name)
{
    struct sg_updates *u = all;
    while (u && u->name != name)
        u = u->next;
    return u;
}

static struct sg_updates *updates_new(void)
{
    struct sg_updates *u = calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    u->name = ++sg.next_id;
    pthread_mutex_lock(&lock);
    u->next = all;
    all = u;
    pthread_mutex_unlock(&lock);
    return u;
}

CUresult sg_updates_take(struct sg_kernel *kernel)
{
    for (unsigned i = 0; i < kernel->attribute_count; i++) {
        CUlaunchAttributeValue *value = &kernel->attributes[i].value;
        if (kernel->attributes[i].id != CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
            continue;
        if (value->deviceUpdatableKernelNode.deviceUpdatable & ~1)
            return CUDA_ERROR_INVALID_VALUE;
        if (!value->deviceUpdatableKernelNode.deviceUpdatable || kernel->updates)
            continue;
        struct sg_updates *u = find((uint64_t)value->deviceUpdatableKernelNode.devNode);
        if (!u && !(u = updates_new()))
            return CUDA_ERROR_OUT_OF_MEMORY;
        u->refs++;
        kernel->updates = u;
        value->deviceUpdatableKernelNode.devNode = sg_updates_name(kernel);
    }
    return CUDA_SUCCESS;
}

void sg_updates_drop(struct sg_updates *u)
{
    struct sg_updates **link = &all;
    if (!u || --u->refs)
        return;
    pthread_mutex_lock(&lock);
    while (*link != u)
        link = &(*link)->next;
    *link = u->next;
    pthread_mutex_unlock(&lock);
    free(u->parameters);
    free(u);
}

CUgraphDeviceNode sg_updates_name(const struct sg_kernel *kernel)
{
    return (CUgraphDeviceNode)(uintptr_t)(kernel->updates ? kernel->updates->name : 0);
}

static struct sg_updates *updates_of(CUgraphNode node)
{
    return node->type == CU_GRAPH_NODE_TYPE_KERNEL ? node->op->kernel.updates : NULL;
}

/* ---- executables ---- */

CUresult sg_updates_begin(const struct sg_kernel *kernel)
{
    struct sg_updates *u = kernel->updates;
    if (!u)
        return CUDA_SUCCESS;
    unsigned char *own = malloc((size_t)kernel->parameter_bytes + 1);
    if (!own)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(own, kernel->parameters, kernel->parameter_bytes);
    pthread_mutex_lock(&lock);
    free(u->parameters);
    u->its = kernel;
    u->parameters = own;
    u->bytes = kernel->parameter_bytes;
    memcpy(u->grid, kernel->grid, sizeof(u->grid));
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* Of all such nodes, those of children and bodies too; it stops where `each` fails. */
static CUresult for_all(CUgraph graph, CUresult (*each)(CUgraphNode node))
{
    for (size_t i = 0; i < graph->node_count; i++) {
        CUgraphNode node = graph->nodes[i];
        if (updates_of(node))
            SG_TRY(each(node));
        if (node->child)
            SG_TRY(for_all(node->child, each));
        for (unsigned k = 0; k < node->body_count; k++)
            SG_TRY(for_all(node->bodies[k], each));
    }
    return CUDA_SUCCESS;
}

static CUresult refuse_twice(CUgraphNode node)
{
    return updates_of(node)->runs ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult begin(CUgraphNode node)
{
    struct sg_updates *u = updates_of(node);
    SG_TRY(sg_updates_begin(&node->op->kernel));
    u->runs = true;
    u->disabled = false;
    return CUDA_SUCCESS;
}

static CUresult end(CUgraphNode node)
{
    updates_of(node)->runs = false;
    return CUDA_SUCCESS;
}

static CUresult refuse(CUgraphNode node)
{
    (void)node;
    return CUDA_ERROR_NOT_SUPPORTED;
}

bool sg_updates_any(CUgraph graph)
{
    return for_all(graph, refuse) != CUDA_SUCCESS;
}

CUresult sg_updates_instantiate(CUgraph graph)
{
    SG_TRY(for_all(graph, refuse_twice));
    CUresult result = for_all(graph, begin);
    if (result != CUDA_SUCCESS)
        sg_updates_end(graph);
    return result;
}

void sg_updates_end(CUgraph graph)
{
    for_all(graph, end);
}

bool *sg_updates_disabled(CUgraphNode node)
{
    struct sg_updates *u = updates_of(node);
    return u ? &u->disabled : &node->disabled;
}

/* ---- running ---- */

static bool take(const struct sg_updates *u, struct sg_launch *launch, unsigned char **parameters)
{
    *parameters = malloc((size_t)u->bytes + 1);
    if (!*parameters)
        return false;
    memcpy(*parameters, u->parameters, u->bytes);
    memcpy(launch->grid, u->grid, sizeof(launch->grid));
    launch->parameters = *parameters;
    return true;
}

/* What is there is another launch's, if the host has given the node one since. */
static bool is_of(const struct sg_updates *u, const struct sg_kernel *kernel)
{
    return u->its == kernel && u->bytes == kernel->parameter_bytes;
}

CUresult sg_updates_now(const struct sg_kernel *kernel, struct sg_launch *launch,
                        unsigned char **parameters, bool *runs)
{
    const struct sg_updates *u = kernel->updates;
    *parameters = NULL;
    *runs = true;
    if (!u)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    *runs = !__atomic_load_n(&u->disabled, __ATOMIC_RELAXED);
    bool fits = !*runs || !is_of(u, kernel) || take(u, launch, parameters);
    pthread_mutex_unlock(&lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool has_shape(const uint32_t grid[3])
{
    return grid[0] && grid[1] && grid[2] && grid[0] <= INT32_MAX && grid[1] <= 65535 &&
           grid[2] <= 65535;
}

static bool change(struct sg_updates *u, const struct sg_update *update)
{
    switch (update->field) {
    case SG_UPDATE_GRID:
        if (!has_shape(update->grid))
            return false;
        memcpy(u->grid, update->grid, sizeof(u->grid));
        return true;
    case SG_UPDATE_PARAMETERS:
        if (update->offset > u->bytes || update->size > u->bytes - update->offset)
            return false;
        memcpy(u->parameters + update->offset, update->bytes, update->size);
        return true;
    case SG_UPDATE_ENABLED:
        __atomic_store_n(&u->disabled, !update->enabled, __ATOMIC_RELAXED);
        return true;
    }
    return false;
}

bool sg_updates_change(uint64_t name, const struct sg_update *update)
{
    pthread_mutex_lock(&lock);
    struct sg_updates *u = find(name);
    bool changed = u && u->parameters && change(u, update);
    pthread_mutex_unlock(&lock);
    return changed;
}
