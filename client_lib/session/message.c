#include "message.h"

#include <string.h>

#include "monotonic.h"
#include "observe.h"
#include "stats.h"
#include "timeline.h"

/* What is no larger is copied together: one piece is the fastest for every transport. */
#define SMALL_MESSAGE 2048
/* No page is smaller. */
#define PAGE 4096

/* `total` bytes, the head and what `in` has, each aligned. */
static int send_pieces(struct gpc_session *s, struct gp_header *head, uint32_t head_size,
                       const struct iovec *in, unsigned count, size_t total, unsigned flags)
{
    static const uint64_t zeros = 0;
    if (count == 0) {
        struct iovec one = {head, head_size};
        return s->transport->send(s->channel, &one, 1, flags);
    }
    if (total <= SMALL_MESSAGE) {
        uint64_t small[SMALL_MESSAGE / 8];
        size_t at = head_size;
        memcpy(small, head, head_size);
        for (unsigned i = 0; i < count; i++) {
            memcpy((char *)small + at, in[i].iov_base, in[i].iov_len);
            size_t end = at + in[i].iov_len;
            at = gp_align8(end);
            memset((char *)small + end, 0, at - end);
        }
        struct iovec one = {small, total};
        return s->transport->send(s->channel, &one, 1, flags);
    }
    struct iovec iov[1 + 2 * GPC_CALL_TAILS];
    int pieces = 0;
    iov[pieces++] = (struct iovec){head, head_size};
    for (unsigned i = 0; i < count; i++) {
        if (in[i].iov_len == 0)
            continue;
        iov[pieces++] = in[i];
        size_t pad = gp_align8(in[i].iov_len) - in[i].iov_len;
        if (pad)
            iov[pieces++] = (struct iovec){(void *)(uintptr_t)&zeros, pad};
    }
    return s->transport->send(s->channel, iov, pieces, flags);
}

void gpc_message_touch(const struct gpc_session *s, const struct iovec *in, unsigned count)
{
    for (unsigned i = 0; s->transport->take_back && i < count; i++) {
        const volatile char *bytes = in[i].iov_base;
        size_t size = in[i].iov_len > SMALL_MESSAGE ? in[i].iov_len : 0;
        for (size_t at = 0; at < size; at += PAGE)
            (void)bytes[at];
        if (size)
            (void)bytes[size - 1];
    }
}

int gpc_message_send(struct gpc_session *s, struct gp_header *head, uint32_t head_size,
                     const struct iovec *in, unsigned count, unsigned flags)
{
    size_t total = head_size;
    for (unsigned i = 0; i < count; i++)
        total = gp_align8(total) + in[i].iov_len;
    total = gp_align8(total);
    head->size = (uint32_t)total;
    GPC_STATS_ADD(messages_sent, 1);
    GPC_STATS_ADD(bytes_sent, total);
    if (!GPC_OBSERVED(GPC_OBSERVER_TIMELINE))
        return send_pieces(s, head, head_size, in, count, total, flags);
    uint64_t began_ns = gp_now_ns();
    int r = send_pieces(s, head, head_size, in, count, total, flags);
    gpc_timeline_message(head->op, head->seq, head->size, began_ns);
    return r;
}
