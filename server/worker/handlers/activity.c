/* Recording what the GPU does, and bringing it to the client. */
#include "activity.h"

#include "cupti_records.h"
#include "gpw_handlers.h"
#include "monotonic.h"

/* Records on their way into messages. */
struct bringing {
    struct gpw_session *session;
    char *bytes; /* GP_ACTIVITY_BYTES */
    uint32_t used;
};

static void send_records(struct bringing *b)
{
    if (b->used)
        gpw_notify_gp_activity(b->session, b->used, b->bytes);
    b->used = 0;
}

/* The client's ordinal of a device of the driver's. */
static bool find_device(const struct gpw_session *s, uint32_t *device)
{
    for (uint32_t i = 0; i < s->device_count; i++)
        if ((uint32_t)s->devices[i] == *device) {
            *device = i;
            return true;
        }
    return false;
}

static bool find_devices(const struct gpw_session *s, struct gp_activity_record *r)
{
    bool two = gp_activity_between_gpus(r);
    return find_device(s, &r->device) &&
           (!two || (find_device(s, &r->from_device) && find_device(s, &r->to_device)));
}

static void add(void *arg, const struct gp_activity_record *record, const char *name)
{
    struct bringing *b = arg;
    struct gp_activity_record r = *record;
    if (!find_devices(b->session, &r))
        return;
    r.name_bytes = name ? (uint32_t)strnlen(name, GP_ACTIVITY_NAME - 1) + 1 : 0;
    r.size = (uint32_t)gp_activity_size(r.name_bytes);
    if (b->used + r.size > GP_ACTIVITY_BYTES)
        send_records(b);
    char *to = b->bytes + b->used;
    memset(to, 0, r.size);
    memcpy(to, &r, sizeof r);
    if (r.name_bytes)
        memcpy(to + sizeof r, name, r.name_bytes - 1);
    b->used += r.size;
}

static void bring(struct gpw_session *s, bool forced)
{
    struct bringing b = {.session = s, .bytes = gpw_scratch(s, 0, GP_ACTIVITY_BYTES)};
    gpa_flush(forced);
    gpa_take(add, &b);
    send_records(&b);
}

void gpw_activity_bring(struct gpw_session *s)
{
    if (gpa_on())
        bring(s, false);
}

static CUresult start(struct gpw_session *s)
{
    char why[256];
    if (gpa_on())
        return CUDA_SUCCESS;
    if (!gpw_budget_take(s, GPW_USE_ACTIVITY, GPA_BYTES))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (gpa_open(s->driver->library, s->cupti, why, sizeof why) && gpa_start(why, sizeof why))
        return CUDA_SUCCESS;
    gpw_budget_give(s, GPW_USE_ACTIVITY, GPA_BYTES);
    gpw_log("warn", "%s", why);
    gpw_notify_gp_said(s, false, (uint32_t)strlen(why), why);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void stop(struct gpw_session *s)
{
    if (!gpa_on())
        return;
    bring(s, true);
    gpa_stop();
    gpw_budget_give(s, GPW_USE_ACTIVITY, GPA_BYTES);
}

CUresult gpw_gp_activity_ask(struct gpw_session *s, uint32_t what, uint64_t *now, uint64_t *dropped)
{
    CUresult r = CUDA_SUCCESS;
    if (what == GP_ACTIVITY_START)
        r = start(s);
    else if (what == GP_ACTIVITY_STOP)
        stop(s);
    else if (what != GP_ACTIVITY_CLOCK && gpa_on())
        bring(s, what == GP_ACTIVITY_FLUSH_FORCED);
    *now = gp_now_ns();
    *dropped = gpa_dropped();
    return r;
}
