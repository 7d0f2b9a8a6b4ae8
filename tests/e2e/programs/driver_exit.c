/* The process ends in the middle of work, by exit, by _exit, or from a thread, and does not hang.
 *   driver_exit exit|_exit|thread
 *   driver_exit busy    while another thread copies, which is told that CUDA is over */
#define _GNU_SOURCE /* fopencookie */
#include "driver.h"

#include <pthread.h>
#include <unistd.h>

static CUstream stream;

static void late(void)
{
    /* What a library's destructor does: an answer or an error, but no hang and no crash. */
    CUresult result = cuStreamQuery(stream);
    int known = result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY ||
                result == CUDA_ERROR_DEINITIALIZED || result == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
                result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_INVALID_HANDLE;
    if (!known) {
        printf("FAIL driver_exit: a call at exit gave %d\n", (int)result);
        fflush(stdout);
        _exit(1);
    }
}

static void *leave(void *unused)
{
    (void)unused;
    exit(finish("driver_exit"));
}

static pthread_t copying;

static void *copy_until_told(void *unused)
{
    static char bytes[1 << 16];
    CUdeviceptr from;
    CUresult r = cuCtxSetCurrent(driver_context);
    (void)unused;
    if (r == CUDA_SUCCESS)
        r = cuMemAlloc(&from, sizeof bytes);
    while (r == CUDA_SUCCESS)
        r = cuMemcpyDtoH(bytes, from, sizeof bytes);
    if (r != CUDA_ERROR_DEINITIALIZED) { /* frameworks pass over this one, and over no other */
        static const char what[] = "FAIL driver_exit: a copy beside exit() did not say that\n";
        (void)!write(STDOUT_FILENO, what, sizeof what - 1);
        _exit(1);
    }
    return NULL;
}

/* The last thing of exit(), behind all destructors: what streams still hold is written. */
static ssize_t wait_for_it(void *unused, const char *bytes, size_t size)
{
    (void)unused;
    (void)bytes;
    pthread_join(copying, NULL);
    return (ssize_t)size;
}

static void leave_busy(void)
{
    FILE *last = fopencookie(NULL, "w", (cookie_io_functions_t){.write = wait_for_it});
    REQUIRE(last && putc('.', last) == '.', "no stream");
    REQUIRE(pthread_create(&copying, NULL, copy_until_told, NULL) == 0, "no thread");
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "exit";
    CUmodule module;
    CUfunction spin;
    CUdeviceptr out;
    int rounds = 2000;
    void *parameters[] = {&out, &rounds};
    pthread_t thread;

    atexit(late);
    driver_start();
    CU(cuModuleLoadData(&module, kernels_ptx));
    spin = driver_function(module, "spin");
    CU(cuMemAlloc(&out, 4096));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 20; i++)
        CU(cuLaunchKernel(spin, 1, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
    if (strcmp(how, "_exit") == 0) {
        int status = finish("driver_exit");
        fflush(stdout);
        _exit(status);
    }
    if (strcmp(how, "thread") == 0) {
        REQUIRE(pthread_create(&thread, NULL, leave, NULL) == 0, "no thread");
        pthread_join(thread, NULL);
    }
    if (strcmp(how, "busy") == 0)
        leave_busy();
    return finish("driver_exit");
}
