/*
 * A connection that a worker was handed, and whatever a client sends on it: datagrams with
 * descriptors of any kind, before and after a hello that is right. None of them may stay open.
 *
 * The input is a list of datagrams: a byte what it is (a hello, a share, or as many raw bytes as
 * the next byte says), a byte which descriptor, a byte how many of it, and the raw bytes, which
 * are laid over the hello or the share from where the fourth byte says.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "left_open.h"
#include "transport/shm_channel.h"
#include "transport/shm_give.h"

#define MANY 6
#define SHARE_BYTES 8192
#define PACKETS_MAX 12

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum what { HELLO, SHARE, RAW, WHATS };
enum kind { RINGS, MEMORY, UNSEALED, SHORT, DEVICE, FOLDER, PIPE, SOCKET, KINDS };

struct input {
    const uint8_t *at;
    size_t left;
};

static uint8_t take(struct input *in)
{
    if (!in->left)
        return 0;
    in->left--;
    return *in->at++;
}

static int kind_make(enum kind kind)
{
    int ends[2], fd;
    switch (kind) {
    case RINGS:
        return shm_memory_new("fuzz", SHM_BYTES);
    case MEMORY:
        return shm_memory_new("fuzz", SHARE_BYTES);
    case UNSEALED:
        fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        return ftruncate(fd, SHARE_BYTES) == 0 ? fd : -1;
    case SHORT:
        return shm_memory_new("fuzz", SHARE_BYTES / 2);
    case DEVICE:
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    case FOLDER:
        return open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    case PIPE:
        if (pipe2(ends, O_CLOEXEC) != 0)
            return -1;
        close(ends[1]);
        return ends[0];
    case SOCKET:
    case KINDS:
        break;
    }
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

/* One of each kind for all inputs. What the rings begin with is as new for each. */
static int kinds[KINDS];
static unsigned char *rings;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    for (int i = 0; i < KINDS; i++)
        if ((kinds[i] = kind_make((enum kind)i)) < 0)
            abort();
    rings = mmap(NULL, SHM_CONTROL, PROT_READ | PROT_WRITE, MAP_SHARED, kinds[RINGS], 0);
    if (rings == MAP_FAILED)
        abort();
    return 0;
}

static void send_it(int sock, void *bytes, size_t size, int fd, unsigned count)
{
    struct iovec iov = {bytes, size};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MANY * sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (count) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        for (unsigned i = 0; i < count; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof fd);
    }
    (void)!sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* One datagram; returns the id that it gives a share. */
static uint64_t send_next(struct input *in, int sock)
{
    enum what what = take(in) % WHATS;
    int fd = kinds[take(in) % KINDS];
    unsigned count = take(in) % (MANY + 1);
    struct shm_packet packet = {.magic = SHM_MAGIC,
                                .kind = what == HELLO ? SHM_HELLO : SHM_SHARE,
                                .bytes = what == HELLO ? SHM_BYTES : SHARE_BYTES,
                                .id = 1};
    unsigned char bytes[256] = {0};
    size_t size = sizeof packet, from = take(in);
    if (what == RAW)
        size = from;
    else
        memcpy(bytes, &packet, sizeof packet);
    size_t begin = what == RAW ? 0 : from;
    for (size_t i = begin; i < size; i++)
        bytes[i] = take(in);
    send_it(sock, bytes, size, fd, count);
    memcpy(&packet, bytes, sizeof packet);
    return packet.id;
}

/* What may have arrived is mapped, if it is memory, and every byte of it is there. */
static void take_shares(struct gp_channel *ch, uint64_t id)
{
    struct gp_share share;
    if (gp_transport_shm.accept_share(ch, id, &share) != 0)
        return;
    memset(share.addr, 1, share.size);
    gp_transport_shm.unshare(ch, &share);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct gp_transport *tp = &gp_transport_shm;
    struct input in = {data, size};
    struct gp_listener *l = NULL;
    struct gp_channel *ch = NULL;
    int ends[2], before = lowest_free();
    memset(rings, 0, sizeof(struct gp_ring_shared));
    memset(rings + SHM_CONTROL / 2, 0, sizeof(struct gp_ring_shared));
    if (tp->listen(SHM_HANDED, &l, NULL) != 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        abort();
    if (gp_shm_give(l, ends[0], -1) != 0)
        abort();
    (void)tp->accept(l, 0, &ch, NULL);
    for (unsigned i = 0; in.left && i < PACKETS_MAX; i++) {
        uint64_t id = send_next(&in, ends[1]);
        if (!ch)
            (void)tp->accept(l, 0, &ch, NULL);
        else
            take_shares(ch, id);
    }
    tp->close(ch);
    tp->listener_close(l);
    close(ends[1]);
    if (left_open(before))
        abort(); /* something of it is open */
    return 0;
}
