#include "nvml_answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ask.h"

static const struct {
    const char *word;
    bool fresh;
} facts[] = {
#define ROW(name, word, fresh) [name] = {word, fresh},
    GPC_NVML_FACTS(ROW)
#undef ROW
};

static const struct {
    const char *word;
    size_t offset, size;
} texts[] = {
#define ROW(name, word, field, size) [name] = {word, offsetof(struct gpc_nvml_device, field), size},
    GPC_NVML_TEXTS(ROW)
#undef ROW
};

/* Digits alone: strtoull would take a sign and blanks, too. */
static int number(const char *text, uint64_t *out)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || text[digits] != '\0')
        return -1;
    errno = 0;
    unsigned long long value = strtoull(text, NULL, 10);
    if (errno != 0)
        return -1;
    *out = value;
    return 0;
}

static int number_upto(const char *text, uint64_t most, uint32_t *out)
{
    uint64_t value;
    if (number(text, &value) != 0 || value > most)
        return -1;
    *out = (uint32_t)value;
    return 0;
}

static int take_word(struct gpc_nvml_device *d, const char *word, const char *value)
{
    for (size_t i = 0; i < GP_NVML_TEXT_COUNT; i++)
        if (strcmp(word, texts[i].word) == 0)
            return gpc_answer_keep((char *)d + texts[i].offset, texts[i].size, value);
    for (size_t i = 0; i < GP_NVML_FACT_COUNT; i++) {
        if (strcmp(word, facts[i].word) != 0)
            continue;
        if (number(value, &d->fact[i]) != 0)
            return -1;
        d->has[i] = true;
        return 0;
    }
    return 0; /* a word of a newer server */
}

/* "word=value word=value" */
static int take_words(struct gpc_nvml_device *d, char *line)
{
    char *word;
    while ((word = strsep(&line, " ")) != NULL) {
        if (*word == '\0')
            continue;
        char *equals = strchr(word, '=');
        if (!equals)
            return -1;
        *equals = '\0';
        if (take_word(d, word, equals + 1) != 0)
            return -1;
    }
    return 0;
}

/* "pid=bytes pid=-" */
static int take_processes(struct gpc_nvml_device *d, char *line)
{
    char *word;
    d->process_count = 0;
    while ((word = strsep(&line, " ")) != NULL) {
        if (*word == '\0')
            continue;
        char *equals = strchr(word, '=');
        if (!equals || d->process_count == GPC_NVML_PROCESSES)
            return -1;
        *equals = '\0';
        struct gpc_nvml_process *p = &d->process[d->process_count];
        p->memory = GPC_NVML_UNKNOWN;
        if (number_upto(word, INT32_MAX, &p->pid) != 0)
            return -1;
        if (strcmp(equals + 1, "-") != 0 && number(equals + 1, &p->memory) != 0)
            return -1;
        d->process_count++;
    }
    return 0;
}

/* A line "gpuN", "gpuN-name" or "gpuN-processes". */
static int take_device(struct gpc_nvml_state *s, const char *key, char *value)
{
    char *end;
    if (key[0] < '0' || key[0] > '9')
        return 0; /* a key of a newer server */
    unsigned long index = strtoul(key, &end, 10);
    if (index >= s->count)
        return -1;
    struct gpc_nvml_device *d = &s->device[index];
    if (*end == '\0')
        return take_words(d, value);
    if (strcmp(end, "-name") == 0)
        return gpc_answer_keep(d->name, sizeof d->name, value);
    if (strcmp(end, "-processes") == 0)
        return take_processes(d, value);
    return 0;
}

static int take_line(struct gpc_nvml_state *s, struct gpc_nvml_page *page, const char *key,
                     char *value)
{
    if (strcmp(key, "driver-version") == 0)
        return gpc_answer_keep(s->driver_version, sizeof s->driver_version, value);
    if (strcmp(key, "nvml-version") == 0)
        return gpc_answer_keep(s->nvml_version, sizeof s->nvml_version, value);
    if (strcmp(key, "cuda-version") == 0)
        return number_upto(value, INT32_MAX, &s->cuda_version);
    if (strcmp(key, "devices") == 0)
        return number_upto(value, GPC_NVML_DEVICES, &s->count);
    if (strcmp(key, "next") == 0)
        return number_upto(value, GPC_NVML_DEVICES - 1, &page->next);
    if (strcmp(key, "code") == 0)
        return gpc_answer_keep(page->code, sizeof page->code, value);
    if (strncmp(key, "gpu", 3) == 0)
        return take_device(s, key + 3, value);
    return 0;
}

int gpc_nvml_answer_read(const char *answer, size_t size, struct gpc_nvml_state *state,
                         struct gpc_nvml_page *page)
{
    memset(page, 0, sizeof *page);
    snprintf(page->message, sizeof page->message, "its answer is not one of gpupool's");
    char text[GPC_ANSWER_MAX];
    struct gpc_answer lines;
    int refused = gpc_answer_open(&lines, answer, size, text), more;
    if (refused < 0)
        return -1;
    const char *key, *value;
    while ((more = gpc_answer_next(&lines, &key, &value)) > 0) {
        if (strcmp(key, "message") == 0)
            snprintf(page->message, sizeof page->message, "%s", value);
        else if (take_line(state, page, key, text + (value - text)) != 0)
            return -1;
    }
    return more < 0 ? -1 : refused;
}

bool gpc_nvml_answer_complete(const struct gpc_nvml_state *state)
{
    for (uint32_t i = 0; i < state->count; i++) {
        const struct gpc_nvml_device *d = &state->device[i];
        if (!d->name[0] || !d->uuid[0] || !d->pci[0] || !d->has[GP_NVML_MEMORY_TOTAL])
            return false;
    }
    return true;
}

bool gpc_nvml_device_renew(struct gpc_nvml_device *d, const struct gpc_nvml_state *newer)
{
    const struct gpc_nvml_device *now = NULL;
    for (uint32_t i = 0; i < newer->count && !now; i++)
        if (strcmp(newer->device[i].uuid, d->uuid) == 0)
            now = &newer->device[i];
    if (!now)
        return false;
    for (size_t i = 0; i < GP_NVML_FACT_COUNT; i++) {
        if (!facts[i].fresh)
            continue;
        d->has[i] = now->has[i];
        d->fact[i] = now->fact[i];
    }
    d->process_count = now->process_count;
    memcpy(d->process, now->process, now->process_count * sizeof now->process[0]);
    return true;
}
