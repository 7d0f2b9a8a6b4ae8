/* Files and devices of others, and secrets. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "hostile.h"
#include "targets.h"

extern char **environ;

static bool opens(const char *path, int flags)
{
    int file = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file >= 0)
        close(file);
    return file >= 0;
}

static bool any_opens(const char *const *paths, int flags)
{
    for (; *paths; paths++)
        if (opens(*paths, flags))
            return true;
    return false;
}

static bool lists(const char *path)
{
    DIR *folder = opendir(path);
    if (folder)
        closedir(folder);
    return folder != NULL;
}

static bool secrets(void)
{
    static const char *const paths[] = {TARGET_SECRETS, "/etc/shadow", "/etc/gshadow",
                                        "/etc/ssh/ssh_host_ed25519_key", NULL};
    return any_opens(paths, O_RDONLY);
}

static bool environment(void)
{
    for (char **variable = environ; *variable; variable++)
        if (strstr(*variable, TARGET_TOKEN))
            return true;
    return false;
}

static bool sessions(void)
{
    return lists(TARGET_RUN "/sessions/" TARGET_NEIGHBOUR_SESSION);
}

static bool server_log(void)
{
    return opens(TARGET_LOG, O_RDONLY);
}

static bool program(void)
{
    return opens("/proc/self/exe", O_WRONLY) || opens(TARGET_DRIVER, O_WRONLY);
}

static bool home(void)
{
    return lists("/home") || lists("/root");
}

/* Of the images that the server keeps for its tenant it may read each, and no more. */
static bool images(void)
{
    return opens(TARGET_IMAGES "/" TARGET_IMAGE, O_WRONLY) ||
           open(TARGET_IMAGES "/new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600) >= 0 ||
           unlink(TARGET_IMAGES "/" TARGET_IMAGE) == 0;
}

static bool others_images(void)
{
    return opens(TARGET_OTHERS_IMAGES "/" TARGET_IMAGE, O_RDONLY) || lists(TARGET_OTHERS_IMAGES);
}

static bool shared_memory(void)
{
    return opens("/dev/shm/" TARGET_SHARED, O_RDWR);
}

static bool devices(void)
{
    static const char *const paths[] = {"/dev/mem",
                                        "/dev/kmsg",
                                        "/dev/port",
                                        "/dev/fuse",
                                        "/dev/net/tun",
                                        "/dev/kvm",
                                        "/dev/sda",
                                        "/dev/vda",
                                        "/dev/nvme0n1",
                                        "/dev/loop-control",
                                        "/dev/tty1",
                                        "/dev/nvidia7",
                                        "/dev/nvidia-modeset",
                                        "/dev/dri/card0",
                                        NULL};
    return any_opens(paths, O_RDWR) || any_opens(paths, O_RDONLY);
}

/* A device of its own making: the null device, as a stand-in for a worse one. */
static bool make_device(void)
{
    static const char *const folders[] = {"/tmp/hostile-null", "/dev/shm/hostile-null",
                                          "hostile-null", NULL};
    for (const char *const *at = folders; *at; at++)
        if (mknod(*at, S_IFCHR | 0600, makedev(1, 3)) == 0) {
            bool works = opens(*at, O_RDWR);
            unlink(*at);
            if (works)
                return true;
        }
    return false;
}

/* What the server has open, and forgot to close. */
static bool descriptors(void)
{
    char path[64], leads[512];
    for (int fd = 3; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, leads, sizeof leads - 1);
        if (n <= 0)
            continue;
        leads[n] = 0;
        if (strstr(leads, TARGET_NEIGHBOUR_SESSION) || strstr(leads, "admin") ||
            strcmp(leads, TARGET_LOG) == 0)
            return true;
    }
    return false;
}

static bool kernel_settings(void)
{
    static const char *const paths[] = {"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger",
                                        "/sys/kernel/uevent_helper", "/proc/sys/kernel/modprobe",
                                        NULL};
    return any_opens(paths, O_WRONLY);
}

const struct attack attacks_on_files[] = {
    {"file-secrets", secrets},
    {"file-images", images},
    {"file-others-images", others_images},
    {"file-environment", environment},
    {"file-neighbour-session", sessions},
    {"file-server-log", server_log},
    {"file-program", program},
    {"file-homes", home},
    {"file-shared-memory", shared_memory},
    {"file-devices", devices},
    {"file-make-device", make_device},
    {"file-descriptors", descriptors},
    {"file-kernel-settings", kernel_settings},
    {0},
};
