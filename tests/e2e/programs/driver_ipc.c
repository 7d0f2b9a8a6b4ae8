/*
 * Two processes with one GPU: memory by CUDA's handles and by file descriptors, and events. The
 * second process is made before the first has CUDA, and begins anew, as CUDA wants it.
 */
#include "pair.h"

#include <fcntl.h>

#define LARGE ((size_t)4 << 20)
#define SMALL ((size_t)4096)

/* --- memory ----------------------------------------------------------------------------------- */

static CUmemAllocationProp property(void)
{
    CUmemAllocationProp p = {0};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = driver_device;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return p;
}

static CUdeviceptr mapped(CUmemGenericAllocationHandle memory, size_t bytes)
{
    const CUmemAllocationProp p = property();
    CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at;
    CU(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    CU(cuMemMap(at, bytes, 0, memory, 0));
    CU(cuMemSetAccess(at, bytes, &access, 1));
    return at;
}

static void unmapped(CUdeviceptr at, size_t bytes)
{
    CU(cuMemUnmap(at, bytes));
    CU(cuMemAddressFree(at, bytes));
}

static void give_range(int other, size_t bytes, unsigned value)
{
    CUipcMemHandle handle;
    CUdeviceptr at, again;
    int capable = 0;
    CU(cuMemAlloc(&at, bytes));
    CU(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at));
    EXPECT(capable == 1, "memory of cuMemAlloc cannot be shared");
    CU(cuIpcGetMemHandle(&handle, at));
    fill(at, value);
    CU_GIVES(CUDA_ERROR_INVALID_CONTEXT,
             cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    send_all(other, &handle, sizeof handle, -1);
    await(other);
    expect(at, value + 1, "what the other process has written");
    CU(cuMemFree(at));
    tell(other); /* it has gone */
}

static void take_range(int other, unsigned value)
{
    CUipcMemHandle handle, forged;
    CUdeviceptr at, again;
    receive_all(other, &handle, sizeof handle);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&at, handle, 0));
    CU(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CU(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT(again == at, "opened twice it is at %#llx and %#llx", at, again);
    CU(cuIpcCloseMemHandle(again));
    expect(at, value, "another process's memory");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(at));
    fill(at, value + 1);
    CU(cuIpcCloseMemHandle(at));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(at));
    tell(other);
    await(other);
    memset(&forged, 0x5a, sizeof forged);
    CU_REFUSED(CUDA_ERROR_INVALID_VALUE,
               cuIpcOpenMemHandle(&at, forged, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

static void give_file(int other, size_t unit)
{
    const CUmemAllocationProp p = property();
    CUmemGenericAllocationHandle memory, same;
    int file = -1;
    CU(cuMemCreate(&memory, unit, &p, 0));
    CU(cuMemExportToShareableHandle(&file, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CUdeviceptr at = mapped(memory, unit);
    fill(at, 0xf11e);
    CU(cuMemImportFromShareableHandle(&same, (void *)(intptr_t)file,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr too = mapped(same, unit);
    expect(too, 0xf11e, "one's own memory at another address");
    unmapped(too, unit);
    CU(cuMemRelease(same));
    send_all(other, &unit, sizeof unit, file);
    close(file);
    await(other);
    expect(at, 0xf11f, "what the other process has written");
    unmapped(at, unit);
    CU(cuMemRelease(memory));
    tell(other);
}

/* No file of ours. */
static void expect_refused(int file, const char *what)
{
    CUmemGenericAllocationHandle memory;
    CUresult r = cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)file,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    EXPECT(r == CUDA_ERROR_INVALID_VALUE, "%s gave %s", what, driver_name(r));
}

static void forged_files(int other)
{
    int pipes[2], zero = open("/dev/zero", O_RDWR), file = open("/proc/self/exe", O_RDONLY);
    REQUIRE(pipe(pipes) == 0 && zero >= 0 && file >= 0, "there are no files");
    expect_refused(other, "a socket");
    expect_refused(pipes[0], "a pipe");
    expect_refused(zero, "a device");
    expect_refused(file, "a file");
    expect_refused(-1, "no file");
    close(pipes[0]);
    close(pipes[1]);
    close(zero);
    close(file);
}

static void take_file(int other)
{
    CUmemGenericAllocationHandle memory;
    size_t unit;
    int file = receive_all(other, &unit, sizeof unit), copy = dup(file);
    close(file);
    CU(cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)copy,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr at = mapped(memory, unit);
    expect(at, 0xf11e, "another process's memory");
    fill(at, 0xf11f);
    unmapped(at, unit);
    CU(cuMemRelease(memory));
    tell(other);
    await(other);
    if (getenv("GPUPOOL_SERVER")) /* a local driver's file keeps the memory */
        expect_refused(copy, "memory that has gone");
    if (!driver_is_native())
        forged_files(other);
    close(copy);
}

/* --- events ------------------------------------------------------------------------------------- */

static void wait_for_other(void *other)
{
    await(*(int *)other);
}

/* The stream writes when the other process has submitted what waits for that. */
static void give_event(int other)
{
    CUipcEventHandle name;
    CUipcMemHandle handle;
    CUdeviceptr at;
    CUevent event;
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CU(cuIpcGetEventHandle(&name, event));
    CU(cuMemAlloc(&at, LARGE));
    fill(at, 1);
    CU(cuIpcGetMemHandle(&handle, at));
    send_all(other, &name, sizeof name, -1);
    send_all(other, &handle, sizeof handle, -1);
    for (unsigned round = 2; round < 5; round++) {
        CU(cuLaunchHostFunc(stream, wait_for_other, &other));
        CU(cuMemsetD32Async(at, round, WORDS, stream));
        CU(cuEventRecord(event, stream));
        CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
        tell(other);
        CU(cuStreamSynchronize(stream));
        CU(cuEventQuery(event));
        await(other);
    }
    CU(cuEventDestroy(event));
    CU(cuMemFree(at));
    CU(cuStreamDestroy(stream));
}

static void take_event(int other)
{
    CUipcEventHandle name;
    CUipcMemHandle handle;
    CUdeviceptr at;
    CUevent event;
    CUstream stream;
    unsigned *words;
    receive_all(other, &name, sizeof name);
    receive_all(other, &handle, sizeof handle);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemHostAlloc((void **)&words, WORDS * sizeof *words, 0));
    CU(cuIpcOpenEventHandle(&event, name));
    CU(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    for (unsigned round = 2; round < 5; round++) {
        await(other); /* it has been recorded, and cannot pass yet */
        CU(cuStreamWaitEvent(stream, event, 0));
        CU(cuMemcpyDtoHAsync(words, at, WORDS * sizeof *words, stream));
        CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
        CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
        tell(other);
        CU(cuEventSynchronize(event));
        CU(cuStreamSynchronize(stream));
        EXPECT(words[0] == round && words[WORDS - 1] == round,
               "behind the event it holds %u and %u", words[0], words[WORDS - 1]);
        tell(other);
    }
    CU(cuIpcCloseMemHandle(at));
    CU(cuEventDestroy(event));
    CU(cuMemFreeHost(words));
    CU(cuStreamDestroy(stream));
}

/* --- the two processes -------------------------------------------------------------------------- */

static int has_events(void)
{
    int has = 0;
    CU(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, driver_device));
    return has;
}

static void second(int other)
{
    take_range(other, 0x1000);
    take_range(other, 0x2000);
    take_file(other);
    if (has_events())
        take_event(other);
}

static void first(int other)
{
    const CUmemAllocationProp p = property();
    size_t unit;
    int has = 0;
    CU(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                            driver_device));
    EXPECT(has == 1, "the device exports no memory");
    CU(cuMemGetAllocationGranularity(&unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    give_range(other, LARGE, 0x1000);
    give_range(other, SMALL, 0x2000);
    give_file(other, unit);
    if (has_events())
        give_event(other);
}

int main(int argc, char **argv)
{
    return pair_run(argc, argv, first, second, "driver_ipc");
}
