/*
 * Two locks. `lock` guards what is known and is held for moments. `ask_lock` is held by
 * the one thread that asks the server; what is known already is read meanwhile.
 */
#include "nvml_state.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ask.h"
#include "call.h"
#include "pci.h"
#include "request.h"
#include "servers.h"

#define OPEN_TIMEOUT_MS 30000
#define RENEW_TIMEOUT_MS 3000
#define FRESH_NS INT64_C(100000000)
/* After a question in vain: nobody waits for a server that is gone at every call. */
#define RETRY_NS INT64_C(1000000000)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t ask_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpc_nvml_state *known; /* NULL unless users > 0 */
static unsigned users;
static bool lost[GPC_NVML_DEVICES];
static int64_t asked_ns; /* when `known` was fetched */
/* When a server last did not answer, 0: it did. */
static int64_t in_vain_ns[GP_SESSIONS_MAX];
static unsigned server_count; /* of which `known` is */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- asking --------------------------------------------------------------- */

/* The same request as a session's, so that the server knows what this program may have. */
static int question_write(char *out, size_t room, const char *token, uint32_t from, bool fresh,
                          char *why, size_t why_size)
{
    char host[128] = "", boot[64];
    gethostname(host, sizeof host - 1);
    gpc_boot_id(boot);
    int n = snprintf(out, room,
                     "GPUPOOL/1 nvml\ntoken: %s\npid: %d\nhost: %s\nboot-id: %s\n"
                     "what: %s\nfrom: %" PRIu32 "\n",
                     token, (int)getpid(), host, boot, fresh ? "fresh" : "all", from);
    if (n < 0 || (size_t)n >= room) {
        snprintf(why, why_size, "GPUPOOL_TOKEN is too long");
        return -1;
    }
    int more = gpc_request_fields(out + n, room - (size_t)n, why, why_size);
    return more < 0 ? -1 : n + more;
}

static nvmlReturn_t refusal(const char *code)
{
    if (strcmp(code, "bad-token") == 0)
        return NVML_ERROR_NO_PERMISSION;
    if (strcmp(code, "version") == 0)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (strcmp(code, "bad-request") == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_ERROR_DRIVER_NOT_LOADED;
}

/* One page into `state`; `next` is the device to ask for then. */
static nvmlReturn_t fetch_page(const char *server, const char *token, struct gpc_nvml_state *state,
                               bool fresh, uint32_t *next)
{
    char question[GPC_ANSWER_MAX], answer[GPC_ANSWER_MAX], plugins[4096], why[512] = "";
    int n = question_write(question, sizeof question, token, *next, fresh, why, sizeof why);
    if (n < 0) {
        gpc_log(GPC_LOG_ERROR, "%s", why);
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    gpc_plugin_folder(gpc_nvml_give_back, plugins, sizeof plugins);
    int size = gpc_ask(server, plugins, question, (size_t)n,
                       fresh ? RENEW_TIMEOUT_MS : OPEN_TIMEOUT_MS, answer, why, sizeof why);
    if (size < 0) {
        gpc_log(GPC_LOG_ERROR, "%s", why);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    struct gpc_nvml_page page;
    int rc = gpc_nvml_answer_read(answer, (size_t)size, state, &page);
    if (rc == 0 && page.next != 0 && page.next <= *next)
        rc = -1; /* it would never end */
    if (rc != 0) {
        gpc_log(GPC_LOG_ERROR, "%s: %s", server, page.message);
        return rc > 0 ? refusal(page.code) : NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    *next = page.next;
    return NVML_SUCCESS;
}

static nvmlReturn_t fetch(const char *server, const char *token, bool fresh,
                          struct gpc_nvml_state **out)
{
    struct gpc_nvml_state *state = calloc(1, sizeof *state);
    if (!state)
        return NVML_ERROR_MEMORY;
    uint32_t next = 0;
    nvmlReturn_t r;
    do
        r = fetch_page(server, token, state, fresh, &next);
    while (r == NVML_SUCCESS && next != 0);
    if (r == NVML_SUCCESS && !fresh && !gpc_nvml_answer_complete(state)) {
        gpc_log(GPC_LOG_ERROR, "%s: does not say of every device what it is", server);
        r = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    if (r != NVML_SUCCESS) {
        free(state);
        return r;
    }
    *out = state;
    return NVML_SUCCESS;
}

static nvmlReturn_t list_servers(struct gpc_servers *list)
{
    char why[GPC_SERVERS_WHY];
    if (gpc_servers_of_environment(list, why, sizeof why) != 0) {
        gpc_log(GPC_LOG_ERROR, "%s", why);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    return NVML_SUCCESS;
}

/* --- several servers ------------------------------------------------------ */

/* As the driver library does it, so that both name a device alike. */
static void tell_apart(struct gpc_nvml_device *d, const struct gpc_nvml_state *others,
                       uint32_t count)
{
    struct gpc_pci own, taken[GPC_NVML_DEVICES];
    unsigned found = 0;
    if (!gpc_pci_read(d->pci, &own))
        return;
    for (uint32_t i = 0; i < count; i++)
        if (gpc_pci_read(others->device[i].pci, &taken[found]))
            found++;
    unsigned domain = gpc_pci_free_domain(&own, taken, found, d->server);
    if (domain == own.domain)
        return;
    own.domain = domain;
    gpc_pci_write(&own, d->pci, sizeof d->pci);
}

/* Put the devices of the next server behind those of the ones before. */
static nvmlReturn_t append(struct gpc_nvml_state *all, const struct gpc_nvml_state *one,
                           unsigned server)
{
    uint32_t first = all->count;
    if (one->count > GPC_NVML_DEVICES - first) {
        gpc_log(GPC_LOG_ERROR, "the servers have more than %d devices between them",
                GPC_NVML_DEVICES);
        return NVML_ERROR_UNKNOWN;
    }
    if (server == 0) {
        memcpy(all, one, sizeof *all);
        return NVML_SUCCESS;
    }
    if (one->cuda_version && (!all->cuda_version || one->cuda_version < all->cuda_version))
        all->cuda_version = one->cuda_version; /* what all of them know */
    for (uint32_t i = 0; i < one->count; i++) {
        struct gpc_nvml_device *d = &all->device[first + i];
        *d = one->device[i];
        d->server = server;
        d->first = first;
        tell_apart(d, all, first);
    }
    all->count += one->count;
    return NVML_SUCCESS;
}

static nvmlReturn_t fetch_all(const struct gpc_servers *list, struct gpc_nvml_state **out)
{
    struct gpc_nvml_state *all = calloc(1, sizeof *all);
    nvmlReturn_t r = all ? NVML_SUCCESS : NVML_ERROR_MEMORY;
    for (unsigned i = 0; i < list->count && r == NVML_SUCCESS; i++) {
        struct gpc_nvml_state *one;
        r = fetch(list->server[i], list->token[i], false, &one);
        if (r != NVML_SUCCESS)
            break;
        r = append(all, one, i);
        free(one);
    }
    if (r != NVML_SUCCESS) {
        free(all);
        return r;
    }
    *out = all;
    return NVML_SUCCESS;
}

/* --- users ---------------------------------------------------------------- */

static nvmlReturn_t first_user(unsigned int flags)
{
    struct gpc_nvml_state *state;
    struct gpc_servers list;
    nvmlReturn_t r = list_servers(&list);
    if (r != NVML_SUCCESS)
        return r;
    unsigned count = list.count;
    r = fetch_all(&list, &state);
    gpc_servers_free(&list);
    if (r != NVML_SUCCESS)
        return r;
    if (state->count == 0 && !(flags & NVML_INIT_FLAG_NO_GPUS)) {
        free(state);
        return NVML_ERROR_NOT_FOUND;
    }
    pthread_mutex_lock(&lock);
    known = state;
    users = 1;
    asked_ns = now_ns();
    server_count = count;
    memset(in_vain_ns, 0, sizeof in_vain_ns);
    memset(lost, 0, sizeof lost);
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* Whoever was asking is not here, and a question may take long: not waited for. */
static void in_child(void)
{
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    after_fork();
    ask_lock = fresh;
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

nvmlReturn_t gpc_nvml_open(unsigned int flags)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&ask_lock); /* users only grows from 0 under it */
    pthread_mutex_lock(&lock);
    bool first = users == 0;
    if (!first)
        users++;
    pthread_mutex_unlock(&lock);
    nvmlReturn_t r = first ? first_user(flags) : NVML_SUCCESS;
    pthread_mutex_unlock(&ask_lock);
    return r;
}

nvmlReturn_t gpc_nvml_close(void)
{
    nvmlReturn_t r = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (users == 0) {
        r = NVML_ERROR_UNINITIALIZED;
    } else if (--users == 0) {
        free(known);
        known = NULL;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

/* --- reading -------------------------------------------------------------- */

/* With `lock` held: a server that did not answer is not asked for a while. */
static bool is_resting(unsigned server, int64_t now)
{
    return in_vain_ns[server] && now - in_vain_ns[server] < RETRY_NS;
}

/* With `lock` held: whether what is known is too old, or nothing is. */
static nvmlReturn_t age_check(bool *old)
{
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    int64_t now = now_ns();
    *old = now - asked_ns > FRESH_NS;
    bool any = false;
    for (unsigned i = 0; i < server_count; i++)
        any = any || !is_resting(i, now);
    return *old && !any ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

/* What a server answered, or NULL if it did not. */
static void renew_take(unsigned server, const struct gpc_nvml_state *newer)
{
    in_vain_ns[server] = newer ? 0 : now_ns();
    for (uint32_t i = 0; known && i < known->count; i++)
        if (known->device[i].server == server)
            lost[i] = !newer || !gpc_nvml_device_renew(&known->device[i], newer);
}

/* Ask every server that does not rest; fine if one of them answers. */
static nvmlReturn_t renew_all(const struct gpc_servers *list)
{
    nvmlReturn_t r = NVML_ERROR_GPU_IS_LOST;
    for (unsigned i = 0; i < list->count; i++) {
        pthread_mutex_lock(&lock);
        bool rests = is_resting(i, now_ns());
        pthread_mutex_unlock(&lock);
        if (rests)
            continue;
        struct gpc_nvml_state *newer = NULL;
        if (fetch(list->server[i], list->token[i], true, &newer) == NVML_SUCCESS)
            r = NVML_SUCCESS;
        pthread_mutex_lock(&lock);
        /* alone, it is lost for as long as it does not answer, and then as it was */
        if (newer || list->count > 1)
            renew_take(i, newer);
        else
            in_vain_ns[i] = now_ns();
        pthread_mutex_unlock(&lock);
        free(newer);
    }
    return r;
}

static nvmlReturn_t renew(void)
{
    pthread_mutex_lock(&ask_lock);
    bool old = false;
    pthread_mutex_lock(&lock); /* another thread may just have asked */
    nvmlReturn_t r = age_check(&old);
    pthread_mutex_unlock(&lock);
    struct gpc_servers list;
    if (r == NVML_SUCCESS && old && (r = list_servers(&list)) == NVML_SUCCESS) {
        r = list.count == server_count ? renew_all(&list) : NVML_ERROR_GPU_IS_LOST;
        gpc_servers_free(&list);
        pthread_mutex_lock(&lock);
        if (r == NVML_SUCCESS)
            asked_ns = now_ns();
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_unlock(&ask_lock);
    return r;
}

nvmlReturn_t gpc_nvml_borrow(bool fresh, const struct gpc_nvml_state **state)
{
    pthread_mutex_lock(&lock);
    bool old = false;
    nvmlReturn_t r = users == 0 ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
    if (r == NVML_SUCCESS && fresh)
        r = age_check(&old);
    if (r == NVML_SUCCESS && old) {
        pthread_mutex_unlock(&lock);
        r = renew();
        pthread_mutex_lock(&lock);
        if (r == NVML_SUCCESS && users == 0)
            r = NVML_ERROR_UNINITIALIZED;
    }
    if (r != NVML_SUCCESS) {
        pthread_mutex_unlock(&lock);
        return r;
    }
    *state = known;
    return NVML_SUCCESS;
}

void gpc_nvml_give_back(void)
{
    pthread_mutex_unlock(&lock);
}

bool gpc_nvml_is_lost(uint32_t index)
{
    return index < GPC_NVML_DEVICES && lost[index];
}
