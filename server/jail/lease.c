#include "lease.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "close_range.h"
#include "ids.h"
#include "links.h"
#include "loopback.h"

/* Seconds that a holder stays without a worker: the next may be about to come. */
#define EMPTY_SECONDS 30

/* The kinds, in the order in which a holder makes them: the mounts are those of the others. */
static const struct {
    enum gpj_layer layer;
    int flag;
    const char *file; /* of /proc/PID/ns */
} kinds[] = {
    {GPJ_PID, CLONE_NEWPID, "pid_for_children"},
    {GPJ_IPC, CLONE_NEWIPC, "ipc"},
    {GPJ_NET, CLONE_NEWNET, "net"},
    {GPJ_UTS, CLONE_NEWUTS, "uts"},
    {GPJ_MOUNT, CLONE_NEWNS, "mnt"},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* What the holder tells the starter, over a pipe: an errno for each kind. */
struct made {
    int error[KINDS];
    int shm_error;
    char links_off[160]; /* why there are none; empty: there are */
};

static int clone_sibling(int flags)
{
    return (int)syscall(SYS_clone, flags | CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
}

/* --- the holder ---------------------------------------------------------------- */

static void loopback_up(void)
{
    struct ifreq lo = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (ioctl(fd, SIOCGIFFLAGS, &lo) == 0) {
        lo.ifr_flags |= IFF_UP;
        if (ioctl(fd, SIOCSIFFLAGS, &lo) != 0)
            lo.ifr_flags = 0; /* then not even the loopback is there */
    }
    close(fd);
}

/* The host's own mounts come and go here as there, but none of ours is seen there. */
static int mounts_make(const char *root)
{
    char shm[4096], worker[4096];
    snprintf(shm, sizeof shm, "%s/" GPJ_LEASE_SHM, root);
    snprintf(worker, sizeof worker, "%s/" GPJ_LEASE_ROOT, root);
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0 ||
        mount("gpupool", root, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=64k") !=
            0 ||
        mkdir(shm, 0755) != 0 || mkdir(worker, 0755) != 0 ||
        mount("gpupool", shm, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=50%") != 0)
        return errno;
    return 0;
}

static void net_fill(const struct gpj_description *d, struct gpj_links_host *host,
                     struct made *made)
{
    loopback_up();
    if (d->links.count && !d->off[GPJ_COLLECTIVES])
        gpj_links_make(&d->links, host, made->links_off, sizeof made->links_off);
}

static void namespaces_make(const struct gpj_description *d, struct made *made)
{
    struct gpj_links_host host;
    gpj_links_begin(&d->links, &host);
    for (size_t i = 0; i < KINDS; i++) {
        if (kinds[i].flag == CLONE_NEWPID)
            continue; /* it came with this process */
        if (!d->off[kinds[i].layer])
            made->error[i] = unshare(kinds[i].flag) == 0 ? 0 : errno;
        if (d->off[kinds[i].layer] || made->error[i])
            continue;
        if (kinds[i].flag == CLONE_NEWNET)
            net_fill(d, &host, made);
        if (kinds[i].flag == CLONE_NEWUTS && d->hostname)
            made->error[i] = sethostname(d->hostname, strlen(d->hostname)) == 0 ? 0 : errno;
        if (kinds[i].flag == CLONE_NEWNS)
            made->shm_error = mounts_make(d->root);
    }
}

static time_t seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Whoever is here besides this process; as the first of a pid namespace it sees no others. */
static bool alone(bool has_pid)
{
    return has_pid && kill(-1, 0) != 0 && errno == ESRCH;
}

static void hold(bool has_pid, int door) __attribute__((noreturn));
static void hold(bool has_pid, int door)
{
    struct pollfd asked = {.fd = door, .events = POLLIN}; /* -1: nobody can */
    char why[160];
    signal(SIGCHLD, SIG_IGN); /* what workers leave behind */
    prctl(PR_SET_NAME, "gpupool-lease");
    gpj_capabilities_drop(why, sizeof why);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* workers cannot look into it, whatever their user */
    for (time_t now, looked = 0, since = 0; !since || now - since < EMPTY_SECONDS;) {
        if (poll(&asked, 1, 1000) == 1)
            gp_loopback_serve(door);
        now = seconds();
        if (now == looked)
            continue;
        looked = now;
        since = !alone(has_pid) ? 0 : since ? since : now;
    }
    _exit(0);
}

/* `ready`: where it says what it has made; `go`: closed when it may give up its rights. */
static void holder_main(const struct gpj_description *d, bool has_pid, int errno_of_pid, int ready,
                        int go) __attribute__((noreturn));
static void holder_main(const struct gpj_description *d, bool has_pid, int errno_of_pid, int ready,
                        int go)
{
    struct made made = {.error = {0}};
    char byte;
    setsid();
    umask(0);
    made.error[0] = errno_of_pid;
    if (read(go, &byte, 1) != 1) /* the starter has written its ids, or has failed */
        _exit(1);
    ino_t host = gpj_namespace("net");
    namespaces_make(d, &made);
    bool own_network = gpj_namespace("net") != host;
    if (write(ready, &made, sizeof made) != sizeof made)
        _exit(1);
    while (read(go, &byte, 1) > 0)
        ;
    gp_close_range(0, ~0u);
    if (open("/dev/null", O_RDWR) != 0 || dup(0) != 1 || dup(0) != 2)
        _exit(1);
    hold(has_pid, own_network ? gp_loopback_open() : -1);
}

/* --- the starter --------------------------------------------------------------- */

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return written;
}

/* A user namespace knows the server's own user and group, and nobody else. */
static bool ids_map(int pid)
{
    char path[64], map[64];
    snprintf(path, sizeof path, "/proc/%d/setgroups", pid);
    if (!write_file(path, "deny"))
        return false;
    snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
    snprintf(map, sizeof map, "%u %u 1", geteuid(), geteuid());
    if (!write_file(path, map))
        return false;
    snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
    snprintf(map, sizeof map, "%u %u 1", getegid(), getegid());
    return write_file(path, map);
}

struct holder {
    int pid, pidfd;
    bool has_user; /* in a user namespace of its own */
    struct made made;
};

/* The holder begins as the first process of a pid namespace, where the host allows one. */
static int holder_clone(const struct gpj_description *d, int user, const int ready[2],
                        const int go[2], int *pid_error)
{
    bool has_pid = !d->off[GPJ_PID];
    int pid = clone_sibling(user | (has_pid ? CLONE_NEWPID : 0));
    *pid_error = 0;
    if (pid < 0 && has_pid && !user) {
        *pid_error = errno;
        has_pid = false;
        pid = clone_sibling(0);
    }
    if (pid == 0) {
        close(ready[0]);
        close(go[1]);
        holder_main(d, has_pid, *pid_error, ready[1], go[0]);
    }
    return pid;
}

static void pipes_close(const int a[2], const int b[2])
{
    close(a[0]);
    close(a[1]);
    close(b[0]);
    close(b[1]);
}

/* 0 or an errno. `*go` keeps the holder as it is until it is closed. */
static int holder_start(const struct gpj_description *d, bool user, struct holder *h, int *go)
{
    int ready_pipe[2], go_pipe[2], pid_error;
    if (pipe2(ready_pipe, O_CLOEXEC) != 0)
        return errno;
    if (pipe2(go_pipe, O_CLOEXEC) != 0) {
        close(ready_pipe[0]);
        close(ready_pipe[1]);
        return EMFILE;
    }
    h->has_user = user;
    h->pid = holder_clone(d, user ? CLONE_NEWUSER : 0, ready_pipe, go_pipe, &pid_error);
    int r = h->pid < 0 ? errno : 0;
    h->pidfd = r ? -1 : (int)syscall(SYS_pidfd_open, h->pid, 0);
    if (r == 0 && (h->pidfd < 0 || (user && !ids_map(h->pid)) || write(go_pipe[1], "", 1) != 1))
        r = errno;
    close(ready_pipe[1]);
    ready_pipe[1] = -1;
    if (r == 0 && read(ready_pipe[0], &h->made, sizeof h->made) != sizeof h->made)
        r = ECHILD;
    if (r != 0) {
        if (h->pid > 0)
            kill(h->pid, SIGKILL);
        pipes_close(ready_pipe, go_pipe);
        return r;
    }
    close(ready_pipe[0]);
    close(go_pipe[0]);
    *go = go_pipe[1];
    return 0;
}

ino_t gpj_namespace(const char *file)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/self/ns/%s", file);
    return stat(path, &info) == 0 ? info.st_ino : 0;
}

static const char *hint(int error)
{
    switch (error) {
    case EPERM:
        return "the host does not let this user make one; run the server as root or with"
               " CAP_SYS_ADMIN, or allow user namespaces";
    case ENOSPC:
        return "the host allows no more of them; see /proc/sys/user/max_*_namespaces";
    case EINVAL:
        return "this kernel has none of the kind";
    default:
        return strerror(error);
    }
}

/* `mine`: the namespace is the lease's; what another worker of it has made is seen there. */
static void links_say(const struct gpj_description *d, bool mine, const struct made *made)
{
    if (d->off[GPJ_COLLECTIVES])
        gpj_layer_off(GPJ_COLLECTIVES, "%s", d->off[GPJ_COLLECTIVES]);
    else if (!d->links.count)
        gpj_layer_off(GPJ_COLLECTIVES, "no interface is chosen for it");
    else if (!mine)
        gpj_layer_off(GPJ_COLLECTIVES, "the layer net is off");
    else if (made->links_off[0])
        gpj_layer_off(GPJ_COLLECTIVES, "%s", made->links_off);
    else if (!gpj_links_up(&d->links))
        gpj_layer_off(GPJ_COLLECTIVES, "the lease's first worker could make no interfaces");
    else
        gpj_layer_on(GPJ_COLLECTIVES);
}

/* What this process's children are in now, compared with what it was in. */
static void layers_say(const struct gpj_description *d, const ino_t before[KINDS],
                       const struct holder *h)
{
    if (d->off[GPJ_USER_NAMESPACE])
        gpj_layer_off(GPJ_USER_NAMESPACE, "%s", d->off[GPJ_USER_NAMESPACE]);
    else if (h->has_user)
        gpj_layer_on(GPJ_USER_NAMESPACE);
    for (size_t i = 0; i < KINDS; i++) {
        enum gpj_layer layer = kinds[i].layer;
        if (d->off[layer])
            gpj_layer_off(layer, "%s", d->off[layer]);
        else if (gpj_namespace(kinds[i].file) != before[i])
            gpj_layer_on(layer);
        else
            gpj_layer_off(layer, "%s",
                          h->made.error[i] ? hint(h->made.error[i])
                                           : "the lease's first worker could make none");
        if (layer == GPJ_NET)
            links_say(d, gpj_namespace(kinds[i].file) != before[i], &h->made);
    }
}

static int join(int pidfd, int flags)
{
    return syscall(SYS_setns, pidfd, flags) == 0 ? 0 : errno;
}

/* All kinds that are wanted, in one call. */
static int wanted_flags(const struct gpj_description *d)
{
    int flags = 0;
    for (size_t i = 0; i < KINDS; i++)
        if (!d->off[kinds[i].layer])
            flags |= kinds[i].flag;
    return flags;
}

static void all_off(const struct gpj_description *d, const char *reason)
{
    gpj_layer_off(GPJ_USER_NAMESPACE, "%s", reason);
    for (size_t i = 0; i < KINDS; i++)
        gpj_layer_off(kinds[i].layer, "%s",
                      d->off[kinds[i].layer] ? d->off[kinds[i].layer] : reason);
    links_say(d, false, NULL);
}

void gpj_lease_enter(const struct gpj_description *d)
{
    ino_t before[KINDS];
    struct holder h = {.pid = -1, .pidfd = d->holder};
    int go = -1, r = 0, flags = wanted_flags(d);
    for (size_t i = 0; i < KINDS; i++)
        before[i] = gpj_namespace(kinds[i].file);
    if (!flags) {
        all_off(d, "no namespace is wanted");
        return;
    }
    bool user = d->off[GPJ_USER_NAMESPACE] == NULL;
    if (h.pidfd < 0)
        r = holder_start(d, user, &h, &go);
    if (r != 0) {
        all_off(d, hint(r));
        return;
    }
    if (go >= 0)
        gpj_say("holder", h.pid); /* first: the server ends it, whatever comes of the worker */
    r = join(h.pidfd, flags | (h.has_user ? CLONE_NEWUSER : 0));
    if (r != 0)
        gpj_fail("the namespaces of the lease cannot be joined: %s", strerror(r));
    if (h.made.shm_error)
        gpj_fail("the memory that the lease's workers share cannot be made at %s: %s", d->root,
                 strerror(h.made.shm_error));
    layers_say(d, before, &h);
    if (go >= 0)
        close(go);
    close(h.pidfd);
}
