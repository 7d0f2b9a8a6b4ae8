/*
 * gpupool-jail --description FD --status FD -- PROGRAM ARGUMENT…
 *
 * The server starts it with the worker's standard descriptors. It ends as soon as the worker is
 * there, which is not its child but the server's: see jail.h and description.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cgroup.h"
#include "close_range.h"
#include "description.h"
#include "ids.h"
#include "lease.h"
#include "monotonic.h"
#include "root.h"

static int64_t now_us(void)
{
    return (int64_t)(gp_now_ns() / 1000);
}

static int usage(const char *problem)
{
    fprintf(stderr,
            "gpupool-jail: %s\nusage: gpupool-jail --description FD --status FD -- PROGRAM …\n"
            "(gpupool-server starts workers with it)\n",
            problem);
    return 2;
}

static int descriptor(const char *text)
{
    char *end;
    long fd = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || fd <= STDERR_FILENO || fd > 1 << 20)
        return -1;
    return fcntl((int)fd, F_GETFD) < 0 ? -1 : (int)fd;
}

static int compare(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static void cloexec_set(int fd, bool set)
{
    fcntl(fd, F_SETFD, set ? FD_CLOEXEC : 0);
}

/* Close what was not handed in. What is the worker's loses its close-on-exec, all else has it. */
static void descriptors_close(const struct gpj_description *d, int status)
{
    int open[GPJ_KEEP_MAX + 3];
    unsigned count = 0, next = STDERR_FILENO + 1;
    for (unsigned i = 0; i < d->keep_count; i++) {
        cloexec_set(d->keep[i], false);
        open[count++] = d->keep[i];
    }
    cloexec_set(status, true);
    open[count++] = status;
    if (d->holder >= 0) {
        cloexec_set(d->holder, true);
        open[count++] = d->holder;
    }
    if (d->learn >= 0) {
        cloexec_set(d->learn, true);
        open[count++] = d->learn;
    }
    qsort(open, count, sizeof open[0], compare);
    bool closed = true;
    for (unsigned i = 0; i < count; i++) {
        if ((unsigned)open[i] > next)
            closed &= gp_close_range(next, (unsigned)open[i] - 1) == 0;
        next = (unsigned)open[i] + 1;
    }
    closed &= gp_close_range(next, ~0u) == 0;
    if (closed)
        gpj_layer_on(GPJ_DESCRIPTORS);
    else
        gpj_layer_off(GPJ_DESCRIPTORS, "others cannot be closed: %s", strerror(errno));
}

static void cgroup_enter(const struct gpj_description *d)
{
    char why[160] = "";
    if (d->off[GPJ_CGROUP])
        gpj_layer_off(GPJ_CGROUP, "%s", d->off[GPJ_CGROUP]);
    else if (!d->cgroup)
        gpj_layer_off(GPJ_CGROUP, "the server has made none for its workers");
    else if (gpj_cgroup_enter(d->cgroup, why, sizeof why) == 0)
        gpj_layer_on(GPJ_CGROUP);
    else
        gpj_layer_off(GPJ_CGROUP, "%s", why);
}

static void limits_apply(const struct gpj_description *d)
{
    char why[160] = "";
    if (d->off[GPJ_RLIMITS])
        gpj_layer_off(GPJ_RLIMITS, "%s", d->off[GPJ_RLIMITS]);
    else if (gpj_limits_apply(&d->limits, why, sizeof why) == 0)
        gpj_layer_on(GPJ_RLIMITS);
    else
        gpj_layer_off(GPJ_RLIMITS, "%s", why);
}

/* What comes after may make few calls: the report is whole before. */
static void seccomp_install(const struct gpj_description *d)
{
    char why[160] = "";
    if (d->off[GPJ_SECCOMP])
        gpj_layer_off(GPJ_SECCOMP, "%s", d->off[GPJ_SECCOMP]);
    else if (gpj_seccomp_install(d->seccomp, d->profile, d->learn, why, sizeof why) == 0)
        gpj_layer_on(GPJ_SECCOMP);
    else
        gpj_layer_off(GPJ_SECCOMP, "%s", why);
}

/* The soft GPU's turns name processes by the pids that the server sees, which here only the
 * host's /proc knows. */
static void tell_pid(struct gpj_description *d)
{
    static char variable[48] = "GPUPOOL_PID=";
    size_t length = strlen(variable);
    ssize_t n = readlink("/proc/self", variable + length, sizeof variable - 1 - length);
    if (n > 0 && d->env_count < GPJ_ENV_MAX)
        d->env[d->env_count++] = variable;
}

static void become_worker(struct gpj_description *d, bool has_mounts, char **program, int64_t began)
    __attribute__((noreturn));
static void become_worker(struct gpj_description *d, bool has_mounts, char **program, int64_t began)
{
    setsid();
    tell_pid(d);
    cgroup_enter(d); /* the worker alone: the holder of its lease outlives it */
    umask(0);
    gpj_root_enter(d, has_mounts);
    umask(077);
    if (chdir("/") != 0)
        gpj_fail("the worker's root cannot be entered: %s", strerror(errno));
    limits_apply(d);
    gpj_ids_apply(d);
    gpj_layer_on(GPJ_ENVIRONMENT);
    gpj_say("cost-us", now_us() - began);
    seccomp_install(d);
    execve(program[0], program, d->env);
    gpj_fail("%s cannot be executed: %s", program[0], strerror(errno));
}

int main(int argc, char **argv)
{
    static struct gpj_description d;
    char why[256];
    int64_t began = now_us();
    if (argc < 7 || strcmp(argv[1], "--description") != 0 || strcmp(argv[3], "--status") != 0 ||
        strcmp(argv[5], "--") != 0)
        return usage("wrong arguments");
    int from = descriptor(argv[2]), status = descriptor(argv[4]);
    if (from < 0 || status < 0 || from == status)
        return usage("no open descriptors above 2");
    char *text = gpj_description_read(from, why, sizeof why);
    bool understood = text && gpj_description_parse(text, &d, why, sizeof why) == 0;
    gpj_status_open(status, d.required);
    if (!understood)
        gpj_fail("%s", why);
    descriptors_close(&d, status);
    ino_t mounts = gpj_namespace("mnt");
    gpj_lease_enter(&d);
    bool has_mounts = gpj_namespace("mnt") != mounts;
    int pid = (int)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid < 0)
        gpj_fail("no process can be made for the worker: %s", strerror(errno));
    if (pid == 0)
        become_worker(&d, has_mounts, argv + 6, began);
    gpj_say("pid", pid);
    return 0;
}
