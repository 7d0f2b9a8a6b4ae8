/* Kernel launches: what CUDA refuses at once, parameters, the run itself. */
#include "array.h"

#include <stdio.h>

#include "timeslice.h"

static CUresult check_shape(const CUlaunchConfig *c, CUfunction function)
{
    const struct sg_function_info *info = sg_function_info(function->code);
    if (!c->gridDimX || !c->gridDimY || !c->gridDimZ || c->gridDimX > 2147483647u ||
        c->gridDimY > 65535 || c->gridDimZ > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (!c->blockDimX || !c->blockDimY || !c->blockDimZ || c->blockDimX > 1024 ||
        c->blockDimY > 1024 || c->blockDimZ > 64)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t threads = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;
    if (threads > SG_MAX_THREADS || threads > info->max_threads)
        return CUDA_ERROR_INVALID_VALUE;
    if (info->reqntid[0] && (c->blockDimX != info->reqntid[0] || c->blockDimY != info->reqntid[1] ||
                             c->blockDimZ != info->reqntid[2]))
        return CUDA_ERROR_INVALID_VALUE;
    int dynamic;
    SG_TRY(sg_function_attribute(&dynamic, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, info,
                                 function->attributes));
    if (c->sharedMemBytes > (unsigned)dynamic)
        return CUDA_ERROR_INVALID_VALUE;
    if ((uint64_t)info->register_count * threads > SG_REGISTERS_PER_SM)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    return CUDA_SUCCESS;
}

static CUresult check_cluster(const CUlaunchConfig *c, CUfunction function,
                              const uint32_t cluster[3])
{
    bool large = function->attributes[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED];
    uint64_t size = (uint64_t)cluster[0] * cluster[1];
    if (!cluster[0] && !cluster[1] && !cluster[2])
        return CUDA_SUCCESS;
    if (!size || !cluster[2] || size > 16 || size * cluster[2] > (large ? 16u : 8u))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (c->gridDimX % cluster[0] || c->gridDimY % cluster[1] || c->gridDimZ % cluster[2])
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    return CUDA_SUCCESS;
}

/* A graph's node tells them again. */
static CUresult keep_attributes(const CUlaunchConfig *c, struct sg_kernel *kernel)
{
    if (c->numAttrs == 0)
        return CUDA_SUCCESS;
    if (!c->attrs)
        return CUDA_ERROR_INVALID_VALUE;
    kernel->attributes = calloc(c->numAttrs, sizeof(*kernel->attributes));
    if (!kernel->attributes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(kernel->attributes, c->attrs, c->numAttrs * sizeof(*kernel->attributes));
    kernel->attribute_count = c->numAttrs;
    return CUDA_SUCCESS;
}

static CUresult read_attributes(const CUlaunchConfig *c, struct sg_kernel *kernel)
{
    SG_TRY(keep_attributes(c, kernel));
    for (unsigned i = 0; i < c->numAttrs; i++) {
        const CUlaunchAttributeValue *value = &c->attrs[i].value;
        switch (c->attrs[i].id) {
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            kernel->cluster[0] = value->clusterDim.x;
            kernel->cluster[1] = value->clusterDim.y;
            kernel->cluster[2] = value->clusterDim.z;
            break;
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            kernel->cooperative = value->cooperative != 0;
            break;
        /* Hints, and an order weaker than the one that streams here keep. */
        case CU_LAUNCH_ATTRIBUTE_IGNORE:
        case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE: /* below */
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            break;
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
            return CUDA_ERROR_NOT_SUPPORTED;
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

/* The buffer form of parameters: pairs of a name and a value, then the end. */
static CUresult read_extra(void **extra, const void **buffer, size_t *size)
{
    *buffer = NULL;
    *size = 0;
    const size_t *size_at = NULL;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size_at = extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (!*buffer || !size_at)
        return CUDA_ERROR_INVALID_VALUE;
    *size = *size_at;
    return CUDA_SUCCESS;
}

/* Copies the parameters into op->kernel, which owns them from now on. */
static CUresult pack(struct sg_kernel *kernel, void **parameters, void **extra)
{
    const struct sg_function_info *info = sg_function_info(kernel->code);
    if (parameters && extra)
        return CUDA_ERROR_INVALID_VALUE;
    kernel->parameter_bytes = info->parameter_bytes;
    kernel->parameters = calloc(1, info->parameter_bytes ? info->parameter_bytes : 1);
    kernel->pointers = calloc(info->parameter_count + 1, sizeof(*kernel->pointers));
    if (!kernel->parameters || !kernel->pointers)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < info->parameter_count; i++)
        kernel->pointers[i] = kernel->parameters + info->parameters[i].offset;
    if (extra) {
        const void *buffer;
        size_t size;
        SG_TRY(read_extra(extra, &buffer, &size));
        if (size < info->parameter_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(kernel->parameters, buffer, info->parameter_bytes);
        return CUDA_SUCCESS;
    }
    if (info->parameter_count && !parameters)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < info->parameter_count; i++) {
        if (!parameters[i])
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(kernel->pointers[i], parameters[i], info->parameters[i].size);
    }
    return CUDA_SUCCESS;
}

/* All blocks must be resident at once, "no more than [the occupancy] times the number of
 * multiprocessors". */
static CUresult check_cooperative(const struct sg_kernel *kernel)
{
    if (!kernel->cooperative)
        return CUDA_SUCCESS;
    const struct sg_function_info *info = sg_function_info(kernel->code);
    uint64_t blocks = (uint64_t)kernel->grid[0] * kernel->grid[1]; /* both below 2^31 and 2^16 */
    unsigned threads = kernel->block[0] * kernel->block[1] * kernel->block[2];
    uint64_t most = (uint64_t)sg_occupancy_blocks(info, threads, kernel->shared) *
                    SG_MULTIPROCESSORS;
    bool fits = blocks <= most && blocks * kernel->grid[2] <= most;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

static CUresult required_cluster(CUfunction function, uint32_t cluster[3])
{
    for (int i = 0; i < 3; i++) {
        int value;
        SG_TRY(sg_function_attribute(&value, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + i,
                                     sg_function_info(function->code), function->attributes));
        cluster[i] = (uint32_t)value;
    }
    return CUDA_SUCCESS;
}

static CUresult prepare(const CUlaunchConfig *c, CUfunction handle, CUfunction function,
                        void **parameters, void **extra, struct sg_op *op)
{
    struct sg_kernel *kernel = &op->kernel;
    kernel->function = function;
    function->module->refs++;
    kernel->code = function->code;
    kernel->kernel = sg_handle_is(handle, SG_KERNEL) ? (CUkernel)(void *)handle : NULL;
    memcpy(kernel->grid, (uint32_t[3]){c->gridDimX, c->gridDimY, c->gridDimZ}, 12);
    memcpy(kernel->block, (uint32_t[3]){c->blockDimX, c->blockDimY, c->blockDimZ}, 12);
    kernel->shared = c->sharedMemBytes;
    SG_TRY(required_cluster(function, kernel->cluster));
    SG_TRY(read_attributes(c, kernel));
    SG_TRY(check_shape(c, function));
    SG_TRY(check_cluster(c, function, kernel->cluster));
    SG_TRY(check_cooperative(kernel));
    SG_TRY(sg_references_hold(function->module, &kernel->held));
    SG_TRY(sg_updates_take(kernel));
    return pack(kernel, parameters, extra);
}

CUresult sg_launch_prepare(const CUlaunchConfig *config, CUfunction handle, void **parameters,
                           void **extra, CUcontext context, struct sg_op **out)
{
    CUfunction function;
    SG_TRY(sg_function_get(handle, context, &function));
    if (function->module->context != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct sg_op *op = sg_op_new(SG_OP_KERNEL, context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = prepare(config, handle, function, parameters, extra, op);
    if (result != CUDA_SUCCESS) {
        sg_op_unref(op);
        return result;
    }
    function->loaded = true;
    *out = op;
    return CUDA_SUCCESS;
}

static void print(void *context, const char *text, size_t n)
{
    (void)context;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

static CUresult run(const struct sg_op *op, const struct sg_launch *launch)
{
    char fault[512] = "";
    if (!sg_time_enter(op->context->device, &op->context->cancel))
        return CUDA_ERROR_LAUNCH_TIMEOUT; /* its context is ending */
    CUresult result = sg_launch_run(launch, fault, sizeof(fault));
    if (result != CUDA_SUCCESS && !__atomic_load_n(&op->context->cancel, __ATOMIC_RELAXED))
        sg_complain("%s", fault[0] ? fault : "a kernel failed");
    return result;
}

CUresult sg_kernel_run(const struct sg_op *op)
{
    const struct sg_kernel *kernel = &op->kernel;
    struct sg_launch launch = {
        .function = kernel->code,
        .cooperative = kernel->cooperative,
        .dynamic_shared_bytes = kernel->shared,
        .parameters = kernel->parameters,
        .memory = sg_address_memory(),
        .print = print,
        .image = sg_image_told_launch,
        .image_context = (void *)(uintptr_t)op,
        .cancel = &op->context->cancel,
        .breathe = sg_time_breathe,
        .due = sg_time_due,
        .set_condition = sg_condition_set,
        .update_node = sg_updates_change,
        .clock_hz = 1000000000,
    };
    memcpy(launch.grid, kernel->grid, sizeof(launch.grid));
    memcpy(launch.block, kernel->block, sizeof(launch.block));
    memcpy(launch.cluster, kernel->cluster, sizeof(launch.cluster));
    unsigned char *changed;
    bool runs;
    CUresult result = sg_updates_now(kernel, &launch, &changed, &runs);
    if (result == CUDA_SUCCESS && runs)
        result = run(op, &launch);
    free(changed);
    return result;
}

/* ---- entry points ---- */
/* The names of nodes in a list: what they are before says nothing. */
static void name_updates(const CUlaunchConfig *config, CUgraphDeviceNode name)
{
    for (unsigned i = 0; config->attrs && i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
            config->attrs[i].value.deviceUpdatableKernelNode.devNode = name;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra)
{
    SG_LOCKED;
    CUstream stream;
    struct sg_op *op;
    SG_TRY(sg_stream_get(config->hStream, &stream));
    name_updates(config, NULL);
    SG_TRY(sg_launch_prepare(config, f, parameters, extra, stream->context, &op));
    CUgraphDeviceNode name = sg_updates_name(&op->kernel);
    if (name && !stream->capture) {
        sg_op_unref(op);
        return CUDA_ERROR_INVALID_VALUE;
    }
    SG_TRY(sg_stream_submit(stream, op));
    if (name)
        name_updates(config, name);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void **kernelParams, void **extra)
{
    CUlaunchConfig config = {.gridDimX = gridDimX,
                             .gridDimY = gridDimY,
                             .gridDimZ = gridDimZ,
                             .blockDimX = blockDimX,
                             .blockDimY = blockDimY,
                             .blockDimZ = blockDimZ,
                             .sharedMemBytes = sharedMemBytes,
                             .hStream = hStream};
    return launch(&config, f, kernelParams, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                          void **extra)
{
    SG_READY();
    return config ? launch(config, f, kernelParams, extra) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream,
                                   void **kernelParams)
{
    CUlaunchAttribute cooperative = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    CUlaunchConfig config = {.gridDimX = gridDimX,
                             .gridDimY = gridDimY,
                             .gridDimZ = gridDimZ,
                             .blockDimX = blockDimX,
                             .blockDimY = blockDimY,
                             .blockDimZ = blockDimZ,
                             .sharedMemBytes = sharedMemBytes,
                             .hStream = hStream,
                             .attrs = &cooperative,
                             .numAttrs = 1};
    return launch(&config, f, kernelParams, NULL);
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    SG_LOCKED;
    CUstream stream;
    SG_TRY(sg_stream_get(hStream, &stream));
    if (!fn)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_op *op = sg_op_new(SG_OP_HOST, stream->context);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->host.fn = fn;
    op->host.data = userData;
    return sg_stream_submit(stream, op);
}
