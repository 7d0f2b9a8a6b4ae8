#include "shareable.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "allocator.h"
#include "handles.h"
#include "ipc.h"
#include "quota.h"
#include "ticket.h"
#include "transport/hex.h"

/* So many ticks of 200 ms may what was brought go untaken. */
#define LEFT_MOST 150u

/* --- the list ------------------------------------------------------------------------- */

static struct gpw_shareable *find(const struct gpw_ipc *ipc, const uint8_t *session,
                                  const uint8_t *token)
{
    for (struct gpw_shareable *one = ipc->all; one; one = one->next)
        if (memcmp(one->token, token, sizeof one->token) == 0 &&
            memcmp(one->session, session, sizeof one->session) == 0)
            return one;
    return NULL;
}

struct gpw_shareable *gpw_shareable_find(struct gpw_session *s, const struct gp_ipc_name *name)
{
    return find(s->ipc, name->session, name->token);
}

struct gpw_shareable *gpw_shareable_mapped(struct gpw_session *s, CUdeviceptr at)
{
    for (struct gpw_shareable *one = s->ipc->all; one; one = one->next)
        if (one->maps && at >= one->mapped_at && at - one->mapped_at < one->bytes)
            return one;
    return NULL;
}

enum gpw_shared_kind gpw_shareable_kind(enum gp_ipc_kind kind)
{
    return kind == GP_IPC_EVENT  ? GPW_SHARES_EVENT
           : kind == GP_IPC_POOL ? GPW_SHARES_POOL
                                 : GPW_SHARES_MEMORY;
}

bool gpw_shareable_is_own(const struct gpw_session *s, const struct gp_ipc_name *name)
{
    return memcmp(name->session, s->ipc->session, sizeof s->ipc->session) == 0;
}

void gpw_shareable_name(const struct gpw_shareable *one, struct gp_ipc_name *name)
{
    *name = (struct gp_ipc_name){.magic = GP_IPC_MAGIC, .bytes = one->bytes};
    memcpy(name->token, one->token, sizeof one->token);
    memcpy(name->session, one->session, sizeof one->session);
}

/* The control thread looks at the list as well. */
static CUresult list(struct gpw_session *s, const struct gpw_shareable *like,
                     struct gpw_shareable **out)
{
    struct gpw_ipc *ipc = s->ipc;
    struct gpw_shareable *one = ipc->count < GPW_SHAREABLES_MAX ? malloc(sizeof *one) : NULL;
    if (!one)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *one = *like;
    pthread_mutex_lock(&ipc->lock);
    one->next = ipc->all;
    ipc->all = one;
    ipc->count++;
    pthread_mutex_unlock(&ipc->lock);
    *out = one;
    return CUDA_SUCCESS;
}

static void forget(struct gpw_session *s, struct gpw_shareable *one)
{
    struct gpw_ipc *ipc = s->ipc;
    pthread_mutex_lock(&ipc->lock);
    struct gpw_shareable **at = &ipc->all;
    while (*at != one)
        at = &(*at)->next;
    *at = one->next;
    ipc->count--;
    pthread_mutex_unlock(&ipc->lock);
    if (one->memory >= 0)
        close(one->memory);
    if (one->ticket >= 0)
        close(one->ticket);
    free(one);
}

/* --- what this session has made ---------------------------------------------------------- */

/* A new one of this session's own. */
static CUresult named(struct gpw_session *s, struct gpw_shareable *like)
{
    memcpy(like->session, s->ipc->session, sizeof like->session);
    if (getrandom(like->token, sizeof like->token, 0) != (ssize_t)sizeof like->token)
        return CUDA_ERROR_OPERATING_SYSTEM;
    return CUDA_SUCCESS;
}

CUresult gpw_shareable_memory(struct gpw_session *s, CUmemGenericAllocationHandle memory,
                              uint32_t ordinal, uint64_t bytes, struct gpw_shareable **out)
{
    struct gpw_shareable like = {.memory = -1,
                                 .ordinal = ordinal,
                                 .bytes = bytes,
                                 .charged = true,
                                 .uses = 1,
                                 .ticket = gpw_ticket_new()};
    CUresult r = like.ticket < 0 ? CUDA_ERROR_OUT_OF_MEMORY : named(s, &like);
    if (r == CUDA_SUCCESS)
        r = s->driver->cuDeviceGetUuid_v2(&like.device, s->devices[ordinal]);
    if (r == CUDA_SUCCESS)
        r = s->driver->cuMemExportToShareableHandle(&like.memory, memory,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (r == CUDA_SUCCESS)
        r = list(s, &like, out);
    if (r != CUDA_SUCCESS) {
        if (like.memory >= 0)
            close(like.memory);
        if (like.ticket >= 0)
            close(like.ticket);
    }
    return r;
}

static struct gpw_shareable *of_own(struct gpw_session *s, enum gpw_shared_kind kind,
                                    const void *own)
{
    for (struct gpw_shareable *one = s->ipc->all; one; one = one->next)
        if (one->kind == kind && !one->brought && one->own == own)
            return one;
    return NULL;
}

CUresult gpw_shareable_event(struct gpw_session *s, CUevent event, struct gpw_shareable **out)
{
    struct gpw_shareable like = {
        .kind = GPW_SHARES_EVENT, .own = event, .memory = -1, .ticket = -1};
    *out = of_own(s, GPW_SHARES_EVENT, event);
    if (*out)
        return CUDA_SUCCESS;
    CUresult r = s->driver->cuIpcGetEventHandle(&like.handle, event);
    if (r == CUDA_SUCCESS)
        r = named(s, &like);
    return r ? r : list(s, &like, out);
}

CUresult gpw_shareable_pool(struct gpw_session *s, CUmemoryPool pool, uint32_t ordinal,
                            struct gpw_shareable **out)
{
    struct gpw_shareable like = {
        .kind = GPW_SHARES_POOL, .own = pool, .ordinal = ordinal, .memory = -1, .ticket = -1};
    *out = of_own(s, GPW_SHARES_POOL, pool);
    if (*out)
        return CUDA_SUCCESS;
    CUresult r = s->driver->cuDeviceGetUuid_v2(&like.device, s->devices[ordinal]);
    if (r == CUDA_SUCCESS)
        r = named(s, &like);
    return r ? r : list(s, &like, out);
}

void gpw_shareable_gone(struct gpw_session *s, enum gpw_shared_kind kind, const void *own)
{
    struct gpw_shareable *one = of_own(s, kind, own);
    if (one)
        forget(s, one);
}

void gpw_shareable_events_context_ended(struct gpw_session *s)
{
    for (struct gpw_shareable *one = s->ipc->all, *next; one; one = next) {
        next = one->next;
        if (one->kind == GPW_SHARES_EVENT && !one->brought &&
            gpw_handle_find(s, GP_HANDLE_EVENT, (uint64_t)one->own) == 0)
            forget(s, one);
    }
}

/* --- what others have made --------------------------------------------------------------- */

/* The session's device of this name; false: it has none. */
static bool device_of(struct gpw_session *s, const CUuuid *device, uint32_t *ordinal)
{
    for (uint32_t i = 0; i < s->device_count; i++) {
        CUuuid own;
        if (s->driver->cuDeviceGetUuid_v2(&own, s->devices[i]) == CUDA_SUCCESS &&
            memcmp(&own, device, sizeof own) == 0) {
            *ordinal = i;
            return true;
        }
    }
    return false;
}

/* Which device it is of, as the rest of a line says. */
static CUresult device_brought(struct gpw_session *s, struct gpw_shareable *like, const char *uuid)
{
    if (gp_hex_read(uuid, (unsigned char *)&like->device, sizeof like->device) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return device_of(s, &like->device, &like->ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* With the locks that say that this process has it. */
static CUresult memory_brought(struct gpw_session *s, struct gpw_shareable *like, const char *line)
{
    int end = 0;
    if (sscanf(line, "memory %" SCNu64 " %n", &like->bytes, &end) != 1 || end == 0 ||
        like->memory < 0 || like->ticket < 0 || like->bytes == 0 || like->bytes % GPW_GRANULE ||
        like->bytes > GP_WINDOW_SIZE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = device_brought(s, like, line + end);
    return r ? r : gpw_ticket_use(like->ticket) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Its memory comes by names of its own. */
static CUresult pool_brought(struct gpw_session *s, struct gpw_shareable *like, const char *line)
{
    static const char word[] = "pool ";
    if (strncmp(line, word, sizeof word - 1) != 0 || like->memory >= 0 || like->ticket >= 0)
        return CUDA_ERROR_INVALID_VALUE;
    return device_brought(s, like, line + sizeof word - 1);
}

static CUresult event_brought(struct gpw_shareable *like, const char *line)
{
    static const char word[] = "event ";
    return strncmp(line, word, sizeof word - 1) == 0 &&
                   gp_hex_read(line + sizeof word - 1, (unsigned char *)&like->handle,
                               sizeof like->handle) == 0
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpw_shareable_brought(struct gpw_session *s, const struct gp_ipc_name *name,
                               const char *line, const int fds[GPW_SHAREABLE_FDS])
{
    struct gpw_shareable like = {.brought = true,
                                 .kind = gpw_shareable_kind(name->kind),
                                 .memory = fds[0],
                                 .ticket = fds[1]},
                         *one;
    memcpy(like.token, name->token, sizeof like.token);
    memcpy(like.session, name->session, sizeof like.session);
    CUresult r = like.kind == GPW_SHARES_EVENT  ? event_brought(&like, line)
                 : like.kind == GPW_SHARES_POOL ? pool_brought(s, &like, line)
                                                : memory_brought(s, &like, line);
    if (r == CUDA_SUCCESS)
        r = list(s, &like, &one);
    if (r != CUDA_SUCCESS)
        for (unsigned i = 0; i < GPW_SHAREABLE_FDS; i++)
            if (fds[i] >= 0)
                close(fds[i]);
    return r;
}

/* Be charged for it if nobody is. False: over the limit. */
static bool charge(struct gpw_session *s, struct gpw_shareable *one)
{
    if (one->charged || !gpw_ticket_own(one->ticket))
        return true;
    one->charged = gpw_quota_take(s, one->ordinal, one->bytes);
    if (!one->charged)
        gpw_ticket_disown(one->ticket);
    return one->charged;
}

/* Be charged no longer, and let another process be. */
static void discharge(struct gpw_session *s, struct gpw_shareable *one)
{
    if (!one->charged)
        return;
    gpw_quota_give(s, one->ordinal, one->bytes);
    gpw_ticket_disown(one->ticket);
    one->charged = false;
}

/* Of the device that the exporter said. */
static bool is_of(struct gpw_session *s, const struct gpw_shareable *one,
                  CUmemGenericAllocationHandle memory)
{
    CUmemAllocationProp prop;
    return s->driver->cuMemGetAllocationPropertiesFromHandle(&prop, memory) == CUDA_SUCCESS &&
           prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop.location.id == s->devices[one->ordinal];
}

CUresult gpw_shareable_open(struct gpw_session *s, struct gpw_shareable *one,
                            CUmemGenericAllocationHandle *memory)
{
    if (one->kind != GPW_SHARES_MEMORY)
        return CUDA_ERROR_INVALID_VALUE;
    if (!charge(s, one))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = s->driver->cuMemImportFromShareableHandle(
        memory, (void *)(intptr_t)one->memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (r == CUDA_SUCCESS && !is_of(s, one, *memory)) {
        s->driver->cuMemRelease(*memory);
        r = CUDA_ERROR_INVALID_VALUE;
    }
    one->uses += r == CUDA_SUCCESS;
    if (!one->uses)
        discharge(s, one); /* it is no memory of the device, whatever it was said to be */
    return r;
}

void gpw_shareable_drop(struct gpw_session *s, struct gpw_shareable *one)
{
    forget(s, one);
}

/* --- the end ------------------------------------------------------------------------------- */

/* It goes; but who is charged stays while others have it. */
static void end(struct gpw_session *s, struct gpw_shareable *one)
{
    if (one->charged && gpw_ticket_used(one->ticket))
        return;
    discharge(s, one);
    forget(s, one);
}

void gpw_shareable_let_go(struct gpw_session *s, struct gpw_shareable *one)
{
    if (--one->uses)
        return;
    pthread_mutex_lock(&s->ipc->lock);
    one->ended = true; /* its token is nothing's from here on */
    pthread_mutex_unlock(&s->ipc->lock);
    close(one->memory);
    one->memory = -1;
    gpw_ticket_leave(one->ticket);
    end(s, one);
}

static void tick(struct gpw_session *s, struct gpw_shareable *one)
{
    if (one->ended)
        end(s, one);
    else if (one->brought && !one->uses && ++one->left == LEFT_MOST)
        forget(s, one);
    else if (one->uses && one->kind == GPW_SHARES_MEMORY && !charge(s, one))
        gpw_session_end(
            s,
            "memory of device %u that another process of the lease had made is over the "
            "lease's limit now that this one has ended (%llu MiB)",
            one->ordinal, (unsigned long long)(one->bytes >> 20));
}

void gpw_shareables_tick(struct gpw_session *s)
{
    for (struct gpw_shareable *one = s->ipc->all, *next; one; one = next) {
        next = one->next;
        tick(s, one);
    }
}

/* --- for the control thread ----------------------------------------------------------------- */

static int describe(const struct gpw_shareable *one, char *to, size_t room)
{
    char hex[2 * sizeof one->handle + 1];
    if (one->kind == GPW_SHARES_EVENT) {
        gp_hex_show((const unsigned char *)&one->handle, sizeof one->handle, hex);
        return snprintf(to, room, "event %s\n", hex);
    }
    gp_hex_show((const unsigned char *)&one->device, sizeof one->device, hex);
    if (one->kind == GPW_SHARES_POOL)
        return snprintf(to, room, "pool %s\n", hex);
    return snprintf(to, room, "memory %" PRIu64 " %s\n", one->bytes, hex);
}

/* The lock is held: what is sent is not closed meanwhile. */
static void tell(const struct gpw_shareable *one, int connection)
{
    char line[GPW_SHAREABLE_LINE] = "none\n";
    int length = one ? describe(one, line, sizeof line) : (int)strlen(line);
    struct iovec iov = {line, (size_t)length};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(GPW_SHAREABLE_FDS * sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (one && one->kind == GPW_SHARES_MEMORY) {
        const int fds[GPW_SHAREABLE_FDS] = {one->memory, one->ticket};
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fds);
        memcpy(CMSG_DATA(c), fds, sizeof fds);
    }
    sendmsg(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void gpw_shareable_tell(struct gpw_session *s, const char *token, int connection)
{
    uint8_t wanted[GPW_TOKEN_BYTES];
    bool well = gp_hex_read(token, wanted, sizeof wanted) == 0;
    pthread_mutex_lock(&s->ipc->lock);
    struct gpw_shareable *one = well ? find(s->ipc, s->ipc->session, wanted) : NULL;
    tell(one && !one->ended ? one : NULL, connection);
    pthread_mutex_unlock(&s->ipc->lock);
}
