/* The socket of the shared-memory transport: its rights, what a dead process
 * leaves behind, and memory that is not what it says. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/shm_channel.h"
#include "transport_raw.h"

static char folder[64], path[96], url[112];
static const struct gp_transport *tp = &gp_transport_shm;

static struct gp_listener *listener_open(void)
{
    struct gp_listener *l = NULL;
    struct gp_error err = {.text = ""};
    if (tp->listen(url, &l, &err) != 0)
        fail_msg("%s", err.text);
    return l;
}

static void test_rights_and_removal(void **state)
{
    (void)state;
    struct stat st;
    struct gp_listener *l = listener_open(), *second = NULL;
    struct gp_error err = {.text = ""};
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(tp->listen(url, &second, &err), -EADDRINUSE);
    assert_non_null(strstr(err.text, "another process does"));
    tp->listener_close(l);
    assert_int_equal(stat(path, &st), -1);
}

static void test_stale_file(void **state)
{
    (void)state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    assert_int_equal(bind(fd, (void *)&a, sizeof a), 0);
    close(fd); /* as a killed process leaves it */
    tp->listener_close(listener_open());

    struct gp_listener *l = NULL;
    struct gp_error err = {.text = ""};
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(tp->listen(url, &l, &err), -EADDRINUSE); /* not ours to remove */
    assert_int_equal(unlink(path), 0);
}

/* Say hello with `fd` and expect to be shown out. */
static void expect_shown_out(struct gp_listener *l, const struct shm_packet *hello, int fd)
{
    struct gp_channel *ch = NULL;
    char byte;
    int sock = raw_dial(RAW_SEQPACKET, url);
    assert_true(sock >= 0);
    assert_int_equal(shm_packet_send(sock, hello, fd), 0);
    assert_int_equal(tp->accept(l, 100, &ch, NULL), -EAGAIN);
    assert_null(ch);
    assert_true(recv(sock, &byte, 1, MSG_DONTWAIT) <= 0);
    assert_true(errno != EAGAIN);
    close(sock);
    if (fd >= 0)
        close(fd);
}

static int memory_unsealed(size_t bytes)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    return fd;
}

static void test_bad_memory(void **state)
{
    (void)state;
    struct gp_listener *l = listener_open();
    struct shm_packet hello = {.magic = SHM_MAGIC, .kind = SHM_HELLO, .bytes = SHM_BYTES};
    expect_shown_out(l, &hello, -1);
    expect_shown_out(l, &hello, memory_unsealed(SHM_BYTES));
    int fd = memory_unsealed(SHM_BYTES);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
    expect_shown_out(l, &hello, fd); /* may still shrink */
    expect_shown_out(l, &hello, shm_memory_new("test", SHM_BYTES - 4096));
    expect_shown_out(l, &hello, open("/dev/zero", O_RDWR | O_CLOEXEC));
    hello.kind = SHM_READY;
    expect_shown_out(l, &hello, shm_memory_new("test", SHM_BYTES));
    tp->listener_close(l);
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
        cmocka_unit_test(test_rights_and_removal),
        cmocka_unit_test(test_stale_file),
        cmocka_unit_test(test_bad_memory),
        cmocka_unit_test(test_a_message_stays_what_it_was),
    };
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.40s/gps-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder)) {
        perror("mkdtemp");
        return 1;
    }
    snprintf(path, sizeof path, "%s/w.sock", folder);
    snprintf(url, sizeof url, "shm://%s", path);
    int failed = cmocka_run_group_tests_name("shm_socket", tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
