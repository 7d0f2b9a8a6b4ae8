/* d4082055: the runtime's question whether it speaks to a driver that it knows. */
#if GPUPOOL_PRIVATE_TABLES
#include <pthread.h>
#include <unistd.h>

#include "private_internal.h"
#include "private_md2.h"

static const unsigned char key[GPC_MD2_BYTES] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                                                 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};

static void add_u32(struct gpc_hmac *h, uint32_t value)
{
    unsigned char b[4];
    for (unsigned i = 0; i < sizeof b; i++)
        b[i] = (unsigned char)(value >> (8 * i));
    gpc_hmac_add(h, b, sizeof b);
}

static void add_u64(struct gpc_hmac *h, uint64_t value)
{
    add_u32(h, (uint32_t)value);
    add_u32(h, (uint32_t)(value >> 32));
}

static uint64_t u64_read(const unsigned char *p)
{
    uint64_t value = 0;
    for (unsigned i = 8; i-- > 0;)
        value = value << 8 | p[i];
    return value;
}

static void add_devices(struct gpc_hmac *h, const struct gpc_digest_input *in)
{
    for (int i = 0; i < in->device_count; i++) {
        struct gpc_private_device device;
        if (!in->device_get(i, &device))
            return;
        gpc_hmac_add(h, device.uuid, sizeof device.uuid);
        add_u32(h, (uint32_t)device.pci_domain);
        add_u32(h, (uint32_t)device.pci_bus);
        add_u32(h, (uint32_t)device.pci_device);
    }
}

void gpc_digest_compute(const struct gpc_digest_input *in, uint64_t out[2])
{
    if (in->version % 10 <= 1) {
        out[0] = in->version % 10 == 0 ? 0x3341181c03cb675c : 0x1841181c03cb675c;
        out[1] = 0x8ed383aa1f4cd1e8;
        return;
    }
    struct gpc_hmac h;
    unsigned char digest[GPC_MD2_BYTES];
    gpc_hmac_start(&h, key);
    add_u32(&h, in->driver_version);
    add_u32(&h, in->version);
    add_u32(&h, in->pid);
    add_u32(&h, in->thread);
    add_u64(&h, in->runtime_table);
    add_u64(&h, in->digest_table);
    add_u64(&h, in->function);
    add_u64(&h, in->seconds);
    add_devices(&h, in);
    gpc_hmac_finish(&h, digest);
    out[0] = u64_read(digest);
    out[1] = u64_read(digest + 8);
}

CUresult gpc_digest_answer(uint32_t version, uint64_t seconds, uint64_t out[2])
{
    const struct gpc_private_host *host = gpc_private_kept_host();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpc_digest_input in = {
        .driver_version = (uint32_t)host->driver_version(),
        .version = version,
        .pid = (uint32_t)getpid(),
        .thread = (uint32_t)(uintptr_t)pthread_self(),
        .runtime_table = (uintptr_t)gpc_private_address(PRIVATE_RUNTIME),
        .digest_table = (uintptr_t)gpc_private_address(PRIVATE_DIGEST),
        .function = (uintptr_t)gpc_digest_answer,
        .seconds = seconds,
        .device_count = host->device_count(),
        .device_get = host->device_get,
    };
    gpc_digest_compute(&in, out);
    return CUDA_SUCCESS;
}
#endif
