/* Devices: how many, what they are called, what they can do. */
#include "ipc.h"
#include "pool.h"
#include "shared_event.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#define MEMORY_MIN ((uint64_t)2 << 20)
#define MEMORY_MAX ((uint64_t)1 << 40)

static bool read_count(int *count)
{
    const char *text = getenv("GPUPOOL_SOFT_GPUS");
    char *end;
    *count = 1;
    if (!text || !*text)
        return true;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < 1 || value > SG_MAX_DEVICES) {
        sg_complain("GPUPOOL_SOFT_GPUS is \"%s\": give a number from 1 to %d", text,
                    SG_MAX_DEVICES);
        return false;
    }
    *count = (int)value;
    return true;
}

static bool read_memory(uint64_t *size)
{
    static const struct {
        const char *name;
        int shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    const char *text = getenv("GPUPOOL_SOFT_MEMORY");
    *size = (uint64_t)1 << 30;
    if (!text || !*text)
        return true;
    char *end = NULL;
    errno = 0;
    unsigned long long value = isdigit((unsigned char)text[0]) ? strtoull(text, &end, 10) : 0;
    if (end && !errno) {
        while (*end == ' ')
            end++;
        for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++)
            if (strcmp(end, units[i].name) == 0 && value <= MEMORY_MAX >> units[i].shift &&
                value << units[i].shift >= MEMORY_MIN) {
                *size = value << units[i].shift;
                return true;
            }
    }
    sg_complain("GPUPOOL_SOFT_MEMORY is \"%s\": give bytes, or a number with KiB, MiB or GiB,"
                " from 2MiB to 1024GiB",
                text);
    return false;
}

/* FNV-1a, twice with different beginnings, over the identity of the host and of the server
 * (GPUPOOL_SOFT_SEED: there may be several on a host) and the ordinal. */
static void make_uuid(CUuuid *uuid, int ordinal)
{
    char host[256] = "";
    const char *seed = getenv("GPUPOOL_SOFT_SEED");
    FILE *file = fopen("/etc/machine-id", "re");
    size_t used = 0;
    if (file) {
        used = fread(host, 1, 64, file);
        fclose(file);
    }
    while (used && isspace((unsigned char)host[used - 1]))
        used--;
    if (gethostname(host + used, sizeof(host) - used - 1) != 0)
        host[used] = 0;
    for (int half = 0; half < 2; half++) {
        uint64_t hash = 0xcbf29ce484222325u + (uint64_t)half * 0x9e3779b97f4a7c15u;
        for (const char *c = host; *c; c++)
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
        for (const char *c = seed ? seed : ""; *c; c++)
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
        hash = (hash ^ (uint64_t)(ordinal + 1)) * 0x100000001b3u;
        hash ^= hash >> 29;
        memcpy(uuid->bytes + half * 8, &hash, 8);
    }
    uuid->bytes[6] = (char)((uuid->bytes[6] & 0x0f) | 0x40);
    uuid->bytes[8] = (char)((uuid->bytes[8] & 0x3f) | 0x80);
}

CUresult sg_devices_open(void)
{
    int count;
    uint64_t memory;
    if (!read_count(&count) || !read_memory(&memory))
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = sg.device_count; i < count; i++) {
        struct sg_device *device = &sg.devices[i];
        /* Four times the memory in addresses: fragments never bring the end early. */
        device->arena = sg_arena_create(memory * 4);
        device->default_pool = device->arena ? sg_pool_create(device, true) : NULL;
        if (!device->default_pool) {
            sg_complain("no address space for device %d of %llu bytes", i,
                        (unsigned long long)memory);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        device->ordinal = i;
        device->memory_size = memory;
        device->pool = device->default_pool;
        make_uuid(&device->uuid, i);
        sg.device_count = i + 1;
    }
    return CUDA_SUCCESS;
}

struct sg_device *sg_device(CUdevice device)
{
    return device >= 0 && device < sg.device_count ? &sg.devices[device] : NULL;
}

struct sg_device *sg_device_named(const CUuuid *uuid)
{
    for (int i = 0; i < sg.device_count; i++)
        if (memcmp(&sg.devices[i].uuid, uuid, sizeof(*uuid)) == 0)
            return &sg.devices[i];
    return NULL;
}

/* What every device function starts with. */
#define DEVICE(name, number)                                                                       \
    SG_READY();                                                                                    \
    struct sg_device *name __attribute__((unused)) = sg_device(number);                            \
    if (!name)                                                                                     \
    return CUDA_ERROR_INVALID_DEVICE

CUresult cuDeviceGetCount(int *count)
{
    SG_READY();
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sg.device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    SG_READY();
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    DEVICE(device, dev);
    if (!name || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)len, "gpupool soft GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    DEVICE(device, dev);
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    *uuid = device->uuid;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    return cuDeviceGetUuid(uuid, dev);
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
    size_t all = 0;
    SG_TRY(cuDeviceTotalMem_v2(bytes ? &all : NULL, dev));
    *bytes = all < UINT32_MAX ? (unsigned)all : UINT32_MAX;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    DEVICE(device, dev);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = device->memory_size;
    return CUDA_SUCCESS;
}

static int bus_of(const struct sg_device *device)
{
    return 0x40 + device->ordinal;
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    DEVICE(device, dev);
    if (!pciBusId || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", (unsigned)bus_of(device));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    SG_READY();
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    if (!dev || !pciBusId)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(pciBusId, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = function = 0;
        if (sscanf(pciBusId, "%x:%x.%x", &bus, &slot, &function) < 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < sg.device_count; i++)
        if (domain == 0 && slot == 0 && function == 0 && bus == (unsigned)bus_of(&sg.devices[i])) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    DEVICE(device, dev);
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev)
{
    DEVICE(device, dev);
    if (!pi || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        return CUDA_ERROR_INVALID_VALUE;
    *pi = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    DEVICE(device, dev);
    if (!prop)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = (CUdevprop){
        .maxThreadsPerBlock = SG_MAX_THREADS,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .sharedMemPerBlock = SG_SHARED_STATIC,
        .totalConstantMemory = 65536,
        .SIMDWidth = 32,
        .memPitch = 2147483647,
        .regsPerBlock = SG_REGISTERS_PER_SM,
        .clockRate = 1000000,
        .textureAlign = 512,
    };
    return CUDA_SUCCESS;
}

/* Attributes by number; those not named are 0: a feature the device lacks. */
#define A(name) CU_DEVICE_ATTRIBUTE_##name
static const int attributes[CU_DEVICE_ATTRIBUTE_MAX] = {
    [A(MAX_THREADS_PER_BLOCK)] = SG_MAX_THREADS,
    [A(MAX_BLOCK_DIM_X)] = 1024,
    [A(MAX_BLOCK_DIM_Y)] = 1024,
    [A(MAX_BLOCK_DIM_Z)] = 64,
    [A(MAX_GRID_DIM_X)] = 2147483647,
    [A(MAX_GRID_DIM_Y)] = 65535,
    [A(MAX_GRID_DIM_Z)] = 65535,
    [A(MAX_SHARED_MEMORY_PER_BLOCK)] = SG_SHARED_STATIC,
    [A(TOTAL_CONSTANT_MEMORY)] = 65536,
    [A(WARP_SIZE)] = 32,
    [A(MAX_PITCH)] = 2147483647,
    [A(MAX_REGISTERS_PER_BLOCK)] = SG_REGISTERS_PER_SM,
    [A(CLOCK_RATE)] = 1000000,
    [A(TEXTURE_ALIGNMENT)] = 512,
    [A(GPU_OVERLAP)] = 1,
    [A(MULTIPROCESSOR_COUNT)] = SG_MULTIPROCESSORS,
    [A(CAN_MAP_HOST_MEMORY)] = 1,
    [A(COMPUTE_MODE)] = CU_COMPUTEMODE_DEFAULT,
    [A(MAXIMUM_TEXTURE1D_WIDTH)] = 131072,
    [A(MAXIMUM_TEXTURE2D_WIDTH)] = 131072,
    [A(MAXIMUM_TEXTURE2D_HEIGHT)] = 65536,
    [A(MAXIMUM_TEXTURE3D_WIDTH)] = 16384,
    [A(MAXIMUM_TEXTURE3D_HEIGHT)] = 16384,
    [A(MAXIMUM_TEXTURE3D_DEPTH)] = 16384,
    [A(MAXIMUM_TEXTURE2D_LAYERED_WIDTH)] = 32768,
    [A(MAXIMUM_TEXTURE2D_LAYERED_HEIGHT)] = 32768,
    [A(MAXIMUM_TEXTURE2D_LAYERED_LAYERS)] = 2048,
    [A(SURFACE_ALIGNMENT)] = 512,
    [A(CONCURRENT_KERNELS)] = 1,
    [A(MEMORY_CLOCK_RATE)] = 1000000,
    [A(GLOBAL_MEMORY_BUS_WIDTH)] = 128,
    [A(L2_CACHE_SIZE)] = 4 << 20,
    [A(MAX_THREADS_PER_MULTIPROCESSOR)] = SG_THREADS_PER_SM,
    [A(ASYNC_ENGINE_COUNT)] = 2,
    [A(UNIFIED_ADDRESSING)] = 1,
    [A(MAXIMUM_TEXTURE1D_LAYERED_WIDTH)] = 32768,
    [A(MAXIMUM_TEXTURE1D_LAYERED_LAYERS)] = 2048,
    [A(TEXTURE_PITCH_ALIGNMENT)] = 32,
    [A(MAXIMUM_TEXTURE1D_LINEAR_WIDTH)] = 268435456,
    [A(COMPUTE_CAPABILITY_MAJOR)] = 9,
    [A(COMPUTE_CAPABILITY_MINOR)] = 0,
    [A(STREAM_PRIORITIES_SUPPORTED)] = 1,
    [A(GLOBAL_L1_CACHE_SUPPORTED)] = 1,
    [A(LOCAL_L1_CACHE_SUPPORTED)] = 1,
    [A(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)] = SG_SHARED_PER_SM,
    [A(MAX_REGISTERS_PER_MULTIPROCESSOR)] = SG_REGISTERS_PER_SM,
    [A(MANAGED_MEMORY)] = 1,
    [A(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO)] = 2,
    [A(CONCURRENT_MANAGED_ACCESS)] = 1,
    [A(COMPUTE_PREEMPTION_SUPPORTED)] = 1,
    [A(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)] = 1,
    [A(CAN_USE_STREAM_MEM_OPS_V1)] = 1,
    [A(CAN_USE_64_BIT_STREAM_MEM_OPS_V1)] = 1,
    [A(CAN_USE_STREAM_WAIT_VALUE_NOR_V1)] = 1,
    [A(COOPERATIVE_LAUNCH)] = 1,
    [A(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)] = SG_SHARED_OPTIN,
    [A(HOST_REGISTER_SUPPORTED)] = 1,
    [A(DIRECT_MANAGED_MEM_ACCESS_FROM_HOST)] = 0,
    [A(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)] = 1,
    [A(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)] = 1,
    [A(MEMPOOL_SUPPORTED_HANDLE_TYPES)] = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    [A(SPARSE_CUDA_ARRAY_SUPPORTED)] = 1,
    [A(DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED)] = 1,
    [A(MAX_BLOCKS_PER_MULTIPROCESSOR)] = SG_BLOCKS_PER_SM,
    [A(RESERVED_SHARED_MEMORY_PER_BLOCK)] = SG_SHARED_RESERVED,
    [A(READ_ONLY_HOST_REGISTER_SUPPORTED)] = 1,
    [A(MEMORY_POOLS_SUPPORTED)] = 1,
    [A(CLUSTER_LAUNCH)] = 1,
    [A(CAN_USE_64_BIT_STREAM_MEM_OPS)] = 1,
    [A(CAN_USE_STREAM_WAIT_VALUE_NOR)] = 1,
    [A(TENSOR_MAP_ACCESS_SUPPORTED)] = 1,
    [A(MEM_SYNC_DOMAIN_COUNT)] = 1,
    [A(UNIFIED_FUNCTION_POINTERS)] = 0,
    [A(HOST_NUMA_ID)] = -1,
    [A(NUMA_ID)] = -1,
};

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    SG_READY();
    if (!pi || attrib < 1 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device, dev);
    if (attrib == A(PCI_BUS_ID))
        *pi = bus_of(device);
    else if (attrib == A(MULTI_GPU_BOARD_GROUP_ID))
        *pi = device->ordinal;
    else if (attrib == A(IPC_EVENT_SUPPORTED))
        *pi = sg_shared_events_there();
    else
        *pi = attributes[attrib];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *maxWidthInElements, CUarray_format format,
                                            unsigned numChannels, CUdevice dev)
{
    (void)format;
    DEVICE(device, dev);
    if (!maxWidthInElements || (numChannels != 1 && numChannels != 2 && numChannels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    *maxWidthInElements = (size_t)attributes[A(MAXIMUM_TEXTURE1D_LINEAR_WIDTH)];
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    SG_READY();
    if (!canAccessPeer)
        return CUDA_ERROR_INVALID_VALUE;
    DEVICE(device, dev);
    DEVICE(peer, peerDev);
    *canAccessPeer = device != peer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                 CUdevice dstDevice)
{
    SG_READY();
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    DEVICE(from, srcDevice);
    DEVICE(to, dstDevice);
    if (from == to)
        return CUDA_ERROR_INVALID_DEVICE;
    switch (attrib) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* What this machine's processors do, which run its kernels: all that the interpreter knows. */
static CUresult atomics(unsigned *capabilities, const CUatomicOperation *operations, unsigned count)
{
    if (!capabilities || !operations || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if ((unsigned)operations[i] >= CU_ATOMIC_OPERATION_MAX)
            return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        capabilities[i] = operations[i] >= CU_ATOMIC_OPERATION_FLOAT_MIN
                              ? 0
                              : CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED |
                                    CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetHostAtomicCapabilities(unsigned int *capabilities,
                                           const CUatomicOperation *operations, unsigned int count,
                                           CUdevice dev)
{
    SG_READY();
    DEVICE(device, dev);
    (void)device;
    return atomics(capabilities, operations, count);
}

CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int *capabilities,
                                          const CUatomicOperation *operations, unsigned int count,
                                          CUdevice srcDevice, CUdevice dstDevice)
{
    SG_READY();
    DEVICE(from, srcDevice);
    DEVICE(to, dstDevice);
    return from == to ? CUDA_ERROR_INVALID_DEVICE : atomics(capabilities, operations, count);
}
