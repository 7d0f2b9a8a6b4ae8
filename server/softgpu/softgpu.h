/*
 * The driver side of the soft GPU: what its files share.
 *
 * The objects behind CUDA's handles are defined under the header's own struct
 * tags, so a handle is a pointer to one of them. A handle that a caller passes
 * is looked up in the set of live objects before anything is read through it.
 *
 * Locks, outermost first:
 *   sg.lock       every object but device memory's map; SG_LOCKED takes it
 *   the map lock  address.c: which addresses are alive
 * Kernels, copies and callbacks run with neither held.
 *
 * A device address is an address of this process, so a copy is a memcpy.
 */
#ifndef SG_SOFTGPU_H
#define SG_SOFTGPU_H

#pragma GCC visibility push(default)
#include <cuda.h>
/* cudaProfiler.h, which the header's wheel leaves out. */
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
#pragma GCC visibility pop

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "context_life.h"
#include "ptx.h"

#define SG_MAX_DEVICES 16
#define SG_DRIVER_VERSION 13000
/* The CUDA that it says it knows: that, or an older one of GPUPOOL_SOFT_DRIVER, e.g. 12.4, for
 * tests of hosts that differ. */
int sg_driver_version(void);
#define SG_GRANULARITY ((uint64_t)2 << 20) /* of virtual memory management, bytes */
#define SG_ALIGNMENT 512u                  /* of allocations, bytes */
#define SG_MULTIPROCESSORS 4
#define SG_MAX_THREADS 1024u
#define SG_THREADS_PER_SM 2048u
#define SG_BLOCKS_PER_SM 32u
#define SG_REGISTERS_PER_SM 65536u
#define SG_SHARED_STATIC (48u << 10)
#define SG_SHARED_OPTIN (227u << 10)
#define SG_SHARED_PER_SM (228u << 10)

/* ---- live objects (core.c) ---- */
enum sg_kind {
    SG_CONTEXT = 1,
    SG_STREAM,
    SG_EVENT,
    SG_MODULE,
    SG_FUNCTION,
    SG_LIBRARY,
    SG_KERNEL,
    SG_POOL,
    SG_PHYSICAL,
    SG_GRAPH,
    SG_NODE,
    SG_EXEC,
    SG_LINK,
    SG_ARRAY,
    SG_MIPMAP,
    SG_USER_OBJECT,
    SG_RESOURCES,
    SG_TEXREF,
    SG_SURFREF,
};
/* Of an object, with sg.lock held. False: no memory; it has ended, as what no caller names may. */
bool sg_handle_add(const void *object, enum sg_kind kind);
void sg_handle_remove(const void *object);
bool sg_handle_is(const void *object, enum sg_kind kind);
bool sg_handle_lives(const void *object, enum sg_kind kind);

/* Bytes of graphs' memory, now and at most. */
struct sg_graph_use {
    uint64_t now, high;
};
struct sg_device {
    int ordinal;
    uint64_t memory_size, memory_used; /* bytes */
    struct sg_graph_use graph_used, graph_reserved;
    uint64_t graph_idle;    /* bytes that are reserved, and no graph's */
    struct sg_arena *arena; /* address space that allocations come from */
    CUcontext primary;      /* NULL: never made or reset */
    unsigned primary_refs, primary_flags;
    CUmemoryPool default_pool, pool; /* pool: what cuMemAllocAsync uses */
    CUuuid uuid;
};

struct sg_state {
    pthread_mutex_t lock;
    pthread_cond_t progress; /* some stream has finished an operation */
    bool ready;              /* cuInit succeeded */
    int device_count;
    struct sg_device devices[SG_MAX_DEVICES];
    CUcontext contexts; /* all, linked by next; ended ones stay, so that no pointer dangles */
    CUresult fault;     /* once a kernel has failed, what every call in any context says */
    unsigned captures;  /* streams now capturing */
    unsigned callbacks; /* functions of the application's now running on the host */
    uint64_t next_id;   /* of contexts, streams, buffers, captures */
};
extern struct sg_state sg;

int sg_lock_take(void);
void sg_lock_drop(const int *guard);
/* Holds sg.lock until the enclosing scope ends. */
#define SG_LOCKED __attribute__((cleanup(sg_lock_drop), unused)) const int sg_guard = sg_lock_take()

/* Refuses before cuInit; every entry point that needs nothing else starts so. */
#define SG_READY()                                                                                 \
    do {                                                                                           \
        if (!__atomic_load_n(&sg.ready, __ATOMIC_ACQUIRE))                                         \
            return CUDA_ERROR_NOT_INITIALIZED;                                                     \
    } while (0)
#define SG_TRY(call)                                                                               \
    do {                                                                                           \
        CUresult sg_try = (call);                                                                  \
        if (sg_try != CUDA_SUCCESS)                                                                \
            return sg_try;                                                                         \
    } while (0)

uint64_t sg_now_ns(void);
/* One line on stderr, with the library's name before it. */
void sg_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct sg_device *sg_device(CUdevice device); /* NULL: no such device */
CUresult sg_devices_open(void);               /* device.c, from cuInit; sg.lock is held */

/* ---- which addresses are alive (address.c) ---- */
enum sg_space {
    SG_SPACE_DEVICE,     /* cuMemAlloc, module globals */
    SG_SPACE_POOL,       /* cuMemAllocAsync */
    SG_SPACE_MAPPED,     /* cuMemMap */
    SG_SPACE_HOST,       /* cuMemHostAlloc */
    SG_SPACE_REGISTERED, /* cuMemHostRegister */
    SG_SPACE_MANAGED,
    SG_SPACE_IPC, /* cuIpcOpenMemHandle: another process's */
};
struct sg_extent {
    uint64_t begin, end;
    enum sg_space space;
    struct sg_device *device; /* whose memory; for host memory the context's */
    CUcontext context;        /* may have died since */
    uint64_t id;              /* never reused */
    unsigned flags;           /* of the host allocation */
    uint32_t access;          /* MAPPED: a bit for each device that may read and write it */
    bool internal;            /* a module global: cuMemFree refuses it */
    bool freed;               /* cuMemFreeAsync was called */
    bool sync_memops;
    CUmemoryPool pool;
    struct sg_block *block;       /* POOL: a graph's */
    bool absent;                  /* its address is known, but nothing may touch it now */
    struct sg_physical *physical; /* MAPPED */
    uint64_t physical_offset;     /* IPC: in the other process's file, which is `id_there` */
    uint64_t id_there;
    unsigned opened; /* IPC: how often */
};
/* Inserts a copy; OUT_OF_MEMORY or, when it overlaps another, INVALID_VALUE. */
CUresult sg_address_add(const struct sg_extent *extent);
/* Removes the extent that begins there, copying it to *out (may be NULL); false: none. */
bool sg_address_remove(uint64_t begin, struct sg_extent *out);
bool sg_address_find(uint64_t address, struct sg_extent *out);
/* Changes one extent in place; false: none begins there. */
bool sg_address_update(const struct sg_extent *extent);
/* All of [address, address + size) is alive and accessible, or a graph's that will be: one
 * allocation, or mappings one after the other. */
bool sg_address_covers(uint64_t address, uint64_t size);
/* The same, and this device's work may touch it: mappings need to be open to it. */
bool sg_address_open(uint64_t address, uint64_t size, const struct sg_device *device);
/* True: both are covered, and nothing goes away until sg_address_let_go, for a work whose memory
 * may be freed meanwhile. Meanwhile the thread calls none of these, and waits for nothing. */
bool sg_address_hold(const void *one, uint64_t one_size, const void *two, uint64_t two_size);
void sg_address_let_go(void);
/* The first extent that touches [begin, end). */
bool sg_address_touching(uint64_t begin, uint64_t end, struct sg_extent *out);
/* Any extent of `context`'s own (device, pool or host memory), for its destruction. */
bool sg_address_of_context(CUcontext context, struct sg_extent *out);
const struct sg_memory *sg_address_memory(void);

static inline bool sg_space_is_host(enum sg_space space)
{
    return space == SG_SPACE_HOST || space == SG_SPACE_REGISTERED;
}

/* ---- device memory (arena.c) ---- */
struct sg_arena *sg_arena_create(uint64_t size); /* NULL: no address space */
/* Takes `size` bytes (rounded up to SG_ALIGNMENT), committed; 0: no room. sg.lock is held. */
uint64_t sg_arena_take(struct sg_arena *arena, uint64_t size);
void sg_arena_give(struct sg_arena *arena, uint64_t address);
/* Allocates and registers device memory, counted against the device. sg.lock is held. */
CUresult sg_memory_take(const struct sg_extent *like, uint64_t size, uint64_t *address);
/* Gives any extent of DEVICE or POOL space back. sg.lock is held. */
CUresult sg_memory_give(uint64_t address);
void sg_memory_release_context(CUcontext context);
/* Until nothing runs on the device: no kernel may still use what is freed then. sg.lock is held. */
void sg_memory_wait(const struct sg_device *device);
CUresult sg_host_give(uint64_t address, enum sg_space space);
/* Managed memory of this process's own pages, for the variables of a module. sg.lock is held. */
CUresult sg_managed_take(size_t size, uint64_t *address);
CUresult sg_managed_variable(CUcontext context, uint64_t address, size_t size);
void sg_managed_give(uint64_t address, size_t size);

/* ---- operations (op.c): what a stream runs or a graph node holds ---- */
enum sg_op_kind {
    SG_OP_EMPTY,
    SG_OP_KERNEL,
    SG_OP_COPY,
    SG_OP_SET,
    SG_OP_HOST,
    SG_OP_CALLBACK,
    SG_OP_RECORD,
    SG_OP_WAIT,        /* graph nodes only: in a stream a wait is a dependency */
    SG_OP_WAIT_SHARED, /* but for an event that other processes record */
    SG_OP_WRITE_VALUE,
    SG_OP_WAIT_VALUE,
    SG_OP_FREE,
    SG_OP_GRAPH,
    SG_OP_BATCH, /* of values, and of barriers, which are empty */
    SG_OP_BLOCK_ALLOC,
    SG_OP_BLOCK_FREE,
    SG_OP_CONDITION,
    SG_OP_CONDITION_RESET,
};
/* Where a box begins in an array that is mapped later; NULL: the end is memory. */
struct sg_copy_tiles {
    CUarray array;
    uint64_t x, y, z;
};
/* A box of bytes; pitches in bytes. */
struct sg_copy {
    const char *src;
    char *dst;
    size_t src_pitch, src_slice, dst_pitch, dst_slice;
    size_t width, height, depth;
    uint64_t src_bytes, dst_bytes; /* of memory that was the driver's; 0: it is the caller's */
    void *staged;                  /* owned copy of a pageable source */
    struct sg_copy_tiles src_tiles, dst_tiles;
    CUDA_MEMCPY3D params; /* as a graph node reports it */
};
struct sg_set {
    char *dst;
    size_t pitch, width /* elements */, height;
    unsigned element; /* 1, 2 or 4 bytes */
    uint32_t value;
};
struct sg_kernel {
    CUfunction function;
    const struct sg_function *code;
    CUkernel kernel; /* the handle launched, when it was a CUkernel */
    uint32_t grid[3], block[3], cluster[3];
    uint32_t shared, parameter_bytes;
    unsigned char *parameters;     /* owned */
    void **pointers;               /* owned: one per parameter, into `parameters` */
    CUlaunchAttribute *attributes; /* owned: as they were given */
    unsigned attribute_count;
    struct sg_texture *held;    /* owned: what the module's references were bound to (texref.c) */
    struct sg_updates *updates; /* referenced: a node that kernels update (graph_updates.c) */
    bool cooperative;
};
struct sg_op {
    int refs;
    enum sg_op_kind kind;
    uint32_t correlation; /* of the call that submitted it; 0: nobody records (cupti.c) */
    CUcontext context;
    union {
        struct sg_kernel kernel;
        struct sg_copy copy;
        struct sg_set set;
        struct {
            CUhostFn fn;
            void *data;
        } host;
        struct {
            CUstreamCallback fn;
            CUstream stream; /* as the caller named it */
            void *data;
        } callback;
        struct {
            CUevent event; /* referenced */
            uint64_t record;
            uint64_t shared; /* the number of the record, where other processes have it */
            bool external;   /* as a graph's own node */
        } event;
        struct {
            uint64_t address, value;
            unsigned bytes, flags;
        } value;
        uint64_t address; /* SG_OP_FREE */
        struct {
            struct sg_block *its; /* referenced: a graph's memory */
            bool holds;           /* nobody has it while this is there */
        } block;
        struct {
            struct sg_condition *its; /* referenced */
            CUgraphConditionalNodeType type;
            struct sg_op **bodies; /* referenced: of a launch */
            unsigned count;
        } condition;
        struct {
            struct sg_op **list; /* referenced, in an order that keeps every edge */
            size_t count;
            bool launched;                    /* what it allocates is in use */
            CUstreamBatchMemOpParams *params; /* owned: of a batch, as they were given */
            struct sg_kept *kept;             /* owned: what a launch keeps while it runs */
        } graph;
    };
};
struct sg_op *sg_op_new(enum sg_op_kind kind, CUcontext context); /* NULL: no memory */
struct sg_op *sg_op_ref(struct sg_op *op);
void sg_op_unref(struct sg_op *op);      /* sg.lock is held */
void sg_op_tell_written(uint32_t *here); /* 1 right before what this thread writes is seen */
/* A value that is waited for or written, checked. */
CUresult sg_value_op(CUcontext context, enum sg_op_kind kind, CUdeviceptr address, uint64_t value,
                     unsigned bytes, unsigned flags, struct sg_op **out);
/* Runs it on this thread with no lock held. */
CUresult sg_op_run(const struct sg_op *op);
CUresult sg_kernel_run(const struct sg_op *op); /* launch.c */
/* A copy from a graph node's parameters; sg.lock is held. */
CUresult sg_copy_make(const CUDA_MEMCPY3D *params, struct sg_copy *copy);
void sg_copy_run(const struct sg_copy *copy);
/* One with an end in tiles (sparse_copy.c); whether the arrays of such ends are still there. */
void sg_copy_run_tiles(const struct sg_copy *copy);
bool sg_copy_tiles_live(const struct sg_copy *copy);
/* A memset with its arguments checked; pitch counts for more than one row. sg.lock is held. */
CUresult sg_set_make(CUdeviceptr dst, size_t pitch, unsigned element, uint32_t value, size_t width,
                     size_t height, struct sg_set *out);
/* Whether there is memory for all of it. */
bool sg_set_covers(const struct sg_set *set);
void sg_set_run(const struct sg_set *set);

/* ---- streams (queue.c) ---- */
/* A point in a stream's order: done once stream->done >= seq. */
struct sg_mark {
    CUstream stream; /* referenced; NULL: done */
    uint64_t seq;
};
struct sg_task {
    struct sg_task *next;
    struct sg_op *op;
    uint64_t seq;
    size_t mark_count; /* what must be done first, beside the task before it */
    struct sg_mark marks[];
};
struct sg_capture; /* capture.c */
/* The last nodes of a capture, and how the next one waits for each. */
struct sg_tips {
    CUgraphNode *nodes;
    CUgraphEdgeData *data;
    size_t count;
};
struct CUstream_st {
    CUstream next; /* in the context */
    CUcontext context;
    CUcontext green; /* that it was made in; NULL: none */
    uint64_t id;
    unsigned flags;
    int priority;
    int refs;       /* the handle, its thread, marks */
    bool is_legacy; /* the default stream */
    bool is_handle; /* made by cuStreamCreate */
    bool destroyed;
    struct sg_task *head, *tail;
    uint64_t submitted, done; /* sequence numbers */
    bool thread;              /* its thread is running */
    const struct sg_op *running;
    uint32_t written;    /* it writes a value, which can be seen: it is over in no time */
    pthread_cond_t wake; /* of that thread */
    struct sg_capture *capture;
    struct sg_tips tips; /* what the next captured operation depends on */
    CUstreamAttrValue attributes[16];
};
extern _Thread_local int sg_per_thread; /* nonzero inside a _ptsz or _ptds function */

/* The stream behind a handle (NULL, 1, 2 or one of ours), in the current context;
 * INVALID_HANDLE, or the context's errors. sg.lock is held. */
CUresult sg_stream_get(CUstream handle, CUstream *out);
/* Queues the operation, or adds it to the graph being captured; takes over the
 * reference to `op` even when it fails. sg.lock is held. */
CUresult sg_stream_submit(CUstream stream, struct sg_op *op);
/* The same, and waits until it has run; refused while capturing. */
CUresult sg_stream_submit_wait(CUstream stream, struct sg_op *op);
CUresult sg_stream_wait_mark(CUstream stream, const struct sg_mark *mark);
CUresult sg_stream_follow(CUstream later, CUstream earlier); /* it waits for what is there now */
CUresult sg_stream_wait(CUstream stream); /* until idle; then the context's sticky error */
CUresult sg_context_wait(CUcontext context);
void sg_contexts_wait(void); /* for all: each may work on memory of the host's */
void sg_kernels_wait(void);  /* for those that run now, which keep what they have looked up */
/* Mapped memory goes: a copy or set that uses it now fails. What is queued finds it gone. */
void sg_streams_lose(uint64_t begin, uint64_t end);
/* both_devices.c: the stream waits for what another device has to do; that device waits for
 * what the stream has. Nothing is done for the stream's own device. */
CUresult sg_device_before(CUstream stream, const struct sg_device *device);
CUresult sg_device_behind(CUstream stream, const struct sg_device *device);
CUstream sg_stream_own(CUcontext context); /* this thread's default stream; NULL: no memory */
bool sg_stream_idle(CUstream stream);
bool sg_mark_done(const struct sg_mark *mark);
void sg_mark_clear(struct sg_mark *mark);
struct sg_mark sg_stream_mark(CUstream stream); /* with a reference */
CUstream sg_stream_new(CUcontext context, unsigned flags, int priority);
void sg_stream_unref(CUstream stream);
void sg_stream_retire(CUstream stream); /* its handle dies; queued work still runs */
/* True on a stream's own thread: CUDA calls are not allowed from callbacks. */
bool sg_on_stream_thread(void);

/* ---- events (event.c) ---- */
struct CUevent_st {
    CUcontext context;
    int refs;
    unsigned flags;
    uint64_t record; /* number of the latest record; 0: never */
    struct sg_mark mark;
    uint64_t time_ns;           /* when the latest record completed */
    struct sg_capture *capture; /* recorded inside a capture (referenced) */
    struct sg_tips tips;
    bool destroyed;
    struct sg_shared_event *shared; /* NULL: no other process has it */
};
void sg_event_unref(CUevent event);
void sg_event_forget_capture(CUevent event);
CUresult sg_event_record(CUevent event, CUstream stream); /* not in a capture */
void sg_event_stamp(CUevent event, uint64_t record);      /* sg.lock is held */

/* ---- images, modules, kernels ---- */
/* The PTX inside an image that cuModuleLoadData takes, malloced and NUL-terminated.
 * `size` is the number of readable bytes or SIZE_MAX when the caller does not know; `part`: it is
 * to be linked with others. */
CUresult sg_image_ptx(const void *image, size_t size, bool part, char **ptx, size_t *length,
                      char *log, size_t log_size);
CUresult sg_image_read(const char *path, char **bytes, size_t *size);

struct CUfunc_st {
    CUmodule module;
    const struct sg_function *code;
    int attributes[CU_FUNC_ATTRIBUTE_MAX]; /* those that can be set */
    unsigned own; /* a bit for each attribute set on it, where its kernel's no longer counts */
    bool found;   /* by its name or through its kernel, not in a list alone */
    bool loaded;  /* as a lazy driver tells: by its first launch, or when asked to */
    struct sg_settings *settings; /* superseded.c; freed with it */
};
struct CUmod_st {
    CUmodule next; /* in the context */
    CUcontext context;
    CUlibrary library; /* NULL: loaded by cuModuleLoad */
    struct sg_module *code;
    uint64_t managed; /* the pages of its managed variables; 0: it has none */
    size_t managed_bytes;
    size_t function_count;
    struct CUfunc_st *functions;
    struct sg_reference *references; /* that were asked for (texref.c) */
    int refs;                        /* the handle, and each launch under way */
};
struct CUkern_st {
    CUlibrary library;
    size_t index;
    int attributes[SG_MAX_DEVICES][CU_FUNC_ATTRIBUTE_MAX];
};
struct CUlib_st {
    char *ptx;
    size_t length;
    struct sg_module *code; /* for names and attributes; never placed nor run */
    size_t kernel_count;
    struct CUkern_st *kernels;
};
struct sg_jit_log {
    char *info, *error;
    size_t info_size, error_size;     /* bytes */
    void **info_value, **error_value; /* where the filled sizes go */
};
CUresult sg_jit_options(unsigned count, const CUjit_option *options, void **values,
                        struct sg_jit_log *log);
void sg_jit_report(const struct sg_jit_log *log, const char *text);
CUresult sg_module_load(CUcontext context, const char *ptx, size_t length, CUlibrary library,
                        CUmodule *out, char *log, size_t log_size);
void sg_module_unref(CUmodule module);
void sg_module_unload(CUmodule module); /* unlinks from its context, drops the handles */
CUresult sg_module_global(CUmodule module, const char *name, bool only_managed,
                          CUdeviceptr *address, size_t *bytes);
/* The function behind a CUfunction or a CUkernel in `context`. sg.lock is held. */
CUresult sg_function_get(CUfunction handle, CUcontext context, CUfunction *out);
CUresult sg_function_attribute(int *value, CUfunction_attribute attribute,
                               const struct sg_function_info *info, const int *set);
CUresult sg_function_attribute_set(CUfunction_attribute attribute, int value,
                                   const struct sg_function_info *info, int *set);
void sg_function_attributes_init(int *set);

/* ---- launches (launch.c) ---- */
/* Checks everything that CUDA checks at once and packs the parameters. */
CUresult sg_launch_prepare(const CUlaunchConfig *config, CUfunction function, void **parameters,
                           void **extra, CUcontext context, struct sg_op **out);
/* Blocks of `threads` threads that fit on one multiprocessor at once. */
int sg_occupancy_blocks(const struct sg_function_info *info, unsigned threads,
                        size_t dynamic_shared);

#include "graph_objects.h"

#endif
