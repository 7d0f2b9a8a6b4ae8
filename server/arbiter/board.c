/* The board's file: mapping, lock, tenants, members, memory. */
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "board_internal.h"

/* --- the file -------------------------------------------------------------------- */

static void file_init(struct board_file *f)
{
    memset(f, 0, sizeof *f);
    f->gpu = (struct gp_board_gpu){.policy = GP_POLICY_SHARE, .max_inst = 20, .prio_ratio = 90};
    f->holder = -1;
    f->version = GP_BOARD_VERSION;
    f->size = sizeof *f;
    f->magic = GP_BOARD_MAGIC;
}

static void file_unmap(struct board_file *f)
{
    munmap(f, sizeof *f);
    gp_board_unguard(f);
}

/* With the file locked against others that open it. */
static int file_map(int fd, struct board_file **out)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return -errno;
    bool fresh = info.st_size == 0;
    /* taken now: a page that the file system has no room for would end us when we touch it */
    int full = fresh ? posix_fallocate(fd, 0, sizeof(struct board_file)) : 0;
    if (full != 0) {
        if (ftruncate(fd, 0) != 0)
            return -errno;
        return -full;
    }
    if (!fresh && info.st_size != sizeof(struct board_file))
        return -EPROTO;
    struct board_file *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (f == MAP_FAILED)
        return -errno;
    gp_board_guard(f);
    if (fresh)
        file_init(f);
    if (f->magic != GP_BOARD_MAGIC || f->version != GP_BOARD_VERSION || f->size != sizeof *f) {
        int r = f->magic == GP_BOARD_MAGIC ? -EPROTO : -EUCLEAN;
        file_unmap(f);
        return r;
    }
    *out = f;
    return 0;
}

int gp_board_open(const char *path, struct gp_board **out)
{
    struct gp_board *b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    int r = 0;
    b->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (b->fd < 0 || flock(b->fd, LOCK_EX) != 0)
        r = -errno;
    if (r == 0)
        r = file_map(b->fd, &b->file);
    if (b->fd >= 0)
        flock(b->fd, LOCK_UN);
    if (r == 0 && (r = gp_board_check(b)) != 0)
        file_unmap(b->file);
    if (r != 0) {
        if (b->fd >= 0)
            close(b->fd);
        free(b);
        return r;
    }
    *out = b;
    return 0;
}

void gp_board_close(struct gp_board *b)
{
    if (!b)
        return;
    file_unmap(b->file);
    close(b->fd);
    free(b);
}

bool gp_board_replaced(const struct gp_board *b, const char *path)
{
    struct stat ours, there;
    return stat(path, &there) == 0 && fstat(b->fd, &ours) == 0 &&
           (ours.st_ino != there.st_ino || ours.st_dev != there.st_dev);
}

/* --- what is read of it ------------------------------------------------------------- */

struct tenant_slot *gp_board_tenant_of(struct board_file *f, const struct member_slot *m)
{
    static _Thread_local struct tenant_slot nobody;
    uint32_t index = __atomic_load_n(&m->tenant, __ATOMIC_RELAXED);
    if (index < GP_BOARD_TENANTS)
        return &f->tenants[index];
    memset(&nobody, 0, sizeof nobody);
    return &nobody;
}

struct tenant_slot *gp_board_holder(struct board_file *f)
{
    int32_t index = __atomic_load_n(&f->holder, __ATOMIC_ACQUIRE);
    return index >= 0 && index < GP_BOARD_TENANTS ? &f->tenants[index] : NULL;
}

int32_t gp_board_index(const struct board_file *f, const struct tenant_slot *t)
{
    bool on_it = t >= f->tenants && t < f->tenants + GP_BOARD_TENANTS;
    return on_it ? (int32_t)(t - f->tenants) : -2;
}

uint64_t gp_board_weight(const struct tenant_slot *t)
{
    uint32_t weight = __atomic_load_n(&t->weight, __ATOMIC_RELAXED);
    return weight ? weight : 1;
}

uint64_t gp_board_ceiling(const struct tenant_slot *t)
{
    uint32_t ceiling = __atomic_load_n(&t->ceiling, __ATOMIC_RELAXED);
    return ceiling < 1 ? 1 : ceiling > 1000 ? 1000 : ceiling;
}

/* --- sums --------------------------------------------------------------------------- */

void gp_board_recount(struct board_file *f)
{
    for (int i = 0; i < GP_BOARD_TENANTS; i++) {
        struct tenant_slot *t = &f->tenants[i];
        t->usage.memory_used = t->usage.host_used = 0;
        t->usage.members = t->wanting = t->busy = 0;
    }
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        struct member_slot *m = &f->members[i];
        if (!m->pid)
            continue;
        struct tenant_slot *t = gp_board_tenant_of(f, m);
        t->usage.memory_used += m->memory_used;
        t->usage.host_used += m->host_used;
        t->usage.members++;
        t->wanting += m->wants_since != 0;
        t->busy += m->busy != 0;
    }
    gp_board_entitle(f);
}

/* --- settings ----------------------------------------------------------------------- */

int gp_board_gpu_set(struct gp_board *b, const struct gp_board_gpu *gpu)
{
    if (!gp_board_gpu_ok(gpu))
        return -EINVAL;
    struct board_file *f = b->file;
    gp_board_lock(f);
    f->gpu = *gpu;
    gp_board_entitle(f);
    gp_board_turn(f, gp_board_now());
    gp_board_unlock(f);
    return 0;
}

void gp_board_gpu_get(struct gp_board *b, struct gp_board_gpu *gpu)
{
    gp_board_lock(b->file);
    *gpu = b->file->gpu;
    gp_board_unlock(b->file);
}

static struct tenant_slot *tenant_find(struct board_file *f, const char *name)
{
    for (int i = 0; i < GP_BOARD_TENANTS; i++)
        if (strncmp(f->tenants[i].name, name, GP_BOARD_NAME) == 0)
            return &f->tenants[i];
    return NULL;
}

/* The slot of a new tenant, cleared but for its name. */
static struct tenant_slot *tenant_new(struct board_file *f, const char *name, uint64_t now)
{
    struct tenant_slot *t = tenant_find(f, "");
    if (!t)
        return NULL;
    memset(t, 0, sizeof *t);
    strcpy(t->name, name);
    t->tokens_at = t->idle_since = now;
    return t;
}

int gp_board_tenant_set(struct gp_board *b, const char *name, const struct gp_board_grant *grant)
{
    if (!gp_board_name_ok(name) || !gp_board_grant_ok(grant))
        return -EINVAL;
    struct board_file *f = b->file;
    int r = 0;
    gp_board_lock(f);
    struct tenant_slot *t = tenant_find(f, name);
    if (!t && !(t = tenant_new(f, name, gp_board_now())))
        r = -ENOSPC;
    else if (grant->memory_limit && grant->memory_limit < t->usage.memory_used)
        r = -EBUSY;
    if (r == 0) {
        t->grant = *grant;
        gp_board_entitle(f);
        gp_board_turn(f, gp_board_now());
    }
    gp_board_unlock(f);
    return r;
}

int gp_board_tenant_remove(struct gp_board *b, const char *name)
{
    struct board_file *f = b->file;
    gp_board_lock(f);
    struct tenant_slot *t = *name ? tenant_find(f, name) : NULL;
    int r = !t ? -ENOENT : t->usage.members ? -EBUSY : 0;
    if (r == 0) {
        if (f->holder == gp_board_index(f, t))
            f->holder = -1;
        memset(t, 0, sizeof *t);
        gp_board_entitle(f);
        gp_board_turn(f, gp_board_now());
    }
    gp_board_unlock(f);
    return r;
}

/* What those who stand at the gate have waited so far. */
static uint64_t waiting_ns(const struct board_file *f, uint32_t tenant, uint64_t now)
{
    uint64_t ns = 0;
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        const struct member_slot *m = &f->members[i];
        if (m->pid && m->tenant == tenant && m->wants_since && now > m->wants_since)
            ns += now - m->wants_since;
    }
    return ns;
}

int gp_board_tenants(struct gp_board *b, struct gp_board_tenant *tenants, int room)
{
    struct board_file *f = b->file;
    int n = 0;
    gp_board_lock(f);
    uint64_t now = gp_board_now();
    for (int i = 0; i < GP_BOARD_TENANTS && n < room; i++) {
        struct tenant_slot *t = &f->tenants[i];
        if (!t->name[0])
            continue;
        gp_board_busy_count(t, now);
        memcpy(tenants[n].name, t->name, sizeof t->name);
        if (!gp_board_name_ok(tenants[n].name))
            continue;
        tenants[n].grant = t->grant;
        tenants[n].usage = t->usage;
        tenants[n].usage.waited_ns += waiting_ns(f, (uint32_t)i, now);
        tenants[n++].usage.entitled = t->weight ? t->ceiling : 0;
    }
    gp_board_unlock(f);
    return n;
}

int gp_board_processes(struct gp_board *b, struct gp_board_process *processes, int room)
{
    struct board_file *f = b->file;
    int n = 0;
    gp_board_lock(f);
    for (int i = 0; i < GP_BOARD_MEMBERS && n < room; i++) {
        const struct member_slot *m = &f->members[i];
        int32_t tenant = gp_board_index(f, gp_board_tenant_of(f, m));
        if (m->pid && tenant >= 0)
            processes[n++] = (struct gp_board_process){m->pid, (uint32_t)tenant, m->memory_used,
                                                       m->slice_us};
    }
    gp_board_unlock(f);
    return n;
}

/* --- members --------------------------------------------------------------------- */

uint64_t gp_board_process_start(int32_t pid)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    char *at = strrchr(text, ')'); /* the name before it may hold anything */
    unsigned long long start = 0;
    char state = 0;
    if (!at || sscanf(at + 1,
                      " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                      "%*d %*d %*d %llu",
                      &state, &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start;
}

int gp_board_join(struct gp_board *b, const char *tenant)
{
    struct board_file *f = b->file;
    int r = -ENOSPC;
    uint64_t start = gp_board_process_start((int32_t)getpid());
    gp_board_lock(f);
    struct tenant_slot *t = *tenant ? tenant_find(f, tenant) : NULL;
    if (!t)
        r = -ENOENT;
    for (int i = 0; t && i < GP_BOARD_MEMBERS && r == -ENOSPC; i++) {
        struct member_slot *m = &f->members[i];
        if (m->pid)
            continue;
        *m = (struct member_slot){
            .pid = (int32_t)getpid(), .start_time = start, .tenant = (uint32_t)(t - f->tenants)};
        t->usage.members++;
        r = i;
    }
    if (r >= 0)
        gp_board_entitle(f);
    gp_board_unlock(f);
    return r;
}

static void member_remove(struct board_file *f, struct member_slot *m)
{
    gp_board_member_quiet(f, m, gp_board_now());
    memset(m, 0, sizeof *m);
    gp_board_recount(f);
    gp_board_turn(f, gp_board_now());
}

void gp_board_leave(struct gp_board *b, int member)
{
    gp_board_lock(b->file);
    if (b->file->members[member].pid)
        member_remove(b->file, &b->file->members[member]);
    gp_board_unlock(b->file);
}

int gp_board_reap_locked(struct board_file *f)
{
    int n = 0;
    for (int i = 0; i < GP_BOARD_MEMBERS; i++) {
        struct member_slot *m = &f->members[i];
        if (m->pid && (kill(m->pid, 0) != 0 ? errno == ESRCH
                                            : gp_board_process_start(m->pid) != m->start_time)) {
            member_remove(f, m);
            n++;
        }
    }
    return n;
}

int gp_board_reap(struct gp_board *b, int32_t pid)
{
    struct board_file *f = b->file;
    int n = 0;
    gp_board_lock(f);
    if (pid == 0) {
        n = gp_board_reap_locked(f);
        gp_board_recount(f);
    }
    for (int i = 0; pid && i < GP_BOARD_MEMBERS; i++)
        if (f->members[i].pid == pid) {
            member_remove(f, &f->members[i]);
            n++;
        }
    gp_board_unlock(f);
    return n;
}

/* --- memory ------------------------------------------------------------------------ */

static uint64_t limit_of(const struct board_file *f, const struct tenant_slot *t)
{
    uint64_t limit = t->grant.memory_limit ? t->grant.memory_limit : f->gpu.memory_total;
    return limit ? limit : UINT64_MAX;
}

static void add(struct member_slot *m, struct tenant_slot *t, uint64_t bytes)
{
    m->memory_used += bytes;
    t->usage.memory_used += bytes;
    if (t->usage.memory_used > t->usage.memory_peak)
        t->usage.memory_peak = t->usage.memory_used;
}

bool gp_board_memory_take(struct gp_board *b, int member, uint64_t bytes)
{
    struct board_file *f = b->file;
    gp_board_lock(f);
    struct member_slot *m = &f->members[member];
    struct tenant_slot *t = gp_board_tenant_of(f, m);
    uint64_t limit = limit_of(f, t);
    bool fits = t->name[0] && t->usage.memory_used <= limit &&
                bytes <= limit - t->usage.memory_used;
    if (fits)
        add(m, t, bytes);
    else
        t->usage.memory_denied++;
    gp_board_unlock(f);
    return fits;
}

void gp_board_memory_charge(struct gp_board *b, int member, uint64_t bytes)
{
    gp_board_lock(b->file);
    struct member_slot *m = &b->file->members[member];
    add(m, gp_board_tenant_of(b->file, m), bytes);
    gp_board_unlock(b->file);
}

uint64_t gp_board_memory_over(struct gp_board *b, int member)
{
    struct board_file *f = b->file;
    gp_board_lock(f);
    const struct tenant_slot *t = gp_board_tenant_of(f, &f->members[member]);
    uint64_t limit = limit_of(f, t), used = t->usage.memory_used;
    uint64_t over = used > limit ? used - limit : 0;
    gp_board_unlock(f);
    return over;
}

void gp_board_memory_give(struct gp_board *b, int member, uint64_t bytes)
{
    struct board_file *f = b->file;
    gp_board_lock(f);
    struct member_slot *m = &f->members[member];
    if (bytes > m->memory_used) /* it was reaped meanwhile */
        bytes = m->memory_used;
    m->memory_used -= bytes;
    gp_board_tenant_of(f, m)->usage.memory_used -= bytes;
    gp_board_unlock(f);
}

void gp_board_host_set(struct gp_board *b, int member, uint64_t bytes)
{
    struct board_file *f = b->file;
    gp_board_lock(f);
    struct member_slot *m = &f->members[member];
    gp_board_tenant_of(f, m)->usage.host_used += bytes - m->host_used;
    m->host_used = bytes;
    gp_board_unlock(f);
}

uint64_t gp_board_memory_left(struct gp_board *b, int member, uint64_t *limit)
{
    struct board_file *f = b->file;
    gp_board_lock(f);
    const struct tenant_slot *t = gp_board_tenant_of(f, &f->members[member]);
    uint64_t all = limit_of(f, t), used = t->usage.memory_used;
    gp_board_unlock(f);
    *limit = all;
    return used < all ? all - used : 0;
}
