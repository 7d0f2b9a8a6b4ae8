#include "later.h"

#include <stdlib.h>

#include "handles.h"
#include "host_function.h"
#include "peer.h"

struct later {
    struct gpw_wait wait;
    CUcontext context;
    uint64_t ended; /* of the contexts that had ended; UINT64_MAX: they do not matter */
    void (*run)(struct gpw_session *s, void *arg);
    void *arg;
};

bool gpw_streams_blocked(struct gpw_session *s)
{
    return gpw_host_functions_pending(s) || gpw_peers_pending(s);
}

static bool later_ready(struct gpw_session *s, struct gpw_wait *w)
{
    (void)w;
    return !gpw_streams_blocked(s);
}

static bool later_poll(struct gpw_session *s, struct gpw_wait *w)
{
    struct later *l = (struct later *)w;
    if (gpw_streams_blocked(s)) /* another one that was ready has submitted work */
        return false;
    CUcontext before = NULL;
    s->driver->cuCtxGetCurrent(&before);
    if (gpw_handle_find(s, GP_HANDLE_CONTEXT, (uint64_t)l->context) != 0) /* it still is */
        s->driver->cuCtxSetCurrent(l->context);
    if (l->ended == UINT64_MAX || l->ended == s->contexts_ended)
        l->run(s, l->arg);
    s->driver->cuCtxSetCurrent(before);
    free(l);
    return true;
}

static void later_cancel(struct gpw_session *s, struct gpw_wait *w)
{
    (void)s;
    free(w);
}

static void put_off(struct gpw_session *s, void (*run)(struct gpw_session *s, void *arg), void *arg,
                    uint64_t ended)
{
    struct later *l = gpw_streams_blocked(s) ? malloc(sizeof *l) : NULL;
    if (!l) {
        run(s, arg);
        return;
    }
    *l = (struct later){.wait = {.what = "work until no stream is blocked",
                                 .ready = later_ready,
                                 .poll = later_poll,
                                 .cancel = later_cancel},
                        .ended = ended,
                        .run = run,
                        .arg = arg};
    s->driver->cuCtxGetCurrent(&l->context);
    gpw_wait_add(s, &l->wait);
}

void gpw_when_none_blocked(struct gpw_session *s, void (*run)(struct gpw_session *s, void *arg),
                           void *arg)
{
    put_off(s, run, arg, UINT64_MAX);
}

void gpw_end_when_none_blocked(struct gpw_session *s, void (*run)(struct gpw_session *s, void *arg),
                               void *arg)
{
    put_off(s, run, arg, s->contexts_ended);
}
