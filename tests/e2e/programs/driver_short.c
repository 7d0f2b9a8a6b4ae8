/* A session as short as they come: memory, a copy there and back, and the end. */
#include "driver.h"

#include <stdint.h>

int main(void)
{
    uint32_t there[64], back[64] = {0};
    CUdeviceptr values;
    void *pinned;

    for (unsigned i = 0; i < 64; i++)
        there[i] = i * i;
    driver_start();
    CU(cuMemAlloc(&values, sizeof there));
    CU(cuMemHostAlloc(&pinned, sizeof there, 0));
    CU(cuMemcpyHtoD(values, there, sizeof there));
    CU(cuMemcpyDtoH(back, values, sizeof back));
    EXPECT(memcmp(there, back, sizeof back) == 0, "what came back is not what went there");
    /* what is not given back goes with the session */
    return finish("driver_short");
}
