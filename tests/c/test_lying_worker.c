/* A worker that lies: whatever it says of its devices, answers or announces, the client refuses or
 * survives, and touches no memory but what it was asked to fill. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_worker.h"
#include "front_end.h"
#include "gp_ids.h"
#include "operations_there.h"
#include "snapshot_check.h"

static int set_up(void **state)
{
    (void)state;
    fake_session();
    return 0;
}

/* --- what it says of its devices --- */

#define DEVICES 2
#define SNAPSHOT_BYTES (sizeof(struct gp_snapshot) + DEVICES * sizeof(struct gp_device_info))

static struct gp_snapshot *honest(void)
{
    static uint64_t room[SNAPSHOT_BYTES / 8 + 1];
    struct gp_snapshot *s = (void *)room;
    memset(room, 0, sizeof room);
    s->size = SNAPSHOT_BYTES;
    s->head_bytes = sizeof *s;
    s->device_bytes = sizeof s->devices[0];
    s->driver_version = 13000;
    s->device_count = DEVICES;
    for (unsigned i = 0; i < DEVICES; i++) {
        struct gp_device_info *d = &s->devices[i];
        strcpy(d->name, "a GPU");
        strcpy(d->pci_bus_id, "0000:3b:00.0");
        d->total_bytes = (uint64_t)80 << 30;
        d->window_begin = GP_WINDOW_BASE + i * GP_WINDOW_SIZE;
        d->window_end = d->window_begin + GP_WINDOW_SIZE;
        for (unsigned a = 1; a < GP_ATTRIBUTES; a++)
            d->attributes[a] = 64;
        d->greatest_priority = -5;
        d->topology_count = 66;
    }
    return s;
}

/* What the client makes of what came. */
static struct gp_snapshot *taken(void)
{
    static uint64_t room[GP_SNAPSHOT_MAX / 8];
    return (void *)room;
}

static bool refused(const struct gp_snapshot *s)
{
    return gpc_snapshot_read(s, SNAPSHOT_BYTES, taken()) != NULL;
}

static void sizes_of_a_snapshot(void **state)
{
    (void)state;
    struct gp_snapshot *s = honest();
    assert_false(refused(s));
    for (uint32_t bytes = 0; bytes < SNAPSHOT_BYTES; bytes++)
        assert_non_null(gpc_snapshot_read(s, bytes, taken()));
    static const uint32_t counts[] = {0, 1, 3, GP_DEVICES_MAX + 1, UINT32_MAX, 0x80000002u};
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        s->device_count = counts[i];
        assert_true(refused(s));
    }
}

/* A worker of a later release has more to say of everything. */
static void a_longer_snapshot(void **state)
{
    (void)state;
    enum { HEAD = sizeof(struct gp_snapshot) + 8, DEVICE = sizeof(struct gp_device_info) + 24 };
    static uint64_t room[(HEAD + 2 * DEVICE) / 8];
    char *bytes = (char *)room;
    memset(room, 0xa5, sizeof room);
    struct gp_snapshot *from = honest(), *longer = (void *)room, *to = taken();
    memcpy(longer, from, sizeof *from);
    longer->size = HEAD + DEVICES * DEVICE;
    longer->head_bytes = HEAD;
    longer->device_bytes = DEVICE;
    for (unsigned i = 0; i < DEVICES; i++)
        memcpy(bytes + HEAD + i * DEVICE, &from->devices[i], sizeof from->devices[i]);
    char plain[SNAPSHOT_BYTES];
    assert_false(refused(from));
    memcpy(plain, taken(), sizeof plain);
    assert_null(gpc_snapshot_read(room, longer->size, to));
    assert_memory_equal(to, plain, sizeof plain);

    static const struct {
        uint32_t head, device;
    } rows[] = {{HEAD - 8, DEVICE},
                {HEAD, DEVICE - 8},
                {0, DEVICE},
                {HEAD, 0},
                {UINT32_MAX, 1},
                {GP_SNAPSHOT_HEAD_LEAST - 8, DEVICE + 8},
                {HEAD + 2 * DEVICE, 0},
                {HEAD, UINT32_MAX},
                {HEAD - 4, DEVICE + 2}};
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        longer->head_bytes = rows[i].head;
        longer->device_bytes = rows[i].device;
        assert_non_null(gpc_snapshot_read(room, longer->size, to));
    }
}

/* --- what it says of its operations --- */

static uint32_t known[GP_OPERATIONS];

static const char *take_without(struct gpc_session *s, uint16_t op)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < GP_OPERATIONS; i++)
        if (gp_operations[i] >> 16 != op)
            known[count++] = gp_operations[i];
    return gpc_operations_take(s, known, count * sizeof known[0]);
}

static void operations_of_a_worker(void **state)
{
    (void)state;
    struct gpc_session *s = gpc_session_at(0);
    s->wire = GP_WIRE_VERSION;
    assert_null(take_without(s, 0));
    assert_false(s->shared.partial);
    assert_non_null(strstr(take_without(s, GP_OP_gp_launch), "'gp_launch'"));
    assert_non_null(gpc_operations_take(s, known, 5)); /* no whole number of them */
    known[1] = known[0];
    assert_non_null(gpc_operations_take(s, known, 2 * sizeof known[0]));
    s->wire = GP_WIRE_VERSION + 1; /* a protocol that nobody has offered */
    assert_non_null(take_without(s, 0));
    memset(&s->shared, 0, sizeof s->shared);
}

/* What it has not is refused here, and it hears nothing of it. */
static void an_operation_that_it_lacks(void **state)
{
    (void)state;
    struct gpc_session *s = gpc_session_at(0);
    s->wire = GP_WIRE_VERSION;
    assert_null(take_without(s, GP_OP_gp_captured_write));
    unsigned before = fake_channel.sent;
    assert_int_equal(gpc_wire_gp_captured_write(1, 1, "x"), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(fake_channel.sent, before);
    assert_false(gpc_sessions_have(GP_OP_gp_captured_write));
    assert_true(gpc_sessions_have(GP_OP_gp_captured_read));
    assert_true(gpc_sessions_have(GP_OP_cuGetErrorName)); /* which never travels */
    assert_null(take_without(s, 0));
    assert_int_equal(gpc_wire_gp_captured_write(1, 1, "x"), CUDA_SUCCESS);
    assert_int_equal(fake_channel.sent, before + 1);
}

static void texts_of_a_snapshot(void **state)
{
    (void)state;
    struct gp_snapshot *s = honest();
    memset(s->devices[1].name, 'x', sizeof s->devices[1].name);
    assert_true(refused(s)); /* has no end */
    s = honest();
    memset(s->devices[0].pci_bus_id, '0', sizeof s->devices[0].pci_bus_id);
    assert_true(refused(s));
    s = honest();
    strcpy(s->devices[0].name, "\033[2Jnothing to see");
    assert_true(refused(s));
}

static void windows_of_a_snapshot(void **state)
{
    (void)state;
    static const struct {
        uint64_t begin, end;
        bool right;
    } rows[] = {
        {0, 0, true},
        {GP_WINDOW_BASE, GP_WINDOW_BASE + GP_WINDOW_SIZE, true},
        {0, GP_WINDOW_SIZE, false},              /* what programs have */
        {GP_WINDOW_BASE, GP_WINDOW_BASE, false}, /* nothing */
        {GP_WINDOW_BASE + GP_WINDOW_SIZE, GP_WINDOW_BASE, false},
        {GP_WINDOW_BASE, UINT64_MAX, false}, /* beyond all addresses */
        {GP_WINDOW_BASE + 4096, GP_WINDOW_BASE + GP_WINDOW_SIZE, false},
        {GP_WINDOW_BASE + GP_WINDOW_SIZE, GP_WINDOW_BASE + 2 * GP_WINDOW_SIZE, false}, /* twice */
    };
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gp_snapshot *s = honest();
        s->devices[0].window_begin = rows[i].begin;
        s->devices[0].window_end = rows[i].end;
        assert_int_equal(refused(s), !rows[i].right);
    }
}

static void numbers_of_a_snapshot(void **state)
{
    (void)state;
    static const int32_t wrong[] = {0, -1, GP_ATTRIBUTE_NONE};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct gp_snapshot *s = honest();
        s->devices[1].attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE] = wrong[i]; /* is divided by */
        assert_true(refused(s));
    }
    struct gp_snapshot *s = honest();
    s->devices[0].attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = INT32_MAX;
    assert_true(refused(s));
    s = honest();
    s->devices[0].topology_count = GP_TOPOLOGY_MAX + 1;
    assert_true(refused(s));
    s = honest();
    s->devices[0].least_priority = INT32_MIN;
    assert_true(refused(s));
    s = honest();
    s->devices[0].total_bytes = UINT64_MAX;
    assert_true(refused(s));
}

static void devices_lack_what_is_refused(void **state)
{
    (void)state;
    const int32_t *has = taken()->devices[0].attributes;
    assert_false(refused(honest()));
    assert_int_equal(has[CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED], 0);
    assert_int_equal(has[CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED], 0);
    assert_int_equal(has[CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED], 0);
    assert_int_equal(has[CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING], 64);
}

/* It may not call this process's own memory a device's. */
static void windows_over_our_own_memory(void **state)
{
    (void)state;
    struct gpc_session *s = gpc_session_at(0);
    size_t size = (size_t)4 << 20;
    char *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(own, MAP_FAILED);
    *own = 7;
    struct gp_device_info *d = &s->snapshot->devices[0];
    d->window_begin = (uint64_t)(uintptr_t)own & ~((UINT64_C(2) << 20) - 1);
    d->window_end = d->window_begin + ((uint64_t)16 << 20);
    assert_non_null(gpc_windows_keep(s));
    assert_int_equal(*own, 7);
    munmap(own, size);
    d->window_begin = GP_WINDOW_BASE + 40 * GP_WINDOW_SIZE;
    d->window_end = d->window_begin + GP_WINDOW_SIZE;
    assert_null(gpc_windows_keep(s));
    assert_null(gpc_windows_keep(s)); /* again, after a cuInit that failed */
    /* what nobody can use is in nobody's way */
    char *aside = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(aside, MAP_FAILED);
    d->window_begin = (uint64_t)(uintptr_t)aside;
    d->window_end = d->window_begin + size;
    assert_null(gpc_windows_keep(s));
    assert_int_equal(mprotect(aside, 4096, PROT_READ), 0);
    assert_non_null(gpc_windows_keep(s));
    munmap(aside, size);
}

/* --- what the front end says --- */

static int parsed(const char *lines)
{
    struct gpc_admission a;
    char answer[1024], code[32], why[512];
    int n = snprintf(answer, sizeof answer,
                     "GPUPOOL/1 ok\nsession: s\nsecret: 00112233445566778899aabbccddeeff\n%s",
                     lines);
    return gpc_front_end_parse(answer, (size_t)n, &a, code, why, sizeof why);
}

static void addresses_that_lead_elsewhere(void **state)
{
    (void)state;
    assert_int_equal(parsed("shm: shm:///run/s.sock\n"), 0);
    assert_int_equal(parsed("zmq: tcp://10.0.0.1:1,2\n"), 0);
    assert_int_equal(parsed("tcp: tls://10.0.0.1:1?door=x\n"), 0);
    assert_int_equal(parsed("tcp: plain://10.0.0.1:1?door=x\nzmq: tcp://10.0.0.1:1\n"), 0);
    static const char *const wrong[] = {
        "tcp: tcp://10.0.0.1:1\n",
        "tcp: shm:///run/s.sock\n",
        "zmq: tls://10.0.0.1:1?door=x\n",
        "zmq: inproc://anything\n",
        "ucx: plain://10.0.0.1:1?door=x\n",
        "shm: tcp://10.0.0.1:1,2\n",
        "shm: shm://run/s.sock\n",
        "zmq: shm:///run/s.sock\n",
        "zmq: pgm://eth0;239.0.0.1:7\n",
        "zmq: \n",
        "shm: shm:///run/s.sock\nzmq: ws://10.0.0.1:80\n",
    };
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(parsed(wrong[i]), -1);
}

/* --- what it answers --- */

struct asked {
    pthread_t thread;
    CUresult result;
    uint32_t bytes, got;
    unsigned char *to;
};

static void *ask(void *arg)
{
    struct asked *a = arg;
    a->result = gpc_wire_gp_captured_read(0, a->bytes, a->to, &a->got);
    return NULL;
}

/* A call of `bytes`, answered by `answer`; what it made of it. Nothing behind the buffer is
 * touched: it ends where a page does that cannot be written. */
static struct asked answered(uint32_t bytes, void (*answer)(uint64_t seq))
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages = mmap(NULL, 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(pages, MAP_FAILED);
    assert_int_equal(mprotect(pages, page, PROT_READ | PROT_WRITE), 0);
    struct asked a = {.bytes = bytes, .to = pages + page - bytes};
    assert_int_equal(pthread_create(&a.thread, NULL, ask, &a), 0);
    answer(fake_asked(0));
    pthread_join(a.thread, NULL);
    munmap(pages, 2 * page);
    return a;
}

static char tail[8192];

static void answer_honestly(uint64_t seq)
{
    struct gp_rep_gp_captured_read reply = {.n_data = 100};
    fake_answer(seq, &reply.r, sizeof reply, tail, 100);
}

static void answer_too_much(uint64_t seq)
{
    struct gp_rep_gp_captured_read reply = {.n_data = 101};
    fake_answer(seq, &reply.r, sizeof reply, tail, 101);
}

static void answer_more_than_is_there(uint64_t seq)
{
    struct gp_rep_gp_captured_read reply = {.n_data = 100};
    fake_answer(seq, &reply.r, sizeof reply, tail, 8);
}

static void answer_with_a_count_that_wraps(uint64_t seq)
{
    struct gp_rep_gp_captured_read reply = {.n_data = UINT32_MAX};
    fake_answer(seq, &reply.r, sizeof reply, tail, 100);
}

static void answer_with_half_a_structure(uint64_t seq)
{
    struct gp_rep_gp_captured_read reply = {.n_data = 100};
    fake_answer(seq, &reply.r, sizeof reply.r, NULL, 0);
}

static void answer_somebody_else(uint64_t seq)
{
    struct gp_rep_gp_captured_read reply = {.n_data = 100};
    fake_answer(seq + 1, &reply.r, sizeof reply, tail, 100);
}

static void answer_with_a_wrong_size(uint64_t seq)
{
    struct gp_reply reply = {.h = {.size = 4096, .flags = GP_FLAG_REPLY, .seq = seq}};
    fake_say(&reply, sizeof reply);
}

static void answer_with_less_than_a_header(uint64_t seq)
{
    (void)seq;
    fake_say("no message", 10);
}

static void answers_that_cannot_be(void **state)
{
    (void)state;
    struct asked good = answered(100, answer_honestly);
    assert_int_equal(good.result, CUDA_SUCCESS);
    assert_int_equal(good.got, 100);
    static void (*const lies[])(uint64_t) = {
        answer_too_much,
        answer_more_than_is_there,
        answer_with_a_count_that_wraps,
        answer_with_half_a_structure,
        answer_somebody_else,
        answer_with_a_wrong_size,
        answer_with_less_than_a_header,
    };
    for (unsigned i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        fake_session();
        assert_int_not_equal(answered(100, lies[i]).result, CUDA_SUCCESS);
        assert_false(gpc_session_works(gpc_session_at(0))); /* and that was its last */
    }
}

/* --- what it says for people to read --- */

static void lines_that_a_terminal_would_obey(void **state)
{
    (void)state;
    int ends[2], before = dup(STDERR_FILENO);
    char line[256] = "";
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    gpc_log(GPC_LOG_ERROR, "%s", "the server says \033[2J\r\nsecond line\177 \302\2332J \303\251");
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[1]);
    assert_true(read(ends[0], line, sizeof line - 1) > 0);
    close(ends[0]);
    assert_string_equal(line, "gpupool: the server says ?[2J??second line? ??2J \303\251\n");
}

/* --- what it announces --- */

static void announce(struct gp_header *h, size_t size)
{
    h->size = (uint32_t)size;
    fake_say(h, size);
    gpc_session_poll(gpc_session_at(0));
}

static void bytes_for_memory_that_does_not_wait(void **state)
{
    (void)state;
    struct gpc_session *s = gpc_session_at(0);
    char bytes[16] = "before";
    uint64_t cookie = gpc_pinned_expect(s, bytes, 8);
    const struct gp_req_gp_pinned_data wrong[] = {
        {.cookie = cookie + 1, .offset = 0, .bytes = 8}, /* nobody's */
        {.cookie = cookie, .offset = 1, .bytes = 8},     /* beyond the end */
        {.cookie = cookie, .offset = UINT64_MAX - 3, .bytes = 8},
        {.cookie = cookie, .offset = 9, .bytes = 0},
    };
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        gpc_on_gp_pinned_data(s, &wrong[i], "lies....");
        assert_string_equal(bytes, "before");
    }
    const struct gp_req_gp_pinned_data right = {.cookie = cookie, .bytes = 8, .last = 1};
    gpc_on_gp_pinned_data(s, &right, "right..");
    assert_string_equal(bytes, "right..");
    gpc_on_gp_pinned_data(s, &right, "again..");
    assert_string_equal(bytes, "right.."); /* it has come */
}

static void slots_and_functions_that_are_none(void **state)
{
    (void)state;
    struct gpc_session *s = gpc_session_at(0);
    struct gp_req_gp_arena_free slot = {.h = {.op = GP_OP_gp_arena_free}, .slot = UINT32_MAX};
    announce(&slot.h, sizeof slot);
    struct gp_req_gp_host_call call = {.h = {.op = GP_OP_gp_host_call}, .cookie = 12345};
    announce(&call.h, sizeof call);
    struct gp_req_gp_async_error error = {
        .h = {.op = GP_OP_gp_async_error}, .op = UINT16_MAX, .result = -1};
    announce(&error.h, sizeof error);
    assert_true(gpc_session_works(s)); /* nonsense, but harmless */
    struct gp_header unknown = {.op = GP_OP_COUNT};
    announce(&unknown, sizeof unknown);
    assert_false(gpc_session_works(s));
}

int main(void)
{
    alarm(120);
#define CASE(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        CASE(sizes_of_a_snapshot),
        CASE(a_longer_snapshot),
        CASE(operations_of_a_worker),
        CASE(an_operation_that_it_lacks),
        CASE(texts_of_a_snapshot),
        CASE(windows_of_a_snapshot),
        CASE(numbers_of_a_snapshot),
        CASE(devices_lack_what_is_refused),
        CASE(windows_over_our_own_memory),
        CASE(addresses_that_lead_elsewhere),
        CASE(answers_that_cannot_be),
        CASE(lines_that_a_terminal_would_obey),
        CASE(bytes_for_memory_that_does_not_wait),
        CASE(slots_and_functions_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
