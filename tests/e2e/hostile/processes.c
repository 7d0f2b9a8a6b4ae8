/* Other processes: their memory, their environment, their lives. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hostile.h"
#include "targets.h"

/* The number that a process has outside says nothing in here if there is a process of it. */
static bool is_program(int pid, const char *part)
{
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t n = read(file, line, sizeof line - 1);
    close(file);
    for (ssize_t i = 0; i < n; i++)
        if (!line[i])
            line[i] = ' ';
    line[n > 0 ? n : 0] = 0;
    return strstr(line, part) != NULL;
}

/* A number in the other process's own numbering, or one that means nobody here. */
static bool read_memory_of(int pid, const char *part)
{
    char path[64], line[256], byte;
    if (!is_program(pid, part))
        return false;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    unsigned long begin = 0;
    if (maps && fgets(line, sizeof line, maps))
        begin = strtoul(line, NULL, 16);
    if (maps)
        fclose(maps);
    if (!begin)
        return false;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)begin, 1};
    if (syscall(SYS_process_vm_readv, pid, &here, 1, &there, 1, 0) == 1)
        return true;
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int mem = open(path, O_RDONLY | O_CLOEXEC);
    bool done = mem >= 0 && pread(mem, &byte, 1, (off_t)begin) == 1;
    if (mem >= 0)
        close(mem);
    return done;
}

static bool server_memory(void)
{
    return read_memory_of(TARGET_SERVER, "gpupool_server");
}

static bool neighbour_memory(void)
{
    return read_memory_of(TARGET_NEIGHBOUR, TARGET_NEIGHBOUR_SESSION);
}

/* Each of the kernel's ways by itself. Memory at no address is a fault for who may read. */
static bool neighbour_vm(void)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)4096, 1};
    if (!is_program(TARGET_NEIGHBOUR, TARGET_NEIGHBOUR_SESSION))
        return false;
    errno = 0;
    return syscall(SYS_process_vm_readv, TARGET_NEIGHBOUR, &here, 1, &there, 1, 0) == 1 ||
           errno == EFAULT;
}

static bool neighbour_opened(const char *file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", TARGET_NEIGHBOUR, file);
    if (!is_program(TARGET_NEIGHBOUR, TARGET_NEIGHBOUR_SESSION))
        return false;
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened >= 0)
        close(opened);
    return opened >= 0;
}

static bool neighbour_mem(void)
{
    return neighbour_opened("mem");
}

static bool neighbour_files(void)
{
    return neighbour_opened("fd/0") || neighbour_opened("fd/2");
}

static bool neighbour_descriptor(void)
{
    if (!is_program(TARGET_NEIGHBOUR, TARGET_NEIGHBOUR_SESSION))
        return false;
    int process = (int)syscall(SYS_pidfd_open, TARGET_NEIGHBOUR, 0);
    int taken = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, 0, 0);
    if (process >= 0)
        close(process);
    if (taken >= 0)
        close(taken);
    return taken >= 0;
}

static bool server_environment(void)
{
    char path[64], byte;
    snprintf(path, sizeof path, "/proc/%d/environ", TARGET_SERVER);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool done = file >= 0 && is_program(TARGET_SERVER, "gpupool_server") &&
                read(file, &byte, 1) == 1;
    if (file >= 0)
        close(file);
    return done;
}

static bool neighbour_trace(void)
{
    if (!is_program(TARGET_NEIGHBOUR, TARGET_NEIGHBOUR_SESSION))
        return false;
    return ptrace(PTRACE_SEIZE, TARGET_NEIGHBOUR, NULL, NULL) == 0 &&
           ptrace(PTRACE_INTERRUPT, TARGET_NEIGHBOUR, NULL, NULL) == 0 &&
           waitpid(TARGET_NEIGHBOUR, NULL, __WALL) > 0 &&
           ptrace(PTRACE_DETACH, TARGET_NEIGHBOUR, NULL, NULL) == 0;
}

static bool server_signal(void)
{
    return is_program(TARGET_SERVER, "gpupool_server") && kill(TARGET_SERVER, 0) == 0;
}

static bool neighbour_signal(void)
{
    return is_program(TARGET_NEIGHBOUR, TARGET_NEIGHBOUR_SESSION) && kill(TARGET_NEIGHBOUR, 0) == 0;
}

/* Also without /proc. */
static bool blind_signal(void)
{
    return getppid() != 0 && getppid() == TARGET_SERVER && kill(TARGET_SERVER, 0) == 0;
}

static bool list(void)
{
    for (int pid = 1; pid < 4; pid++)
        if (is_program(pid, "init") || is_program(pid, "systemd"))
            return true;
    return is_program(TARGET_SERVER, "gpupool_server") ||
           is_program(TARGET_NEIGHBOUR, TARGET_NEIGHBOUR_SESSION);
}

const struct attack attacks_on_processes[] = {
    {"process-list", list},
    {"process-server-memory", server_memory},
    {"process-neighbour-memory", neighbour_memory},
    {"process-neighbour-vm", neighbour_vm},
    {"process-neighbour-mem", neighbour_mem},
    {"process-neighbour-files", neighbour_files},
    {"process-neighbour-descriptor", neighbour_descriptor},
    {"process-server-environment", server_environment},
    {"process-neighbour-trace", neighbour_trace},
    {"process-server-signal", server_signal},
    {"process-neighbour-signal", neighbour_signal},
    {"process-parent-signal", blind_signal},
    {0},
};
