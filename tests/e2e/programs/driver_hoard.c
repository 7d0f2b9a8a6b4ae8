/*
 * A tenant that takes of its host what it can get, a line for each thing:
 *
 *   pinned COUNT KIB   pinned buffers of so much: `has N, NAME`, the error being the first one
 *   modules COUNT KIB  modules whose images are so large: likewise
 *   bad COUNT          modules of what is no PTX, each of which the worker's log gets: `refused N`
 *   work               a copy there and back, compared: `works`
 *   free               all of that back: `freed`
 *   end                in order; so does the end of its input
 */
#include "driver.h"

#define ROOM 4096

static void *buffers[ROOM];
static CUmodule modules[ROOM];
static int buffer_count, module_count;

static void take_pinned(int count, size_t bytes)
{
    CUresult r = CUDA_SUCCESS;
    while (count-- > 0 && buffer_count < ROOM && r == CUDA_SUCCESS) {
        r = cuMemHostAlloc(&buffers[buffer_count], bytes, 0);
        buffer_count += r == CUDA_SUCCESS;
    }
    SAY("has %d, %s", buffer_count, driver_name(r));
}

/* The kernels, and a comment behind them: each image differs, so none is known already. */
static void take_modules(int count, size_t bytes)
{
    CUresult r = CUDA_SUCCESS;
    size_t length = strlen(kernels_ptx);
    char *image = check_alloc(length + bytes + 32);
    while (count-- > 0 && module_count < ROOM && r == CUDA_SUCCESS) {
        memcpy(image, kernels_ptx, length);
        int n = sprintf(image + length, "\n//%d", module_count);
        memset(image + length + n, 'x', bytes);
        image[length + (size_t)n + bytes] = '\0';
        r = cuModuleLoadData(&modules[module_count], image);
        module_count += r == CUDA_SUCCESS;
    }
    free(image);
    SAY("has %d, %s", module_count, driver_name(r));
}

static void take_bad(int count)
{
    int refused = 0;
    for (CUmodule module; count > 0; count--)
        refused += cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.address_size 64\n"
                                             ".visible .entry bad() { nonsense.u32 %r1; }\n") !=
                   CUDA_SUCCESS;
    SAY("refused %d", refused);
}

static void give_back(void)
{
    while (buffer_count > 0)
        CU(cuMemFreeHost(buffers[--buffer_count]));
    while (module_count > 0)
        CU(cuModuleUnload(modules[--module_count]));
    CU(cuCtxSynchronize());
    SAY("freed");
}

static void work(void)
{
    static unsigned char there[4096], back[4096];
    CUdeviceptr device;
    memset(there, 0x5a, sizeof there);
    CU(cuMemAlloc(&device, sizeof there));
    CU(cuMemcpyHtoD(device, there, sizeof there));
    CU(cuMemcpyDtoH(back, device, sizeof back));
    CU(cuMemFree(device));
    EXPECT(memcmp(there, back, sizeof back) == 0, "the bytes came back changed");
    SAY("works");
}

static void obey(const char *line)
{
    int count, kib;
    if (sscanf(line, "pinned %d %d", &count, &kib) == 2)
        take_pinned(count, (size_t)kib * 1024);
    else if (sscanf(line, "modules %d %d", &count, &kib) == 2)
        take_modules(count, (size_t)kib * 1024);
    else if (sscanf(line, "bad %d", &count) == 1)
        take_bad(count);
    else if (strncmp(line, "free", 4) == 0)
        give_back();
    else if (strncmp(line, "work", 4) == 0)
        work();
    else
        REQUIRE(0, "no such thing: %s", line);
}

int main(void)
{
    char line[128];

    driver_start();
    SAY("ready");
    while (fgets(line, sizeof line, stdin) && strncmp(line, "end", 3) != 0)
        obey(line);
    driver_stop();
    return finish("driver_hoard");
}
