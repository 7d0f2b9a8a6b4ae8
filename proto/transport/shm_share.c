#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "transport/shm_channel.h"
#include "transport/standard_fds.h"
#include "wire/descriptors.h"
#include "wire/memory_file.h"

#define MEMORY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
/* Shares that a peer may have sent and we have not asked for: each holds a
 * descriptor of ours. */
#define ARRIVALS_MAX 512
/* How long `share` waits for a peer that does not take shares in. */
#define SHARE_SEND_MS 5000
/* Nobody maps below this; see vm.mmap_min_addr. */
#define ADDR_FLOOR ((uintptr_t)64 << 10)

/* --- memory files -------------------------------------------------------- */

int shm_memory_new(const char *name, size_t bytes)
{
    struct gp_standard_fds standard;
    gp_standard_fds_hold(&standard);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    gp_standard_fds_release(&standard);
    if (fd < 0)
        return -errno;
    int rc = gp_memory_file_size(fd, bytes);
    if (rc == 0 && (fchmod(fd, 0600) != 0 || fcntl(fd, F_ADD_SEALS, MEMORY_SEALS) != 0))
        rc = -errno;
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

int shm_memory_check(int fd, size_t bytes)
{
    struct stat st;
    struct statfs fs;
    if (!gp_memory_file_sealed(fd, MEMORY_SEALS))
        return -EPROTO;
    /* Seals hold for huge pages, too, but those can run out under us: that is a SIGBUS. */
    if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC)
        return -EPROTO;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < 0 ||
        (uint64_t)st.st_size != bytes)
        return -EPROTO;
    return 0;
}

/* --- packets over the socket --------------------------------------------- */

int shm_packet_send(int sock, const struct shm_packet *packet, int fd)
{
    struct iovec iov = {.iov_base = (void *)packet, .iov_len = sizeof *packet};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    for (;;) {
        ssize_t n = sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n == (ssize_t)sizeof *packet)
            return 0;
        if (n >= 0)
            return -EPIPE;
        if (errno == EINTR)
            continue;
        /* Too many descriptors on their way is "full" as well. */
        if (errno == EAGAIN || errno == ETOOMANYREFS)
            return -EAGAIN;
        return errno == ENOMEM || errno == ENOBUFS ? -ENOMEM : -EPIPE;
    }
}

/* Close every descriptor of the message but the first of a lone pair of one
 * control message with one descriptor, which is what we send. */
static int packet_take_fd(struct msghdr *msg)
{
    int kept = -1;
    unsigned seen = gp_descriptors_take(msg, &kept, 1);
    if (seen > 1) {
        close(kept);
        return -EPROTO;
    }
    return kept;
}

int shm_packet_recv(int sock, struct shm_packet *packet, int *fd)
{
    struct iovec iov = {.iov_base = packet, .iov_len = sizeof *packet};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes,
    };
    ssize_t n;
    do
        n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN ? -EAGAIN : -EPIPE;
    int got = packet_take_fd(&msg);
    if (n == 0 && got == -1)
        return -EPIPE;
    if (got == -EPROTO || n != (ssize_t)sizeof *packet ||
        (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
        strncmp(packet->magic, SHM_MAGIC, sizeof packet->magic) != 0) {
        if (got >= 0)
            close(got);
        return -EPROTO;
    }
    *fd = got;
    return 0;
}

/* --- arrivals ------------------------------------------------------------ */

static bool share_size_ok(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return bytes > 0 && bytes <= (uint64_t)1 << 46 && bytes % page == 0;
}

/* With share_lock held; takes `fd` over. */
static int arrival_add(struct gp_channel *ch, const struct shm_packet *packet, int fd)
{
    struct shm_arrival *a = NULL;
    int rc = -EPROTO;
    if (packet->kind != SHM_SHARE || fd < 0 || !share_size_ok(packet->bytes) ||
        ch->arrival_count >= ARRIVALS_MAX)
        goto fail;
    rc = shm_memory_check(fd, packet->bytes);
    if (rc)
        goto fail;
    a = malloc(sizeof *a);
    rc = -ENOMEM;
    if (!a)
        goto fail;
    *a = (struct shm_arrival){.next = ch->arrivals,
                              .id = packet->id,
                              .addr = packet->addr,
                              .bytes = packet->bytes,
                              .fd = fd};
    ch->arrivals = a;
    ch->arrival_count++;
    return 0;
fail:
    if (fd >= 0)
        close(fd);
    return rc;
}

static int arrivals_read_locked(struct gp_channel *ch)
{
    for (;;) {
        struct shm_packet packet;
        int fd;
        if (!gp_fd_is(&ch->mark))
            return -EBADF;
        int rc = shm_packet_recv(ch->socket, &packet, &fd);
        if (rc)
            return rc == -EAGAIN ? 0 : rc;
        rc = arrival_add(ch, &packet, fd);
        if (rc)
            return rc;
    }
}

int shm_arrivals_read(struct gp_channel *ch)
{
    pthread_mutex_lock(&ch->share_lock);
    int rc = arrivals_read_locked(ch);
    pthread_mutex_unlock(&ch->share_lock);
    return rc;
}

void shm_arrivals_drop(struct gp_channel *ch)
{
    while (ch->arrivals) {
        struct shm_arrival *a = ch->arrivals;
        ch->arrivals = a->next;
        close(a->fd);
        free(a);
    }
    ch->arrival_count = 0;
}

/* With share_lock held: the arrival named `id`, unlinked, or NULL. */
static struct shm_arrival *arrival_take(struct gp_channel *ch, uint64_t id)
{
    for (struct shm_arrival **at = &ch->arrivals; *at; at = &(*at)->next) {
        struct shm_arrival *a = *at;
        if (a->id != id)
            continue;
        *at = a->next;
        ch->arrival_count--;
        return a;
    }
    return NULL;
}

/* --- the three slots ----------------------------------------------------- */

/* Map `fd` at `hint` where that is free, else anywhere. NULL: no memory. */
static void *share_map(int fd, size_t bytes, uintptr_t hint)
{
    int prot = PROT_READ | PROT_WRITE;
    void *addr = MAP_FAILED;
    if (hint >= ADDR_FLOOR && hint % (uintptr_t)sysconf(_SC_PAGESIZE) == 0)
        addr = mmap((void *)hint, bytes, prot, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    if (addr == MAP_FAILED)
        addr = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
    return addr == MAP_FAILED ? NULL : addr;
}

static int share_send(struct gp_channel *ch, const struct shm_packet *packet, int fd)
{
    int64_t deadline = gp_deadline_us((int64_t)SHARE_SEND_MS * 1000);
    for (;;) {
        if (!gp_fd_is(&ch->mark))
            return -EBADF;
        int rc = shm_packet_send(ch->socket, packet, fd);
        if (rc != -EAGAIN)
            return rc;
        int left = gp_deadline_left_ms(deadline, 50);
        if (left == 0 || atomic_load_explicit(&ch->dead, memory_order_relaxed))
            return left == 0 ? -EAGAIN : -EPIPE;
        struct pollfd p = {.fd = ch->socket, .events = POLLOUT};
        if (poll(&p, 1, left) > 0 && (p.revents & (POLLHUP | POLLERR)))
            return -EPIPE;
    }
}

int shm_share(struct gp_channel *ch, void *hint, size_t size, struct gp_share *out)
{
    if (ch->generation != gp_fork_generation() ||
        atomic_load_explicit(&ch->dead, memory_order_relaxed))
        return -EPIPE;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (size == 0 || size > ((size_t)1 << 46) - page)
        return -EINVAL;
    size = (size + page - 1) & ~(page - 1);
    int fd = shm_memory_new("gpupool-share", size);
    if (fd < 0)
        return fd;
    void *addr = share_map(fd, size, (uintptr_t)hint);
    if (!addr) {
        close(fd);
        return -ENOMEM;
    }
    pthread_mutex_lock(&ch->share_lock);
    uint64_t id = ch->next_id;
    ch->next_id += 2;
    pthread_mutex_unlock(&ch->share_lock);

    struct shm_packet packet = {.magic = SHM_MAGIC,
                                .kind = SHM_SHARE,
                                .bytes = size,
                                .id = id,
                                .addr = (uint64_t)(uintptr_t)addr};
    int rc = share_send(ch, &packet, fd);
    close(fd);
    if (rc) {
        munmap(addr, size);
        return rc;
    }
    *out = (struct gp_share){
        .addr = addr, .size = size, .id = id, .same_address = !hint || addr == hint};
    return 0;
}

int shm_accept_share(struct gp_channel *ch, uint64_t id, struct gp_share *out)
{
    if (ch->generation != gp_fork_generation())
        return -EPIPE;
    pthread_mutex_lock(&ch->share_lock);
    struct shm_arrival *a = arrival_take(ch, id);
    int rc = 0;
    if (!a) {
        rc = arrivals_read_locked(ch);
        a = arrival_take(ch, id);
    }
    pthread_mutex_unlock(&ch->share_lock);
    if (!a) {
        if (rc == -EPROTO)
            shm_channel_kill(ch, rc);
        return rc ? rc : -ENOENT;
    }
    void *addr = share_map(a->fd, a->bytes, (uintptr_t)a->addr);
    if (addr)
        *out = (struct gp_share){.addr = addr,
                                 .size = a->bytes,
                                 .id = id,
                                 .same_address = (uint64_t)(uintptr_t)addr == a->addr};
    close(a->fd);
    free(a);
    return addr ? 0 : -ENOMEM;
}

void shm_unshare(struct gp_channel *ch, struct gp_share *share)
{
    (void)ch;
    if (!share || !share->addr)
        return;
    munmap(share->addr, share->size);
    share->addr = NULL;
}
