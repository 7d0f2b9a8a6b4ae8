/*
 * Tensor maps whose boxes are columns of pixels, and which atomic operations links have. A map is
 * opaque: a line says a sum of its bytes, which is the same natively and through the pool.
 */
#include "driver.h"

#include <stdbool.h>

/* No memory is there, and none is asked for: a map has the number alone. */
static void *const address = (void *)(size_t)0x7f0000000000;

static bool has_maps;
static const cuuint64_t size[] = {64, 32, 32, 8, 4}, stride[] = {128, 4096, 131072, 1048576};
static const cuuint32_t step[] = {1, 1, 1, 1, 1};

static CUresult columns(CUtensorMap *map, unsigned rank, const int *lower, const int *upper)
{
    return cuTensorMapEncodeIm2col(
        map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, address, size, stride, lower, upper, 64, 128,
        step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static CUresult wide(CUtensorMap *map, unsigned rank, int upper)
{
    return cuTensorMapEncodeIm2colWide(
        map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, address, size, stride, -1, upper, 64, 128, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static unsigned long long sum(const CUtensorMap *map)
{
    unsigned long long all = 14695981039346656037ull;
    const unsigned char *bytes = (const void *)map;
    for (size_t i = 0; i < sizeof *map; i++)
        all = (all ^ bytes[i]) * 1099511628211ull;
    return all;
}

static void maps_of_columns(void)
{
    static const int lower[] = {-1, -1, -1}, upper[] = {1, 1, 1}, other[] = {2, 2, 2};
    CUtensorMap map[3];

    memset(map, 0xa5, sizeof map);
    if (columns(&map[0], 4, lower, upper) == CUDA_ERROR_NOT_SUPPORTED) {
        int has = 1;
        CU(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED,
                                driver_device));
        EXPECT(!has, "a device with tensor maps makes none");
        CU_GIVES(CUDA_ERROR_NOT_SUPPORTED, wide(&map[0], 4, 1));
        return;
    }
    has_maps = true;
    for (unsigned rank = 3; rank <= 5; rank++) {
        CU(columns(&map[0], rank, lower, upper));
        CU(columns(&map[1], rank, lower, upper));
        CU(columns(&map[2], rank, lower, other));
        EXPECT(memcmp(&map[0], &map[1], sizeof map[0]) == 0, "equal tensors have two maps");
        EXPECT(memcmp(&map[0], &map[2], sizeof map[0]) != 0, "another box has the same map");
        SAY("columns of rank %u: %016llx %016llx", rank, sum(&map[0]), sum(&map[2]));
        if (rank == 5)
            break; /* a driver dies of the wide ones */
        CUresult r = wide(&map[0], rank, 1);
        printf("wide columns of rank %u: %s %016llx\n", rank, driver_name(r),
               r == CUDA_SUCCESS ? sum(&map[0]) : 0);
    }
}

/* GPUs before 9.0 say of everything that they have none. */
static void refused(CUresult r)
{
    EXPECT(r == CUDA_ERROR_INVALID_VALUE || (r == CUDA_ERROR_NOT_SUPPORTED && !has_maps),
           "a map that cannot be gave %s", driver_name(r));
}

static void maps_refused(void)
{
    static const int lower[] = {-1, -1, -1}, upper[] = {1, 1, 1};
    CUtensorMap map;

    refused(columns(&map, 2, lower, upper));
    refused(wide(&map, 2, 1));
    if (driver_is_native()) /* it dies of these */
        return;
    refused(columns(&map, 6, lower, upper));
    refused(columns(&map, UINT32_MAX, lower, upper));
    refused(columns(NULL, 4, lower, upper));
    refused(columns(&map, 4, NULL, upper));
    refused(wide(NULL, 4, 1));
    refused(wide(&map, 5, 1));
}

/* --- atomic operations -------------------------------------------------------------------- */

#define KNOWN                                                                                      \
    (CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED |                                 \
     CU_ATOMIC_CAPABILITY_REDUCTION | CU_ATOMIC_CAPABILITY_SCALAR_32 |                             \
     CU_ATOMIC_CAPABILITY_SCALAR_64 | CU_ATOMIC_CAPABILITY_SCALAR_128 |                            \
     CU_ATOMIC_CAPABILITY_VECTOR_32x4)

static void atomic_operations(void)
{
    CUatomicOperation all[CU_ATOMIC_OPERATION_MAX];
    const CUatomicOperation none = CU_ATOMIC_OPERATION_MAX;
    unsigned has[CU_ATOMIC_OPERATION_MAX];
    int devices = 0;

    for (unsigned i = 0; i < CU_ATOMIC_OPERATION_MAX; i++)
        all[i] = (CUatomicOperation)i;
    memset(has, 0xff, sizeof has);
    CU(cuDeviceGetHostAtomicCapabilities(has, all, CU_ATOMIC_OPERATION_MAX, driver_device));
    for (unsigned i = 0; i < CU_ATOMIC_OPERATION_MAX; i++)
        EXPECT(!(has[i] & ~(unsigned)KNOWN), "operation %u has the capabilities %#x", i, has[i]);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetHostAtomicCapabilities(has, &none, 1, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetHostAtomicCapabilities(has, all, 0, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetHostAtomicCapabilities(NULL, all, 1, 0));
    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetHostAtomicCapabilities(has, all, 1, 99));

    CU_GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetP2PAtomicCapabilities(has, all, 1, 0, 0));
    CU(cuDeviceGetCount(&devices));
    if (devices < 2)
        return;
    memset(has, 0xff, sizeof has);
    CU(cuDeviceGetP2PAtomicCapabilities(has, all, CU_ATOMIC_OPERATION_MAX, 0, 1));
    for (unsigned i = 0; i < CU_ATOMIC_OPERATION_MAX; i++)
        EXPECT(!(has[i] & ~(unsigned)KNOWN), "between GPUs operation %u has %#x", i, has[i]);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetP2PAtomicCapabilities(has, &none, 1, 0, 1));
}

int main(void)
{
    driver_start();
    maps_of_columns();
    maps_refused();
    atomic_operations();
    driver_stop();
    return finish("driver_tensor_maps");
}
