/* Rights, and calls of the kernel that a worker has no use for. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "hostile.h"
#include "targets.h"

/* A call whose arguments are wrong: who may not make it hears so before they are looked at. */
static bool would(long answer)
{
    return answer >= 0 || (errno != EPERM && errno != ENOSYS && errno != EACCES);
}

static bool is_root(void)
{
    char line[256];
    unsigned from, to, count;
    if (getuid() != 0 && geteuid() != 0)
        return false;
    FILE *map = fopen("/proc/self/uid_map", "re"); /* root of a namespace of its own is nobody */
    bool real = map && fgets(line, sizeof line, map) &&
                sscanf(line, "%u %u %u", &from, &to, &count) == 3 && to == 0;
    if (map)
        fclose(map);
    return real;
}

static bool becomes_root(void)
{
    return !is_root() && (setuid(0) == 0 || setreuid(0, 0) == 0) && is_root();
}

static bool has_capabilities(void)
{
    char line[256];
    unsigned long long effective = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "CapEff: %llx", &effective);
    if (status)
        fclose(status);
    return effective != 0;
}

static bool may_gain(void)
{
    char line[256];
    int none = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "NoNewPrivs: %d", &none);
    if (status)
        fclose(status);
    return !none;
}

static bool mounts(void)
{
    static const char *const places[] = {"/mnt", "/srv", "/opt", "/var/empty", NULL};
    for (const char *const *at = places; *at; at++)
        if (mount("none", *at, "tmpfs", 0, "size=4k") == 0)
            return umount(*at) == 0;
    return false;
}

/* Likewise by the calls that came later. */
static bool opens_tree(void)
{
    return would(syscall(SYS_fsopen, "no such filesystem", 0));
}

static bool namespaces(void)
{
    return unshare(CLONE_NEWUSER) == 0 || unshare(CLONE_NEWNS) == 0;
}

static bool joins(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/net", TARGET_SERVER);
    int there = open(path, O_RDONLY | O_CLOEXEC);
    bool done = there >= 0 && setns(there, 0) == 0;
    if (there >= 0)
        close(there);
    return done;
}

static bool changes_root(void)
{
    return chroot("/") == 0;
}

static bool modules(void)
{
    return would(syscall(SYS_init_module, NULL, 0, "")) ||
           would(syscall(SYS_finit_module, -1, "", 0));
}

static bool bpf(void)
{
    return would(syscall(SYS_bpf, 5 /* load */, NULL, 0));
}

static bool perf(void)
{
    return would(syscall(SYS_perf_event_open, NULL, -1, -1, -1, 0));
}

static bool keys(void)
{
    return would(syscall(SYS_add_key, "user", "hostile", "x", 1, -1)) ||
           would(syscall(SYS_keyctl, 0 /* get the ring */, -3, 0));
}

static bool io_uring(void)
{
    return would(syscall(SYS_io_uring_setup, 1, NULL));
}

static bool page_faults(void)
{
    long fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd >= 0)
        close((int)fd);
    return fd >= 0;
}

/* A file by its number on the disk, past all folders that are not to be seen. */
static bool handles(void)
{
    union {
        struct file_handle handle;
        char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } file = {.handle.handle_bytes = MAX_HANDLE_SZ};
    int mount_id, at = open("/", O_RDONLY | O_CLOEXEC);
    if (name_to_handle_at(AT_FDCWD, "/", &file.handle, &mount_id, 0) != 0)
        return false;
    int fd = open_by_handle_at(at, &file.handle, O_RDONLY | O_CLOEXEC);
    if (at >= 0)
        close(at);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static bool reboots(void)
{
    return syscall(SYS_reboot, 0, 0, 0, NULL) == 0 || errno == EINVAL; /* no such reboot */
}

static bool set_clock(void)
{
    struct timespec now; /* to what it is */
    return clock_gettime(CLOCK_REALTIME, &now) == 0 && clock_settime(CLOCK_REALTIME, &now) == 0;
}

static bool host_name(void)
{
    struct utsname name;
    return uname(&name) == 0 && sethostname(name.nodename, strlen(name.nodename)) == 0;
}

const struct attack attacks_on_the_kernel[] = {
    {"kernel-is-root", is_root},
    {"kernel-become-root", becomes_root},
    {"kernel-capabilities", has_capabilities},
    {"kernel-new-privileges", may_gain},
    {"kernel-mount", mounts},
    {"kernel-mount-tree", opens_tree},
    {"kernel-join-namespace", joins},
    {"kernel-change-root", changes_root},
    {"kernel-modules", modules},
    {"kernel-bpf", bpf},
    {"kernel-perf", perf},
    {"kernel-keys", keys},
    {"kernel-io-uring", io_uring},
    {"kernel-page-faults", page_faults},
    {"kernel-file-handles", handles},
    {"kernel-reboot", reboots},
    {"kernel-clock", set_clock},
    {"kernel-host-name", host_name},
    {"kernel-namespaces", namespaces}, /* at last: who is root there may more */
    {0},
};
