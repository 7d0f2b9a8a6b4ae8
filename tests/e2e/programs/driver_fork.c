/* fork: the child has no CUDA, and the parent's goes on as if nothing had been. */
#include "driver.h"

#include <sys/wait.h>
#include <unistd.h>

static int in_child(CUdeviceptr parents)
{
    CUdeviceptr p = 0;
    int count = 0, value = 0;

    CU_GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    CU_GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&p, 16));
    CU_GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemcpyDtoH(&value, parents, sizeof value));
    CU_GIVES(CUDA_ERROR_NOT_INITIALIZED, cuInit(0));
    return check_failures;
}

int main(void)
{
    CUdeviceptr device;
    int value = 0, status = -1;
    pid_t child;

    driver_start();
    CU(cuMemAlloc(&device, sizeof value));
    CU(cuMemsetD32(device, 99, 1));
    fflush(stdout);
    child = fork();
    REQUIRE(child >= 0, "no child");
    if (child == 0) {
        int failures = in_child(device);
        fflush(stdout);
        exit(failures != 0); /* with the exit handlers: they must not touch the parent's session */
    }
    REQUIRE(waitpid(child, &status, 0) == child, "the child cannot be waited for");
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %#x",
           status);
    CU(cuMemcpyDtoH(&value, device, sizeof value));
    EXPECT(value == 99, "the parent's memory holds %d, expected 99", value);
    CU(cuMemFree(device));

    driver_stop();
    return finish("driver_fork");
}
