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
#include "request.h"

#define OPEN_TIMEOUT_MS 10000
#define RENEW_TIMEOUT_MS 3000
#define FRESH_NS INT64_C(100000000)
/* After a question in vain: nobody waits for a server that is gone at every call. */
#define RETRY_NS INT64_C(1000000000)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t ask_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpc_nvml_state *known; /* NULL unless users > 0 */
static unsigned users;
static bool lost[GPC_NVML_DEVICES];
static int64_t asked_ns;   /* when `known` was fetched */
static int64_t in_vain_ns; /* when the server last did not answer, 0: it did */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- asking --------------------------------------------------------------- */

/* The same request as a session's, so that the server knows what this program may have. */
static int question_write(char *out, size_t room, uint32_t from, bool fresh, char *why,
                          size_t why_size)
{
    const char *token = getenv("GPUPOOL_TOKEN");
    char host[128] = "", boot[64];
    gethostname(host, sizeof host - 1);
    gpc_boot_id(boot);
    int n = snprintf(out, room,
                     "GPUPOOL/1 nvml\ntoken: %s\npid: %d\nhost: %s\nboot-id: %s\n"
                     "what: %s\nfrom: %" PRIu32 "\n",
                     token ? token : "", (int)getpid(), host, boot, fresh ? "fresh" : "all", from);
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
    return NVML_ERROR_DRIVER_NOT_LOADED;
}

/* One page into `state`; `next` is the device to ask for then. */
static nvmlReturn_t fetch_page(const char *server, struct gpc_nvml_state *state, bool fresh,
                               uint32_t *next)
{
    char question[GPC_ANSWER_MAX], answer[GPC_ANSWER_MAX], plugins[4096], why[512] = "";
    int n = question_write(question, sizeof question, *next, fresh, why, sizeof why);
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

static nvmlReturn_t fetch(bool fresh, struct gpc_nvml_state **out)
{
    const char *server = getenv("GPUPOOL_SERVER");
    if (!server || !*server) {
        gpc_log(GPC_LOG_ERROR, "GPUPOOL_SERVER is not set: start the program with `gpupool run`, "
                "or set it to the server's address, tcp://HOST:7700");
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    struct gpc_nvml_state *state = calloc(1, sizeof *state);
    if (!state)
        return NVML_ERROR_MEMORY;
    uint32_t next = 0;
    nvmlReturn_t r;
    do
        r = fetch_page(server, state, fresh, &next);
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

/* --- users ---------------------------------------------------------------- */

static nvmlReturn_t first_user(unsigned int flags)
{
    struct gpc_nvml_state *state;
    nvmlReturn_t r = fetch(false, &state);
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
    in_vain_ns = 0;
    memset(lost, 0, sizeof lost);
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

nvmlReturn_t gpc_nvml_open(unsigned int flags)
{
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

/* With `lock` held: whether what is known is too old, or nothing is. */
static nvmlReturn_t age_check(bool *old)
{
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    int64_t now = now_ns();
    *old = now - asked_ns > FRESH_NS;
    return *old && in_vain_ns && now - in_vain_ns < RETRY_NS ? NVML_ERROR_GPU_IS_LOST
                                                               : NVML_SUCCESS;
}

static void renew_take(const struct gpc_nvml_state *newer)
{
    for (uint32_t i = 0; known && i < known->count; i++)
        lost[i] = !gpc_nvml_device_renew(&known->device[i], newer);
}

static nvmlReturn_t renew(void)
{
    pthread_mutex_lock(&ask_lock);
    bool old = false;
    pthread_mutex_lock(&lock); /* another thread may just have asked */
    nvmlReturn_t r = age_check(&old);
    pthread_mutex_unlock(&lock);
    if (r == NVML_SUCCESS && old) {
        struct gpc_nvml_state *newer = NULL;
        r = fetch(true, &newer);
        pthread_mutex_lock(&lock);
        in_vain_ns = r == NVML_SUCCESS ? 0 : now_ns();
        if (r == NVML_SUCCESS) {
            asked_ns = now_ns();
            renew_take(newer);
        } else {
            r = NVML_ERROR_GPU_IS_LOST;
        }
        pthread_mutex_unlock(&lock);
        free(newer);
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
