#include "description.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A key's value, taken into the description. NULL, or what is wrong with it. */
typedef const char *take(struct gpj_description *d, char *value);

char *gpj_description_read(int fd, char *why, size_t size)
{
    static char text[GPJ_TEXT_MAX + 1];
    size_t got = 0;
    ssize_t n = 0;
    while (got < sizeof text && (n = read(fd, text + got, sizeof text - got)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        got += (size_t)n;
    }
    if (n < 0)
        snprintf(why, size, "the description cannot be read: %s", strerror(errno));
    else if (got > GPJ_TEXT_MAX)
        snprintf(why, size, "the description is longer than %d bytes", GPJ_TEXT_MAX);
    else if (memchr(text, '\0', got))
        snprintf(why, size, "the description holds a zero byte");
    else if (got == 0 || text[got - 1] != '\n')
        snprintf(why, size, "the description does not end with a line's end");
    else {
        text[got] = '\0';
        return text;
    }
    return NULL;
}

/* Decimal digits alone. */
static bool number(const char *text, uint64_t most, uint64_t *out)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end || value > most)
        return false;
    *out = value;
    return true;
}

/* From the root, with no part that is empty, `.` or `..`: nothing leads elsewhere. */
static bool plain_path(const char *path)
{
    size_t length = strlen(path);
    if (path[0] != '/' || length < 2 || length >= PATH_MAX || path[length - 1] == '/')
        return false;
    for (const char *at = path; at; at = strchr(at + 1, '/'))
        if (at[1] == '/' || (at[1] == '.' && (at[2] == '/' || !at[2])) ||
            (at[1] == '.' && at[2] == '.' && (at[3] == '/' || !at[3])))
            return false;
    return true;
}

static const char *take_id(const char *value, bool *has, uint32_t *out)
{
    uint64_t id;
    if (*has)
        return "comes twice";
    if (!number(value, UINT32_MAX - 1, &id) || id == 0) /* the highest means: none */
        return "must be a number from 1";
    *has = true;
    *out = (uint32_t)id;
    return NULL;
}

static const char *take_uid(struct gpj_description *d, char *value)
{
    return take_id(value, &d->has_uid, &d->uid);
}

static const char *take_gid(struct gpj_description *d, char *value)
{
    return take_id(value, &d->has_gid, &d->gid);
}

static const char *take_path(const char **out, const char *value)
{
    if (*out)
        return "comes twice";
    if (!plain_path(value))
        return "must be an absolute, plain path";
    *out = value;
    return NULL;
}

static const char *take_root(struct gpj_description *d, char *value)
{
    return take_path(&d->root, value);
}

static const char *take_cgroup(struct gpj_description *d, char *value)
{
    return take_path(&d->cgroup, value);
}

static const char *take_fd(const char *value, int *fd)
{
    uint64_t given;
    if (!number(value, INT_MAX, &given) || given <= STDERR_FILENO || fcntl((int)given, F_GETFD) < 0)
        return "must be an open descriptor above 2";
    *fd = (int)given;
    return NULL;
}

static const char *take_holder(struct gpj_description *d, char *value)
{
    return d->holder >= 0 ? "comes twice" : take_fd(value, &d->holder);
}

static const char *take_keep(struct gpj_description *d, char *value)
{
    if (d->keep_count == GPJ_KEEP_MAX)
        return "comes too often";
    return take_fd(value, &d->keep[d->keep_count]) ? "must be an open descriptor above 2"
                                                   : (d->keep_count++, NULL);
}

static const char *take_off(struct gpj_description *d, char *value)
{
    char *reason = strchr(value, ' ');
    if (!reason || !reason[1])
        return "needs a layer and a reason";
    *reason++ = '\0';
    int layer = gpj_layer_find(value);
    if (layer < 0)
        return "names no layer";
    d->off[layer] = reason;
    return NULL;
}

static const char *take_require(struct gpj_description *d, char *value)
{
    int layer = gpj_layer_find(value);
    if (layer < 0)
        return "names no layer";
    d->required[layer] = true;
    return NULL;
}

static const char *add_place(struct gpj_description *d, enum gpj_place_kind kind, const char *path,
                             uint64_t bytes)
{
    if (d->place_count == GPJ_PLACES_MAX)
        return "is one place too many";
    if (!plain_path(path))
        return "must be an absolute, plain path";
    d->places[d->place_count++] = (struct gpj_place){kind, path, bytes};
    return NULL;
}

static const char *take_library(struct gpj_description *d, char *value)
{
    return add_place(d, GPJ_LIBRARY, value, 0);
}

static const char *take_read(struct gpj_description *d, char *value)
{
    return add_place(d, GPJ_READ, value, 0);
}

static const char *take_write(struct gpj_description *d, char *value)
{
    return add_place(d, GPJ_WRITE, value, 0);
}

static const char *take_device(struct gpj_description *d, char *value)
{
    if (strncmp(value, "/dev/", 5) != 0)
        return "must be below /dev";
    return add_place(d, GPJ_DEVICE, value, 0);
}

static const char *take_tmpfs(struct gpj_description *d, char *value)
{
    char *size = strrchr(value, ' ');
    uint64_t bytes;
    if (!size || !number(size + 1, UINT64_C(1) << 50, &bytes) || bytes == 0)
        return "needs a path and a size in bytes";
    *size = '\0';
    return add_place(d, GPJ_TMPFS, value, bytes);
}

/* What a worker and its driver read; a name that is not here says nothing to them. */
static bool env_allowed(const char *name, size_t length)
{
    static const char *const prefixes[] = {"GPUPOOL_", "CUDA_", "NVIDIA_", "NCCL_"};
    static const char *const names[] = {"LD_LIBRARY_PATH", "HOME", "TMPDIR", "PATH", "LANG",
                                        "LC_ALL",          "TZ"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (length > strlen(prefixes[i]) && strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (length == strlen(names[i]) && strncmp(name, names[i], length) == 0)
            return true;
    return false;
}

static const char *take_env(struct gpj_description *d, char *value)
{
    const char *equals = strchr(value, '=');
    if (!equals || !env_allowed(value, (size_t)(equals - value)))
        return "names a variable that a worker does not get";
    if (d->env_count == GPJ_ENV_MAX)
        return "comes too often";
    d->env[d->env_count++] = value;
    return NULL;
}

static const char *take_hostname(struct gpj_description *d, char *value)
{
    if (d->hostname)
        return "comes twice";
    if (!*value || strlen(value) > 63 ||
        value[strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-")])
        return "must be 1 to 63 of a-z 0-9 -";
    d->hostname = value;
    return NULL;
}

static const char *take_with_server(struct gpj_description *d, char *value)
{
    if (strcmp(value, "1") != 0)
        return "must be 1";
    d->with_server = true;
    return NULL;
}

static const char *take_seccomp(struct gpj_description *d, char *value)
{
    static const char *const modes[] = {[GPJ_SECCOMP_OFF] = "off",
                                        [GPJ_SECCOMP_LOG] = "log",
                                        [GPJ_SECCOMP_ENFORCE] = "enforce",
                                        [GPJ_SECCOMP_LEARN] = "learn"};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(value, modes[i]) == 0) {
            d->seccomp = (enum gpj_seccomp_mode)i;
            return NULL;
        }
    return "must be off, log, enforce or learn";
}

static const char *take_profile(struct gpj_description *d, char *value)
{
    bool soft = strcmp(value, "soft") == 0;
    if (!soft && strcmp(value, "cuda") != 0)
        return "must be soft or cuda";
    d->profile = soft ? GPJ_PROFILE_SOFT : GPJ_PROFILE_CUDA;
    return NULL;
}

static const char *take_learn(struct gpj_description *d, char *value)
{
    return d->learn >= 0 ? "comes twice" : take_fd(value, &d->learn);
}

static const char *take_limit(struct gpj_description *d, char *value)
{
    return gpj_limits_take(&d->limits, value) ? "is no limit that is known" : NULL;
}

static const char *take_link(struct gpj_description *d, char *value)
{
    return gpj_links_take(&d->links, value);
}

static const char *take_peer(struct gpj_description *d, char *value)
{
    return gpj_links_take_peer(&d->links, value);
}

static const struct {
    const char *key;
    take *take;
} keys[] = {
    {"uid", take_uid},         {"gid", take_gid},
    {"root", take_root},       {"holder", take_holder},
    {"off", take_off},         {"require", take_require},
    {"library", take_library}, {"read", take_read},
    {"write", take_write},     {"device", take_device},
    {"tmpfs", take_tmpfs},     {"env", take_env},
    {"keep", take_keep},       {"hostname", take_hostname},
    {"cgroup", take_cgroup},   {"with-server", take_with_server},
    {"seccomp", take_seccomp}, {"seccomp-profile", take_profile},
    {"limit", take_limit},     {"learn", take_learn},
    {"link", take_link},       {"peer", take_peer},
};

static const char *take_line(struct gpj_description *d, const char *key, char *value)
{
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(key, keys[i].key) == 0)
            return keys[i].take(d, value);
    return "is not known";
}

int gpj_description_parse(char *text, struct gpj_description *d, char *why, size_t size)
{
    memset(d, 0, sizeof *d);
    d->holder = -1;
    d->learn = -1;
    unsigned line = 1;
    for (char *next = text; *next; line++) {
        char *key = strsep(&next, "\n"), *value = key;
        strsep(&value, " ");
        const char *wrong = value ? take_line(d, key, value) : "has no value";
        if (wrong) {
            snprintf(why, size, "line %u of the description: '%.64s' %s", line, key, wrong);
            return -1;
        }
        if (!next)
            break;
    }
    if (d->has_uid != d->has_gid) {
        snprintf(why, size, "the description has one of 'uid' and 'gid'");
        return -1;
    }
    if ((d->seccomp == GPJ_SECCOMP_LEARN) != (d->learn >= 0)) {
        snprintf(why, size, "the description has one of 'seccomp learn' and 'learn'");
        return -1;
    }
    if (!d->root) {
        snprintf(why, size, "the description has no 'root'");
        return -1;
    }
    const char *wrong = gpj_links_check(&d->links);
    if (wrong) {
        snprintf(why, size, "%s", wrong);
        return -1;
    }
    return 0;
}
