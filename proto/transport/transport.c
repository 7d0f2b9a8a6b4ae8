#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "transport/support.h"

/* A transport that needs a library of others, in a file of its own. */
struct plugin {
    const char *file, *symbol, *what;
    const char *schemes[3];
    const struct gp_transport *transport; /* under the lock, set once */
};

static struct plugin plugins[] = {
    {"libgpupool_zmq.so", "gp_transport_zmq", "tcp:// and ipc://", {"tcp://", "ipc://"}, NULL},
    {"libgpupool_tcp.so", "gp_transport_tcp", "tls:// and plain://", {"tls://", "plain://"}, NULL},
    {"libgpupool_ucx.so", "gp_transport_ucx", "ucx://", {"ucx://"}, NULL},
};
static pthread_mutex_t plugin_lock = PTHREAD_MUTEX_INITIALIZER;

static bool scheme_matches(const char *const *schemes, const char *url)
{
    for (const char *const *s = schemes; *s; s++)
        if (strncmp(url, *s, strlen(*s)) == 0)
            return true;
    return false;
}

static const struct gp_transport *plugin_check(const struct plugin *p, void *handle,
                                               const char *path, struct gp_error *err)
{
    const struct gp_transport *t = dlsym(handle, p->symbol);
    if (!t) {
        gp_error_set(err,
                     "%s is not a transport of gpupool: it has no symbol %s; reinstall gpupool",
                     path, p->symbol);
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
static const struct gp_transport *plugin_open(const struct plugin *p, const char *dir,
                                              struct gp_error *err)
{
    char path[PATH_MAX];
    if (!dir || !*dir) {
        gp_error_set(err, "%s need %s, and no folder of plug-ins is known", p->what, p->file);
        return NULL;
    }
    int n = snprintf(path, sizeof path, "%s/%s", dir, p->file);
    if (n < 0 || (size_t)n >= sizeof path) {
        gp_error_set(err, "the folder of plug-ins has too long a name (%zu bytes)", strlen(dir));
        return NULL;
    }
    void *handle = dlopen(path, RTLD_LOCAL | RTLD_NOW);
    if (!handle) {
        const char *why = dlerror();
        gp_error_set(err, "cannot open the transport for %s: %s", p->what, why ? why : path);
        return NULL;
    }
    const struct gp_transport *t = plugin_check(p, handle, path, err);
    if (t && t->ready && t->ready(err) != 0)
        t = NULL;
    if (!t)
        dlclose(handle);
    return t;
}

/* A child's other threads are not there to finish what they had begun. */
static void plugin_lock_renew(void)
{
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    plugin_lock = fresh;
}

static void plugin_watch_forks(void)
{
    pthread_atfork(NULL, NULL, plugin_lock_renew);
}

static const struct gp_transport *plugin_get(struct plugin *p, const char *dir,
                                             struct gp_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, plugin_watch_forks);
    pthread_mutex_lock(&plugin_lock);
    if (!p->transport)
        p->transport = plugin_open(p, dir, err);
    const struct gp_transport *t = p->transport;
    pthread_mutex_unlock(&plugin_lock);
    return t;
}

const struct gp_transport *gp_transport_find(const char *url, const char *plugin_dir,
                                             struct gp_error *err)
{
    if (!url) {
        gp_error_set(err, "no address given; use tcp://HOST:PORT or unix:///PATH");
        return NULL;
    }
    if (scheme_matches(gp_transport_shm.schemes, url))
        return &gp_transport_shm;
    if (scheme_matches(gp_transport_inproc.schemes, url))
        return &gp_transport_inproc;
    for (size_t i = 0; i < sizeof plugins / sizeof plugins[0]; i++)
        if (scheme_matches(plugins[i].schemes, url))
            return plugin_get(&plugins[i], plugin_dir, err);
    gp_error_set(err,
                 "'%.100s' is not an address of gpupool; use tcp://HOST:PORT, unix:///PATH or "
                 "ipc:///PATH",
                 url);
    return NULL;
}
