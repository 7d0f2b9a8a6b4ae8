#include "ask.h"

#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cancel.h"
#include "transport/transport.h"

int gpc_ask(const char *server, const char *plugin_dir, const char *question, size_t size,
            int timeout_ms, char *answer, char *why, size_t why_size)
{
    struct gp_error err = {""};
    const struct gp_transport *t = gp_transport_find(server, plugin_dir, &err);
    if (!t || !t->ask) {
        snprintf(why, why_size, "%s",
                 t ? "GPUPOOL_SERVER must be a tcp:// or ipc:// address" : err.text);
        return -2;
    }
    size_t got = GPC_ANSWER_MAX - 1;
    int cancel = gpc_cancel_off();
    int asked = t->ask(server, question, size, answer, &got, timeout_ms, &err);
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
