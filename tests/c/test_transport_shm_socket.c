/* Connections that are handed to a listener of shared memory, and hostile descriptors on them:
 * whoever sends them is shown out, and none is left open. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/shm_channel.h"
#include "transport/shm_give.h"

/* As many as one message may carry, but for a few. */
#define MANY 250

static const struct gp_transport *tp = &gp_transport_shm;

static const struct shm_packet good_hello = {.magic = SHM_MAGIC,
                                             .kind = SHM_HELLO,
                                             .bytes = SHM_BYTES};
static const struct shm_packet good_share = {.magic = SHM_MAGIC,
                                             .kind = SHM_SHARE,
                                             .bytes = 65536,
                                             .id = 1};

static unsigned descriptors(void)
{
    unsigned count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static struct gp_listener *listener_open(void)
{
    struct gp_listener *l = NULL;
    struct gp_error err = {.text = ""};
    if (tp->listen(SHM_HANDED, &l, &err) != 0)
        fail_msg("%s", err.text);
    assert_string_equal(tp->listener_url(l), SHM_HANDED);
    return l;
}

/* The far end of a connection that the listener was given. */
static int guest_new(struct gp_listener *l)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(gp_shm_give(l, ends[0], -1), 0);
    return ends[1];
}

/* A packet with `count` descriptors, or as many as the system lets one send. */
static void send_many(int sock, const struct shm_packet *packet, const int *fds, size_t count)
{
    struct iovec iov = {(void *)(uintptr_t)packet, sizeof *packet};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MANY * sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = count ? control.bytes : NULL,
                         .msg_controllen = count ? CMSG_SPACE(count * sizeof(int)) : 0};
    if (count) {
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    }
    assert_int_equal(sendmsg(sock, &msg, MSG_NOSIGNAL), sizeof *packet);
}

static bool hung_up(int sock)
{
    char byte;
    ssize_t n = recv(sock, &byte, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

/* Say hello with these and expect to be shown out, with nothing left open of what was sent. */
static void expect_shown_out(struct gp_listener *l, const struct shm_packet *hello, const int *fds,
                             size_t count)
{
    struct gp_channel *ch = NULL;
    unsigned before = descriptors();
    int sock = guest_new(l);
    send_many(sock, hello, fds, count);
    assert_int_equal(tp->accept(l, 60, &ch, NULL), -EAGAIN);
    assert_null(ch);
    assert_true(hung_up(sock));
    close(sock);
    assert_int_equal(descriptors(), before);
}

static int memory_sealed(size_t bytes, unsigned flags, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0)
        return fd; /* huge pages are not everywhere */
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int memory_read_only(size_t bytes)
{
    char path[64];
    int fd = shm_memory_new("test", bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    close(fd);
    return again;
}

static int pipe_end(void)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    close(ends[1]);
    return ends[0];
}

/* All that is no memory of `bytes` that nobody can make smaller. */
#define BAD 13
static void bad_open(int fds[BAD], size_t bytes)
{
    const int whole = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int n = 0;
    fds[n++] = memory_sealed(bytes, 0, 0);
    fds[n++] = memory_sealed(bytes, 0, F_SEAL_GROW | F_SEAL_SEAL);   /* may still shrink */
    fds[n++] = memory_sealed(bytes, 0, F_SEAL_SHRINK | F_SEAL_GROW); /* may still be sealed */
    fds[n++] = memory_sealed(bytes, 0, whole | F_SEAL_WRITE);
    fds[n++] = memory_sealed((bytes + 0x1fffff) & ~(size_t)0x1fffff, MFD_HUGETLB, whole);
    fds[n++] = shm_memory_new("test", bytes - 4096);
    fds[n++] = shm_memory_new("test", bytes + 4096);
    fds[n++] = memory_read_only(bytes);
    fds[n++] = open("/dev/zero", O_RDWR | O_CLOEXEC);
    fds[n++] = open("/proc/self/exe", O_PATH | O_CLOEXEC);
    fds[n++] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fds[n++] = pipe_end();
    fds[n++] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(n, BAD);
}

static void bad_close(const int fds[BAD])
{
    for (int i = 0; i < BAD; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void test_bad_memory(void **state)
{
    (void)state;
    struct gp_listener *l = listener_open();
    int bad[BAD], many[MANY];
    bad_open(bad, SHM_BYTES);
    for (int i = 0; i < BAD; i++)
        if (bad[i] >= 0)
            expect_shown_out(l, &good_hello, &bad[i], 1);
    bad_close(bad);
    int fd = shm_memory_new("test", SHM_BYTES);
    for (int i = 0; i < MANY; i++)
        many[i] = fd;
    expect_shown_out(l, &good_hello, NULL, 0);
    expect_shown_out(l, &good_hello, many, 2); /* both right, and one too many */
    expect_shown_out(l, &good_hello, many, MANY);
    struct shm_packet hello = good_hello;
    hello.kind = SHM_READY;
    expect_shown_out(l, &hello, &fd, 1);
    hello = good_hello;
    hello.bytes = SHM_BYTES - 4096;
    expect_shown_out(l, &hello, &fd, 1);
    hello = good_hello;
    hello.magic[0] = 'G';
    expect_shown_out(l, &hello, &fd, 1);
    close(fd);
    tp->listener_close(l);
}

/* What is given must be a connection; a silent guest holds nobody up, and many push out the
 * oldest of them. */
static void test_guests(void **state)
{
    (void)state;
    unsigned before = descriptors();
    struct gp_listener *l = listener_open();
    struct gp_channel *ch = NULL;
    assert_int_equal(gp_shm_give(l, pipe_end(), -1), -EINVAL);
    assert_int_equal(gp_shm_give(l, socket(AF_UNIX, SOCK_STREAM, 0), pipe_end()), -EINVAL);
    assert_int_equal(gp_shm_give(l, socket(AF_INET, SOCK_STREAM, 0), -1), -EINVAL);
    int silent[40];
    for (int i = 0; i < 40; i++)
        silent[i] = guest_new(l);
    int sock = guest_new(l), fd = shm_memory_new("test", SHM_BYTES);
    send_many(sock, &good_hello, &fd, 1);
    assert_int_equal(tp->accept(l, 5000, &ch, NULL), 0);
    assert_true(hung_up(silent[0]));
    tp->close(ch);
    tp->listener_close(l);
    for (int i = 0; i < 40; i++) {
        assert_true(hung_up(silent[i]));
        close(silent[i]);
    }
    close(sock);
    close(fd);
    assert_int_equal(descriptors(), before);
}

/* A session that is under way: the worker's end, and a socket that says what it likes. */
static struct gp_channel *session_open(int *sock)
{
    struct gp_listener *l = listener_open();
    struct gp_channel *ch = NULL;
    int fd = shm_memory_new("test", SHM_BYTES);
    *sock = guest_new(l);
    send_many(*sock, &good_hello, &fd, 1);
    close(fd);
    assert_int_equal(tp->accept(l, 5000, &ch, NULL), 0);
    tp->listener_close(l);
    return ch;
}

static void expect_session_ends(const struct shm_packet *share, const int *fds, size_t count)
{
    int sock;
    struct gp_share out;
    unsigned before = descriptors();
    struct gp_channel *ch = session_open(&sock);
    send_many(sock, share, fds, count);
    int rc = tp->accept_share(ch, share->id, &out);
    if (rc != -EPROTO && rc != -ENOMEM) /* the latter: it cannot be mapped to write */
        fail_msg("a share was answered with %d", rc);
    tp->close(ch);
    close(sock);
    assert_int_equal(descriptors(), before);
}

static void test_bad_shares(void **state)
{
    (void)state;
    int bad[BAD], many[MANY];
    bad_open(bad, good_share.bytes);
    for (int i = 0; i < BAD; i++)
        if (bad[i] >= 0)
            expect_session_ends(&good_share, &bad[i], 1);
    bad_close(bad);
    int fd = shm_memory_new("test", good_share.bytes);
    for (int i = 0; i < MANY; i++)
        many[i] = fd;
    expect_session_ends(&good_share, NULL, 0);
    expect_session_ends(&good_share, many, 2);
    expect_session_ends(&good_share, many, MANY);
    static const uint64_t sizes[] = {0, 1, 65535, 131072, UINT64_MAX, UINT64_C(1) << 47};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct shm_packet share = good_share;
        share.bytes = sizes[i];
        expect_session_ends(&share, &fd, 1);
    }
    close(fd);
}

/* What nobody asks for is kept up to a number, and given back with the channel. */
static void test_shares_that_nobody_takes(void **state)
{
    (void)state;
    int sock, rc = 0, sent = 0;
    unsigned before = descriptors();
    struct gp_channel *ch = session_open(&sock);
    struct gp_share out;
    int fd = shm_memory_new("test", good_share.bytes);
    for (; rc != -EPROTO && sent < 2000; sent++) {
        struct shm_packet share = good_share;
        share.id = (uint64_t)sent * 2 + 3;
        send_many(sock, &share, &fd, 1);
        rc = tp->accept_share(ch, 1, &out);
    }
    assert_int_equal(rc, -EPROTO);
    assert_in_range(sent, 100, 600);
    close(fd);
    close(sock);
    tp->close(ch);
    assert_int_equal(descriptors(), before);
}

/* Whoever has mapped it: it stays as long as it was. */
static void test_memory_keeps_its_size(void **state)
{
    (void)state;
    int fd = shm_memory_new("test", SHM_BYTES);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(ftruncate(fd, 2 * SHM_BYTES), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_int_equal(shm_memory_check(fd, SHM_BYTES), 0);
    close(fd);
}

static void test_bad_addresses(void **state)
{
    (void)state;
    static const char *const listened[] = {"shm:///tmp/x.sock", "shm://", "shm://handed2"};
    static const char *const dialled[] = {
        "shm://handed",
        "shm:///tmp/x?door=",
        "shm:///tmp/x?door=0123456789abcdef0123456789abcde",
        "shm:///tmp/x?door=0123456789abcdef0123456789abcdeg",
        "shm:///tmp/x?key=0123456789abcdef0123456789abcdef",
        "shm:///tmp/x?",
    };
    struct gp_listener *l = NULL;
    struct gp_channel *ch = NULL;
    struct gp_error err;
    for (size_t i = 0; i < sizeof listened / sizeof listened[0]; i++)
        assert_int_equal(tp->listen(listened[i], &l, &err), -EINVAL);
    for (size_t i = 0; i < sizeof dialled / sizeof dialled[0]; i++) {
        assert_int_equal(tp->connect(dialled[i], 100, &ch, &err), -EINVAL);
        assert_null(strstr(err.text, "0123456789"));
    }
}

/* A server that takes one question and says `answer_bytes` and 250 descriptors, or nothing. */
struct stub {
    int socket;
    size_t answer_bytes;
    bool silent;
};

/* It was told that its user may not connect, or of the socket's path alone. */
static void test_no_memory_files(void **state)
{
    (void)state;
    struct rlimit was;
    struct gp_channel *ch = NULL;
    struct gp_error err = {.text = ""};
    unsigned before = descriptors();
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    struct rlimit small = {.rlim_cur = 1u << 20, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = tp->connect("shm:///nobody/listens", 100, &ch, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(rc, -EFBIG);
    assert_non_null(strstr(err.text, "no shared memory: a memory file of 16 MiB cannot be made"));
    assert_int_equal(descriptors(), before);
}

static void *stub_main(void *arg)
{
    struct stub *s = arg;
    static char answer[512];
    char question[64];
    int many[MANY], fd = accept4(s->socket, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return NULL;
    if (recv(fd, question, sizeof question, 0) > 0 && s->answer_bytes) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof many)];
        } control = {0};
        struct iovec iov = {answer, s->answer_bytes};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        for (int i = 0; i < MANY; i++)
            many[i] = fd;
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof many);
        memcpy(CMSG_DATA(c), many, sizeof many);
        if (sendmsg(fd, &msg, MSG_NOSIGNAL) < 0)
            perror("sendmsg");
    }
    if (s->silent) /* until the other end has had enough */
        (void)recv(fd, question, sizeof question, 0);
    close(fd);
    return NULL;
}

static int ask_stub(const char *url, struct stub *s, size_t *got)
{
    static char answer[256];
    struct gp_error err = {.text = ""};
    pthread_t thread;
    size_t before_size = sizeof answer;
    unsigned before = descriptors();
    assert_int_equal(pthread_create(&thread, NULL, stub_main, s), 0);
    int rc = tp->ask(url, "GPUPOOL/1 x", 11, answer, &before_size, s->silent ? 50 : 5000, &err);
    pthread_join(thread, NULL);
    assert_int_equal(descriptors(), before);
    assert_true((rc == 0) == (err.text[0] == '\0'));
    *got = rc ? 0 : before_size;
    return rc;
}

static void test_questions(void **state)
{
    (void)state;
    char folder[64] = "/tmp/gps-XXXXXX", url[96];
    assert_non_null(mkdtemp(folder));
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s/s", folder);
    snprintf(url, sizeof url, "unix://%s/s", folder);
    struct stub s = {.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    size_t got;
    char answer[8];
    struct gp_error err;
    assert_int_equal(tp->ask(url, "x", 1, answer, &(size_t){8}, 100, &err), -ECONNREFUSED);
    assert_int_equal(bind(s.socket, (void *)&a, sizeof a), 0);
    assert_int_equal(tp->ask(url, "x", 1, answer, &(size_t){8}, 100, &err), -ECONNREFUSED);
    assert_int_equal(listen(s.socket, 4), 0);
    static const size_t sizes[] = {1, 255, 256};
    for (size_t i = 0; i < 3; i++) {
        s.answer_bytes = sizes[i];
        assert_int_equal(ask_stub(url, &s, &got), 0);
        assert_int_equal(got, sizes[i]);
    }
    s.answer_bytes = 257;
    assert_int_equal(ask_stub(url, &s, &got), -EMSGSIZE);
    s.answer_bytes = 0;
    assert_int_equal(ask_stub(url, &s, &got), -EPROTO);
    s.silent = true;
    assert_int_equal(ask_stub(url, &s, &got), -ETIMEDOUT);
    close(s.socket);
    unlink(a.sun_path);
    rmdir(folder);
    static const char *const bad[] = {"unix://x", "unix:///x?key=1", "shm:///x", "unix://"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(tp->ask(bad[i], "x", 1, answer, &(size_t){8}, 100, &err), -EINVAL);
}

/* Either end can write to what the other reads: nobody may see a length change between
 * its check and its use. */
static void test_a_message_stays_what_it_was(void **state)
{
    (void)state;
    int fd = shm_memory_new("test", SHM_BYTES), sockets[2];
    assert_true(fd >= 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
    struct gp_channel *ends[2];
    unsigned char *memory[2];
    for (int i = 0; i < 2; i++) {
        memory[i] = mmap(NULL, SHM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_ptr_not_equal(memory[i], MAP_FAILED);
        assert_int_equal(shm_channel_new(memory[i], sockets[i], i == 1, &ends[i]), 0);
    }
    close(fd);
    for (int i = 0; i < 2; i++) {
        char said[64] = "as it was said";
        struct iovec iov = {said, sizeof said};
        const void *message;
        size_t size;
        assert_int_equal(tp->send(ends[i], &iov, 1, 0), 0);
        assert_int_equal(tp->recv(ends[!i], -1, &message, &size), 0);
        memset(memory[i] + SHM_CONTROL, 'X', 2 * SHM_RING);
        assert_int_equal(size, sizeof said);
        assert_memory_equal(message, said, sizeof said);
        tp->release(ends[!i]);
    }
    for (int i = 0; i < 2; i++)
        tp->close(ends[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_memory),
        cmocka_unit_test(test_guests),
        cmocka_unit_test(test_bad_shares),
        cmocka_unit_test(test_shares_that_nobody_takes),
        cmocka_unit_test(test_memory_keeps_its_size),
        cmocka_unit_test(test_bad_addresses),
        cmocka_unit_test(test_no_memory_files),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(test_a_message_stays_what_it_was),
    };
    return cmocka_run_group_tests_name("shm_socket", tests, NULL, NULL);
}
