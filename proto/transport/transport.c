#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "transport/support.h"

#define ZMQ_PLUGIN_FILE "libgpupool_zmq.so"
#define ZMQ_PLUGIN_SYMBOL "gp_transport_zmq"

static pthread_mutex_t zmq_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct gp_transport *zmq_plugin; /* under zmq_lock, set once */

static bool scheme_matches(const struct gp_transport *t, const char *url)
{
    for (const char *const *s = t->schemes; *s; s++)
        if (strncmp(url, *s, strlen(*s)) == 0)
            return true;
    return false;
}

static const struct gp_transport *plugin_check(void *handle, const char *path, struct gp_error *err)
{
    const struct gp_transport *t = dlsym(handle, ZMQ_PLUGIN_SYMBOL);
    if (!t) {
        gp_error_set(err,
                     "%s is not a transport of gpupool: it has no symbol %s; reinstall gpupool",
                     path, ZMQ_PLUGIN_SYMBOL);
        return NULL;
    }
    if (t->abi != GP_TRANSPORT_ABI) {
        gp_error_set(err,
                     "%s belongs to another version of gpupool (interface %u, this one is %u); "
                     "reinstall gpupool",
                     path, t->abi, GP_TRANSPORT_ABI);
        return NULL;
    }
    return t;
}

/* Once opened the plug-in stays: libzmq's threads may outlive its last user. */
static const struct gp_transport *plugin_open(const char *dir, struct gp_error *err)
{
    char path[PATH_MAX];
    if (!dir || !*dir) {
        gp_error_set(err, "tcp:// and ipc:// need %s, and no folder of plug-ins is known",
                     ZMQ_PLUGIN_FILE);
        return NULL;
    }
    int n = snprintf(path, sizeof path, "%s/%s", dir, ZMQ_PLUGIN_FILE);
    if (n < 0 || (size_t)n >= sizeof path) {
        gp_error_set(err, "the folder of plug-ins has too long a name (%zu bytes)", strlen(dir));
        return NULL;
    }
    void *handle = dlopen(path, RTLD_LOCAL | RTLD_NOW);
    if (!handle) {
        const char *why = dlerror();
        gp_error_set(err, "cannot open the transport for tcp:// and ipc://: %s", why ? why : path);
        return NULL;
    }
    const struct gp_transport *t = plugin_check(handle, path, err);
    if (!t)
        dlclose(handle);
    return t;
}

/* A child's other threads are not there to finish what they had begun. */
static void plugin_lock_renew(void)
{
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    zmq_lock = fresh;
}

static void plugin_watch_forks(void)
{
    pthread_atfork(NULL, NULL, plugin_lock_renew);
}

static const struct gp_transport *plugin_get(const char *dir, struct gp_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, plugin_watch_forks);
    pthread_mutex_lock(&zmq_lock);
    if (!zmq_plugin)
        zmq_plugin = plugin_open(dir, err);
    const struct gp_transport *t = zmq_plugin;
    pthread_mutex_unlock(&zmq_lock);
    return t;
}

const struct gp_transport *gp_transport_find(const char *url, const char *plugin_dir,
                                             struct gp_error *err)
{
    if (!url) {
        gp_error_set(err, "no address given; use tcp://HOST:PORT or unix:///PATH");
        return NULL;
    }
    if (scheme_matches(&gp_transport_shm, url))
        return &gp_transport_shm;
    if (scheme_matches(&gp_transport_inproc, url))
        return &gp_transport_inproc;
    if (strncmp(url, "tcp://", 6) == 0 || strncmp(url, "ipc://", 6) == 0)
        return plugin_get(plugin_dir, err);
    gp_error_set(err,
                 "'%.100s' is not an address of gpupool; use tcp://HOST:PORT, unix:///PATH or "
                 "ipc:///PATH",
                 url);
    return NULL;
}
