/* The suite: memory that both ends have mapped. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "transport_suite_ends.h"

static void share_once(struct gp_channel *from, struct gp_channel *to, void *hint)
{
    struct gp_share ours = {0}, theirs = {0};
    const void *message;
    size_t size;
    uint64_t words[2];
    assert_int_equal(tp->share(from, hint, 3 * 4096 + 1, &ours), 0);
    assert_non_null(ours.addr);
    assert_true(ours.size >= 3 * 4096 + 1);
    assert_int_equal(ours.size % 4096, 0);
    if (hint)
        assert_ptr_equal(ours.addr, hint);

    words[0] = 1;
    words[1] = ours.id;
    assert_int_equal(send_bytes(from, words, sizeof words, 0), 0);
    assert_int_equal(tp->recv(to, PATIENCE_US, &message, &size), 0);
    memcpy(words, message, sizeof words);
    tp->release(to);
    assert_int_equal(tp->accept_share(to, words[1] + 1000, &theirs), -ENOENT);
    assert_int_equal(tp->accept_share(to, words[1], &theirs), 0);
    assert_int_equal(theirs.size, ours.size);
    assert_int_equal(theirs.id, ours.id);
    assert_int_equal(theirs.same_address, theirs.addr == ours.addr);
    /* A share is accepted once. */
    struct gp_share again = {0};
    assert_int_equal(tp->accept_share(to, words[1], &again), -ENOENT);

    memset(ours.addr, 0x5a, ours.size);
    assert_int_equal(((unsigned char *)theirs.addr)[theirs.size - 1], 0x5a);
    ((unsigned char *)theirs.addr)[0] = 0x77;
    assert_int_equal(((unsigned char *)ours.addr)[0], 0x77);
    tp->unshare(from, &ours);
    assert_null(ours.addr);
    /* What the other side let go of is still there for this one. */
    assert_int_equal(((unsigned char *)theirs.addr)[1], 0x5a);
    tp->unshare(to, &theirs);
}

/* An address that is free now, whatever else lives in this process. */
static void *free_address(void)
{
    void *addr = mmap(NULL, 16 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(addr != MAP_FAILED);
    munmap(addr, 16 * 4096);
    return addr;
}

void test_shares(void **state)
{
    (void)state;
    if (!(tp->caps & GP_CAP_SHARE))
        skip();
    struct ends e;
    ends_open(&e);
    for (int i = 0; i < 20; i++) {
        share_once(e.client, e.worker, NULL);
        share_once(e.worker, e.client, free_address());
    }
    ends_close(&e);
}

#define SHARES_MANY 64

void test_shares_outstanding(void **state)
{
    (void)state;
    if (!(tp->caps & GP_CAP_SHARE))
        skip();
    struct ends e;
    struct gp_share shares[SHARES_MANY], got;
    ends_open(&e);
    for (int i = 0; i < SHARES_MANY; i++) {
        assert_int_equal(tp->share(e.client, NULL, 4096, &shares[i]), 0);
        memcpy(shares[i].addr, &i, sizeof i);
        for (int k = 0; k < i; k++)
            assert_true(shares[k].id != shares[i].id);
    }
    for (int i = SHARES_MANY - 1; i >= 0; i -= 2) { /* half of them, backwards */
        assert_int_equal(tp->accept_share(e.worker, shares[i].id, &got), 0);
        assert_memory_equal(got.addr, &i, sizeof i);
        tp->unshare(e.worker, &got);
    }
    for (int i = 0; i < SHARES_MANY; i++)
        tp->unshare(e.client, &shares[i]);
    assert_int_equal(tp->share(e.client, NULL, 0, &got), -EINVAL);
    ends_close(&e);
}

struct sharer {
    struct gp_channel *from, *to;
    _Atomic int bad;
};

static void *sharer_main(void *arg)
{
    struct sharer *s = arg;
    for (int i = 0; i < 100; i++) {
        struct gp_share a = {0}, b = {0};
        if (tp->share(s->from, NULL, 4096, &a) != 0 || tp->accept_share(s->to, a.id, &b) != 0) {
            s->bad++;
            continue;
        }
        memcpy(a.addr, &a.id, sizeof a.id);
        if (memcmp(b.addr, &a.id, sizeof a.id) != 0)
            s->bad++;
        tp->unshare(s->from, &a);
        tp->unshare(s->to, &b);
    }
    return NULL;
}

void test_shares_threads(void **state)
{
    (void)state;
    if (!(tp->caps & GP_CAP_SHARE))
        skip();
    struct ends e;
    pthread_t threads[4];
    ends_open(&e);
    struct sharer up = {.from = e.client, .to = e.worker};
    struct sharer down = {.from = e.worker, .to = e.client};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sharer_main, i % 2 ? &up : &down), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(up.bad + down.bad, 0);
    ends_close(&e);
}
