/*
 * The snapshot of the handshake, and what else both sides must agree on beside messages.
 * Fixed layout, little endian, no pointers. What messages carry whole is in the spec
 * (structs.toml).
 */
#ifndef GP_SNAPSHOT_H
#define GP_SNAPSHOT_H

#include "wire.h"

/* CUdevice_attribute values 1 .. GP_ATTRIBUTES - 1 are asked for; CUDA 13.0 has
 * 148 and the array leaves room. An attribute that the driver refuses is
 * GP_ATTRIBUTE_NONE. */
#define GP_ATTRIBUTES 192
#define GP_ATTRIBUTE_NONE INT32_MIN
#define GP_TOPOLOGY_MAX 256
#define GP_DEVICES_MAX 64
/* The most that a list of operations has (operations.h), in every release. */
#define GP_OPERATIONS_MAX 8192

/* Each device has a window of addresses of its own, one behind the other from the base
 * that the client names: the first session's is above what programs map. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) /* which has few places for what programs map */
#define GP_WINDOW_BASE UINT64_C(0x550000000000)
#define GP_WINDOW_SIZE (UINT64_C(1) << 38)
#endif
#endif
#ifndef GP_WINDOW_BASE
#define GP_WINDOW_BASE UINT64_C(0x200000000000)
#define GP_WINDOW_SIZE (UINT64_C(1) << 40)
#endif
#define GP_WINDOW_END (UINT64_C(1) << 47)

/* One device as the client shows it. */
struct gp_device_info {
    char name[128]; /* NUL-terminated */
    uint8_t uuid[16];
    char pci_bus_id[16]; /* "0000:3b:00.0" */
    uint64_t total_bytes;
    /* The address window in which the worker places this device's memory. */
    uint64_t window_begin;
    uint64_t window_end;
    int32_t attributes[GP_ATTRIBUTES];
    int32_t least_priority; /* of streams */
    int32_t greatest_priority;
    /* Graphics cluster of each pair of multiprocessors and its place in it, as
     * the driver tells cuBLASLt (docs/private-tables.md); 0 where unknown, and for clients that ask
     * for it in a context (gp_topology). */
    uint32_t topology_count;
    uint8_t topology_gpc[GP_TOPOLOGY_MAX];
    uint8_t topology_index[GP_TOPOLOGY_MAX];
    uint32_t reserved;
};

/*
 * Later releases add members at the end of these two and change none: a reader takes of the
 * head, and of each device, as much as it knows, and zeros for what an older writer lacks.
 */
struct gp_snapshot {
    uint32_t size;                     /* of this header and the devices behind it, bytes */
    uint32_t head_bytes, device_bytes; /* of the header and of one device, as they are sent */
    uint32_t driver_version;
    uint32_t device_count;
    uint32_t flags; /* gp_snapshot_flags */
    uint8_t boot_id[16];
    uint32_t reserved;
    struct gp_device_info devices[];
};

enum gp_snapshot_flags {
    GP_SNAPSHOT_SOFT = 1u << 0, /* soft GPUs */
};

/* What the first release has of them, and the most that any may have. */
#define GP_SNAPSHOT_HEAD_LEAST 48u
#define GP_SNAPSHOT_DEVICE_LEAST 1480u
#define GP_SNAPSHOT_MAX (256u << 10)
_Static_assert(sizeof(struct gp_snapshot) >= GP_SNAPSHOT_HEAD_LEAST &&
                   sizeof(struct gp_device_info) >= GP_SNAPSHOT_DEVICE_LEAST &&
                   sizeof(struct gp_snapshot) + GP_DEVICES_MAX * sizeof(struct gp_device_info) <=
                       GP_SNAPSHOT_MAX,
               "a snapshot grows at its ends and has room in a message");

/* Attributes of a kernel that a message has (struct gp_function_attributes in gp_messages.h). */
#define GP_FUNCTION_ATTRIBUTES (sizeof((struct gp_function_attributes){0}.values) / sizeof(int32_t))

/* `flags` of struct gp_function_attributes */
enum gp_described_flags {
    GP_DESCRIBED_PARAMETERS = 1u << 0, /* they are in the answer, too */
    GP_DESCRIBED_LOADED = 1u << 1,     /* the driver has it on the device: a launch will not load */
};

/* Kernel parameters are at most 32,764 bytes (CUDA 12.1 and later). */
#define GP_PARAMETERS_MAX 4096
#define GP_PARAMETER_BYTES_MAX 32768
#define GP_NAMES_MAX (1u << 19)
#define GP_MEMORY_OPERATIONS_MAX 255 /* of a batch; CUDA's own */
#define GP_NODES_MAX 4096
#define GP_RESOURCES_MAX 256 /* of multiprocessors: groups of a split, parts of a descriptor */
#define GP_BODIES_MAX 1024   /* graphs of a conditional node */
#define GP_ATTRIBUTES_PER_LAUNCH_MAX 32

/* Workers that a worker may be joined to (proto/spec/peer.toml). */
#define GP_PEERS_MAX 16
#define GP_PEER_URL_MAX 512 /* with its NUL */
#define GP_PEER_CONNECT_MS 10000

/* Of NCCL's; in the worker a communicator's handle is its own record of it. */
typedef struct gp_communicator *gp_communicator;
#define GP_NCCL_ID_BYTES 128   /* of a unique id */
#define GP_NCCL_CALLS_MAX 4096 /* of one group */
#define GP_NCCL_TEXT_MAX 512   /* of what NCCL says of an error, with its NUL */

/* A name of what processes of a lease have in common (proto/spec/messages/ipc.toml): `magic`, and
 * `kind`, which says how the program has it. */
#define GP_IPC_MAGIC 0x63706967u
enum gp_ipc_kind {
    GP_IPC_MEMORY = 1, /* a file: memory of cuMemCreate */
    GP_IPC_RANGE = 2,  /* a CUipcMemHandle: an allocation of cuMemAlloc */
    GP_IPC_EVENT = 3,  /* a CUipcEventHandle */
    GP_IPC_POOL = 4,   /* a file: a pool */
    /* a CUmemPoolPtrExportData: an allocation of a pool; workers name it as a range */
    GP_IPC_POINTER = 5,
};

/* `state` of the load messages */
enum gp_image_state {
    GP_IMAGE_LOADED = 0,
    GP_IMAGE_MISSING = 1, /* the result is then CUDA_SUCCESS and no handle was made */
};

/* `flags` of gp_host_function */
enum gp_host_flags {
    GP_HOST_CALLBACK = 1u << 0, /* cuStreamAddCallback */
    GP_HOST_HIDDEN = 1u << 1,   /* ours, not the application's: no list of nodes shows it */
};

/* `flags` of gp_launch */
enum gp_launch_flags {
    GP_LAUNCH_COOPERATIVE = 1u << 0,
    GP_LAUNCH_EX = 1u << 1,
};

/*
 * Handle ids. What an application holds as CUstream, CUevent, … is this number:
 *   bits 4..31   index in the table of its kind (aligned like a pointer, because
 *                PyTorch keeps flags in a stream's low bits)
 *   bits 32..43  generation, so that a stale handle is not a new one's
 *   bits 44..49  kind (gp_handle_kind, never 0)
 *   bit  50      named by the worker instead of the client
 *   bits 51..54  index of the session, of a client with several servers
 */
#define GP_HANDLE_INDEX_SHIFT 4
#define GP_HANDLE_INDEX_BITS 28
#define GP_HANDLE_GENERATION_SHIFT 32
#define GP_HANDLE_GENERATION_BITS 12
#define GP_HANDLE_KIND_SHIFT 44
#define GP_HANDLE_WORKER_NAMED (UINT64_C(1) << 50)
#define GP_HANDLE_SESSION_SHIFT 51
#define GP_HANDLE_SESSION_MASK (UINT64_C(15) << GP_HANDLE_SESSION_SHIFT)
/* The most servers, and so sessions, of one client. */
#define GP_SESSIONS_MAX 16
/* The most live handles of one kind in a client. */
#define GP_HANDLE_INDEX_MAX (1u << 22)

static inline uint32_t gp_handle_index(uint64_t id)
{
    return (uint32_t)(id >> GP_HANDLE_INDEX_SHIFT) & ((1u << GP_HANDLE_INDEX_BITS) - 1);
}
static inline uint32_t gp_handle_generation(uint64_t id)
{
    return (uint32_t)(id >> GP_HANDLE_GENERATION_SHIFT) & ((1u << GP_HANDLE_GENERATION_BITS) - 1);
}
static inline uint32_t gp_handle_kind(uint64_t id)
{
    return (uint32_t)(id >> GP_HANDLE_KIND_SHIFT) & 63u;
}
static inline uint32_t gp_handle_session(uint64_t id)
{
    return (uint32_t)(id >> GP_HANDLE_SESSION_SHIFT) & (GP_SESSIONS_MAX - 1);
}
static inline uint64_t gp_handle_in_session(uint64_t id, uint32_t session)
{
    return id | (uint64_t)session << GP_HANDLE_SESSION_SHIFT;
}
static inline uint64_t gp_handle_make(uint32_t kind, uint32_t index, uint32_t generation)
{
    return (uint64_t)kind << GP_HANDLE_KIND_SHIFT |
           (uint64_t)generation << GP_HANDLE_GENERATION_SHIFT |
           (uint64_t)index << GP_HANDLE_INDEX_SHIFT;
}

/* Stream ids below are not handles: the legacy default stream. The per-thread
 * default stream never travels: the client makes a real one for it. */
#define GP_STREAM_LEGACY UINT64_C(1)

#endif
