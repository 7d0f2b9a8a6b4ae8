/*
 * The soft GPU as a driver: its functions in any order, with handles that live or have died,
 * addresses in and beyond its memory, and any numbers. Each step of an input is a call. What a
 * caller of a real driver promises is kept: pointers to the host are right (calls.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "apart.h"
#include "calls.h"
#include "steps.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
    return "detect_leaks=0:quarantine_size_mb=16:malloc_context_size=12";
}

static struct calls calls;
static unsigned called; /* host functions */

static void CUDA_CB on_host(void *number)
{
    __atomic_add_fetch((unsigned *)number, 1, __ATOMIC_RELAXED);
}

/* --- calls that are made by hand ---------------------------------------------------------- */

static CUresult load(struct calls *c)
{
    uint32_t size;
    CUmodule module;
    CUfunction function;
    const char *text = draw_image(draw_byte(&c->draw), &size);
    CUresult r = cuModuleLoadData(&module, text);
    if (r != CUDA_SUCCESS)
        return r;
    call_learn(c, GP_HANDLE_MODULE, (uint64_t)(uintptr_t)module);
    r = cuModuleGetFunction(&function, module, call_text(c));
    if (r == CUDA_SUCCESS)
        call_learn(c, GP_HANDLE_FUNCTION, (uint64_t)(uintptr_t)function);
    return r;
}

static CUresult launch(struct calls *c)
{
    uint64_t values[2] = {call_address(c), call_number(c, 8)};
    void *parameters[16];
    for (unsigned i = 0; i < 16; i++)
        parameters[i] = &values[i % 2];
    CUfunction function = call_handle(c, GP_HANDLE_FUNCTION);
    CUstream stream = call_handle(c, GP_HANDLE_STREAM);
    return cuLaunchKernel(function, 1 + draw_below(&c->draw, 3), 1, 1, 1 + draw_below(&c->draw, 70),
                          1, 1, (unsigned)draw_number(&c->draw, 4), stream, parameters, NULL);
}

static CUresult host_function(struct calls *c)
{
    return cuLaunchHostFunc(call_handle(c, GP_HANDLE_STREAM), on_host, &called);
}

/* Between boxes of device memory; whatever lies in the host's part is not looked at. */
static CUresult copy_3d(struct calls *c)
{
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE};
    copy.srcDevice = call_address(c);
    copy.dstDevice = call_address(c);
    copy.srcPitch = call_number(c, 8);
    copy.dstPitch = call_number(c, 8);
    copy.srcHeight = draw_number(&c->draw, 8);
    copy.dstHeight = draw_number(&c->draw, 8);
    copy.WidthInBytes = call_number(c, 8);
    copy.Height = draw_number(&c->draw, 8);
    copy.Depth = draw_number(&c->draw, 8);
    copy.srcY = draw_number(&c->draw, 8);
    copy.dstZ = draw_number(&c->draw, 8);
    return cuMemcpy3DAsync_v2(&copy, call_handle(c, GP_HANDLE_STREAM));
}

static CUresult physical(struct calls *c)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle memory;
    prop.location.id = (int)draw_below(&c->draw, 2);
    CUresult r = cuMemCreate(&memory, (size_t)(1 + draw_below(&c->draw, 4)) << 21, &prop, 0);
    if (r == CUDA_SUCCESS)
        call_learn(c, GP_HANDLE_ALLOCATION, memory);
    return r;
}

static const struct call_entry by_hand[] = {
    {0, "load", load},       {0, "launch", launch},     {0, "host_function", host_function},
    {0, "copy_3d", copy_3d}, {0, "physical", physical},
};
#define BY_HAND (sizeof by_hand / sizeof by_hand[0])

/* --- inputs --------------------------------------------------------------------------------- */

static const struct call_entry *entry_of(uint16_t id)
{
    for (unsigned i = 0; i < call_entry_count; i++)
        if (call_entries[i].id == id)
            return &call_entries[i];
    return &by_hand[id % BY_HAND];
}

static void run_calls(const uint8_t *data, size_t size)
{
    const uint8_t *step;
    size_t bytes;
    struct calls *c = &calls;
    bool says = getenv("FUZZ_LOG") != NULL;
    prctl(PR_SET_TIMERSLACK, 1000ul);
    do {
        while (steps_next(&data, &size, &step, &bytes)) {
            draw_start(&c->draw, step, bytes);
            uint16_t id = draw_byte(&c->draw);
            id |= (uint16_t)(draw_byte(&c->draw) << 8);
            const struct call_entry *entry = entry_of(id);
            CUresult r = entry->call(c);
            if (says)
                fprintf(stderr, "%s: %d\n", entry->name, (int)r);
            if ((int)r < 0 || r > CUDA_ERROR_UNKNOWN)
                abort(); /* no answer of a driver's */
        }
    } while (apart_next(&data, &size));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    struct calls *c = &calls;
    CUcontext context;
    setenv("GPUPOOL_SOFT_GPUS", "2", 1);
    setenv("GPUPOOL_SOFT_MEMORY", "64MiB", 1);
    calls_open(c);
    if (cuInit(0) != CUDA_SUCCESS)
        abort();
    for (CUdevice i = 2; i-- > 0;) {
        if (cuDevicePrimaryCtxRetain(&context, i) != CUDA_SUCCESS ||
            cuCtxSetCurrent(context) != CUDA_SUCCESS)
            abort();
        call_learn(c, GP_HANDLE_CONTEXT, (uint64_t)(uintptr_t)context);
    }
    apart_open(run_calls);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    apart_run(data, size);
    return 0;
}

const struct steps_form steps_form = {&call_kinds, 0, 2};

size_t steps_begin(uint32_t chance, uint8_t out[8])
{
    unsigned which = chance % (call_entry_count + 3 * BY_HAND);
    uint16_t id = which < call_entry_count ? call_entries[which].id
                                           : (uint16_t)(60000 + which % BY_HAND);
    out[0] = (uint8_t)id;
    out[1] = (uint8_t)(id >> 8);
    return 2;
}
