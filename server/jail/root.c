#include "root.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lease.h"

/* Of the kernel's files, what tells of others, or of the host's secrets, to whoever may read it. */
static const char *const masked[] = {"proc/kcore",       "proc/keys",          "proc/timer_list",
                                     "proc/sched_debug", "proc/sysrq-trigger", "proc/kallsyms",
                                     "proc/kmsg"};

/* Paths here are below the current folder, the new root: "/a/b" is made as "a/b". */
static const char *inside(const char *path)
{
    return path + 1;
}

/* The folders above it. They are in a fresh tmpfs of ours: nothing there leads elsewhere. */
static int parents_make(const char *path)
{
    char folder[PATH_MAX];
    for (const char *at = strchr(path, '/'); at; at = strchr(at + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(at - path), path);
        if (mkdir(folder, 0755) != 0 && errno != EEXIST)
            return -1;
    }
    return 0;
}

/* What a mount is put on: a folder or an empty file. */
static int target_make(const char *path, bool folder)
{
    if (parents_make(path) != 0)
        return -1;
    if (folder)
        return mkdir(path, 0755) == 0 || errno == EEXIST ? 0 : -1;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0444);
    return fd >= 0 ? close(fd) : -1;
}

/* Only adds to what is forbidden there. */
static int forbid(const char *path, uint64_t attributes)
{
    struct mount_attr attr = {.attr_set = attributes};
    return (int)syscall(SYS_mount_setattr, AT_FDCWD, path, AT_RECURSIVE, &attr, sizeof attr);
}

static int bind_mount(const char *from, const char *to, uint64_t attributes)
{
    struct stat info;
    if (stat(from, &info) != 0 || target_make(to, S_ISDIR(info.st_mode)) != 0)
        return -1;
    return mount(from, to, NULL, MS_BIND | MS_REC, NULL) == 0 ? forbid(to, attributes) : -1;
}

static int tmpfs_make(const struct gpj_description *d, const struct gpj_place *p)
{
    char options[96];
    int n = snprintf(options, sizeof options, "mode=700,nr_inodes=65536,size=%llu",
                     (unsigned long long)p->bytes);
    if (d->has_uid)
        snprintf(options + n, sizeof options - (size_t)n, ",uid=%u,gid=%u", d->uid, d->gid);
    if (target_make(inside(p->path), true) != 0)
        return -1;
    return mount("gpupool", inside(p->path), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options);
}

static int place_make(const struct gpj_description *d, const struct gpj_place *p)
{
    static const uint64_t attributes[] = {
        [GPJ_LIBRARY] = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
        [GPJ_READ] = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC,
        [GPJ_WRITE] = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC,
        [GPJ_DEVICE] = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC,
    };
    if (p->kind == GPJ_TMPFS)
        return tmpfs_make(d, p);
    return bind_mount(p->path, inside(p->path), attributes[p->kind]);
}

static const char *devices_make(const struct gpj_description *d)
{
    static const char *const nodes[] = {"/dev/null", "/dev/zero", "/dev/urandom"};
    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++)
        if (bind_mount(nodes[i], inside(nodes[i]), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC) != 0)
            return nodes[i];
    for (unsigned i = 0; i < d->place_count; i++)
        if (d->places[i].kind == GPJ_DEVICE && place_make(d, &d->places[i]) != 0)
            return d->places[i].path;
    return NULL;
}

static const char *places_make(const struct gpj_description *d)
{
    for (unsigned i = 0; i < d->place_count; i++)
        if (d->places[i].kind != GPJ_DEVICE && place_make(d, &d->places[i]) != 0)
            return d->places[i].path;
    return NULL;
}

/* A proc of the lease's pid namespace, in which a user sees its own processes alone. */
static void proc_make(void)
{
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    if (mkdir("proc", 0555) != 0 || mount("proc", "proc", "proc", flags, "hidepid=2") != 0) {
        gpj_layer_off(GPJ_PROC, "the host's own is seen, a fresh one cannot be mounted: %s",
                      strerror(errno));
        if (bind_mount("/proc", "proc", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC) !=
            0)
            gpj_fail("/proc cannot be put into the worker's root: %s", strerror(errno));
        return;
    }
    for (size_t i = 0; i < sizeof masked / sizeof masked[0]; i++)
        if (access(masked[i], F_OK) == 0 &&
            mount("/dev/null", masked[i], NULL, MS_BIND, NULL) != 0) {
            gpj_layer_off(GPJ_PROC, "%s cannot be hidden: %s", masked[i], strerror(errno));
            return;
        }
    if (mount("proc/sys", "proc/sys", NULL, MS_BIND | MS_REC, NULL) != 0 ||
        forbid("proc/sys", MOUNT_ATTR_RDONLY) != 0)
        gpj_layer_off(GPJ_PROC, "the kernel's settings stay writable: %s", strerror(errno));
    else
        gpj_layer_on(GPJ_PROC);
}

/* From the host's root to the new one, of which nothing can be changed from here on. */
static int root_change(void)
{
    if (syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        return -1;
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY};
    return (int)syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, &attr, sizeof attr);
}

/* A mount namespace of its own, with the lease's memory in it, and the empty root. */
static int root_begin(const struct gpj_description *d)
{
    char at[PATH_MAX];
    snprintf(at, sizeof at, "%s/" GPJ_LEASE_ROOT, d->root);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return -1;
    if (mount("gpupool", at, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=1m") != 0)
        return -1;
    return chdir(at);
}

void gpj_root_enter(const struct gpj_description *d, bool has_mounts)
{
    char shm[PATH_MAX];
    const char *missing;
    snprintf(shm, sizeof shm, "%s/" GPJ_LEASE_SHM, d->root);
    if (!has_mounts || d->off[GPJ_ROOT]) {
        const char *why = d->off[GPJ_ROOT] ? d->off[GPJ_ROOT] : "the layer mount is off";
        gpj_layer_off(GPJ_ROOT, "%s", why);
        gpj_layer_off(GPJ_DEVICES, "%s", why);
        gpj_layer_off(GPJ_PROC, "%s", why);
        return;
    }
    if (root_begin(d) != 0)
        gpj_fail("the worker's root cannot be begun at %s: %s", d->root, strerror(errno));
    if ((missing = devices_make(d)) || (missing = places_make(d)))
        gpj_fail("%s cannot be put into the worker's root: %s", missing, strerror(errno));
    if (bind_mount(shm, "dev/shm", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC) != 0)
        gpj_fail("/dev/shm cannot be put into the worker's root: %s", strerror(errno));
    proc_make();
    if (root_change() != 0)
        gpj_fail("the worker's root cannot be made its own: %s", strerror(errno));
    gpj_layer_on(GPJ_ROOT);
    gpj_layer_on(GPJ_DEVICES);
}
