#include "peer_link.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "gpc_wire.h"

enum link_state { LINK_NONE, LINK_UP, LINK_FAILED };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int links[GP_SESSIONS_MAX][GP_SESSIONS_MAX]; /* the lower index first */

uint64_t gpc_peer_tag(void)
{
    static uint64_t last;
    return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

static bool is_loopback(const struct gpc_session *s)
{
    return strstr(s->server, "//127.") || strstr(s->server, "//localhost") ||
           strstr(s->server, "//[::1]") || strncmp(s->server, "ipc:", 4) == 0;
}

static CUresult random_secret(uint8_t secret[16])
{
    size_t got = 0;
    while (got < 16) {
        ssize_t n = getrandom(secret + got, 16 - got, 0);
        if (n < 0 && errno != EINTR)
            return CUDA_ERROR_OPERATING_SYSTEM;
        got += n > 0 ? (size_t)n : 0;
    }
    return CUDA_SUCCESS;
}

/* `listener` is reached where this client reaches it. */
static CUresult join(struct gpc_session *listener, struct gpc_session *caller)
{
    uint8_t secret[16];
    char offered[GP_PEER_URL_MAX], url[GP_PEER_URL_MAX];
    uint32_t got = 0;
    CUresult r = random_secret(secret);
    if (r != CUDA_SUCCESS)
        return r;
    const struct gpc_route to_listener = gpc_route_to(listener), to_caller = gpc_route_to(caller);
    r = gpc_wire_gp_peer_listen_on(&to_listener, caller->index, secret, offered, &got);
    if (r == CUDA_SUCCESS && (got == 0 || offered[got - 1] != '\0'))
        r = CUDA_ERROR_UNKNOWN;
    if (r == CUDA_SUCCESS) {
        gpc_fill_host(offered, listener->server, url, sizeof url);
        r = gpc_wire_gp_peer_connect_on(&to_caller, listener->index, secret, url);
    }
    return r;
}

/* A worker that listens by TCP of our own does so by ZeroMQ when it is asked again: one of an
 * earlier release refuses the address, or has no such transport, at once. */
static CUresult join_either_way(struct gpc_session *listener, struct gpc_session *caller)
{
    CUresult r = join(listener, caller);
    bool at_once = r == CUDA_ERROR_NOT_PERMITTED || r == CUDA_ERROR_INVALID_VALUE;
    if (at_once && join(listener, caller) == CUDA_SUCCESS)
        r = CUDA_SUCCESS;
    return r;
}

/* What an operator can do about it. */
static const char *remedy(CUresult r)
{
    switch (r) {
    case CUDA_ERROR_NOT_SUPPORTED:
        return "does each of the servers have a peer_key, and listen for the network?";
    case CUDA_ERROR_NOT_PERMITTED:
        return "have the servers the same peer_key, and about the same time?";
    default:
        return "may one connect to the other's ports?";
    }
}

/* Under `lock`. The one whose address means something to the other is to listen. */
static CUresult link_up(struct gpc_session *one, struct gpc_session *other)
{
    bool turned = is_loopback(one) && !is_loopback(other);
    CUresult r = join_either_way(turned ? other : one, turned ? one : other);
    if (r != CUDA_SUCCESS && gpc_session_works(one) && gpc_session_works(other) &&
        join_either_way(turned ? one : other, turned ? other : one) == CUDA_SUCCESS)
        r = CUDA_SUCCESS; /* else the first says why: the second may find its number taken */
    if (r == CUDA_SUCCESS)
        gpc_log(GPC_LOG_INFO, "the workers on %s and %s are joined", one->server, other->server);
    else
        gpc_log(GPC_LOG_ERROR,
                "the workers on %s and %s cannot reach each other (CUDA error %d): "
                "no copies between their GPUs; %s",
                one->server, other->server, (int)r, remedy(r));
    return r;
}

CUresult gpc_peer_link(struct gpc_session *one, struct gpc_session *other)
{
    if (one->index > other->index) {
        struct gpc_session *swap = one;
        one = other;
        other = swap;
    }
    int *state = &links[one->index][other->index];
    if (__atomic_load_n(state, __ATOMIC_ACQUIRE) == LINK_UP)
        return CUDA_SUCCESS;
    if (!gpc_session_works(one) || !gpc_session_works(other))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    pthread_mutex_lock(&lock);
    if (*state == LINK_NONE) {
        int now = link_up(one, other) == CUDA_SUCCESS ? LINK_UP : LINK_FAILED;
        __atomic_store_n(state, now, __ATOMIC_RELEASE);
    }
    CUresult r = *state == LINK_UP ? CUDA_SUCCESS : CUDA_ERROR_DEVICE_UNAVAILABLE;
    pthread_mutex_unlock(&lock);
    return r;
}
