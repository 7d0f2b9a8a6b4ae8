#include "fake_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "activity_record.h"
#include "ask.h"
#include "fake_page.h"
#include "gp_ids.h"
#include "operations.h"

/* The window of a device: not more of the address space than a child should have to map. */
#define DEVICES 2u

static _Alignas(16) unsigned char whole[GP_MESSAGE_MAX + 64];

void fake_server_begin(struct fake_server *s, uint32_t index)
{
    s->index = index;
}

/* A byte that is another, now and then. */
static void spoil(struct draw *d, void *bytes, size_t size)
{
    unsigned times = draw_byte(d) % 4;
    while (times-- && size)
        ((uint8_t *)bytes)[draw_number(d, 4) % size] ^= (uint8_t)(1 + draw_byte(d));
}

/* --- before there is a session ------------------------------------------------------------ */

size_t fake_server_admit(struct fake_server *s, char *answer, size_t room)
{
    static const char *const refusals[] = {"busy", "full", "bad-token", "version", "new"};
    char boot[64], text[1024];
    struct draw *d = &s->draw;
    gpc_boot_id(boot);
    uint8_t how = draw_byte(d);
    if (how >= 250)
        snprintf(text, sizeof text, "GPUPOOL/1 refused\ncode: %s\nmessage: no\n",
                 refusals[how - 250 < 5 ? how - 250 : 4]);
    else
        snprintf(text, sizeof text,
                 "GPUPOOL/1 ok\nsession: s%u\nshm: shm:///fuzz%u?door=w\nboot-id: %s\n"
                 "secret: 000102030405060708090a0b0c0d0e0f\nnote: hello\n",
                 s->index, s->index, boot);
    size_t size = strlen(text);
    spoil(d, text, size);
    size = draw_byte(d) > 240 ? draw_number(d, 4) % (size + 1) : size;
    size = size < room ? size : room;
    memcpy(answer, text, size);
    return size;
}

static void device(struct gp_device_info *info, uint64_t begin)
{
    strcpy(info->name, "fake");
    strcpy(info->pci_bus_id, "0000:01:00.0");
    info->total_bytes = UINT64_C(1) << 30;
    info->window_begin = begin;
    info->window_end = begin + GP_WINDOW_SIZE;
    for (unsigned i = 0; i < GP_ATTRIBUTES; i++)
        info->attributes[i] = 1;
    info->attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32;
    info->attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
    info->attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024;
    info->attributes[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = INT32_MAX;
    info->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 8;
}

/* The operations that both have, and the snapshot. */
static uint32_t welcome(struct fake_server *s, const struct gp_req_gp_hello *q, struct gp_header *h)
{
    static uint64_t snapshot[GP_SNAPSHOT_MAX / 8];
    struct gp_snapshot *to = (void *)snapshot;
    struct gp_rep_gp_hello *a = (void *)h;
    struct draw *d = &s->draw;
    uint32_t at = sizeof *a, operations[GP_OPERATIONS];
    memset(snapshot, 0, sizeof *to + DEVICES * sizeof to->devices[0]);
    to->head_bytes = sizeof *to;
    to->device_bytes = sizeof to->devices[0];
    to->driver_version = 13000;
    to->device_count = DEVICES;
    to->size = to->head_bytes + DEVICES * to->device_bytes;
    for (unsigned i = 0; i < DEVICES; i++)
        device(&to->devices[i], q->window_base + i * GP_WINDOW_SIZE);
    s->draw.place = q->window_base;
    memcpy(operations, gp_operations, sizeof operations);
    uint32_t size = to->size;
    spoil(d, snapshot, size);
    spoil(d, snapshot, sizeof *to);
    spoil(d, operations, sizeof operations);
    a->wire = GP_WIRE_VERSION;
    a->n_known = draw_append(h, &at, operations, sizeof operations);
    a->n_snapshot = draw_append(h, &at, snapshot, size);
    return at;
}

/* --- what comes unasked ------------------------------------------------------------------- */

static void keep(struct fake_server *s, const struct gp_header *h, size_t size)
{
    void *copy = s->kept_count < FAKE_KEPT ? malloc(size) : NULL;
    if (!copy)
        return;
    memcpy(copy, h, size);
    s->kept[s->kept_count].message = copy;
    s->kept[s->kept_count++].size = size;
}

/* At once, or when the client would block; or cut, or of another size than it says. */
static void notify(struct fake_server *s, struct gp_header *h, uint32_t size, uint16_t op)
{
    uint8_t how = draw_byte(&s->draw);
    *h = (struct gp_header){.size = (uint32_t)gp_align8(size), .op = op};
    if (how >> 4 == 15)
        h->size = (uint32_t)draw_number(&s->draw, 4);
    size = (uint32_t)gp_align8(size);
    if (how >> 4 == 14)
        size = h->size = sizeof *h + (how & 15) * 8 % (size - sizeof *h + 1);
    if (how & 1)
        keep(s, h, size);
    else
        fake_server_say(s, h, size);
}

static void call_host(struct fake_server *s, uint64_t cookie)
{
    struct gp_req_gp_host_call q = {.cookie = cookie};
    q.stream_result = draw_byte(&s->draw);
    notify(s, &q.h, sizeof q, GP_OP_gp_host_call);
}

static void let_go(struct fake_server *s, uint64_t cookie)
{
    struct gp_req_gp_host_gone q = {.cookie = cookie};
    notify(s, &q.h, sizeof q, GP_OP_gp_host_gone);
}

static uint64_t known_cookie(struct fake_server *s)
{
    struct draw *d = &s->draw;
    return s->cookie_count ? s->cookies[draw_byte(d) % s->cookie_count % DRAW_KEPT]
                           : draw_number(d, 8);
}

/* Memory that the client may hand out by itself, which may be in use, or nowhere. */
static void spare(struct fake_server *s, uint64_t at, uint64_t behind)
{
    struct gp_req_gp_memory_spare q = {.at = at, .behind = behind};
    uint8_t how = draw_byte(&s->draw);
    if (how & 1)
        q.at = draw_address(&s->draw);
    if (how & 2)
        q.behind += draw_number(&s->draw, 8);
    notify(s, &q.h, sizeof q, GP_OP_gp_memory_spare);
}

/* What the GPU would write, or a number that was never given, or in a place that is another's. */
static void write_number(struct fake_server *s, uint64_t page, uint64_t place, uint64_t number)
{
    uint8_t how = draw_byte(&s->draw);
    if (how & 1)
        number = draw_number(&s->draw, 8);
    if (how & 2)
        place = draw_byte(&s->draw);
    if (!(how & 4))
        fake_page_write(page, place, number);
}

static void write_completion(struct fake_server *s, uint32_t place, uint64_t number)
{
    write_number(s, s->completions, place * (GP_COMPLETION_WORD_STEP / sizeof number), number);
}

static void free_slot(struct fake_server *s, uint32_t slot)
{
    struct gp_req_gp_arena_free q = {.slot = slot};
    notify(s, &q.h, sizeof q, GP_OP_gp_arena_free);
}

/* Bytes of a copy to pinned memory. */
static void bring(struct fake_server *s, const struct gp_req_gp_dtoh_pinned *asked)
{
    struct gp_req_gp_pinned_data *q = (void *)whole;
    struct draw *d = &s->draw;
    uint32_t at = sizeof *q, bytes = asked->bytes;
    if (bytes > GP_CHUNK_MAX)
        bytes = GP_CHUNK_MAX;
    memset(q, 0, sizeof *q);
    q->cookie = asked->cookie;
    q->offset = asked->offset;
    q->last = asked->last;
    uint8_t how = draw_byte(d);
    if (how > 200)
        q->offset += draw_number(d, 8);
    if (how > 225)
        bytes = (uint32_t)(draw_number(d, 4) % GP_CHUNK_MAX);
    q->bytes = q->n_data = bytes;
    if (how > 250)
        q->bytes ^= 1u << how % 32;
    memset(whole + at, how, gp_align8(bytes));
    notify(s, &q->h, at + bytes, GP_OP_gp_pinned_data);
}

static void say_text(struct fake_server *s, bool ends)
{
    struct gp_req_gp_said *q = (void *)whole;
    uint32_t at = sizeof *q;
    memset(whole, 0, 1024);
    q->ends = ends;
    q->n_text = q->bytes = draw_text(&s->draw, &q->h, &at);
    notify(s, &q->h, at, GP_OP_gp_said);
}

static void print(struct fake_server *s)
{
    struct gp_req_gp_output *q = (void *)whole;
    uint32_t at = sizeof *q;
    memset(whole, 0, 1024);
    q->n_text = q->bytes = draw_text(&s->draw, &q->h, &at);
    notify(s, &q->h, at, GP_OP_gp_output);
}

static void report(struct fake_server *s)
{
    struct gp_req_gp_async_error q = {.op = (uint32_t)draw_number(&s->draw, 2)};
    q.result = (int32_t)draw_number(&s->draw, 4);
    q.sticky = draw_below(&s->draw, 2);
    q.count = (uint32_t)draw_number(&s->draw, 4);
    notify(s, &q.h, sizeof q, GP_OP_gp_async_error);
}

/* What a GPU did: some records, each as it should be or with a few bytes changed. */
static void recount(struct fake_server *s)
{
    struct gp_req_gp_activity *q = (void *)whole;
    struct draw *d = &s->draw;
    uint32_t at = sizeof *q, count = draw_below(d, 4);
    memset(whole, 0, 4096);
    for (uint32_t i = 0; i < count; i++) {
        struct gp_activity_record r = {
            .kind = 1 + draw_below(d, 3), .start = 1, .end = 2, .copy = (uint8_t)draw_below(d, 11)};
        char name[24] = "a kernel \"quoted\"";
        r.device = draw_below(d, 2 * DEVICES);
        r.name_bytes = draw_below(d, 2) * (uint32_t)sizeof name;
        r.size = (uint32_t)gp_activity_size(r.name_bytes);
        spoil(d, &r, sizeof r);
        spoil(d, name, sizeof name);
        memcpy(whole + at, &r, sizeof r);
        memcpy(whole + at + sizeof r, name, sizeof name);
        at += (uint32_t)gp_activity_size(draw_below(d, 2) * (uint32_t)sizeof name);
    }
    q->n_records = q->bytes = at - (uint32_t)sizeof *q;
    notify(s, &q->h, at, GP_OP_gp_activity);
}

/* What nothing has led to. */
static void notice(struct fake_server *s)
{
    struct draw *d = &s->draw;
    struct gp_req_gp_dtoh_pinned any = {.bytes = 8};
    switch (draw_byte(d) % 12) {
    case 0:
        report(s);
        break;
    case 1:
        call_host(s, known_cookie(s));
        break;
    case 2:
        free_slot(s, (uint32_t)draw_number(d, 4));
        break;
    case 3:
        any.cookie = draw_number(d, 8);
        any.last = draw_below(d, 2);
        bring(s, &any);
        break;
    case 4:
        print(s);
        break;
    case 5:
        say_text(s, false);
        break;
    case 6:
        say_text(s, draw_byte(d) & 1);
        break;
    case 7:
        recount(s);
        break;
    case 8:
        let_go(s, known_cookie(s));
        break;
    case 9:
        spare(s, draw_address(d), draw_number(d, 8));
        break;
    case 10:
        write_number(s, draw_byte(d) & 1 ? s->page : s->completions, draw_byte(d),
                     draw_number(d, 8));
        break;
    default:
        notify(s, memset(whole, 0, 64), 16 + draw_below(d, 6) * 8, (uint16_t)draw_number(d, 2));
    }
}

/* What the GPU writes for who waits. */
static void complete(struct fake_server *s, const struct gp_header *asked)
{
    const struct gp_req_gp_stream_complete *stream = (const void *)asked;
    const struct gp_req_gp_context_complete *context = (const void *)asked;
    const struct gp_req_gp_dtoh_complete *download = (const void *)asked;
    const struct gp_req_gp_stream_signal *stream_signal = (const void *)asked;
    const struct gp_req_gp_context_signal *context_signal = (const void *)asked;
    const struct gp_req_gp_dtoh_signal *download_signal = (const void *)asked;
    switch (asked->op) {
    case GP_OP_gp_stream_complete:
        write_completion(s, stream->place, stream->number);
        break;
    case GP_OP_gp_context_complete:
        write_completion(s, context->place, context->number);
        break;
    case GP_OP_gp_dtoh_complete:
        write_completion(s, download->place, download->number);
        break;
    case GP_OP_gp_stream_signal:
        write_completion(s, stream_signal->place, stream_signal->number);
        break;
    case GP_OP_gp_context_signal:
        write_completion(s, context_signal->place, context_signal->number);
        break;
    case GP_OP_gp_dtoh_signal:
        write_completion(s, download_signal->place, download_signal->number);
        break;
    default:
        break;
    }
}

/* What an honest worker says because of a message, without being asked. */
static void follow(struct fake_server *s, const struct gp_header *asked)
{
    const struct gp_req_gp_host_function *f = (const void *)asked;
    const struct gp_req_gp_memory_free *freed = (const void *)asked;
    const struct gp_req_gp_event_record *event = (const void *)asked;
    switch (asked->op) {
    case GP_OP_gp_host_function:
        s->cookies[s->cookie_count++ % DRAW_KEPT] = f->cookie;
        call_host(s, f->cookie);
        break;
    case GP_OP_gp_node_host:
        s->cookies[s->cookie_count++ % DRAW_KEPT] =
            ((const struct gp_req_gp_node_host *)asked)->cookie;
        break;
    case GP_OP_cuGraphLaunch:
        if (s->cookie_count)
            call_host(s, known_cookie(s));
        break;
    case GP_OP_cuGraphDestroy:
        if (s->cookie_count)
            let_go(s, known_cookie(s));
        break;
    case GP_OP_gp_memory_free:
        if (!freed->idle)
            spare(s, freed->dptr, asked->seq);
        break;
    case GP_OP_gp_event_page_open:
        s->page = ((const struct gp_req_gp_event_page_open *)asked)->share;
        break;
    case GP_OP_gp_event_record:
        write_number(s, s->page, event->place, event->number);
        break;
    case GP_OP_gp_completion_open:
        s->completions = ((const struct gp_req_gp_completion_open *)asked)->share;
        break;
    case GP_OP_gp_htod_arena:
        free_slot(s, ((const struct gp_req_gp_htod_arena *)asked)->slot);
        break;
    case GP_OP_gp_dtoh_pinned:
        bring(s, (const void *)asked);
        break;
    default:
        complete(s, asked);
        break;
    }
}

/* --- answers ------------------------------------------------------------------------------ */

/* What the launch of every kernel depends on: as zeros nothing would be launched. */
static void describe(struct gp_function_attributes *a)
{
    a->known |= 1;
    a->flags ^= GP_DESCRIBED_PARAMETERS | GP_DESCRIBED_LOADED;
    a->values[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] ^= 1024;
}

/* The answer as an honest worker might give it; its bytes. */
static uint32_t right(struct fake_server *s, const struct gp_header *asked, struct gp_header *h)
{
    const struct draw_answer *a = NULL;
    for (unsigned i = 0; i < draw_answer_count && !a; i++)
        if (draw_answers[i].op == asked->op)
            a = &draw_answers[i];
    memset(h, 0, a ? a->fixed + 4096 : sizeof(struct gp_reply));
    if (asked->op == GP_OP_gp_hello)
        return welcome(s, (const void *)asked, h);
    uint32_t size = a ? a->fill(&s->draw, asked, h) : sizeof(struct gp_reply);
    switch (asked->op) {
    case GP_OP_gp_module_get_function:
    case GP_OP_gp_library_get_kernel:
    case GP_OP_gp_kernel_describe:
    case GP_OP_gp_function_describe:
        describe((void *)((struct gp_reply *)h + 1));
        break;
    default:
        break;
    }
    return size;
}

/* Lies: an error, another call's number, another size, other bytes. */
static uint32_t distort(struct fake_server *s, struct gp_header *h, uint32_t size, unsigned how)
{
    struct draw *d = &s->draw;
    uint32_t other;
    switch (how) {
    case 8:
        ((struct gp_reply *)h)->result = (int32_t)draw_number(d, 4);
        break;
    case 10:
        other = sizeof *h + (uint32_t)(draw_number(d, 4) % (size - sizeof *h + 1)) / 8 * 8;
        return h->size = other;
    case 11:
        other = size + 8 * draw_below(d, 8);
        if (other <= GP_MESSAGE_MAX) {
            memset((char *)h + size, 0xff, other - size);
            return h->size = other;
        }
        break;
    case 12:
        h->seq += draw_byte(d) ? draw_number(d, 8) : UINT64_MAX;
        break;
    case 14:
        spoil(d, h, size);
        break;
    case 15: /* lengths lie first behind the result */
        spoil(d, (struct gp_reply *)h + 1, size > 88 ? 64 : size - sizeof(struct gp_reply));
        break;
    default:
        break;
    }
    return size;
}

void fake_server_answer(struct fake_server *s, const struct gp_header *asked)
{
    struct gp_reply *r = (void *)whole;
    uint8_t how = draw_byte(&s->draw);
    if ((how & 15) >= 14)
        notice(s);
    follow(s, asked);
    if (!(asked->flags & GP_FLAG_WAITED) || how == 0xd0)
        return; /* and how 0xd0: there will be no answer */
    uint32_t size = (uint32_t)gp_align8(right(s, asked, &r->h));
    r->h = (struct gp_header){
        .size = size, .op = asked->op, .flags = GP_FLAG_REPLY, .seq = asked->seq};
    size = distort(s, &r->h, size, how >> 4);
    if (how >> 4 == 9)
        keep(s, &r->h, size);
    else
        fake_server_say(s, whole, size);
    if (how >> 4 == 13)
        fake_server_say(s, whole, size); /* again */
    if ((how & 15) == 13)
        notice(s);
}

bool fake_server_say_kept(struct fake_server *s)
{
    bool any = s->kept_count != 0;
    for (unsigned i = 0; i < s->kept_count; i++) {
        fake_server_say(s, s->kept[i].message, s->kept[i].size);
        free(s->kept[i].message);
    }
    s->kept_count = 0;
    return any;
}
