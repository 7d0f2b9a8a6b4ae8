#include "shared_event.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runlist.h"

#define SLOTS 2048u
#define VERSION 1u
#define MAGIC UINT64_C(0x746e657665676873) /* "shgevent" */

struct slot {
    uint64_t token; /* 0: none's */
    uint64_t submitted, passed;
};

struct sg_shared_event {
    uint32_t slot;
    uint64_t token;
    bool own; /* this process has made it */
};

/* What is in a handle. */
struct name {
    uint64_t magic, token;
    uint32_t slot;
};
_Static_assert(sizeof(struct name) <= CU_IPC_HANDLE_SIZE, "a name is too large for CUDA's");

/* This process's view of the table. A lock of one open file is no obstacle to itself. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static struct slot *slots;
static int file = -1;
static bool own[SLOTS]; /* sg.lock is held */

static struct slot *table_map(int fd)
{
    struct stat info;
    const off_t size = SLOTS * sizeof(struct slot);
    if (fstat(fd, &info) != 0 || (info.st_size == 0 && posix_fallocate(fd, 0, size) != 0) ||
        (info.st_size != 0 && info.st_size != size))
        return NULL;
    void *at = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void table_open(const char *folder)
{
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/v%u.events", folder, VERSION);
    int fd = n > 0 && (size_t)n < sizeof(path) ? sg_shared_file(path) : -1;
    slots = fd >= 0 ? table_map(fd) : NULL;
    if (slots)
        file = fd;
    else if (fd >= 0)
        close(fd);
}

bool sg_shared_events_there(void)
{
    const char *folder = getenv("GPUPOOL_SOFT_TIME");
    pthread_mutex_lock(&opening);
    if (!slots && folder && *folder)
        table_open(folder);
    bool there = slots != NULL;
    pthread_mutex_unlock(&opening);
    return there;
}

static bool slot_lock(uint32_t slot, int command, short type)
{
    struct flock lock = {.l_type = type,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)(SLOTS * sizeof(struct slot)) + slot,
                         .l_len = 1};
    return fcntl(file, command, &lock) == 0 && (command != F_OFD_GETLK || lock.l_type != F_UNLCK);
}

struct sg_shared_event *sg_shared_event_new(void)
{
    uint64_t token = 0;
    struct sg_shared_event *event = malloc(sizeof(*event));
    uint32_t slot = 0;
    if (!event || !sg_shared_events_there() ||
        getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token)) {
        free(event);
        return NULL;
    }
    while (slot < SLOTS && (own[slot] || !slot_lock(slot, F_OFD_SETLK, F_WRLCK)))
        slot++;
    if (slot == SLOTS) {
        free(event);
        return NULL;
    }
    own[slot] = true;
    __atomic_store_n(&slots[slot].submitted, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slots[slot].passed, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slots[slot].token, token | 1, __ATOMIC_RELEASE); /* with who opens it */
    *event = (struct sg_shared_event){slot, token | 1, true};
    return event;
}

void sg_shared_event_free(struct sg_shared_event *event)
{
    if (event && event->own) {
        __atomic_store_n(&slots[event->slot].token, 0, __ATOMIC_RELEASE);
        own[event->slot] = false;
        slot_lock(event->slot, F_OFD_SETLK, F_UNLCK);
    }
    free(event);
}

static bool lives(const struct sg_shared_event *event)
{
    return __atomic_load_n(&slots[event->slot].token, __ATOMIC_ACQUIRE) == event->token;
}

void sg_shared_event_name(const struct sg_shared_event *event, CUipcEventHandle *handle)
{
    const struct name name = {MAGIC, event->token, event->slot};
    memset(handle, 0, sizeof(*handle));
    memcpy(handle->reserved, &name, sizeof(name));
}

struct sg_shared_event *sg_shared_event_open(const CUipcEventHandle *handle)
{
    struct name name;
    memcpy(&name, handle->reserved, sizeof(name));
    if (name.magic != MAGIC || name.slot >= SLOTS || !name.token || !sg_shared_events_there())
        return NULL;
    struct sg_shared_event *event = malloc(sizeof(*event));
    if (event)
        *event = (struct sg_shared_event){name.slot, name.token, false};
    if (event && !lives(event)) {
        free(event);
        event = NULL;
    }
    return event;
}

uint64_t sg_shared_event_record(struct sg_shared_event *event)
{
    return __atomic_add_fetch(&slots[event->slot].submitted, 1, __ATOMIC_SEQ_CST);
}

uint64_t sg_shared_event_last(const struct sg_shared_event *event)
{
    return lives(event) ? __atomic_load_n(&slots[event->slot].submitted, __ATOMIC_SEQ_CST) : 0;
}

void sg_shared_event_pass(struct sg_shared_event *event, uint64_t number)
{
    uint64_t *passed = &slots[event->slot].passed,
             before = __atomic_load_n(passed, __ATOMIC_SEQ_CST);
    while (lives(event) && before < number &&
           !__atomic_compare_exchange_n(passed, &before, number, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
    }
}

bool sg_shared_event_passed(const struct sg_shared_event *event, uint64_t number)
{
    if (!lives(event) || __atomic_load_n(&slots[event->slot].passed, __ATOMIC_SEQ_CST) >= number)
        return true;
    return !event->own && !slot_lock(event->slot, F_OFD_GETLK, F_WRLCK);
}
