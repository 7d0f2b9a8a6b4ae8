/* Kernel launches: the hottest path of the client. No allocation, no lock of its own. */
#include <string.h>

#include "attributes.h"
#include "call.h"
#include "event_page.h"
#include "export.h"
#include "gpc_wire.h"
#include "managed.h"
#include "module.h"
#include "session.h"
#include "shared.h"

CUresult gpc_shape_check(const struct gpc_shape *s, CUdevice device)
{
    const struct gp_device_info *d = gpc_device_info(device);
    if (!d)
        return CUDA_ERROR_INVALID_CONTEXT;
    const int32_t *a = d->attributes;
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (s->grid[i] == 0 || s->block[i] == 0 ||
            s->grid[i] > (unsigned)a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i] ||
            s->block[i] > (unsigned)a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i])
            return CUDA_ERROR_INVALID_VALUE;
        threads *= s->block[i];
    }
    if (threads > (unsigned)a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] ||
        s->shared > (unsigned)a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN])
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* An attribute of a kernel that is launched, if it is known: it is judged by its function here. */
static bool known(const struct gpc_kernel *k, const struct gpc_route *on,
                  CUfunction_attribute attribute, int *value)
{
    const struct gpc_kernel *f = gpc_kernel_here(k, on->context);
    return gpc_attributes_know(f, on->device, attribute, value) ||
           gpc_attributes_know(k, on->device, attribute, value);
}

/* Above the limit, dynamic shared memory has to be asked for beforehand. What is not known, the
 * driver will say. */
static bool shared_fits(const struct gpc_kernel *k, const struct gpc_route *on, unsigned shared)
{
    int most;
    return !known(k, on, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, &most) ||
           (most >= 0 && shared <= (unsigned)most);
}

/* What the kernel itself allows. */
static CUresult check_kernel(struct gpc_kernel *k, const struct gpc_shape *s,
                             const struct gpc_route *on)
{
    int most;
    CUdevice device = on->device;
    CUresult r = gpc_attributes_ready(k, device, on);
    if (r != CUDA_SUCCESS)
        return r;
    uint64_t threads = (uint64_t)s->block[0] * s->block[1] * s->block[2];
    if (gpc_attributes_know(k, device, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &most) &&
        threads > (uint64_t)most)
        return CUDA_ERROR_INVALID_VALUE;
    return shared_fits(k, on, s->shared) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The packed buffer of the `extra` form. */
static CUresult from_extra(void **extra, const void **buffer, size_t *size)
{
    *buffer = NULL;
    *size = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            *size = *(const size_t *)extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return *buffer || *size == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The kernel's parameters, side by side as its table says, in `to` (k->bytes). */
static CUresult pack(const struct gpc_kernel *k, void **parameters, void **extra, unsigned char *to)
{
    if (parameters && extra)
        return CUDA_ERROR_INVALID_VALUE;
    if (k->count == 0)
        return CUDA_SUCCESS;
    memset(to, 0, k->bytes);
    if (parameters) {
        for (uint32_t i = 0; i < k->count; i++) {
            if (!parameters[i])
                return CUDA_ERROR_INVALID_VALUE;
            memcpy(to + k->parameters[i].offset, parameters[i], k->parameters[i].size);
        }
        return CUDA_SUCCESS;
    }
    if (!extra)
        return CUDA_ERROR_INVALID_VALUE;
    const void *buffer;
    size_t size;
    CUresult r = from_extra(extra, &buffer, &size);
    if (r != CUDA_SUCCESS)
        return r;
    /* the tail may be padding that the application left out, or some more of it */
    memcpy(to, buffer, size < k->bytes ? size : k->bytes);
    return CUDA_SUCCESS;
}

static CUresult check(const struct gpc_route *on, struct gpc_kernel *k, const struct gpc_shape *s)
{
    CUresult r = gpc_shape_check(s, on->device);
    return r ? r : check_kernel(k, s, on);
}

static CUresult pack_checked(const struct gpc_route *on, const struct gpc_kernel *k,
                             void **parameters, void **extra, unsigned char *to)
{
    CUresult r = pack(k, parameters, extra, to);
    return r || gpc_session_shares(on->session) ? r : gpc_mapped_open_named(to, k->bytes);
}

CUresult gpc_launch_pack(const struct gpc_route *on, struct gpc_kernel *k,
                         const struct gpc_shape *s, void **parameters, void **extra,
                         unsigned char *to)
{
    CUresult r = check(on, k, s);
    return r ? r : pack_checked(on, k, parameters, extra, to);
}

/* --- what is launched together -------------------------------------------------------------- */

/* What a launch asks for by attributes. */
struct together {
    unsigned cluster[3]; /* 0: of no clusters */
    bool cooperative;
};

/* "must either all be 0 or all be positive": most kernels are asked for one of the three. Zeros
 * where it is not known: then the driver will say. */
static void required_cluster(const struct gpc_kernel *k, const struct gpc_route *on, unsigned c[3])
{
    int blocks;
    for (int i = 0; i < 3; i++) {
        if (!known(k, on, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + i, &blocks) || blocks <= 0) {
            memset(c, 0, 3 * sizeof *c);
            return;
        }
        c[i] = (unsigned)blocks;
    }
}

static struct together together_of(const struct gpc_kernel *k, const struct gpc_route *on,
                                   uint32_t flags, const CUlaunchAttribute *a, unsigned count)
{
    struct together t = {.cooperative = flags & GP_LAUNCH_COOPERATIVE};
    required_cluster(k, on, t.cluster);
    for (unsigned i = 0; i < count; i++) {
        const CUlaunchAttributeValue *v = &a[i].value;
        if (a[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            memcpy(t.cluster, &v->clusterDim, sizeof t.cluster);
        else if (a[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            t.cooperative = v->cooperative != 0;
    }
    return t;
}

/* How many blocks of a cluster every device that has clusters can place. */
#define PORTABLE_CLUSTER 8u

static CUresult check_cluster(const struct gpc_kernel *k, const struct gpc_shape *s,
                              const struct gpc_route *on, const unsigned c[3])
{
    int large;
    if (!c[0] && !c[1] && !c[2])
        return CUDA_SUCCESS;
    uint64_t blocks = (uint64_t)c[0] * c[1];
    bool more = blocks > PORTABLE_CLUSTER || blocks * c[2] > PORTABLE_CLUSTER;
    if (more && known(k, on, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, &large) && !large)
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    for (int i = 0; i < 3; i++)
        if (c[i] == 0 || s->grid[i] % c[i])
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    return CUDA_SUCCESS;
}

/* All blocks of a cooperative launch must be resident at once. How many of a kernel are is asked
 * once for each shape; what is not known, the driver will say. */
static CUresult check_cooperative(CUfunction f, const struct gpc_shape *s,
                                  const struct gpc_route *on)
{
    const int32_t *a = gpc_device_info(on->device)->attributes;
    int each;
    int threads = (int)(s->block[0] * s->block[1] * s->block[2]);
    if (gpc_wire_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags_on(on, &each, f, threads,
                                                                         s->shared, 0))
        return CUDA_SUCCESS;
    uint64_t most = (uint64_t)(each < 0 ? 0 : each) *
                    (unsigned)a[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
    uint64_t blocks = (uint64_t)s->grid[0] * s->grid[1]; /* below 2^31 and 2^16 */
    bool fits = blocks <= most && blocks * s->grid[2] <= most;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

static CUresult check_together(CUfunction f, const struct gpc_kernel *k, const struct gpc_shape *s,
                               const struct gpc_route *on, const struct together *t)
{
    CUresult r = check_cluster(k, s, on, t->cluster);
    return r || !t->cooperative || t->cluster[0] ? r : check_cooperative(f, s, on);
}

struct launch {
    const struct gpc_route *on;
    struct gpc_kernel *k;
    CUfunction f;
    const struct gpc_shape *shape;
    CUstream stream;
    void **parameters, **extra;
    uint32_t flags;
    const CUlaunchAttribute *attributes;
    unsigned attribute_count;
    CUlaunchAttribute *updatable; /* of them, what asks for the node's name; NULL: none does */
};

static CUresult send_updatable(const struct launch *l, const unsigned char *packed)
{
    const struct gpc_shape *s = l->shape;
    uint64_t name;
    CUresult r = gpc_wire_gp_launch_updatable_on(
        l->on, l->f, l->stream, s->grid[0], s->grid[1], s->grid[2], s->block[0], s->block[1],
        s->block[2], s->shared, l->k->bytes, l->attribute_count, packed, l->attributes, &name);
    if (r == CUDA_SUCCESS)
        l->updatable->value.deviceUpdatableKernelNode.devNode = (CUgraphDeviceNode)(uintptr_t)name;
    return r;
}

static CUresult launch_packed(const struct launch *l, unsigned char *packed)
{
    const struct gpc_shape *s = l->shape;
    CUresult r = pack_checked(l->on, l->k, l->parameters, l->extra, packed);
    if (r != CUDA_SUCCESS)
        return r;
    struct together t = together_of(l->k, l->on, l->flags, l->attributes, l->attribute_count);
    if ((r = check_together(l->f, l->k, s, l->on, &t)) != CUDA_SUCCESS)
        return r;
    if (l->updatable)
        return send_updatable(l, packed);
    return gpc_wire_gp_launch_on(l->on, l->f, l->stream, s->grid[0], s->grid[1], s->grid[2],
                                 s->block[0], s->block[1], s->block[2], s->shared, l->flags,
                                 l->k->bytes, l->attribute_count, packed, l->attributes);
}

/* What nearly all kernels have: a thread's stack may have no room for the most. Each is a function of
 * its own, so that the room of the one is not the other's. */
#define FEW_PARAMETER_BYTES 1024
#define ON_ITS_OWN __attribute__((noinline))

static ON_ITS_OWN CUresult launch_few(const struct launch *l)
{
    unsigned char packed[FEW_PARAMETER_BYTES];
    return launch_packed(l, packed);
}

static ON_ITS_OWN CUresult launch_many(const struct launch *l)
{
    unsigned char packed[GP_PARAMETER_BYTES_MAX];
    return launch_packed(l, packed);
}

static CUresult launch(const struct launch *l)
{
    if (!l->k)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult r = check(l->on, l->k, l->shape); /* its parameters are known behind this */
    if (r != CUDA_SUCCESS)
        return r;
    return l->k->bytes <= FEW_PARAMETER_BYTES ? launch_few(l) : launch_many(l);
}

static const CUlaunchAttribute no_attributes[1];

CUresult gpc_launch(const struct gpc_route *on, CUfunction f, const struct gpc_shape *shape,
                    CUstream stream, void **parameters, void **extra, uint32_t flags)
{
    return launch(&(struct launch){on, gpc_kernel_of(f), f, shape, stream, parameters, extra, flags,
                                   no_attributes, 0, NULL});
}

/* The values of an attribute that may travel; the worker has the same list and
 * the last word. */
static CUresult check_attributes(CUlaunchAttribute *a, unsigned count,
                                 CUlaunchAttribute **updatable)
{
    *updatable = NULL;
    if (count && !a)
        return CUDA_ERROR_INVALID_VALUE;
    if (count > GP_ATTRIBUTES_PER_LAUNCH_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (a[i].id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
            *updatable = &a[i];
        if ((unsigned)a[i].id >= CU_LAUNCH_ATTRIBUTE_MAX)
            return CUDA_ERROR_INVALID_VALUE;
        if (a[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
            gpc_event_not_polled(a[i].value.programmaticEvent.event);
        if (a[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
            gpc_event_not_polled(a[i].value.launchCompletionEvent.event);
    }
    return CUDA_SUCCESS;
}

GPC_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f,
                                     void **kernelParams, void **extra)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    CUlaunchAttribute *updatable;
    CUresult r = check_attributes(config->attrs, config->numAttrs, &updatable);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpc_shape s = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                          {config->blockDimX, config->blockDimY, config->blockDimZ},
                          config->sharedMemBytes};
    uint32_t flags = config->numAttrs ? GP_LAUNCH_EX : 0;
    struct gpc_route on;
    if ((r = gpc_enter_stream(&on, GP_OP_cuLaunchKernelEx, config->hStream)) != CUDA_SUCCESS)
        return r;
    const struct launch l = {&on,
                             gpc_kernel_of(f),
                             f,
                             &s,
                             config->hStream,
                             kernelParams,
                             extra,
                             flags,
                             config->numAttrs ? config->attrs : no_attributes,
                             config->numAttrs,
                             updatable};
    return gpc_leave(launch(&l));
}
