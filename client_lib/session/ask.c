#include "ask.h"

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include "cancel.h"
#include "transport/standard_fds.h"
#include "transport/support.h"
#include "transport/transport.h"

/* Pauses between questions to a server that is busy: they double. */
#define FIRST_PAUSE_MS 50
#define LONGEST_PAUSE_MS 1000
/* And how long it is asked: who says that it is busy is not one that stands still. */
#define BUSY_MS 10000

/* Not now, but soon: the only refusal that asking again mends. */
static bool says_busy(const char *answer, size_t size)
{
    char text[GPC_ANSWER_MAX];
    struct gpc_answer lines;
    const char *key, *value;
    if (gpc_answer_open(&lines, answer, size, text) != 1)
        return false;
    while (gpc_answer_next(&lines, &key, &value) > 0)
        if (strcmp(key, "code") == 0)
            return strcmp(value, "busy") == 0;
    return false;
}

static int longer(int pause_ms)
{
    return 2 * pause_ms < LONGEST_PAUSE_MS ? 2 * pause_ms : LONGEST_PAUSE_MS;
}

/* Between half of `pause_ms` and all of it: who was refused together does not come back so. */
static void rest(int pause_ms)
{
    int64_t half = (int64_t)pause_ms * 500000, ns = half + gp_clock_ns() % half;
    struct timespec left = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* Ask until the server is not busy. What it said last is in `answer`, also if it says nothing
 * any more. */
static int ask_patiently(const struct gp_transport *t, const char *server,
                         const struct iovec *question, int timeout_ms, char *answer, size_t *got,
                         struct gp_error *err)
{
    int64_t deadline = gp_deadline_us((int64_t)timeout_ms * 1000);
    int busy_ms = timeout_ms < BUSY_MS ? timeout_ms : BUSY_MS;
    int64_t again_until = gp_deadline_us((int64_t)busy_ms * 1000);
    bool busy = false;
    for (int pause = FIRST_PAUSE_MS;; pause = longer(pause)) {
        size_t size = GPC_ANSWER_MAX - 1;
        int left = gp_deadline_left_ms(busy ? again_until : deadline, timeout_ms);
        struct gp_standard_fds standard;
        gp_standard_fds_hold(&standard);
        int rc = t->ask(server, question->iov_base, question->iov_len, answer, &size, left, err);
        gp_standard_fds_release(&standard);
        if (rc != 0)
            return busy && rc == -ETIMEDOUT ? 0 : rc;
        *got = size;
        busy = says_busy(answer, size);
        if (!busy || gp_deadline_left_ms(again_until, busy_ms) <= pause)
            return 0;
        rest(pause);
    }
}

int gpc_ask(const char *server, const char *plugin_dir, const char *question, size_t size,
            int timeout_ms, char *answer, char *why, size_t why_size)
{
    struct gp_error err = {""};
    const struct gp_transport *t = gp_transport_find(server, plugin_dir, &err);
    if (!t || !t->ask) {
        snprintf(why, why_size, "%s",
                 t ? "GPUPOOL_SERVER must be a tcp://, unix:// or ipc:// address" : err.text);
        return -2;
    }
    struct iovec text = {(void *)(uintptr_t)question, size};
    size_t got = 0;
    int cancel = gpc_cancel_off();
    int asked = ask_patiently(t, server, &text, timeout_ms, answer, &got, &err);
    gpc_cancel_back(cancel);
    if (asked != 0) {
        snprintf(why, why_size, "%s", err.text);
        return -1;
    }
    answer[got] = '\0';
    return (int)got;
}

int gpc_answer_open(struct gpc_answer *a, const char *answer, size_t size, char *text)
{
    static const char OK[] = "GPUPOOL/1 ok", REFUSED[] = "GPUPOOL/1 refused";
    if (size == 0 || size >= GPC_ANSWER_MAX || memchr(answer, '\0', size))
        return -1;
    memcpy(text, answer, size);
    text[size] = '\0';
    a->rest = text;
    const char *first = strsep(&a->rest, "\n");
    if (strcmp(first, REFUSED) == 0)
        return 1;
    return strcmp(first, OK) == 0 ? 0 : -1;
}

int gpc_answer_next(struct gpc_answer *a, const char **key, const char **value)
{
    char *line;
    while ((line = strsep(&a->rest, "\n")) != NULL) {
        if (*line == '\0')
            continue;
        char *colon = strstr(line, ": ");
        if (!colon)
            return -1;
        *colon = '\0';
        *key = line;
        *value = colon + 2;
        return 1;
    }
    return 0;
}

int gpc_answer_keep(char *to, size_t room, const char *value)
{
    size_t length = strlen(value);
    if (length >= room)
        return -1;
    memcpy(to, value, length + 1);
    return 0;
}

void gpc_boot_id(char out[64])
{
    out[0] = '\0';
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file)
        return;
    if (fgets(out, 64, file))
        out[strcspn(out, "\n")] = '\0';
    fclose(file);
}

void gpc_plugin_folder(void (*own)(void), char *out, size_t size)
{
    const char *set = getenv("GPUPOOL_PLUGINS");
    if (set && *set) {
        snprintf(out, size, "%s", set);
        return;
    }
    Dl_info info;
    char path[4096] = ".";
    if (dladdr((void *)(uintptr_t)own, &info) && info.dli_fname)
        snprintf(path, sizeof path, "%s", info.dli_fname);
    snprintf(out, size, "%s/plugins", dirname(path));
}
