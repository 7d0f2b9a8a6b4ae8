/* Messages whose bulk goes to where it belongs: what only our own TCP has. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/support.h"
#include "transport_suite_ends.h"

#define LENGTH GP_MESSAGE_MAX
#define BEFORE 48u /* of a message's bytes, those that are lent */
#define BEHIND 24u
#define BULK (LENGTH - BEFORE - BEHIND)
#define PAGE 4096u

static const char *const schemes[] = {"plain://", "tls://"};

/* Where bulk goes, by the number that a message begins with. */
struct field {
    char *to;
    enum { LANDS, REFUSES, HEAD_TOO, TOO_LONG, BEYOND } says;
    _Atomic unsigned asked;
};

static bool lands(void *owner, const void *head, size_t size, struct gp_landing *out)
{
    struct field *f = owner;
    uint64_t n;
    memcpy(&n, head, sizeof n);
    f->asked++;
    assert_true(size == LENGTH);
    assert_true(message_is(head, n, GP_MESSAGE_HEAD));
    *out = (struct gp_landing){f->to, BEFORE, BULK};
    if (f->says == HEAD_TOO)
        out->begin = 0;
    else if (f->says == TOO_LONG)
        out->size = LENGTH;
    else if (f->says == BEYOND)
        out->begin = SIZE_MAX - 8;
    return f->says != REFUSES;
}

/* Whether it landed; its bytes are all there. */
static bool take(struct ends *e, struct field *f, uint64_t n)
{
    struct stream down = {.channel = e->worker, .first = n, .count = 1, .size = LENGTH};
    pthread_t thread;
    const void *message;
    size_t size;
    assert_int_equal(pthread_create(&thread, NULL, stream_main, &down), 0);
    assert_int_equal(tp->recv(e->client, PATIENCE_US, &message, &size), 0);
    pthread_join(thread, NULL);
    assert_int_equal(size, LENGTH);
    bool landed = tp->landed(e->client);
    char *whole = malloc(LENGTH);
    memcpy(whole, message, LENGTH);
    if (landed)
        memcpy(whole + BEFORE, f->to, BULK);
    assert_true(message_is(whole, n, LENGTH));
    free(whole);
    tp->release(e->client);
    assert_false(tp->landed(e->client));
    return landed;
}

/* Before the lanes are in, nothing lands. */
static void open_until_landed(struct ends *e, struct field *f, const char *scheme)
{
    transport_use(scheme);
    ends_open(e);
    tp->land(e->client, lands, f);
    int64_t deadline = gp_deadline_us(PATIENCE_US);
    while (!take(e, f, 0)) {
        assert_true(gp_clock_ns() < deadline);
        usleep(1000);
    }
}

static void test_bulk_lands(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        struct field f = {.to = malloc(BULK)};
        open_until_landed(&e, &f, schemes[i]);
        for (uint64_t n = 1; n < 12; n++) {
            memset(f.to, 0, BULK);
            f.asked = 0;
            assert_true(take(&e, &f, n));
            assert_int_equal(f.asked, 1);
        }
        /* what may not be is lent */
        for (f.says = REFUSES; f.says <= BEYOND; f.says++)
            assert_false(take(&e, &f, f.says));
        f.says = LANDS;
        assert_int_equal(send_numbered(e.worker, 5, 64, 0), 0);
        expect_numbered(e.client, 5, 64);
        assert_true(take(&e, &f, 20));
        tp->ground(e.client);
        assert_int_equal(send_numbered(e.client, 0, 64, 0), -EPIPE);
        ends_close(&e);
        free(f.to);
    }
}

/* --- memory that is protected ------------------------------------------------------------ */

static struct {
    char *begin;
    size_t size;
    volatile sig_atomic_t faults;
} guarded;

static void on_fault(int number, siginfo_t *info, void *context)
{
    char *at = info->si_addr;
    (void)context;
    if (at < guarded.begin || at >= guarded.begin + guarded.size) {
        signal(number, SIG_DFL);
        return;
    }
    guarded.faults++;
    mprotect((void *)((uintptr_t)at & ~(uintptr_t)(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE);
}

/* A program that notices writes to its pages has them noticed: its own thread writes there. */
static void test_protected_memory(void **state)
{
    (void)state;
    struct sigaction before, mine = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    guarded.size = (BULK + 2 * PAGE) & ~(size_t)(PAGE - 1);
    guarded.begin = mmap(NULL, guarded.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                         -1, 0);
    assert_true(guarded.begin != MAP_FAILED);
    assert_int_equal(sigaction(SIGSEGV, &mine, &before), 0);
    for (size_t i = 0; i < 2; i++) {
        struct ends e;
        struct field f = {.to = guarded.begin + 100};
        open_until_landed(&e, &f, schemes[i]);
        assert_int_equal(guarded.faults, 0);
        assert_int_equal(mprotect(guarded.begin + 3 * PAGE, guarded.size / 2, PROT_READ), 0);
        assert_true(take(&e, &f, 7));
        assert_true(guarded.faults > 0);
        guarded.faults = 0;
        assert_true(take(&e, &f, 8));
        assert_int_equal(guarded.faults, 0);
        ends_close(&e);
    }
    sigaction(SIGSEGV, &before, NULL);
    munmap(guarded.begin, guarded.size);
}

int main(void)
{
    static const struct transport_suite own = {.name = "tcp", .raw = RAW_TCP};
    suite = &own;
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bulk_lands),
        cmocka_unit_test(test_protected_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
