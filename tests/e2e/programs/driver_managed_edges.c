/*
 * What managed memory is around its bytes, or (`mapped` behind the mode) pinned memory that kernels
 * reach; each mode prints figures for tests to judge.
 *
 *   limit           so many MiB were given before there were none, and once more behind a free
 *   maps            mappings of this process: before, while pages here and there are open, after
 *   fork            how a child ends that touches it
 *   lost            waits for a line, behind which the worker is gone, and goes on
 *   again           mappings and descriptors of this process: before and behind 3000 allocations
 *   registered      what is said of memory that the program has registered: whole pages, parts
 *                   of them, others' memory, a file's, a stack's, not writable, with a gap
 *   sequential      what is sent while 64 MiB are written, and read behind a kernel
 */
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

#define MIB ((size_t)1 << 20)

static CUfunction increment;
static int is_mapped;

static int *mapped(size_t bytes)
{
    void *p;
    CUdeviceptr at;
    CU(cuMemHostAlloc(&p, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
    CUresult r = cuMemHostGetDevicePointer(&at, p, 0);
    REQUIRE(r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY, "%s", driver_name(r));
    if (r == CUDA_SUCCESS)
        return p;
    CU(cuMemFreeHost(p));
    return NULL;
}

static int *managed(size_t bytes)
{
    CUdeviceptr at = 0;
    if (is_mapped)
        return mapped(bytes);
    CUresult r = cuMemAllocManaged(&at, bytes, CU_MEM_ATTACH_GLOBAL);
    REQUIRE(r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY, "%s", driver_name(r));
    return (int *)(uintptr_t)at;
}

static void give(int *p)
{
    CU(is_mapped ? cuMemFreeHost(p) : cuMemFree((CUdeviceptr)(uintptr_t)p));
}

static void increment_some(int *p, int n)
{
    void *parameters[] = {&p, &n};
    CU(cuLaunchKernel(increment, (unsigned)(n + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, parameters,
                      NULL));
    CU(cuCtxSynchronize());
}

static int fill(int **p, int most)
{
    int n = 0;
    for (; n < most && (p[n] = managed(MIB * 2)) != NULL; n++)
        p[n][0] = n;
    return n;
}

static void limit(void)
{
    enum { MOST = 200 };
    static int *p[MOST];
    int first = fill(p, MOST);
    for (int i = 0; i < first; i++)
        give(p[i]);
    CU(cuCtxSynchronize());
    int again = fill(p, MOST);
    printf("%d %d\n", 2 * first, 2 * again);
    for (int i = 0; i < again; i++)
        give(p[i]);
}

static int mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; (c = getc(maps)) != EOF;)
        lines += c == '\n';
    fclose(maps);
    return lines;
}

static void maps(void)
{
    enum { RANGES = 12, INTS = 32 << 18 };
    static int *p[RANGES];
    int before = mappings(), most = 0;
    for (int i = 0; i < RANGES; i++)
        p[i] = managed((size_t)INTS * sizeof(int));
    increment_some(p[0], 1);
    for (int i = 0; i < RANGES; i++)
        for (long page = 0; page < INTS / 1024; page += 9)
            p[i][(page * 5 * 1024) % INTS] += 1;
    most = mappings();
    increment_some(p[0], 1);
    int closed = mappings();
    for (int i = 0; i < RANGES; i++)
        give(p[i]);
    printf("%d %d %d %d\n", before, most, closed, mappings());
}

static void forks(void)
{
    int *p = managed(MIB), status;
    p[0] = 1;
    pid_t child = fork();
    if (child == 0) {
        p[0] = 2; /* no memory of a forked child's */
        _exit(0);
    }
    waitpid(child, &status, 0);
    increment_some(p, 1);
    EXPECT(p[0] == 2, "the parent's is %d", p[0]);
    printf("%d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    give(p);
}

static void lost(void)
{
    char line[16];
    int *p = managed(MIB);
    p[0] = 1;
    increment_some(p, 1);
    p[1] = 7;
    puts("ready");
    fflush(stdout);
    REQUIRE(fgets(line, sizeof line, stdin), "no line");
    for (int i = 0; i < (int)(MIB / sizeof(int)); i += 1000)
        p[i] += 1;
    CUresult r = cuCtxSynchronize();
    printf("%s\n", driver_name(r));
    exit(0);
}

static int descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void again(void)
{
    enum { ROUNDS = 3000, FIRST = 50 };
    int before = 0, open = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int *p = managed(20000);
        p[0] = i;
        increment_some(p, 1);
        REQUIRE(p[0] == i + 1, "round %d: %d", i, p[0]);
        give(p);
        if (i == FIRST) {
            before = mappings();
            open = descriptors();
        }
    }
    printf("%d %d %d %d\n", before, mappings(), open, descriptors());
}

static void say_registered(void *p, size_t bytes, unsigned more)
{
    CUdeviceptr at;
    CU(cuMemHostRegister(p, bytes, CU_MEMHOSTREGISTER_DEVICEMAP | more));
    printf(" %s", driver_name(cuMemHostGetDevicePointer(&at, p, 0)));
    CU(cuMemHostUnregister(p));
}

static void registered(void)
{
    enum { PAGE = 4096 };
    char *p = driver_own_memory(3 * PAGE);
    char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char stack[2 * PAGE];
    int same, file = open("/proc/self/exe", O_RDONLY);
    char *of_file = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    REQUIRE(shared != MAP_FAILED && of_file != MAP_FAILED, "no memory");
    CU(cuDeviceGetAttribute(&same, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
                            driver_device));
    printf("%d", same);
    say_registered(p, 3 * PAGE, 0);
    say_registered(p + 16, PAGE, 0);
    say_registered(p, PAGE + 16, 0);
    say_registered(shared, PAGE, 0);
    say_registered(of_file, PAGE, 0);
    say_registered(stack + PAGE - (uintptr_t)stack % PAGE, PAGE, 0);
    REQUIRE(mprotect(p + PAGE, PAGE, PROT_READ) == 0, "not protected");
    say_registered(p, 3 * PAGE, CU_MEMHOSTREGISTER_READ_ONLY);
    puts("");
    REQUIRE(munmap(p + PAGE, PAGE) == 0, "not unmapped");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuMemHostRegister(p, 3 * PAGE, CU_MEMHOSTREGISTER_DEVICEMAP));
    close(file);
}

static void sequential(void)
{
    const int ints = 16 << 20;
    int *p = managed((size_t)ints * sizeof(int)), wrong = 0;
    for (int i = 0; i < ints; i++)
        p[i] = i;
    increment_some(p, 1000);
    for (int i = 0; i < ints; i++)
        wrong += p[i] != i + (i < 1000);
    EXPECT(wrong == 0, "%d are wrong", wrong);
    give(p);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"limit", limit},          {"maps", maps},
                 {"fork", forks},           {"lost", lost},
                 {"again", again},          {"registered", registered},
                 {"sequential", sequential}};
    CUmodule module;
    REQUIRE(argc == 2 || argc == 3, "which?");
    is_mapped = argc == 3;
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    increment = driver_function(module, "increment");
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(argv[1], modes[i].name) == 0)
            modes[i].run();
    CU(cuModuleUnload(module));
    driver_stop();
    return finish("driver_managed_edges");
}
