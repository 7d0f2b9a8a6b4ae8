/*
 * A hostile worker and front end: everything that the client decodes of what they send. The
 * first byte chooses; messages are cut from the rest by a length before each. The call that
 * waits has buffers of their exact size, so that one byte too many is seen.
 */
#include <stdint.h>
#include <string.h>

#include "fake_worker.h"
#include "front_end.h"
#include "gp_ids.h"
#include "operations.h"
#include "snapshot_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void front_end(const uint8_t *data, size_t size)
{
    struct gpc_admission a;
    char code[32], why[64];
    gpc_front_end_parse((const char *)data, size, &a, code, why, sizeof why);
}

static void snapshot(const uint8_t *data, size_t size)
{
    struct gp_snapshot *s = calloc(1, GP_SNAPSHOT_MAX);
    void *sent = malloc(size ? size : 1);
    memcpy(sent, data, size);
    if (!gpc_snapshot_read(sent, (uint32_t)size, s) && s->device_count)
        (void)!strlen(s->devices[s->device_count - 1].name);
    free(sent);
    free(s);
}

/* A list of operations: whatever it says, some of ours are there, or all, or it is malformed. */
static void operations(const uint8_t *data, size_t size)
{
    uint32_t *list = malloc(size ? size : 1);
    struct gp_shared shared;
    memcpy(list, data, size);
    if (gp_shared_read(&shared, list, (uint32_t)(size / sizeof *list)))
        (void)!gp_shared_lacks(&shared, gp_core_requests);
    free(list);
}

/* What waits while messages come: an answer with two tails, and bytes for pinned memory. */
struct waiting {
    struct gp_req_gp_module_load request;
    struct gp_rep_gp_module_load reply;
    struct gpc_call call;
    char *info, *error, *pinned;
};

static void wait_begin(struct waiting *w, struct gpc_session *s)
{
    w->info = malloc(24);
    w->error = malloc(8);
    w->pinned = malloc(16);
    gpc_pinned_expect(s, w->pinned, 16);
    w->request.h.op = GP_OP_gp_module_load;
    w->call = (struct gpc_call){.route.session = s,
                                .request = &w->request.h,
                                .request_size = sizeof w->request,
                                .reply = &w->reply.r,
                                .reply_size = sizeof w->reply};
    gpc_call_out(&w->call, w->info, 24, 1, offsetof(struct gp_rep_gp_module_load, n_info_log));
    gpc_call_out(&w->call, w->error, 8, 1, offsetof(struct gp_rep_gp_module_load, n_error_log));
    gpc_call_begin(&w->call);
}

static void messages(const uint8_t *data, size_t size)
{
    struct waiting w = {.info = NULL};
    struct gpc_session *s = fake_session();
    s->leaving = true; /* the end is not told: it comes a million times */
    wait_begin(&w, s);
    for (unsigned n = 0; size > 2 && n < FAKE_MESSAGES / 2; n++) {
        size_t wanted = (size_t)data[0] | (size_t)data[1] << 8, take = size - 2;
        if (wanted < take)
            take = wanted;
        fake_say(data + 2, take);
        data += 2 + take;
        size -= 2 + take;
    }
    gpc_session_poll(s);
    fake_fail_sends(); /* ends the session: nothing waits any more */
    gpc_wire_gp_captured_open(1, 1);
    free(w.info);
    free(w.error);
    free(w.pinned);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    switch (data[0] % 5) {
    case 0:
        front_end(data + 1, size - 1);
        break;
    case 1:
        snapshot(data + 1, size - 1);
        break;
    case 4:
        operations(data + 1, size - 1);
        break;
    default:
        messages(data + 1, size - 1);
    }
    return 0;
}
