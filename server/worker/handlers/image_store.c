#include "image_store.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "budget.h"
#include "fatbin.h"
#include "control.h"
#include "ipc.h"
#include "monotonic.h"
#include "transport/hex.h"

#define HASH_BYTES 32

/* Shorter than a client without room waits for sessions that end (sessions.py, LEAVING_SECONDS). */
#define LEAVE_NS UINT64_C(900000000)

struct offered {
    struct offered *next;
    uint8_t hash[HASH_BYTES];
    uint64_t total;
    int file;
};

struct gpw_image_store {
    int folder;
    bool has_offered;
    pthread_mutex_t lock; /* for the control thread: `offered` */
    struct offered *offered;
};

int gpw_image_store_open(struct gpw_session *s, const char *folder)
{
    if (!folder)
        return 0;
    struct gpw_image_store *store = calloc(1, sizeof *store);
    if (!store)
        return -1;
    store->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->folder < 0) { /* a session is better off slow than not at all */
        gpw_log("warn", "the folder of images %s cannot be opened: %m", folder);
        free(store);
        return 0;
    }
    pthread_mutex_init(&store->lock, NULL);
    s->budget.spare = gpw_image_store_forget;
    __atomic_store_n(&s->image_store, store, __ATOMIC_RELEASE); /* with gpw_image_store_tell */
    return 0;
}

static struct gpw_image_store *store_of(const struct gpw_session *s)
{
    return __atomic_load_n(&s->image_store, __ATOMIC_ACQUIRE); /* with gpw_image_store_open */
}

/* The lock is held. Who needs room and finds nothing here any more has the room already. */
static struct offered *offered_take(struct gpw_session *s, struct offered **at)
{
    struct offered *one = *at;
    *at = one->next;
    gpw_budget_give(s, GPW_USE_IMAGES, one->total);
    return one;
}

static void offered_free(struct offered *one)
{
    close(one->file);
    free(one);
}

void gpw_image_store_forget(struct gpw_session *s)
{
    struct gpw_image_store *store = store_of(s);
    if (!store)
        return;
    pthread_mutex_lock(&store->lock);
    while (store->offered)
        offered_free(offered_take(s, &store->offered));
    pthread_mutex_unlock(&store->lock);
}

bool gpw_image_store_wants(const struct gpw_session *s, uint64_t total)
{
    return store_of(s) && total > GP_IMAGE_EAGER;
}

int gpw_image_store_file(uint64_t size)
{
    int file = memfd_create("gpupool-image", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)size) == 0)
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

/* The lock is held. */
static struct offered **offered_find(struct gpw_image_store *store, const uint8_t *hash)
{
    struct offered **at = &store->offered;
    while (*at && memcmp((*at)->hash, hash, HASH_BYTES) != 0)
        at = &(*at)->next;
    return at;
}

/* What the server has not fetched yet. */
static int offered_open(struct gpw_image_store *store, const uint8_t *hash, uint64_t *total)
{
    pthread_mutex_lock(&store->lock);
    const struct offered *one = *offered_find(store, hash);
    int file = one ? fcntl(one->file, F_DUPFD_CLOEXEC, 0) : -1;
    if (file >= 0)
        *total = one->total;
    pthread_mutex_unlock(&store->lock);
    return file;
}

int gpw_image_store_find(struct gpw_session *s, const uint8_t *hash, uint64_t *total)
{
    struct gpw_image_store *store = store_of(s);
    char name[2 * HASH_BYTES + 1];
    struct stat found;
    if (!store)
        return -1;
    int offered = offered_open(store, hash, total);
    if (offered >= 0)
        return offered;
    gp_hex_show(hash, HASH_BYTES, name);
    int file = openat(store->folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return -1;
    if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size <= 0 ||
        (uint64_t)found.st_size > GP_IMAGE_BYTES_MAX) {
        close(file);
        return -1;
    }
    *total = (uint64_t)found.st_size;
    return file;
}

void gpw_image_store_used(struct gpw_session *s, const uint8_t *hash)
{
    char name[2 * HASH_BYTES + 1], line[80];
    gp_hex_show(hash, HASH_BYTES, name);
    snprintf(line, sizeof line, "used %s", name);
    gpw_ipc_say(s, line);
}

/* The lock is held. Where no server hears it, the next one is told. */
static void say(struct gpw_session *s, const struct offered *one)
{
    char name[2 * HASH_BYTES + 1], line[112];
    gp_hex_show(one->hash, HASH_BYTES, name);
    snprintf(line, sizeof line, "image %s %llu", name, (unsigned long long)one->total);
    gpw_ipc_say(s, line);
}

void gpw_image_store_offer(struct gpw_session *s, const uint8_t *hash, uint64_t total, int file)
{
    struct gpw_image_store *store = store_of(s);
    struct offered *one = store ? malloc(sizeof *one) : NULL;
    if (!one) {
        close(file);
        gpw_budget_give(s, GPW_USE_IMAGES, total);
        return;
    }
    memcpy(one->hash, hash, HASH_BYTES);
    one->total = total;
    one->file = file;
    store->has_offered = true;
    pthread_mutex_lock(&store->lock);
    one->next = store->offered;
    store->offered = one;
    say(s, one);
    pthread_mutex_unlock(&store->lock);
}

void gpw_image_store_server(struct gpw_session *s)
{
    struct gpw_image_store *store = store_of(s);
    if (!store)
        return;
    pthread_mutex_lock(&store->lock);
    for (const struct offered *one = store->offered; one; one = one->next)
        say(s, one);
    pthread_mutex_unlock(&store->lock);
}

/* What the server has not fetched is offered again: it may have come just now. */
void gpw_image_store_leave(struct gpw_session *s)
{
    const struct gpw_image_store *store = store_of(s);
    uint64_t until = gp_now_ns() + LEAVE_NS;
    if (!store || !store->has_offered || gpw_control_stopped(s->control) ||
        !gpw_ipc_await_server(s, until))
        return;
    gpw_image_store_server(s);
    gpw_ipc_settle(s, until);
}

/* --- for the control thread ------------------------------------------------------------------ */

static struct offered *take(struct gpw_session *s, struct gpw_image_store *store,
                            const uint8_t *hash)
{
    pthread_mutex_lock(&store->lock);
    struct offered **at = offered_find(store, hash);
    struct offered *one = *at ? offered_take(s, at) : NULL;
    pthread_mutex_unlock(&store->lock);
    return one;
}

static void tell(const struct offered *one, int connection)
{
    char line[32] = "none\n";
    if (one)
        snprintf(line, sizeof line, "image %llu\n", (unsigned long long)one->total);
    struct iovec iov = {line, strlen(line)};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (one) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof one->file);
        memcpy(CMSG_DATA(c), &one->file, sizeof one->file);
    }
    sendmsg(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void gpw_image_store_tell(struct gpw_session *s, const char *hash, int connection)
{
    struct gpw_image_store *store = store_of(s);
    uint8_t wanted[HASH_BYTES];
    bool well = store && gp_hex_read(hash, wanted, sizeof wanted) == 0;
    struct offered *one = well ? take(s, store, wanted) : NULL;
    tell(one, connection);
    if (one)
        offered_free(one);
}
