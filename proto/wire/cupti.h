/*
 * The part of CUPTI's binary interface that is used here: what activity records look like, and
 * the functions that hand them out. NVIDIA's headers are no part of gpupool. Records have only
 * ever grown at their ends since CUDA 12.0, so a reader may take the fields that it knows, and a
 * writer of the longest form is understood by readers of every earlier one.
 */
#ifndef GP_CUPTI_H
#define GP_CUPTI_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

enum gp_cupti_result {
    GP_CUPTI_SUCCESS = 0,
    GP_CUPTI_INVALID_PARAMETER = 1,
    GP_CUPTI_INVALID_DEVICE = 2,
    GP_CUPTI_OUT_OF_MEMORY = 8,
    GP_CUPTI_NOT_IMPLEMENTED = 11,
    GP_CUPTI_MAX_LIMIT_REACHED = 12,
    GP_CUPTI_NOT_INITIALIZED = 15,
    GP_CUPTI_QUEUE_EMPTY = 18,
    GP_CUPTI_INVALID_KIND = 21,
    GP_CUPTI_NOT_SUPPORTED = 27,
    GP_CUPTI_MULTIPLE_SUBSCRIBERS = 39,
    GP_CUPTI_UNKNOWN = 999,
};

enum gp_cupti_kind {
    GP_CUPTI_MEMCPY = 1,
    GP_CUPTI_MEMSET = 2,
    GP_CUPTI_KERNEL = 3,
    GP_CUPTI_DRIVER = 4,
    GP_CUPTI_RUNTIME = 5,
    GP_CUPTI_CONCURRENT_KERNEL = 10,
    GP_CUPTI_OVERHEAD = 17,
    GP_CUPTI_MEMCPY2 = 22, /* between two GPUs */
    GP_CUPTI_EXTERNAL_CORRELATION = 39,
};

/* Of copies, and of their ends. */
enum gp_cupti_copy {
    GP_CUPTI_HTOD = 1,
    GP_CUPTI_DTOH = 2,
    GP_CUPTI_DTOD = 8,
    GP_CUPTI_HTOH = 9,
    GP_CUPTI_PTOP = 10,
};
enum gp_cupti_memory {
    GP_CUPTI_MEMORY_UNKNOWN,
    GP_CUPTI_PAGEABLE,
    GP_CUPTI_PINNED,
    GP_CUPTI_DEVICE,
};
/* A thread's number is what pthread_self gives, cut to 32 bits, or the system's. */
enum gp_cupti_thread { GP_CUPTI_THREAD_DEFAULT, GP_CUPTI_THREAD_SYSTEM };
#define GP_CUPTI_ASYNC 1u /* a flag of copies and sets */
#define GP_CUPTI_FLUSH_FORCED 1u
#define GP_CUPTI_CUSTOM0 3u /* a kind of external correlation */
#define GP_CUPTI_CUSTOM2 5u

/* As CUDA 13's, of which what earlier ones lack is at the end. */
struct gp_cupti_kernel {
    uint32_t kind;
    uint8_t cache_config, shared_config;
    uint16_t registers;
    uint32_t partitioned_requested, partitioned_executed;
    uint64_t start, end, completed; /* ns */
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total;
    uint32_t correlation;
    int64_t grid_id;
    const char *name;
    void *reserved;
    uint64_t queued, submitted;
    uint8_t launch_type, carveout_requested, carveout, pad1;
    uint32_t shared_executed;
    uint64_t graph_node;
    uint32_t shared_limit;
    uint32_t graph;
    void *access_policy;
    uint32_t channel, channel_type;
    uint32_t cluster[3], cluster_policy;
    uint64_t local_total_v2;
    uint32_t most_cluster, most_clusters;
    uint8_t device_launched, pad2[7];
    int32_t priority;
    uint32_t pad3, execution_model, pad4, source_graph, pad5;
    uint64_t source_graph_node;
};
_Static_assert(offsetof(struct gp_cupti_kernel, start) == 16, "CUPTI's layout");
_Static_assert(offsetof(struct gp_cupti_kernel, correlation) == 92, "CUPTI's layout");
_Static_assert(offsetof(struct gp_cupti_kernel, graph_node) == 144, "CUPTI's layout");
_Static_assert(offsetof(struct gp_cupti_kernel, local_total_v2) == 192, "CUPTI's layout");
_Static_assert(sizeof(struct gp_cupti_kernel) == 248, "CUPTI's layout");

struct gp_cupti_memcpy {
    uint32_t kind;
    uint8_t copy, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, runtime_correlation, pad1;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph, channel, channel_type;
    uint8_t device_launched, pad2[3];
    uint64_t copies;
    uint32_t source_graph, pad3;
    uint64_t source_graph_node;
};
_Static_assert(offsetof(struct gp_cupti_memcpy, correlation) == 44, "CUPTI's layout");
_Static_assert(offsetof(struct gp_cupti_memcpy, copies) == 88, "CUPTI's layout");
_Static_assert(sizeof(struct gp_cupti_memcpy) == 112, "CUPTI's layout");

/* Between two GPUs; `device`, `context` and `stream` are those that make it. */
struct gp_cupti_memcpy2 {
    uint32_t kind;
    uint8_t copy, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
    uint32_t from_device, from_context, to_device, to_context, correlation;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph, channel, channel_type, pad;
};
_Static_assert(offsetof(struct gp_cupti_memcpy2, correlation) == 60, "CUPTI's layout");
_Static_assert(offsetof(struct gp_cupti_memcpy2, graph) == 80, "CUPTI's layout");
_Static_assert(sizeof(struct gp_cupti_memcpy2) == 96, "CUPTI's layout");

struct gp_cupti_memset {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory;
    uint32_t pad1;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph, channel, channel_type;
    uint8_t device_launched, pad2[3];
    uint32_t source_graph, pad3;
    uint64_t source_graph_node;
};
_Static_assert(offsetof(struct gp_cupti_memset, correlation) == 44, "CUPTI's layout");
_Static_assert(sizeof(struct gp_cupti_memset) == 104, "CUPTI's layout");

struct gp_cupti_external {
    uint32_t kind, external_kind;
    uint64_t external;
    uint32_t correlation, reserved;
};
_Static_assert(sizeof(struct gp_cupti_external) == 24, "CUPTI's layout");

/* A call of the driver's or the runtime's API. */
struct gp_cupti_api {
    uint32_t kind, cbid;
    uint64_t start, end;
    uint32_t process, thread, correlation, result;
};
_Static_assert(sizeof(struct gp_cupti_api) == 40, "CUPTI's layout");

/* Where callbacks come from, and what the resource domain's of a context are about. */
enum gp_cupti_domain { GP_CUPTI_DOMAIN_DRIVER = 1, GP_CUPTI_DOMAIN_RESOURCE = 3 };
enum gp_cupti_resource { GP_CUPTI_CONTEXT_CREATED = 1, GP_CUPTI_CONTEXT_ENDING = 2 };
enum gp_cupti_site { GP_CUPTI_ENTER, GP_CUPTI_EXIT };

/* What a callback is told of a call. */
struct gp_cupti_call {
    uint32_t site; /* gp_cupti_site */
    const char *name;
    const void *given; /* a structure of its arguments */
    void *result;      /* a CUresult; NULL where it begins */
    const char *kernel;
    CUcontext context;
    uint32_t context_number;
    uint64_t *kept; /* by the callback where the call begins, for itself where it ends */
    uint32_t correlation;
};
_Static_assert(offsetof(struct gp_cupti_call, context_number) == 48, "CUPTI's layout");
_Static_assert(offsetof(struct gp_cupti_call, correlation) == 64, "CUPTI's layout");

/* And of a resource. */
struct gp_cupti_of_resource {
    CUcontext context;
    void *handle, *descriptor;
};

/* Bytes of a record of this kind in a buffer; 0: none of these. */
static inline size_t gp_cupti_size(uint32_t kind)
{
    switch (kind) {
    case GP_CUPTI_KERNEL:
    case GP_CUPTI_CONCURRENT_KERNEL:
        return sizeof(struct gp_cupti_kernel);
    case GP_CUPTI_MEMCPY:
        return sizeof(struct gp_cupti_memcpy);
    case GP_CUPTI_MEMCPY2:
        return sizeof(struct gp_cupti_memcpy2);
    case GP_CUPTI_MEMSET:
        return sizeof(struct gp_cupti_memset);
    case GP_CUPTI_DRIVER:
        return sizeof(struct gp_cupti_api);
    case GP_CUPTI_EXTERNAL_CORRELATION:
        return sizeof(struct gp_cupti_external);
    default:
        return 0;
    }
}

/* The record behind `*record` in a buffer of these, or the first (NULL). */
static inline uint32_t gp_cupti_next(uint8_t *buffer, size_t valid, void **record)
{
    size_t at = 0, size = 0;
    if (!buffer || !record)
        return GP_CUPTI_INVALID_PARAMETER;
    if (*record) {
        at = (size_t)((uint8_t *)*record - buffer);
        if (at >= valid || (size = gp_cupti_size(*(uint32_t *)*record)) == 0)
            return GP_CUPTI_INVALID_KIND;
    }
    if (at + size >= valid)
        return GP_CUPTI_MAX_LIMIT_REACHED;
    *record = buffer + at + size;
    return GP_CUPTI_SUCCESS;
}

typedef void gp_cupti_requested(uint8_t **buffer, size_t *size, size_t *records);
typedef void gp_cupti_completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                size_t valid);
/* X(name, parameters) for each function that a worker asks. */
#define GP_CUPTI_FUNCTIONS(X)                                                                      \
    X(cuptiActivityRegisterCallbacks, (gp_cupti_requested *, gp_cupti_completed *))                \
    X(cuptiActivityEnable, (uint32_t kind))                                                        \
    X(cuptiActivityDisable, (uint32_t kind))                                                       \
    X(cuptiActivityFlushAll, (uint32_t flag))                                                      \
    X(cuptiActivityGetNextRecord, (uint8_t *buffer, size_t valid, void **record))                  \
    X(cuptiActivityGetNumDroppedRecords, (CUcontext, uint32_t stream, size_t *dropped))            \
    X(cuptiActivityPushExternalCorrelationId, (uint32_t kind, uint64_t id))                        \
    X(cuptiActivityPopExternalCorrelationId, (uint32_t kind, uint64_t *last))                      \
    X(cuptiGetTimestamp, (uint64_t *now))

#endif
