/* What only ucx has: a library of others in the process, and a peer that speaks by it. */
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/hex.h"
#include "transport/ucx_greet.h"
#include "transport_raw.h"
#include "transport_suite_ends.h"
#include "ucx_here.h"

#define WORD "00112233445566778899aabbccddeeff"

/* --- the process ------------------------------------------------------------------- */

static void *libc_function(const char *name)
{
    void *at = dlsym(RTLD_DEFAULT, name);
    if (!at)
        fail_msg("no %s", name);
    return at;
}

/* UCX hooks these, where it is let, by writing over their first bytes or over the tables by
 * which they are called. */
static const char *const hooked[] = {"mmap",   "munmap",  "mremap", "madvise", "brk",
                                     "sbrk",   "shmat",   "shmdt",  "malloc",  "free",
                                     "calloc", "realloc", "dlopen", "setenv"};
#define HOOKED (sizeof hooked / sizeof hooked[0])
#define FIRST_BYTES 32

static struct before {
    void *at[HOOKED];
    unsigned char bytes[HOOKED][FIRST_BYTES];
    struct sigaction actions[NSIG];
} before;

static void before_note(struct before *b)
{
    for (size_t i = 0; i < HOOKED; i++) {
        b->at[i] = libc_function(hooked[i]);
        memcpy(b->bytes[i], b->at[i], FIRST_BYTES);
    }
    for (int s = 1; s < NSIG; s++)
        sigaction(s, NULL, &b->actions[s]);
}

static void test_signals_are_the_programs(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    for (int s = 1; s < NSIG; s++) {
        struct sigaction now;
        if (sigaction(s, NULL, &now) == 0 && s != SIGABRT && /* cmocka's own, in a test */
            now.sa_sigaction != before.actions[s].sa_sigaction) {
            Dl_info in = {0};
            dladdr((void *)now.sa_sigaction, &in);
            if (in.dli_fname && strstr(in.dli_fname, "libuc"))
                fail_msg("signal %d is handled by %s", s, in.dli_fname);
        }
    }
    ends_close(&e);
}

static void test_memory_is_not_hooked(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    /* long messages, so that what UCX registers is registered */
    for (uint64_t n = 0; n < 4; n++) {
        assert_int_equal(send_numbered(e.client, n, GP_MESSAGE_MAX, 0), 0);
        expect_numbered(e.worker, n, GP_MESSAGE_MAX);
    }
    for (size_t i = 0; i < HOOKED; i++) {
        assert_ptr_equal(libc_function(hooked[i]), before.at[i]);
        assert_memory_equal(before.at[i], before.bytes[i], FIRST_BYTES);
    }
    ends_close(&e);
}

/* Of what a program has set for its own UCX nothing may break ours (main sets it). */
static void test_the_programs_settings_are_its_own(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    assert_string_equal(getenv("UCX_TLS"), "none-such");
    assert_string_equal(getenv("UCX_MEM_EVENTS"), "y");
    assert_null(getenv("UCX_LOG_LEVEL"));
    assert_int_equal(send_numbered(e.client, 1, 64, 0), 0);
    expect_numbered(e.worker, 1, 64);
    ends_close(&e);
}

/* Two sessions of a process, and another's end. */
static void test_several_channels(void **state)
{
    (void)state;
    struct ends e[3];
    for (int i = 0; i < 3; i++)
        ends_open(&e[i]);
    for (uint64_t n = 0; n < 30; n++) {
        assert_int_equal(send_numbered(e[n % 3].client, n, message_size(n), 0), 0);
        expect_numbered(e[n % 3].worker, n, message_size(n));
    }
    ends_close(&e[1]);
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(send_numbered(e[i].worker, 1, GP_MESSAGE_MAX, 0), 0);
        expect_numbered(e[i].client, 1, GP_MESSAGE_MAX);
        ends_close(&e[i]);
    }
}

static int port_of(const char *url)
{
    return atoi(strrchr(url, ':') + 1);
}

/* The client's end of the door's connection, which the program closes. */
static int client_fd(int port)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in a;
        socklen_t size = sizeof a;
        if (getpeername(fd, (void *)&a, &size) == 0 && a.sin_family == AF_INET &&
            ntohs(a.sin_port) == port)
            return fd;
    }
    return -1;
}

static void test_a_closed_descriptor(void **state)
{
    (void)state;
    struct ends e;
    const void *message;
    size_t size;
    ends_open(&e);
    close(client_fd(port_of(tp->listener_url(e.listener))));
    assert_int_equal(send_numbered(e.client, 1, 64, 0), -EBADF);
    assert_int_equal(tp->recv(e.client, PATIENCE_US, &message, &size), -EBADF);
    assert_int_equal(tp->flush(e.client), -EBADF);
    assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), -EPIPE);
    ends_close(&e);
}

/* Nothing reaches the sockets of the door's connection any more, as if the machine were gone. */
static void cut(int fd)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {.len = 1, .filter = &nothing};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

static void test_a_peer_that_vanished(void **state)
{
    (void)state;
    struct ends e;
    const void *message;
    size_t size;
    setenv("GPUPOOL_SILENCE", "2", 1);
    ends_open(&e);
    unsetenv("GPUPOOL_SILENCE");
    cut(e.client->fd);
    cut(e.worker->fd);
    assert_int_equal(tp->recv(e.worker, PATIENCE_US, &message, &size), -EPIPE);
    assert_int_equal(tp->recv(e.client, PATIENCE_US, &message, &size), -EPIPE);
    ends_close(&e);
}

/* --- where UCX is found: in processes of their own ------------------------------------ */

static void expect_refused(const char *path, const char *said)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        struct gp_error err = {.text = ""};
        setenv("GPUPOOL_UCX_LIBRARY", path, 1);
        int rc = gp_transport_ucx.ready(&err);
        bool right = rc == -ENOTSUP && strstr(err.text, said) && !strchr(err.text, '\n');
        if (!right)
            fprintf(stderr, "%d: %s\n", rc, err.text);
        _exit(right ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_what_is_no_ucx(void **state)
{
    (void)state;
    expect_refused("/nowhere/libucp.so.0", "pip install libucx");
    expect_refused("/bin/sh", "GPUPOOL_UCX_LIBRARY");
    expect_refused("/dev/null", "1.20");
}

/* As GPUPOOL_UCX_… they do. */
static void test_our_settings_hold(void **state)
{
    (void)state;
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        struct gp_listener *l = NULL;
        struct gp_channel *ch = NULL;
        struct gp_error err = {.text = ""};
        setenv("GPUPOOL_UCX_TLS", "none-such", 1);
        if (tp->ready(&err) != 0)
            _exit(0); /* there is no UCX here */
        int rc = tp->listen(listen_url, &l, &err);
        rc = rc ? 0 : tp->connect(tp->listener_url(l), 2000, &ch, &err);
        _exit(rc == -ENOTSUP && strstr(err.text, "GPUPOOL_UCX_TLS") ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* --- a peer that breaks the rules ------------------------------------------------------- */

static void expect_end(struct gp_channel *ch, int why)
{
    const void *message;
    size_t size;
    assert_int_equal(tp->recv(ch, PATIENCE_US, &message, &size), why);
    assert_int_equal(tp->recv(ch, 0, &message, &size), why);
    assert_int_equal(send_numbered(ch, 1, 64, 0), -EPIPE);
}

static void post(struct gp_channel *ch, const void *bytes, size_t size)
{
    pthread_mutex_lock(&ch->ucx);
    struct ucx_buffer *b = ucx_engine_buffer(ch, &ch->large);
    assert_non_null(b);
    memcpy(b->bytes, bytes, size < b->room ? size : b->room);
    assert_int_equal(ucx_engine_post(ch, b, size), 0);
    ucx_engine_progress(ch);
    pthread_mutex_unlock(&ch->ucx);
}

static void test_a_hostile_batch(void **state)
{
    (void)state;
    static const struct gp_batch_entry wrong[] = {
        {.size = 3, .kind = GP_BATCH_MESSAGE},
        {.size = UINT32_MAX, .kind = GP_BATCH_MESSAGE},
        {.size = 64, .kind = 0},
        {.size = 1000, .kind = GP_BATCH_MESSAGE}, /* cut */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct ends e;
        ends_open(&e);
        post(e.client, &wrong[i], sizeof wrong[i]);
        expect_end(e.worker, -EPROTO);
        ends_close(&e);
    }
}

/* Longer than any, which comes by rendezvous: nothing of it is fetched. */
static void test_a_batch_too_long(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    e.client->large.room = 4 * GP_BATCH_MAX;
    unsigned char *bytes = calloc(4, GP_BATCH_MAX);
    post(e.client, bytes, 4 * GP_BATCH_MAX);
    free(bytes);
    expect_end(e.worker, -EPROTO);
    assert_int_equal(e.worker->landing.count, 0);
    ends_close(&e);
}

/* One that ignores its credit is not let fill our memory. */
static void test_a_peer_that_floods(void **state)
{
    (void)state;
    struct ends e;
    const void *message;
    size_t size;
    int rc = 0;
    ends_open(&e);
    for (int i = 0; i < 32 && rc == 0; i++) {
        pthread_mutex_lock(&e.client->ucx);
        e.client->debt.credited_bytes = e.client->debt.bytes;
        e.client->debt.credited_batches = e.client->debt.batches;
        pthread_mutex_unlock(&e.client->ucx);
        rc = send_numbered(e.client, 0, 65000, 0);
        for (int k = 0; k < 40 && rc == 0; k++) {
            pthread_mutex_lock(&e.client->ucx);
            e.client->debt.credited_bytes = e.client->debt.bytes;
            e.client->debt.credited_batches = e.client->debt.batches;
            pthread_mutex_unlock(&e.client->ucx);
            rc = send_numbered(e.client, 0, 65000, 0);
        }
    }
    while ((rc = tp->recv(e.worker, PATIENCE_US, &message, &size)) == 0)
        tp->release(e.worker);
    assert_int_equal(rc, -EPROTO);
    assert_true(e.worker->window.bytes <= UCX_WINDOW_BYTES);
    ends_close(&e);
}

/* UCX's own ports are open to others: what does not begin as the session's is nobody's. */
static void test_messages_of_strangers(void **state)
{
    (void)state;
    struct ends e;
    const void *message;
    size_t size;
    ends_open(&e);
    uint64_t right = e.client->peer_tag;
    e.client->peer_tag ^= 1;
    assert_int_equal(send_numbered(e.client, 1, 64, 0), 0);
    assert_int_equal(tp->recv(e.worker, 100000, &message, &size), -EAGAIN);
    e.client->peer_tag = right;
    e.client->debt.batches = 0; /* that was none of it */
    assert_int_equal(send_numbered(e.client, 2, 64, 0), 0);
    expect_numbered(e.worker, 2, 64);
    tp->close(e.worker);
    tp->close(e.client);
    tp->listener_close(e.listener);
}

static void test_credit_for_nothing(void **state)
{
    (void)state;
    struct ends e;
    ends_open(&e);
    pthread_mutex_lock(&e.client->ucx);
    e.client->got_bytes = 1 << 20;
    ucx_engine_credit(e.client);
    pthread_mutex_unlock(&e.client->ucx);
    expect_end(e.worker, -EPROTO);
    ends_close(&e);
}

static void test_a_hostile_note(void **state)
{
    (void)state;
    static const struct ucx_note wrong[] = {
        {.kind = 1},
        {.kind = UCX_NOTE_CAME},
        {.kind = UCX_NOTE_SENT, .zero = 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct ends e;
        ends_open(&e);
        assert_int_equal(send(e.client->fd, &wrong[i], sizeof wrong[i], MSG_NOSIGNAL),
                         sizeof wrong[i]);
        expect_end(e.worker, -EPROTO);
        ends_close(&e);
    }
}

/* --- the door ---------------------------------------------------------------------------- */

struct caller {
    char endpoint[64];
    const char *says; /* instead of a hello */
    size_t size;
    bool unproved;
    int fd;
};

static void *caller_main(void *arg)
{
    struct caller *c = arg;
    struct door_knocked k;
    unsigned char word[DOOR_WORD_BYTES], body[DOOR_BODY_BYTES], proof[DOOR_PROOF_BYTES];
    int64_t deadline = gp_deadline_us(PATIENCE_US);
    if (gp_hex_read(WORD, word, sizeof word) != 0 ||
        door_knock(c->endpoint, word, deadline, &k) != 0 ||
        door_hear_answer(&k, word, deadline, sizeof body, body) != 0)
        return NULL;
    door_confirm(&k, word, body, proof);
    proof[0] ^= c->unproved;
    c->fd = k.fd;
    if (send(k.fd, proof, sizeof proof, MSG_NOSIGNAL) == (ssize_t)sizeof proof && c->size > 0)
        (void)!send(k.fd, c->says, c->size, MSG_NOSIGNAL);
    return NULL;
}

/* Who knows the word, or only what was said before, and goes on with something else: shown out,
 * and the client that comes then is let in. */
static void call_wrongly(const char *says, size_t size, bool unproved)
{
    struct ends e = {0};
    struct gp_channel *ch = NULL;
    struct caller c = {.says = says, .size = size, .unproved = unproved, .fd = -1};
    pthread_t thread;
    char url[128], byte;
    snprintf(url, sizeof url, "%.60s?door=" WORD, listen_url);
    assert_int_equal(tp->listen(url, &e.listener, NULL), 0);
    const char *at = tp->listener_url(e.listener);
    snprintf(c.endpoint, sizeof c.endpoint, "%.*s", (int)strcspn(at, "?"), at);
    assert_int_equal(pthread_create(&thread, NULL, caller_main, &c), 0);
    assert_int_equal(tp->accept(e.listener, 500, &ch, NULL), -EAGAIN);
    pthread_join(thread, NULL);
    assert_true(c.fd >= 0);
    assert_true(recv(c.fd, &byte, 1, 0) <= 0);
    close(c.fd);
    ends_join(&e);
    ends_close(&e);
}

static void test_a_hostile_hello(void **state)
{
    (void)state;
    struct ucx_hello hello = {.magic = UCX_MAGIC, .address_size = UINT32_MAX};
    char unproved[sizeof hello + 8 + DOOR_PROOF_BYTES] = "";
    call_wrongly((const char *)&hello, sizeof hello, false);
    hello.address_size = 8;
    memcpy(unproved, &hello, sizeof hello);
    call_wrongly(unproved, sizeof unproved, false);
    call_wrongly("GET / HTTP/1.1\r\nHost: gpupool.example.org\r\n\r\n", 46, false);
    call_wrongly(NULL, 0, true);
}

int main(void)
{
    static const struct transport_suite own = {.name = "ucx", .raw = RAW_TCP};
    static const struct CMUnitTest alone[] = {
        cmocka_unit_test(test_what_is_no_ucx),
        cmocka_unit_test(test_our_settings_hold),
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals_are_the_programs),
        cmocka_unit_test(test_memory_is_not_hooked),
        cmocka_unit_test(test_the_programs_settings_are_its_own),
        cmocka_unit_test(test_several_channels),
        cmocka_unit_test(test_a_closed_descriptor),
        cmocka_unit_test(test_a_peer_that_vanished),
        cmocka_unit_test(test_a_hostile_batch),
        cmocka_unit_test(test_a_batch_too_long),
        cmocka_unit_test(test_a_peer_that_floods),
        cmocka_unit_test(test_messages_of_strangers),
        cmocka_unit_test(test_credit_for_nothing),
        cmocka_unit_test(test_a_hostile_note),
        cmocka_unit_test(test_a_hostile_hello),
    };
    suite = &own;
    tp = &gp_transport_ucx;
    snprintf(listen_url, sizeof listen_url, "ucx://127.0.0.1:*");
    setenv("UCX_TLS", "none-such", 1);
    setenv("UCX_HANDLE_ERRORS", "bt,freeze", 1);
    setenv("UCX_MEM_EVENTS", "y", 1);
    before_note(&before);
    int failed = cmocka_run_group_tests(alone, NULL, NULL);
    if (failed || !ucx_is_here(tp->ready))
        return failed ? 1 : UCX_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
