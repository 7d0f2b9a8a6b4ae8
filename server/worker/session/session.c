/* Sending, answering, ending: what the generated dispatch and the handlers use. */
#include "session.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gp_errors.h"
#include "gpw_handlers.h"
#include "output.h"

void gpw_log(const char *level, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text - 1, format, args);
    va_end(args);
    for (char *c = text; n >= 0 && *c; c++) /* much in it is a client's: one line stays one */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
    if (n >= 0)
        dprintf(STDERR_FILENO, "%s: %s\n", level, text);
}

CUresult gpw_forbidden(struct gpw_session *s)
{
    CUdeviceptr probe;
    CUresult r = s->strict_now ? s->driver->cuMemAlloc_v2(&probe, 1) : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS && s->strict_now)
        s->driver->cuMemFree_v2(probe);
    return r;
}

void gpw_message_tail(struct gpw_message *m, const void *from, uint32_t bytes)
{
    m->tails[m->count++] = (struct iovec){(void *)(uintptr_t)from, bytes};
}

int gpw_session_send(struct gpw_session *s, struct gpw_message *m)
{
    static const uint64_t zeros = 0;
    struct iovec iov[8];
    int pieces = 0;
    size_t total = m->head_size;
    iov[pieces++] = (struct iovec){m->head, m->head_size};
    for (unsigned i = 0; i < m->count; i++) {
        size_t bytes = m->tails[i].iov_len, pad = gp_align8(bytes) - bytes;
        if (bytes)
            iov[pieces++] = m->tails[i];
        if (pad)
            iov[pieces++] = (struct iovec){(void *)(uintptr_t)&zeros, pad};
        total += bytes + pad;
    }
    m->head->size = (uint32_t)total;
    unsigned flags = m->flags | (s->more_to_say ? GP_SEND_LATER : 0);
    for (unsigned i = 0; i < m->count; i++)
        if (s->lends && m->tails[i].iov_base == s->lends)
            flags |= GP_SEND_LENT;
    int r = s->transport->send(s->channel, iov, pieces, flags);
    s->said_later = s->more_to_say;
    if (r != 0)
        s->ended = true;
    return r;
}

/* What kernels printed must be there before the answer of whoever waited. */
static int flush_output(struct gpw_session *s)
{
    const char *text;
    uint32_t n;
    int r = 0;
    while (r == 0 && !s->none_printed && (n = gpw_output_take(s->output, &text)) > 0)
        r = gpw_notify_gp_output(s, n, text);
    return r;
}

int gpw_session_tell_first(struct gpw_session *s)
{
    int r = flush_output(s);
    return r ? r : gpw_failures_tell(s);
}

/* Where a context is over, the driver says so of any memory; that we do not know it is our word. */
static CUresult because(const struct gpw_session *s, CUresult r)
{
    return r == CUDA_ERROR_INVALID_VALUE && s->over ? (CUresult)s->over : r;
}

int gpw_reply_token(struct gpw_session *s, struct gpw_token t, CUresult result,
                    struct gpw_message *m)
{
    int r = gpw_session_tell_first(s);
    if (r != 0)
        return r;
    struct gp_reply *reply = (struct gp_reply *)m->head;
    reply->h.op = t.op;
    reply->h.flags = GP_FLAG_REPLY;
    reply->h.seq = t.seq;
    reply->result = (int32_t)because(s, result);
    return gpw_session_send(s, m);
}

int gpw_reply(struct gpw_session *s, const struct gp_header *h, CUresult r, struct gpw_message *m)
{
    return gpw_reply_token(s, gpw_token_of(h), r, m);
}

int gpw_async_result(struct gpw_session *s, const struct gp_header *h, CUresult r)
{
    if (h->flags & GP_FLAG_WAITED) {
        struct gp_reply reply = {.result = 0};
        struct gpw_message m = {.head = &reply.h, .head_size = sizeof reply};
        return gpw_reply(s, h, r, &m);
    }
    if (r == CUDA_SUCCESS)
        return 0;
    r = because(s, r);
    bool sticky = gp_error_is_sticky((int)r);
    if (sticky && s->sticky)
        return 0; /* told already */
    if (sticky)
        s->sticky = (int32_t)r;
    return gpw_failures_add(s, h->op, (int32_t)r, sticky);
}

int gpw_session_broken(struct gpw_session *s, const char *why)
{
    gpw_log("error", "session ended: the client (pid %u, %s) sent what no client sends: %s",
            s->client_pid, s->program, why);
    s->ended = true;
    return -1;
}

void gpw_session_end(struct gpw_session *s, const char *format, ...)
{
    char why[256];
    va_list args;
    if (s->ended)
        return;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    gpw_log("error", "session ended: %s (the client is pid %u, %s)", why, s->client_pid,
            s->program);
    if (s->greeted && gpw_notify_gp_said(s, true, (uint32_t)strlen(why), why) == 0)
        s->transport->flush(s->channel);
    s->ended = true;
}

void *gpw_scratch(struct gpw_session *s, unsigned index, uint32_t bytes)
{
    (void)bytes; /* decoders let no more than GP_CHUNK_MAX through */
    return s->scratch[index];
}
