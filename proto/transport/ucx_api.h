/*
 * What this transport uses of UCP, the upper interface of UCX: its structures and numbers as its
 * ABI has them since 1.20, so that a build needs nothing of UCX. Structures say by a mask which of
 * their members are set, and are only ever longer in later releases. tests/c/test_ucx_api.c
 * compares all of it with UCX's own headers where they are.
 */
#ifndef GP_UCX_API_H
#define GP_UCX_API_H

#include <stddef.h>
#include <stdint.h>

/* The oldest that is taken. */
#define UCX_OLDEST_MAJOR 1u
#define UCX_OLDEST_MINOR 20u

typedef int8_t ucx_status; /* UCX's enum is packed */
#define UCX_OK 0
#define UCX_IN_PROGRESS 1
#define UCX_BUSY (-15)
#define UCX_UNREACHABLE (-6)
#define UCX_CANCELED (-16)

/* A request: NULL it is done, a status at the end of the address space, or a pointer. */
typedef void *ucx_request;
static inline int ucx_request_failed(ucx_request r)
{
    return (uintptr_t)r >= (uintptr_t)-100;
}

struct ucx_params {
    uint64_t mask;
    uint64_t features;
    size_t request_size;
    void *request_init, *request_cleanup;
    uint64_t tag_sender_mask;
    int mt_workers_shared;
    size_t estimated_eps, estimated_ppn;
    const char *name;
    size_t node_local_id;
};
#define UCX_PARAM_FEATURES (1u << 0)
#define UCX_PARAM_ESTIMATED_EPS (1u << 6)
#define UCX_FEATURE_WAKEUP (1u << 4)
#define UCX_FEATURE_AM (1u << 6)

struct ucx_worker_params {
    uint64_t mask;
    unsigned thread_mode;
    unsigned long cpu_mask[1024 / (8 * sizeof(unsigned long))];
    unsigned events;
    void *user_data;
    int event_fd;
    uint64_t flags;
    const char *name;
    size_t am_alignment;
    uint64_t client_id;
};
#define UCX_WORKER_PARAM_THREAD_MODE (1u << 0)
#define UCX_WORKER_PARAM_FLAGS (1u << 5)
#define UCX_THREAD_MODE_SERIALIZED 1u
#define UCX_WORKER_FLAG_IGNORE_REQUEST_LEAK (1u << 0)

typedef void ucx_error_fn(void *arg, void *ep, ucx_status status);

struct ucx_ep_params {
    uint64_t mask;
    const void *address;
    unsigned error_mode;
    struct {
        ucx_error_fn *call;
        void *arg;
    } error_handler;
    void *user_data;
    unsigned flags;
    struct {
        const void *address;
        uint32_t size;
    } socket_address;
    void *connection_request;
    const char *name;
    struct {
        const void *address;
        uint32_t size;
    } local_socket_address;
};
#define UCX_EP_PARAM_REMOTE_ADDRESS (1u << 0)
#define UCX_EP_PARAM_ERROR_MODE (1u << 1)
#define UCX_EP_PARAM_ERROR_HANDLER (1u << 2)
#define UCX_ERROR_MODE_NONE 0u
#define UCX_ERROR_MODE_PEER 1u

struct ucx_am_received {
    uint64_t attributes;
    void *reply_ep;
};
#define UCX_AM_RECEIVED_RENDEZVOUS (UINT64_C(1) << 17)
typedef ucx_status ucx_am_fn(void *arg, const void *header, size_t header_size, void *data,
                             size_t size, const struct ucx_am_received *how);

struct ucx_am_handler {
    uint64_t mask;
    unsigned id;
    uint32_t flags;
    ucx_am_fn *call;
    void *arg;
};
#define UCX_AM_HANDLER_ID (1u << 0)
#define UCX_AM_HANDLER_FLAGS (1u << 1)
#define UCX_AM_HANDLER_CALL (1u << 2)
#define UCX_AM_HANDLER_ARG (1u << 3)
#define UCX_AM_WHOLE_MESSAGE (1u << 0)

typedef void ucx_sent_fn(void *request, ucx_status status, void *user_data);
typedef void ucx_received_fn(void *request, ucx_status status, size_t size, void *user_data);

struct ucx_operation {
    uint32_t mask;
    uint32_t flags;
    void *request;
    union {
        ucx_sent_fn *sent;
        ucx_received_fn *received;
    } call;
    uint64_t datatype;
    void *user_data;
    void *reply_buffer;
    unsigned memory_type;
    void *received_info;
    void *memory;
    uint64_t remote_datatype;
    const void *remote;
    size_t remote_count;
};
#define UCX_OPERATION_CALL (1u << 1)
#define UCX_OPERATION_USER_DATA (1u << 2)
#define UCX_OPERATION_FLAGS (1u << 4)
#define UCX_OPERATION_MEMORY (1u << 8)
#define UCX_AM_SEND_COPY_HEADER (1u << 3)
#define UCX_CLOSE_FORCE (1u << 0)

struct ucx_memory_params {
    uint64_t mask;
    void *address;
    size_t size;
    unsigned flags, protection, memory_type;
    const void *exported;
};
#define UCX_MEMORY_ADDRESS (1u << 0)
#define UCX_MEMORY_SIZE (1u << 1)

/* The functions, found by name in libucp.so.0. */
struct ucx_api {
    void *config; /* that contexts are made with */
    void (*get_version)(unsigned *major, unsigned *minor, unsigned *release);
    ucx_status (*config_read)(const char *prefix, const char *file, void **config);
    ucx_status (*config_modify)(void *config, const char *name, const char *value);
    ucx_status (*init_version)(unsigned major, unsigned minor, const struct ucx_params *params,
                               const void *config, void **context);
    void (*cleanup)(void *context);
    ucx_status (*worker_create)(void *context, const struct ucx_worker_params *params,
                                void **worker);
    void (*worker_destroy)(void *worker);
    ucx_status (*worker_get_address)(void *worker, void **address, size_t *size);
    void (*worker_release_address)(void *worker, void *address);
    ucx_status (*worker_get_efd)(void *worker, int *fd);
    ucx_status (*worker_arm)(void *worker);
    unsigned (*worker_progress)(void *worker);
    ucx_status (*worker_set_am_recv_handler)(void *worker, const struct ucx_am_handler *handler);
    ucx_status (*ep_create)(void *worker, const struct ucx_ep_params *params, void **ep);
    ucx_request (*ep_flush_nbx)(void *ep, const struct ucx_operation *how);
    ucx_request (*ep_close_nbx)(void *ep, const struct ucx_operation *how);
    ucx_request (*am_send_nbx)(void *ep, unsigned id, const void *header, size_t header_size,
                               const void *bytes, size_t count, const struct ucx_operation *how);
    ucx_request (*am_recv_data_nbx)(void *worker, void *data, void *bytes, size_t count,
                                    const struct ucx_operation *how);
    ucx_status (*request_check_status)(void *request);
    void (*request_free)(void *request);
    ucx_status (*mem_map)(void *context, const struct ucx_memory_params *params, void **memory);
    ucx_status (*mem_unmap)(void *context, void *memory);
};

#endif
