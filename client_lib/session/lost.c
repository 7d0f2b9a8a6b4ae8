/* A session ends before its program does: whoever waits is told, and people are, once. */
#include <errno.h>
#include <stdio.h>

#include "landing.h"
#include "memory.h"
#include "session.h"

/* "device 2" or "devices 2 to 5", as the application counts them. */
static void name_devices(const struct gpc_session *s, char *out, size_t size)
{
    unsigned count = s->snapshot ? s->snapshot->device_count : 0;
    CUdevice least = GP_DEVICES_MAX, most = -1;
    for (unsigned i = 0; i < count; i++) {
        CUdevice device = gpc_device_of(s, i);
        if (device < 0)
            continue;
        least = device < least ? device : least;
        most = device > most ? device : most;
    }
    if (most < 0)
        snprintf(out, size, "on no device that is visible");
    else if (most > least)
        snprintf(out, size, "on devices %d to %d", least, most);
    else
        snprintf(out, size, "on device %d", least);
}

/* A call that the reader has taken is no longer listed: it gets its answer. */
void gpc_session_lose(struct gpc_session *s, const char *what)
{
    gpc_ground(s);
    gpc_pinned_lose_begin();
    pthread_mutex_lock(&s->wait_lock);
    bool first = !s->broken;
    __atomic_store_n(&s->broken, true, __ATOMIC_RELAXED);
    for (struct gpc_call *c = s->waiting; c; c = c->next) {
        c->result = gpc_session_gone(s);
        c->state = GPC_CALL_FAILED;
    }
    s->waiting = NULL;
    pthread_cond_broadcast(&s->wait_changed);
    pthread_mutex_unlock(&s->wait_lock);
    gpc_pinned_lose_end(s);
    gpc_session_set_sticky(s, gpc_session_gone(s));
    if (!first || __atomic_load_n(&s->leaving, __ATOMIC_RELAXED))
        return;
    char where[64] = "of this process";
    if (gpc_session_count() > 1)
        name_devices(s, where, sizeof where);
    if (s->why[0])
        gpc_log(GPC_LOG_ERROR,
                "session %s on %s was ended: %s; every CUDA call %s fails from here on", s->id,
                s->server, s->why, where);
    else
        gpc_log(GPC_LOG_ERROR,
                "session %s on %s: %s; every CUDA call %s fails from here on "
                "(start the program again; the server's log has the reason)",
                s->id, s->server, what, where);
}

/* What a transport's error means for the user. */
static const char *why_lost(int error)
{
    switch (error) {
    case -EPROTO:
        return "the worker sent a malformed message";
    case -EBADF:
        return "the program has closed descriptors that were gpupool's";
    default:
        return "the connection to the worker was lost";
    }
}

void gpc_session_lose_for(struct gpc_session *s, int error)
{
    gpc_session_lose(s, why_lost(error));
}
