/*
 * The whole client library against servers that lie: its calls, sessions, shadow state, copies
 * and host functions in this process, the servers on the other end of an inproc channel
 * (fake_server.c). Each step of an input is a call, and behind its number and a length the bytes
 * from which the servers' words are drawn, then those of its arguments. A first step of no call's
 * number is what the servers say before there is a session.
 *
 * Beside what sanitizers see: no call that stands, every answer a CUDA error, nothing lost.
 */
#include <sanitizer/lsan_interface.h>
#include <stdio.h>
#include <stdlib.h>

#include "apart.h"
#include "client_calls.h"
#include "fake_server.h"
#include "handle.h"
#include "process.h"
#include "steps.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
    return "leak_check_at_exit=0:quarantine_size_mb=16:malloc_context_size=12";
}

/* The number of the first step, if it is one: how many servers, whether they share memory. */
#define GREETING 0xffffu
#define BOTH 1u
#define NETWORK 2u
#define SERVER_BYTES 32u

static struct calls calls;
static bool says;

static void check(const char *name, CUresult r)
{
    if (says)
        fprintf(stderr, "%s: %d\n", name, (int)r);
    if ((int)r < 0 || r > CUDA_ERROR_UNKNOWN)
        abort(); /* no answer of a driver's */
}

/* The session that the first step asks for; false: there is none. */
static bool begin(const uint8_t **data, size_t *size)
{
    const uint8_t *step, *rest = *data;
    size_t bytes, left = *size;
    uint8_t how = 0;
    if (steps_next(&rest, &left, &step, &bytes) && bytes > 2 && (step[0] & step[1]) == 0xff) {
        how = step[2];
        *data = rest;
        *size = left;
    } else {
        bytes = 0;
    }
    setenv("GPUPOOL_SERVER", how & BOTH ? FAKE_SERVER_BOTH : FAKE_SERVER, 1);
    fake_servers_open(!(how & NETWORK));
    fake_servers_act(bytes > 3 ? step + 3 : NULL, bytes > 3 ? bytes - 3 : 0);
    CUresult r = cuInit(0);
    check("cuInit", r);
    fake_servers_act(NULL, 0);
    if (r == CUDA_SUCCESS)
        check("furnish", r = client_calls_furnish(&calls));
    fake_servers_rest();
    return r == CUDA_SUCCESS;
}

static const struct call_entry *entry_of(uint16_t id)
{
    for (unsigned i = 0; i < call_entry_count; i++)
        if (call_entries[i].id == id)
            return &call_entries[i];
    return &client_calls[(uint16_t)(id - CLIENT_CALLS_FIRST) % client_call_count];
}

static void step_run(const uint8_t *step, size_t bytes)
{
    struct draw *d = &calls.draw;
    draw_start(d, step, bytes);
    uint16_t id = draw_byte(d);
    id |= (uint16_t)(draw_byte(d) << 8);
    size_t servers = draw_byte(d) % SERVER_BYTES, left = (size_t)(d->end - d->at);
    servers = servers < left ? servers : left;
    fake_servers_act(d->at, servers);
    d->at += servers;
    const struct call_entry *entry = entry_of(id);
    check(entry->name, entry->call(&calls));
    fake_servers_rest();
}

/* To look for what is lost takes long: for some. */
static bool looks(const uint8_t *data, size_t size)
{
    unsigned sum = 0;
    while (size--)
        sum = sum * 31 + *data++;
    return sum % 64 == 0;
}

/* What handles lead to is found through tables that the sanitizer does not look into. */
static void *shadows[4096];
static unsigned shadow_count;

static void note(uint64_t id, void *shadow, void *arg)
{
    (void)id, (void)arg;
    if (shadow_count < sizeof shadows / sizeof shadows[0])
        shadows[shadow_count++] = shadow;
}

static bool leaks(void)
{
    for (unsigned kind = 1; kind < GP_HANDLE_KINDS; kind++)
        gpc_handle_each(kind, note, NULL);
    return shadow_count < sizeof shadows / sizeof shadows[0] && __lsan_do_recoverable_leak_check();
}

static void run_session(const uint8_t *data, size_t size)
{
    const uint8_t *step;
    size_t bytes;
    bool look = looks(data, size);
    if (!says && !freopen("/dev/null", "w", stdout))
        abort();
    if (begin(&data, &size)) {
        do {
            while (steps_next(&data, &size, &step, &bytes))
                step_run(step, bytes);
        } while (!fake_servers_gone() && gpc_process_state(true) == CUDA_SUCCESS &&
                 apart_next(&data, &size));
    }
    if (look && leaks())
        abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    says = getenv("FUZZ_LOG") != NULL;
    calls_open(&calls);
    apart_open(run_session);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    apart_run(data, size);
    return 0;
}

const struct steps_form steps_form = {&call_kinds, 0, 3};

size_t steps_begin(uint32_t chance, uint8_t out[8])
{
    unsigned which = chance / 16 % (call_entry_count + 4 * client_call_count);
    uint16_t id = which < call_entry_count ? call_entries[which].id
                                           : (uint16_t)(CLIENT_CALLS_FIRST + which);
    out[0] = (uint8_t)id;
    out[1] = (uint8_t)(id >> 8);
    out[2] = (uint8_t)(chance & 8 ? 0 : chance & 7);
    return 3;
}
