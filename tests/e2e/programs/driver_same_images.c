/* Threads that load the same image at once, again and again: a small one, and one of many pieces. */
#include "driver.h"

#include <pthread.h>
#include <unistd.h>

enum { THREADS = 4, SMALL_TIMES = 40, LARGE_TIMES = 4, LARGE = 5 << 19 };

static CUcontext context;
static pthread_barrier_t together;
static char *large;

static void load(const char *image)
{
    CUmodule module;
    CUfunction function;
    CU(cuModuleLoadData(&module, image));
    CU(cuModuleGetFunction(&function, module, "write_to"));
    CU(cuModuleUnload(module));
}

static void link_one(void)
{
    CUlinkState state;
    void *image;
    size_t size;
    CU(cuLinkCreate(0, NULL, NULL, &state));
    CU(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)kernels_ptx, strlen(kernels_ptx) + 1, "same",
                     0, NULL, NULL));
    CU(cuLinkComplete(state, &image, &size));
    CU(cuLinkDestroy(state));
}

static void *run(void *arg)
{
    CU(cuCtxSetCurrent(context));
    for (int i = 0; i < SMALL_TIMES; i++) {
        if (i % 8 == 0)
            pthread_barrier_wait(&together);
        load(kernels_ptx);
    }
    for (int i = 0; i < LARGE_TIMES; i++) {
        pthread_barrier_wait(&together);
        load(large);
        link_one();
    }
    return arg;
}

/* The same kernels behind as much comment as makes it new to the server. */
static char *made_large(void)
{
    size_t kernels = strlen(kernels_ptx) + 1;
    char *text = check_alloc(LARGE + kernels);
    int n = snprintf(text, LARGE, "// %ld\n", (long)getpid());
    memset(text + n, ' ', (size_t)(LARGE - n));
    memcpy(text + LARGE, kernels_ptx, kernels);
    return text;
}

int main(void)
{
    pthread_t threads[THREADS];
    driver_start();
    CU(cuCtxGetCurrent(&context));
    large = made_large();
    REQUIRE(pthread_barrier_init(&together, NULL, THREADS) == 0, "no barrier");
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, run, NULL) == 0, "no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    free(large);
    driver_stop();
    return finish("driver_same_images");
}
