#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "transport/ucx_channel.h"

/* Memory that is made known to UCX, at most: for so many batches at once. */
#define SMALL_MOST 32
#define LARGE_MOST 12
#define LANDING_MOST 10
#define PAGE ((size_t)4096)

#define PROGRESS_BURST 64
/* How long an endpoint may take to close in order. */
#define EP_CLOSE_NS 200000000

/* --- opening ------------------------------------------------------------------ */

/* Whether the door was reached by the loopback. */
static bool is_here(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t size = sizeof a;
    const struct sockaddr_in *four = (const void *)&a;
    const struct sockaddr_in6 *six = (const void *)&a;
    if (getsockname(fd, (void *)&a, &size) != 0)
        return false;
    if (a.ss_family == AF_INET)
        return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    return a.ss_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) ||
            (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr) && six->sin6_addr.s6_addr[12] == 127));
}

static ucx_status context_make(struct gp_channel *ch)
{
    const struct ucx_params params = {
        .mask = UCX_PARAM_FEATURES | UCX_PARAM_ESTIMATED_EPS,
        .features = UCX_FEATURE_AM | UCX_FEATURE_WAKEUP,
        .estimated_eps = 1,
    };
    return ucx_library_context(&params, is_here(ch->fd), &ch->context);
}

static ucx_am_fn batch_came, credit_came;

static ucx_status handler_set(struct gp_channel *ch, unsigned id, uint32_t flags, ucx_am_fn *call)
{
    const struct ucx_am_handler handler = {
        .mask = UCX_AM_HANDLER_ID | UCX_AM_HANDLER_FLAGS | UCX_AM_HANDLER_CALL | UCX_AM_HANDLER_ARG,
        .id = id,
        .flags = flags,
        .call = call,
        .arg = ch,
    };
    return ch->api->worker_set_am_recv_handler(ch->worker, &handler);
}

static ucx_status worker_make(struct gp_channel *ch)
{
    const struct ucx_worker_params params = {
        .mask = UCX_WORKER_PARAM_THREAD_MODE | UCX_WORKER_PARAM_FLAGS,
        .thread_mode = UCX_THREAD_MODE_SERIALIZED,
        .flags = UCX_WORKER_FLAG_IGNORE_REQUEST_LEAK,
    };
    ucx_status status = ch->api->worker_create(ch->context, &params, &ch->worker);
    if (status == UCX_OK)
        status = ch->api->worker_get_efd(ch->worker, &ch->worker_fd);
    if (status == UCX_OK)
        status = handler_set(ch, UCX_AM_BATCH, UCX_AM_WHOLE_MESSAGE, batch_came);
    if (status == UCX_OK)
        status = handler_set(ch, UCX_AM_CREDIT, UCX_AM_WHOLE_MESSAGE, credit_came);
    return status;
}

int ucx_engine_open(struct gp_channel *ch, struct gp_error *err)
{
    /* Signals are the application's, and so are its handlers: UCX starts a thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ucx_status status = context_make(ch);
    if (status == UCX_OK)
        status = worker_make(ch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    ch->small = (struct ucx_buffers){.room = GATHER_BYTES, .most = SMALL_MOST};
    ch->large = (struct ucx_buffers){.room = GP_BATCH_MAX, .most = LARGE_MOST};
    ch->landing = (struct ucx_buffers){.room = GP_BATCH_MAX, .most = LANDING_MOST};
    if (status == UCX_OK)
        return 0;
    gp_error_set(err,
                 "UCX does not start (its error %d): has this host a network device that it can "
                 "use (ucx_info -d), and do GPUPOOL_UCX_TLS and GPUPOOL_UCX_NET_DEVICES name one?",
                 status);
    return -ENOTSUP;
}

int ucx_engine_address(struct gp_channel *ch, void **address, size_t *size)
{
    if (ch->api->worker_get_address(ch->worker, address, size) != UCX_OK)
        return -ENOMEM;
    if (*size <= UCX_ADDRESS_MAX)
        return 0;
    ucx_engine_address_free(ch, *address);
    return -ENOTSUP;
}

void ucx_engine_address_free(struct gp_channel *ch, void *address)
{
    ch->api->worker_release_address(ch->worker, address);
}

static void ep_failed(void *arg, void *ep, ucx_status status)
{
    struct gp_channel *ch = arg;
    (void)ep;
    (void)status;
    if (ch->ended_ns == 0) {
        ch->ended_ns = gp_clock_ns();
        shutdown(ch->fd, SHUT_RDWR); /* the peer may not have noticed */
    }
    ucx_dead_set(ch, -EPIPE, false);
}

int ucx_engine_connect(struct gp_channel *ch, const void *address)
{
    struct ucx_ep_params params = {
        .mask = UCX_EP_PARAM_REMOTE_ADDRESS | UCX_EP_PARAM_ERROR_MODE | UCX_EP_PARAM_ERROR_HANDLER,
        .address = address,
        .error_mode = UCX_ERROR_MODE_PEER,
        .error_handler = {.call = ep_failed, .arg = ch},
    };
    ucx_status status = ch->api->ep_create(ch->worker, &params, &ch->ep);
    ch->notices = status == UCX_OK;
    if (status == UCX_UNREACHABLE) { /* by what notices the end of a peer: the door does so, too */
        params.error_mode = UCX_ERROR_MODE_NONE;
        status = ch->api->ep_create(ch->worker, &params, &ch->ep);
    }
    return status == UCX_OK ? 0 : -EHOSTUNREACH;
}

/* --- memory ------------------------------------------------------------------- */

static struct ucx_buffer *buffer_new(struct gp_channel *ch, struct ucx_buffers *of)
{
    size_t room = (of->room + PAGE - 1) & ~(PAGE - 1);
    struct ucx_buffer *b = calloc(1, sizeof *b);
    if (b)
        b->bytes = aligned_alloc(PAGE, room);
    if (!b || !b->bytes) {
        free(b);
        return NULL;
    }
    const struct ucx_memory_params params = {
        .mask = UCX_MEMORY_ADDRESS | UCX_MEMORY_SIZE, .address = b->bytes, .size = room};
    if (ch->api->mem_map(ch->context, &params, &b->memory) != UCX_OK)
        b->memory = NULL; /* UCX then makes it known itself, each time */
    b->of = of;
    b->channel = ch;
    b->next_of_all = of->all;
    of->all = b;
    of->count++;
    return b;
}

struct ucx_buffer *ucx_engine_buffer(struct gp_channel *ch, struct ucx_buffers *of)
{
    struct ucx_buffer *b = of->free;
    if (b)
        of->free = b->next;
    else if (of->count < of->most)
        b = buffer_new(ch, of);
    return b;
}

void ucx_engine_buffer_free(struct ucx_buffer *b)
{
    b->next = b->of->free;
    b->of->free = b;
}

static void buffers_end(struct gp_channel *ch, struct ucx_buffers *of)
{
    while (of->all) {
        struct ucx_buffer *b = of->all;
        of->all = b->next_of_all;
        if (b->memory)
            ch->api->mem_unmap(ch->context, b->memory);
        free(b->bytes);
        free(b);
    }
}

/* --- sending ------------------------------------------------------------------ */

static void batch_sent(void *request, ucx_status status, void *user_data)
{
    struct ucx_buffer *b = user_data;
    struct gp_channel *ch = b->channel;
    ch->under_way--;
    ucx_engine_buffer_free(b);
    if (status != UCX_OK)
        ucx_dead_set(ch, -EPIPE, false);
    ch->api->request_free(request);
    ucx_wake(ch, &ch->sender);
}

int ucx_engine_post(struct gp_channel *ch, struct ucx_buffer *b, size_t size)
{
    const struct ucx_operation how = {
        .mask = UCX_OPERATION_CALL | UCX_OPERATION_USER_DATA |
                (b->memory ? UCX_OPERATION_MEMORY : 0),
        .call.sent = batch_sent,
        .user_data = b,
        .memory = b->memory,
    };
    b->header = (struct ucx_batch_header){.tag = ch->peer_tag, .number = ch->debt.batches};
    ucx_request r = ch->api->am_send_nbx(ch->ep, UCX_AM_BATCH, &b->header, sizeof b->header,
                                         b->bytes, size, &how);
    if (ucx_request_failed(r)) {
        ucx_engine_buffer_free(b);
        return -EPIPE;
    }
    ch->debt.batches++;
    ch->debt.bytes += size;
    if (r)
        ch->under_way++;
    else
        ucx_engine_buffer_free(b);
    return 0;
}

static void credit_sent(void *request, ucx_status status, void *user_data)
{
    struct gp_channel *ch = user_data;
    (void)status; /* the endpoint's handler says so, too */
    ch->under_way--;
    ch->api->request_free(request);
}

void ucx_engine_credit(struct gp_channel *ch)
{
    const struct ucx_credit credit = {
        .tag = ch->peer_tag, .bytes = ch->got_bytes, .batches = ch->window.consumed};
    const struct ucx_operation how = {
        .mask = UCX_OPERATION_CALL | UCX_OPERATION_USER_DATA | UCX_OPERATION_FLAGS,
        .flags = UCX_AM_SEND_COPY_HEADER,
        .call.sent = credit_sent,
        .user_data = ch,
    };
    ucx_request r = ch->api->am_send_nbx(ch->ep, UCX_AM_CREDIT, &credit, sizeof credit, NULL, 0,
                                         &how);
    if (ucx_request_failed(r))
        return;
    ch->told_bytes = ch->got_bytes;
    ch->told_batches = ch->window.consumed;
    if (r)
        ch->under_way++;
}

/* --- receiving: called by ucp_worker_progress ------------------------------------ */

static void slot_fill(struct gp_channel *ch, struct ucx_slot *s)
{
    ch->came++;
    atomic_store(&s->full, true);
    ucx_wake(ch, &ch->receiver);
}

static void batch_fetched(void *request, ucx_status status, size_t size, void *user_data)
{
    struct gp_channel *ch = ((struct ucx_slot *)user_data)->channel;
    struct ucx_slot *s = user_data;
    ch->under_way--;
    ch->api->request_free(request);
    if (status == UCX_OK && size == s->size)
        slot_fill(ch, s);
    else if (status == UCX_OK)
        ucx_dead_set(ch, -EPROTO, true);
    else
        ucx_dead_set(ch, -EPIPE, false);
}

/* A long one waits at the peer until there is room for it here: fetch it. */
static ucx_status batch_fetch(struct gp_channel *ch, struct ucx_slot *s, void *data)
{
    struct ucx_operation how = {
        .mask = UCX_OPERATION_CALL | UCX_OPERATION_USER_DATA,
        .call.received = batch_fetched,
        .user_data = s,
    };
    if (s->buffer && s->buffer->memory) {
        how.mask |= UCX_OPERATION_MEMORY;
        how.memory = s->buffer->memory;
    }
    ucx_request r = ch->api->am_recv_data_nbx(ch->worker, data, s->bytes, s->size, &how);
    if (ucx_request_failed(r)) {
        ucx_dead_set(ch, -EPIPE, false);
        return UCX_IN_PROGRESS;
    }
    if (r)
        ch->under_way++;
    else
        slot_fill(ch, s);
    return UCX_IN_PROGRESS;
}

static bool slot_room(struct gp_channel *ch, struct ucx_slot *s, size_t size)
{
    s->size = size;
    s->buffer = size > GATHER_BYTES ? ucx_engine_buffer(ch, &ch->landing) : NULL;
    s->bytes = s->buffer ? s->buffer->bytes : malloc(size);
    return s->bytes != NULL;
}

static ucx_status batch_came(void *arg, const void *header, size_t header_size, void *data,
                             size_t size, const struct ucx_am_received *how)
{
    struct gp_channel *ch = arg;
    bool waits = how->attributes & UCX_AM_RECEIVED_RENDEZVOUS;
    if (ch->recv_dead)
        return waits ? UCX_CANCELED : UCX_OK;
    int place = ucx_window_admit(&ch->window, header, header_size, size);
    if (place == -EPROTO)
        ucx_dead_set(ch, -EPROTO, true);
    if (place < 0)
        return waits ? UCX_CANCELED : UCX_OK;
    struct ucx_slot *s = &ch->slots[place];
    if (!slot_room(ch, s, size)) {
        ucx_dead_set(ch, -EPIPE, true);
        return waits ? UCX_CANCELED : UCX_OK;
    }
    if (waits)
        return batch_fetch(ch, s, data);
    memcpy(s->bytes, data, size);
    slot_fill(ch, s);
    return UCX_OK;
}

static ucx_status credit_came(void *arg, const void *header, size_t header_size, void *data,
                              size_t size, const struct ucx_am_received *how)
{
    struct gp_channel *ch = arg;
    (void)data;
    bool waits = how->attributes & UCX_AM_RECEIVED_RENDEZVOUS;
    int rc = size ? -EPROTO : ucx_debt_credit(&ch->debt, header, header_size);
    if (rc == 0) {
        ch->greeted = true;
        ucx_wake(ch, &ch->sender);
    } else if (rc == -EPROTO) {
        ucx_dead_set(ch, -EPROTO, true);
    }
    return waits ? UCX_CANCELED : UCX_OK;
}

/* --- moving -------------------------------------------------------------------- */

void ucx_engine_progress(struct gp_channel *ch)
{
    for (int i = 0; i < PROGRESS_BURST && ch->api->worker_progress(ch->worker); i++)
        ;
}

bool ucx_engine_arm(struct gp_channel *ch)
{
    return ch->api->worker_arm(ch->worker) == UCX_OK;
}

/* --- closing ------------------------------------------------------------------- */

static void ep_close(struct gp_channel *ch)
{
    const struct ucx_operation how = {
        .mask = UCX_OPERATION_FLAGS,
        .flags = ch->notices ? UCX_CLOSE_FORCE : 0,
    };
    int64_t until = gp_clock_ns() + EP_CLOSE_NS;
    ucx_request r = ch->api->ep_close_nbx(ch->ep, &how);
    if (!r || ucx_request_failed(r))
        return;
    while (ch->api->request_check_status(r) == UCX_IN_PROGRESS && gp_clock_ns() < until)
        ch->api->worker_progress(ch->worker);
    ch->api->request_free(r);
}

void ucx_engine_close(struct gp_channel *ch)
{
    if (ch->ep)
        ep_close(ch);
    if (ch->worker)
        ch->api->worker_destroy(ch->worker);
    if (ch->context) {
        buffers_end(ch, &ch->small);
        buffers_end(ch, &ch->large);
        buffers_end(ch, &ch->landing);
        ch->api->cleanup(ch->context);
    }
    ch->ep = ch->worker = ch->context = NULL;
}
