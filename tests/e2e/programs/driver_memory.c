/* Memory sets of all widths, in one and two dimensions, and copies of every direction. */
#include "driver.h"

#include <sys/mman.h>

enum { WIDTH = 50, HEIGHT = 20 };

static unsigned char image[512 * HEIGHT];

static void sets(void)
{
    CUdeviceptr device;
    unsigned char bytes[64];
    unsigned short shorts[32];
    unsigned words[16];

    CU(cuMemAlloc(&device, 64));
    CU(cuMemsetD8(device, 0xab, 64));
    CU(cuMemsetD8(device + 3, 0xcd, 5));
    CU(cuMemcpyDtoH(bytes, device, 64));
    for (int i = 0; i < 64; i++)
        EXPECT(bytes[i] == (i >= 3 && i < 8 ? 0xcd : 0xab), "byte %d is %#x", i, bytes[i]);
    CU(cuMemsetD16(device, 0x1234, 32));
    CU(cuMemsetD16Async(device + 2, 0x5678, 3, NULL));
    CU(cuMemcpyDtoH(shorts, device, 64));
    for (int i = 0; i < 32; i++)
        EXPECT(shorts[i] == (i >= 1 && i < 4 ? 0x5678 : 0x1234), "short %d is %#x", i, shorts[i]);
    CU(cuMemsetD32(device, 0x01020304, 16));
    CU(cuMemsetD32Async(device + 8, 0xdeadbeef, 2, NULL));
    CU(cuMemsetD8Async(device + 60, 0, 4, NULL));
    CU(cuMemcpyDtoH(words, device, 64));
    for (int i = 0; i < 15; i++)
        EXPECT(words[i] == (i == 2 || i == 3 ? 0xdeadbeef : 0x01020304), "word %d is %#x", i,
               words[i]);
    EXPECT(words[15] == 0, "the last word is %#x", words[15]);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD16(device + 1, 0, 4));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(device + 2, 0, 4));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(0, 0, 4));
    CU(cuMemsetD8(device, 1, 0));
    CU(cuMemFree(device));
}

static void sets_in_two_dimensions(void)
{
    CUdeviceptr device;
    size_t pitch = 0;

    CU(cuMemAllocPitch(&device, &pitch, WIDTH * 4, HEIGHT, 4));
    REQUIRE(pitch >= WIDTH * 4 && pitch <= 512, "the pitch is %zu", pitch);
    CU(cuMemsetD8(device, 0xee, pitch * HEIGHT));
    CU(cuMemsetD2D8(device, pitch, 1, WIDTH * 4, 4));
    CU(cuMemsetD2D16(device + 4 * pitch, pitch, 0x0202, WIDTH * 2, 8));
    CU(cuMemsetD2D32Async(device + 12 * pitch, pitch, 0x03030303, WIDTH, HEIGHT - 12, NULL));
    CU(cuMemcpyDtoH(image, device, pitch * HEIGHT));
    for (int y = 0; y < HEIGHT; y++)
        for (size_t x = 0; x < pitch; x++) {
            int expected = x >= WIDTH * 4 ? 0xee : y < 4 ? 1 : y < 12 ? 2 : 3;
            EXPECT(image[y * pitch + x] == expected, "row %d, byte %zu is %#x, expected %#x", y, x,
                   image[y * pitch + x], expected);
        }
    CU(cuMemFree(device));
}

static void copies_in_two_dimensions(void)
{
    unsigned char host[HEIGHT][WIDTH], back[HEIGHT + 4][WIDTH + 6];
    CUdeviceptr device;
    size_t pitch = 0;
    CUDA_MEMCPY2D to = {0}, from = {0};

    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++)
            host[y][x] = (unsigned char)(y * 7 + x * 3);
    memset(back, 0x99, sizeof back);
    CU(cuMemAllocPitch(&device, &pitch, WIDTH, HEIGHT, 4));
    to.srcMemoryType = CU_MEMORYTYPE_HOST;
    to.srcHost = host;
    to.srcPitch = WIDTH;
    to.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    to.dstDevice = device;
    to.dstPitch = pitch;
    to.WidthInBytes = WIDTH;
    to.Height = HEIGHT;
    CU(cuMemcpy2D(&to));
    /* A window of it, into a window of the host's. */
    from.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    from.srcDevice = device;
    from.srcPitch = pitch;
    from.srcXInBytes = 5;
    from.srcY = 2;
    from.dstMemoryType = CU_MEMORYTYPE_HOST;
    from.dstHost = back;
    from.dstPitch = WIDTH + 6;
    from.dstXInBytes = 3;
    from.dstY = 1;
    from.WidthInBytes = 30;
    from.Height = 10;
    CU(cuMemcpy2DAsync(&from, NULL));
    CU(cuStreamSynchronize(NULL));
    for (int y = 0; y < HEIGHT + 4; y++)
        for (int x = 0; x < WIDTH + 6; x++) {
            int inside = y >= 1 && y < 11 && x >= 3 && x < 33;
            int expected = inside ? host[y - 1 + 2][x - 3 + 5] : 0x99;
            EXPECT(back[y][x] == expected, "row %d, byte %d is %#x, expected %#x", y, x, back[y][x],
                   expected);
        }
    to.WidthInBytes = pitch + 1;
    to.srcPitch = pitch + 1;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&to));
    CU(cuMemFree(device));
}

static void copies(void)
{
    enum { SIZE = 3 << 20 };
    unsigned char *host = check_alloc(SIZE), *back = check_alloc(SIZE), *pinned;
    CUdeviceptr one, two;
    unsigned seed = 2;

    for (int i = 0; i < SIZE; i++)
        host[i] = (unsigned char)check_random(&seed);
    CU(cuMemAlloc(&one, SIZE));
    CU(cuMemAlloc(&two, SIZE));
    CU(cuMemAllocHost((void **)&pinned, SIZE));
    CU(cuMemcpyHtoD(one, host, SIZE));
    CU(cuMemcpyDtoD(two, one, SIZE));
    CU(cuMemcpyDtoH(back, two, SIZE));
    EXPECT(memcmp(host, back, SIZE) == 0, "3 MiB came back changed");
    /* Overlapping halves of one buffer, odd sizes, odd addresses. */
    CU(cuMemcpyHtoD(one + 1, host, 12345));
    CU(cuMemcpyDtoHAsync(pinned + 7, one + 1, 12345, NULL));
    CU(cuStreamSynchronize(NULL));
    EXPECT(memcmp(host, pinned + 7, 12345) == 0, "12,345 bytes came back changed");
    /* By unified address: the direction follows from the pointers. */
    memset(back, 0, SIZE);
    CU(cuMemcpy(two, (CUdeviceptr)(size_t)host, SIZE));
    CU(cuMemcpy((CUdeviceptr)(size_t)back, two, SIZE));
    EXPECT(memcmp(host, back, SIZE) == 0, "cuMemcpy changed 3 MiB");
    /* A pageable source may be changed as soon as the asynchronous call returns. */
    CU(cuMemcpyHtoDAsync(one, host, SIZE, NULL));
    memset(host, 0, SIZE);
    CU(cuMemcpyDtoH(pinned, one, SIZE));
    EXPECT(memcmp(pinned, back, SIZE) == 0, "an asynchronous copy read its source too late");
    CU(cuMemcpyHtoD(one, host, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(NULL, one, 4));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(back, one, (size_t)1 << 40));
    /* Ends that are mixed up, or no memory of a GPU, are told by the call that has them. */
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD((CUdeviceptr)(size_t)host, (void *)one, 4));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH((void *)one, (CUdeviceptr)(size_t)host, 4));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD((CUdeviceptr)(size_t)host, back, 4));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(back, (CUdeviceptr)(size_t)host, 4));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(one, (CUdeviceptr)(size_t)host, 4));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD((CUdeviceptr)(size_t)host, one, 4));
    /* Pinned memory has an address for the device, which is its own: as XLA uses it. */
    CU(cuMemsetD32Async((CUdeviceptr)(size_t)pinned, 0x01020304, 16, NULL));
    CU(cuMemsetD2D8((CUdeviceptr)(size_t)pinned + 8, 16, 9, 2, 2));
    CU(cuMemcpyDtoHAsync(back, (CUdeviceptr)(size_t)pinned, 64, NULL));
    CU(cuStreamSynchronize(NULL));
    EXPECT(back[0] == 4 && back[3] == 1 && back[8] == 9 && back[9] == 9 && back[10] == 2 &&
               back[24] == 9 && back[63] == 1,
           "memory sets of pinned memory came back wrong");
    CU(cuMemcpyHtoD((CUdeviceptr)(size_t)pinned, host, 64));
    EXPECT(memcmp(pinned, host, 64) == 0, "a copy to pinned memory's device address");
    CU(cuMemFreeHost(pinned));
    CU(cuMemFree(one));
    CU(cuMemFree(two));
    free(host);
    free(back);
}

/* A set without a stream is not waited for, unless the host may look at the memory. */
static void pinned_sets(void)
{
    CUdeviceptr at;
    unsigned char *pinned;

    CU(cuMemHostAlloc((void **)&pinned, 4096, 0));
    CU(cuMemHostGetDevicePointer(&at, pinned, 0));
    for (int i = 1; i < 50; i++) {
        CU(cuMemsetD8(at, (unsigned char)i, 4096));
        EXPECT(pinned[0] == i && pinned[4095] == i, "set to %d, and the host sees %d", i,
               pinned[4095]);
    }
    CU(cuMemFreeHost(pinned));
}

static void pointers(void)
{
    CUdeviceptr device, device_side, base = 0;
    size_t size = 0;
    unsigned type = 0;
    int ordinal = -1;
    void *pinned;

    CU(cuMemAlloc(&device, 1000));
    EXPECT(device % 256 == 0, "the address %#llx is not aligned", device);
    CU(cuMemGetAddressRange(&base, &size, device + 100));
    EXPECT(base == device && size == 1000, "the range is %#llx, %zu bytes", base, size);
    CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 999));
    EXPECT(type == CU_MEMORYTYPE_DEVICE, "the memory has type %u", type);
    CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device));
    EXPECT(ordinal == driver_device, "the memory is on device %d", ordinal);
    CU(cuMemHostAlloc(&pinned, 4096, 0));
    CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(size_t)pinned));
    EXPECT(type == CU_MEMORYTYPE_HOST, "pinned memory has type %u", type);
    CU(cuMemHostGetDevicePointer(&device_side, pinned, 0));
    CU(cuMemGetAddressRange(&base, &size, device_side + 100));
    EXPECT(base == device_side && size >= 4096, "its range is %#llx, %zu bytes", base, size);
    CU_GIVES(
        CUDA_ERROR_INVALID_VALUE,
        cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(size_t)&type));
    CU(cuMemFreeHost(pinned));
    CU(cuMemFree(device));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(device + 8));
}

/* Memory is registered as CUDA knows it, and once. */
static void registrations(void)
{
    enum { PAGES = 3 * 65536 };
    char *p = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED, "no memory");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(p, PAGES, 0x100));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(p, 0, 0));
    CU(cuMemHostRegister(p + 333, PAGES - 1000, 0));
    CU_GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
             cuMemHostRegister(p + 333, PAGES - 1000, 0));
    CU(cuMemHostUnregister(p + 333));
    munmap(p, PAGES);
}

int main(void)
{
    driver_start();
    registrations();
    sets();
    sets_in_two_dimensions();
    copies_in_two_dimensions();
    copies();
    pinned_sets();
    pointers();
    driver_stop();
    return finish("driver_memory");
}
