/*
 * The whole NVML library against front ends that lie: its state, its questions, what it makes of
 * the answers for each function. Each step of an input is a call: its number, how the servers
 * answer while it is made (a byte for the time that passes, the number of bytes behind it from
 * which their words are drawn, those bytes), and the bytes of its arguments. The words are those
 * of proto/spec_nvml/facts.toml.
 *
 * Beside what sanitizers see: every result is one of NVML's, every text that is given ends in its
 * room, nothing is lost.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ask.h"
#include "call.h"
#include "gpc_nvml_errors.h"
#include "nvml_answer.h"
#include "nvml_calls.h"
#include "steps.h"
#include "transport/transport.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
void __wrap_gpc_log(enum gpc_log_level level, const char *format, ...);
const struct gp_transport *__wrap_gp_transport_find(const char *url, const char *plugin_dir,
                                                    struct gp_error *err);

#define SERVER_BYTES 48u
#define DEVICES_MOST 5u

static struct draw servers;
static uint64_t passed_ms;
static unsigned busy_left;
static bool says;

/* --- the servers -------------------------------------------------------------------------- */

struct text {
    char *out;
    size_t room, used;
};

static void say(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->out + t->used, t->room - t->used, format, args);
    va_end(args);
    if (n > 0)
        t->used += (size_t)n < t->room - t->used ? (size_t)n : t->room - t->used - 1;
}

/* A byte of 0: what an honest server says. */
static void say_number(struct text *t, const char *word)
{
    uint8_t how = draw_byte(&servers);
    if (how < 192)
        say(t, " %s=%" PRIu64, word, how < 128 ? (uint64_t)how : draw_number(&servers, 8));
    else if (how > 250)
        say(t, " %s=%s", word, how & 1 ? "-1" : "");
}

static void say_text(struct text *t, const char *word, unsigned device, size_t room)
{
    uint8_t how = draw_byte(&servers);
    if (how == 255)
        return; /* it does not know */
    say(t, " %s=", word);
    if (strcmp(word, "uuid") == 0 && how < 224)
        say(t, "GPU-%u", device % (1u + how / 32u));
    else if (strcmp(word, "pci") == 0 && how < 224)
        say(t, "%08x:%02x:00.0", how >> 7, how & 1 ? device : 0);
    else
        for (size_t i = how < 250 ? how % 9u : room - 2u + how % 4u; i > 0; i--)
            say(t, "%c", '0' + (int)(draw_byte(&servers) % 11u));
}

static void say_device(struct text *t, unsigned device)
{
    say(t, "gpu%u:", device);
#define SAY(name, word, field, room)                                                               \
    if (strcmp(word, "name") != 0)                                                                 \
        say_text(t, word, device, room);
    GPC_NVML_TEXTS(SAY)
#undef SAY
#define SAY(name, word, fresh) say_number(t, word);
    GPC_NVML_FACTS(SAY)
#undef SAY
    say(t, "\ngpu%u-name: GPU %u\n", device, device);
    unsigned processes = draw_byte(&servers) % 140u;
    say(t, "gpu%u-processes: ", device);
    for (unsigned i = 0; i < processes; i++)
        say(t, "%u=%s ", i, i % 3 ? "4096" : "-");
    say(t, "\n");
}

static void say_devices(struct text *t)
{
    unsigned count = 1 + draw_byte(&servers) % DEVICES_MOST, how = draw_byte(&servers);
    say(t, "GPUPOOL/1 ok\ndriver-version: 580.1\nnvml-version: 13.580.1\ncuda-version: 13000\n");
    say(t, "devices: %u\n", how > 250 ? how % 70u : count);
    for (unsigned i = 0; i < count; i++)
        say_device(t, i);
    if (how > 224)
        say(t, "next: %u\n", how % 7u);
}

/* The answer to a question; a negative errno: none. */
static int answer(struct text *t)
{
    uint8_t how = draw_byte(&servers);
    if (how < 208) {
        say_devices(t);
    } else if (how < 216) {
        return how & 1 ? -ETIMEDOUT : -EPIPE;
    } else if (how < 224) {
        say(t, "GPUPOOL/1 refused\ncode: %s\nmessage: no\n", how & 1 ? "bad-token" : "version");
    } else if (how < 228 && busy_left) { /* the library waits, in earnest, and asks again */
        busy_left--;
        say(t, "GPUPOOL/1 refused\ncode: busy\n");
    } else {
        say_devices(t);
        t->used = draw_number(&servers, 2) % (t->used + 1); /* cut */
        for (unsigned i = how % 4u; i > 0 && t->used; i--)
            t->out[draw_number(&servers, 2) % t->used] = (char)draw_byte(&servers);
    }
    return 0;
}

static int fake_ask(const char *url, const void *question, size_t question_size, void *out,
                    size_t *size, int timeout_ms, struct gp_error *err)
{
    struct text t = {.out = out, .room = *size};
    (void)question, (void)question_size, (void)timeout_ms;
    int rc = answer(&t);
    *size = t.used;
    if (rc)
        gp_error_set(err, "%s does not answer", url);
    return rc;
}

const struct gp_transport *__wrap_gp_transport_find(const char *url, const char *plugin_dir,
                                                    struct gp_error *err)
{
    static const struct gp_transport fake = {.ask = fake_ask};
    (void)url, (void)plugin_dir, (void)err;
    return &fake;
}

/* --- what is not the servers' --------------------------------------------------------------- */

/* What is known grows old when an input says so. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int rc = __real_clock_gettime(clock, now);
    now->tv_sec += (time_t)(passed_ms / 1000);
    return rc;
}

void __wrap_gpc_log(enum gpc_log_level level, const char *format, ...)
{
    va_list args;
    (void)level;
    if (!says)
        return;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void check(const char *name, nvmlReturn_t r)
{
    if (says)
        fprintf(stderr, "%s: %d\n", name, (int)r);
    switch (r) {
#define KNOWN(name, text) case name:
        GPC_NVML_ERRORS(KNOWN)
#undef KNOWN
        return;
    }
    abort(); /* no answer of NVML's */
}

/* Its structure leads to another. */
static nvmlReturn_t process_details(struct draw *d)
{
    nvmlDevice_t device = nvml_call_device(d);
    nvmlProcessDetailList_t *list = nvml_call_room(d, sizeof *list);
    if (list) {
        list->numProcArrayEntries = nvml_call_length(d);
        list->procArray = nvml_call_room(d, list->numProcArrayEntries * sizeof *list->procArray);
    }
    return nvmlDeviceGetRunningProcessDetailList(device, list);
}

static void step_run(const uint8_t *step, size_t bytes)
{
    struct draw d = {.at = NULL};
    draw_start(&d, step, bytes);
    unsigned number = draw_byte(&d);
    passed_ms += 8u * draw_byte(&d);
    size_t left = (size_t)(d.end - d.at) - (draw_over(&d) ? 0 : 1);
    size_t theirs = draw_byte(&d) % SERVER_BYTES;
    theirs = theirs < left ? theirs : left;
    draw_start(&servers, d.at, theirs);
    d.at += theirs;
    if (number < nvml_call_count)
        check(nvml_calls[number].name, nvml_calls[number].call(&d));
    else
        check("process details", process_details(&d));
    nvml_call_end();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    says = getenv("FUZZ_LOG") != NULL;
    setenv("GPUPOOL_TOKEN", "token", 1);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *step;
    size_t bytes;
    busy_left = 1;
    setenv("GPUPOOL_SERVER", size % 2 ? "tcp://fuzz:1" : "tcp://fuzz:1,tcp://fuzz:2,tcp://fuzz:3",
           1);
    draw_start(&servers, NULL, 0);
    if (steps_next(&data, &size, &step, &bytes)) { /* the first is what is said at the start */
        draw_start(&servers, step, bytes);
        check("nvmlInit_v2", nvmlInit_v2());
    }
    while (steps_next(&data, &size, &step, &bytes))
        step_run(step, bytes);
    while (nvmlShutdown() == NVML_SUCCESS)
        ;
    return 0;
}

const struct steps_form steps_form = {0}; /* no call makes anything */

size_t steps_begin(uint32_t chance, uint8_t out[8])
{
    out[0] = (uint8_t)(chance / 16 % (nvml_call_count + 1));
    out[1] = (uint8_t)(chance & 8 ? 16 : 0);
    out[2] = (uint8_t)(chance & 7);
    return 3;
}
