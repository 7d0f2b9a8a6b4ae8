#include "transport/ucx_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/support.h"
#include "transport/ucx_environment.h"

#define LIBRARY "libucp.so.0"
#define BASE_LIBRARY "libucs.so.0"
#define VARIABLE "GPUPOOL_UCX_LIBRARY"
#define DEVICES_VARIABLE "GPUPOOL_UCX_NET_DEVICES"
#define INSTALL                                                                                    \
    "ucx:// needs UCX 1.20 or later: pip install libucx-cu12 (or libucx-cu13), or name another "   \
    "libucp.so.0 in " VARIABLE

/* How many folders above this plug-in the package's may be. */
#define PARENTS_MOST 8

static struct {
    pthread_mutex_t lock;
    struct ucx_api api;
    bool open;
    bool by_loopback; /* it can: 1.20 finds no way there */
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- looking at a file ------------------------------------------------------ */

/* A function that came with 1.20: its name is in the file that has it. */
static const char since_1_20[] = "ucp_device_mem_list_release";

bool ucx_library_file_ok(const char *path)
{
    struct stat s;
    bool found = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size > 0) {
        size_t size = (size_t)s.st_size;
        void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes != MAP_FAILED) {
            found = memmem(bytes, size, since_1_20, sizeof since_1_20) != NULL;
            munmap(bytes, size);
        }
    }
    close(fd);
    return found;
}

/* --- where it may be --------------------------------------------------------- */

static bool is_there(const char *path)
{
    return access(path, R_OK) == 0;
}

/* What the user names: the file, or its folder. */
static bool find_named(char path[PATH_MAX])
{
    const char *named = getenv(VARIABLE);
    struct stat s;
    if (!named || !*named)
        return false;
    bool folder = stat(named, &s) == 0 && S_ISDIR(s.st_mode);
    snprintf(path, PATH_MAX, "%s%s", named, folder ? "/" LIBRARY : "");
    return true;
}

/* libucx/lib/ of the package, beside a folder that this plug-in is in: of site-packages. */
static bool find_package(char path[PATH_MAX])
{
    Dl_info self;
    char folder[PATH_MAX];
    if (!dladdr((void *)&library, &self) || !self.dli_fname || !realpath(self.dli_fname, folder))
        return false;
    for (int i = 0; i < PARENTS_MOST; i++) {
        char *slash = strrchr(folder, '/');
        if (!slash)
            return false;
        *slash = '\0';
        int n = snprintf(path, PATH_MAX, "%s/libucx/lib/" LIBRARY, folder);
        if (n > 0 && n < PATH_MAX && is_there(path))
            return true;
    }
    return false;
}

static bool find_in_system(char path[PATH_MAX])
{
    static const char *const folders[] = {"/usr/local/lib", "/usr/lib64",
                                          "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                                          "/usr/lib"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path, PATH_MAX, "%s/" LIBRARY, folders[i]);
        if (is_there(path))
            return true;
    }
    return false;
}

static int find(char path[PATH_MAX], struct gp_error *err)
{
    bool named = find_named(path);
    if (!named && !find_package(path) && !find_in_system(path)) {
        gp_error_set(err, INSTALL);
        return -ENOTSUP;
    }
    if (ucx_library_file_ok(path))
        return 0;
    gp_error_set(err, "%.120s %s; " INSTALL, path,
                 is_there(path) ? "is no UCX of 1.20 or later" : "cannot be read");
    return -ENOTSUP;
}

/* --- loading ------------------------------------------------------------------ */

/*
 * A program that has loaded UCX itself may be inside of it: its CUDA support asks for our
 * libcuda.so.1, and whoever then calls UCX waits for ever. And two releases of it in one process
 * take each other's libraries.
 */
static bool is_loaded(void)
{
    void *base = dlopen(BASE_LIBRARY, RTLD_LOCAL | RTLD_NOW | RTLD_NOLOAD);
    if (base)
        dlclose(base);
    return base != NULL;
}

struct symbol {
    const char *name;
    size_t at;
};
#define SYMBOL(NAME) {"ucp_" #NAME, offsetof(struct ucx_api, NAME)}
static const struct symbol symbols[] = {
    SYMBOL(get_version),
    SYMBOL(config_read),
    SYMBOL(config_modify),
    SYMBOL(init_version),
    SYMBOL(cleanup),
    SYMBOL(worker_create),
    SYMBOL(worker_destroy),
    SYMBOL(worker_get_address),
    SYMBOL(worker_release_address),
    SYMBOL(worker_get_efd),
    SYMBOL(worker_arm),
    SYMBOL(worker_progress),
    SYMBOL(worker_set_am_recv_handler),
    SYMBOL(ep_create),
    SYMBOL(ep_flush_nbx),
    SYMBOL(ep_close_nbx),
    SYMBOL(am_send_nbx),
    SYMBOL(am_recv_data_nbx),
    SYMBOL(request_check_status),
    SYMBOL(request_free),
    SYMBOL(mem_map),
    SYMBOL(mem_unmap),
};

static int take_symbols(void *handle, struct ucx_api *api, const char **lacks)
{
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *found = dlsym(handle, symbols[i].name);
        *lacks = symbols[i].name;
        if (!found)
            return -ENOTSUP;
        memcpy((char *)api + symbols[i].at, &found, sizeof found);
    }
    return 0;
}

static int check(void *handle, const char *path, struct ucx_api *api, struct gp_error *err)
{
    const char *lacks;
    unsigned major = 0, minor = 0, release = 0;
    if (take_symbols(handle, api, &lacks) != 0) {
        gp_error_set(err, "%.120s lacks %s; " INSTALL, path, lacks);
        return -ENOTSUP;
    }
    api->get_version(&major, &minor, &release);
    if (major != UCX_OLDEST_MAJOR || minor < UCX_OLDEST_MINOR) {
        gp_error_set(err, "%.120s is UCX %u.%u.%u; " INSTALL, path, major, minor, release);
        return -ENOTSUP;
    }
    library.by_loopback = minor > UCX_OLDEST_MINOR;
    return 0;
}

static int open_own(const char *path, struct ucx_api *api, struct gp_error *err)
{
    void *handle = dlopen(path, RTLD_LOCAL | RTLD_NOW | RTLD_NODELETE);
    if (!handle) {
        const char *why = dlerror();
        gp_error_set(err, "cannot open %.120s: %.100s", path, why ? why : "");
        return -ENOTSUP;
    }
    return check(handle, path, api, err);
}

/*
 * What holds for each context. A program may have set UCX's variables for its own; ours are
 * GPUPOOL_UCX_… alone.
 */
static int configure(struct ucx_api *api, struct gp_error *err)
{
    static const char *const settings[][2] = {
        /* Not over UCX's shared memory: it does not notice that a peer has died, and programs on
         * the GPUs' own machine have a transport for that. */
        {"TLS", "^shm,cuda,rocm,ze"},
        /* What is sent lies in memory that was made known before: no cache of others' memory,
         * which would need hooks in the program's mmap and free. */
        {"RCACHE_ENABLE", "n"},
        /* The door's connection asks who is there. */
        {"KEEPALIVE_INTERVAL", "inf"},
    };
    ucx_status status = api->config_read("GPUPOOL", NULL, &api->config);
    for (size_t i = 0; status == UCX_OK && i < sizeof settings / sizeof settings[0]; i++) {
        char variable[64];
        snprintf(variable, sizeof variable, "GPUPOOL_UCX_%s", settings[i][0]);
        if (!getenv(variable))
            status = api->config_modify(api->config, settings[i][0], settings[i][1]);
    }
    if (status == UCX_OK)
        return 0;
    gp_error_set(err,
                 "UCX does not take its settings (its error %d): are those of GPUPOOL_UCX_… "
                 "right?",
                 status);
    return -ENOTSUP;
}

static int open_any(struct ucx_api *api, struct gp_error *err)
{
    struct ucx_environment e;
    char path[PATH_MAX];
    if (is_loaded()) {
        gp_error_set(err, "this program has loaded UCX itself, and gpupool's cannot be beside it; "
                          "GPUPOOL_TRANSPORT=tcp does without");
        return -ENOTSUP;
    }
    int rc = find(path, err);
    if (rc == 0)
        rc = ucx_environment_enter(&e);
    if (rc)
        return rc;
    rc = open_own(path, api, err);
    if (rc == 0)
        rc = configure(api, err);
    ucx_environment_leave(&e);
    return rc;
}

ucx_status ucx_library_context(const struct ucx_params *params, bool loopback, void **context)
{
    struct ucx_api *api = &library.api;
    ucx_status status = UCX_OK;
    pthread_mutex_lock(&library.lock);
    if (!getenv(DEVICES_VARIABLE))
        status = api->config_modify(api->config, "NET_DEVICES",
                                    loopback && library.by_loopback ? "lo" : "all");
    if (status == UCX_OK)
        status = api->init_version(UCX_OLDEST_MAJOR, UCX_OLDEST_MINOR, params, api->config,
                                   context);
    pthread_mutex_unlock(&library.lock);
    return status;
}

int ucx_library_open(const struct ucx_api **out, struct gp_error *err)
{
    struct ucx_api api = {0};
    int rc = 0;
    pthread_mutex_lock(&library.lock);
    if (!library.open) {
        rc = open_any(&api, err);
        if (rc == 0)
            library.api = api;
        library.open = rc == 0;
    }
    pthread_mutex_unlock(&library.lock);
    if (rc == 0)
        *out = &library.api;
    return rc;
}
