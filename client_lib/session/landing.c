#include "landing.h"

#include <string.h>

#include "memory.h"

/* As gpc_reply_fill finds it. */
static bool call_lands(struct gpc_call *call, const void *head, size_t size, struct gp_landing *to)
{
    uint32_t n;
    const struct gpc_call_room *out = &call->out[0];
    size_t begin = gp_align8(call->reply_size);
    if (call->lands || !call->reply || call->out_count != 1 || call->reply_size > GP_MESSAGE_HEAD ||
        out->length_at + sizeof n > call->reply_size || begin > size)
        return false;
    memcpy(&n, (const char *)head + out->length_at, sizeof n);
    if (n > out->room || n > size - begin)
        return false;
    *to = (struct gp_landing){out->to, begin, n};
    call->lands = true;
    return true;
}

static bool answer_lands(struct gpc_session *s, const struct gp_reply *head, size_t size,
                         struct gp_landing *to)
{
    if (head->result != CUDA_SUCCESS)
        return false;
    pthread_mutex_lock(&s->wait_lock);
    struct gpc_call *call = s->waiting;
    while (call && call->seq != head->h.seq)
        call = call->next;
    bool lands = call && call_lands(call, head, size, to);
    pthread_mutex_unlock(&s->wait_lock);
    return lands;
}

static bool lands(void *session, const void *bytes, size_t size, struct gp_landing *to)
{
    union {
        unsigned char bytes[GP_MESSAGE_HEAD];
        struct gp_header h;
        struct gp_reply reply;
        struct gp_req_gp_pinned_data pinned;
    } head;
    memcpy(head.bytes, bytes, sizeof head.bytes);
    if (head.h.size != size)
        return false;
    if (head.h.flags & GP_FLAG_REPLY)
        return answer_lands(session, &head.reply, size, to);
    return head.h.op == GP_OP_gp_pinned_data && gpc_pinned_lands(session, &head.pinned, size, to);
}

void gpc_landing_start(struct gpc_session *s)
{
    if (s->transport->land)
        s->transport->land(s->channel, lands, s);
}

bool gpc_landed(const struct gpc_session *s)
{
    return s->transport->landed && s->transport->landed(s->channel);
}

void gpc_ground(struct gpc_session *s)
{
    if (s->transport->ground)
        s->transport->ground(s->channel);
}

bool gpc_reply_fill(struct gpc_call *call, const struct gp_reply *reply, size_t size, bool landed)
{
    call->result = gpc_result_from(reply->result);
    if (call->result != CUDA_SUCCESS || !call->reply)
        return true;
    if (size < call->reply_size)
        return false;
    memcpy(call->reply, reply, call->reply_size);
    size_t at = call->reply_size;
    for (unsigned i = 0; i < call->out_count; i++) {
        struct gpc_call_room *out = &call->out[i];
        uint32_t n;
        memcpy(&n, (const char *)reply + out->length_at, sizeof n);
        at = gp_align8(at);
        if (at > size || n > size - at || n > out->room)
            return false;
        if (!landed)
            memcpy(out->to, (const char *)reply + at, n);
        out->got = n;
        at += n;
    }
    return true;
}
