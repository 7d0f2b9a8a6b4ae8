/* MD2, HMAC and the digest against their published and observed vectors. */
#include "private_host.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "private_md2.h"

static void hex_parse(const char *hex, unsigned char out[16])
{
    uuid_parse(hex, out);
}

static void md2_expect(const char *text, const char *hex)
{
    unsigned char out[16], expected[16];
    struct gpc_md2 h;
    gpc_md2_start(&h);
    gpc_md2_add(&h, text, strlen(text));
    gpc_md2_finish(&h, out);
    hex_parse(hex, expected);
    assert_memory_equal(out, expected, 16);
    /* in two parts, cut at every place */
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        gpc_md2_start(&h);
        gpc_md2_add(&h, text, cut);
        gpc_md2_add(&h, text + cut, strlen(text) - cut);
        gpc_md2_finish(&h, out);
        assert_memory_equal(out, expected, 16);
    }
}

/* RFC 1319, A.5 */
static void md2_vectors(void **state)
{
    (void)state;
    md2_expect("", "8350e5a3e24c153df2275c9f80692773");
    md2_expect("a", "32ec01ec4a6dac72c0ab96fb34c0b5d1");
    md2_expect("abc", "da853b0d3f88d99b30283a69e6ded6bb");
    md2_expect("message digest", "ab4f496bfb2a530b219ff33031fe06b0");
    md2_expect("abcdefghijklmnopqrstuvwxyz", "4e8ddff3650292ab5a4108c3aa47940b");
    md2_expect("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
               "da33def2a42df13975352846c30338cd");
    md2_expect("12345678901234567890123456789012345678901234567890123456789012345678901234567890",
               "d5976f79d83d3a0dc9806c3c66f3efd8");
}

/* By the definition: H(key ^ opad, H(key ^ ipad, text)). */
static void hmac_is_by_definition(void **state)
{
    (void)state;
    unsigned char key[16], pad[16], inner[16], expected[16], out[16];
    const char *text = "what do ya want for nothing?";
    struct gpc_md2 h;
    struct gpc_hmac hmac;
    for (unsigned i = 0; i < 16; i++)
        key[i] = (unsigned char)(0xA0 + i);
    for (unsigned i = 0; i < 16; i++)
        pad[i] = key[i] ^ 0x36;
    gpc_md2_start(&h);
    gpc_md2_add(&h, pad, 16);
    gpc_md2_add(&h, text, strlen(text));
    gpc_md2_finish(&h, inner);
    for (unsigned i = 0; i < 16; i++)
        pad[i] = key[i] ^ 0x5C;
    gpc_md2_start(&h);
    gpc_md2_add(&h, pad, 16);
    gpc_md2_add(&h, inner, 16);
    gpc_md2_finish(&h, expected);
    gpc_hmac_start(&hmac, key);
    gpc_hmac_add(&hmac, text, strlen(text));
    gpc_hmac_finish(&hmac, out);
    assert_memory_equal(out, expected, 16);
}

static void digest_expect(const struct gpc_digest_input *in, uint64_t low, uint64_t high)
{
    uint64_t out[2] = {0, 0};
    gpc_digest_compute(in, out);
    assert_int_equal(out[0], low);
    assert_int_equal(out[1], high);
}

static void digest_without_a_hash(void **state)
{
    (void)state;
    struct gpc_digest_input in = {.driver_version = 13000, .version = 13000};
    digest_expect(&in, 0x3341181c03cb675c, 0x8ed383aa1f4cd1e8);
    in.version = 12081;
    digest_expect(&in, 0x1841181c03cb675c, 0x8ed383aa1f4cd1e8);
}

static void digest_of_a_real_driver(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.device_count = 1;
    hex_parse("5220b9b146be06df175310abff0615a0", fake.devices[0].uuid);
    fake.devices[0].pci_device = 6;
    struct gpc_digest_input in = {
        .driver_version = 13000,
        .version = 13002,
        .pid = 405,
        .thread = 2303506240,
        .runtime_table = 139915254208128,
        .digest_table = 139915254208096,
        .function = 139915163370320,
        .seconds = 1778384896,
        .device_count = 1,
        .device_get = fake_device,
    };
    digest_expect(&in, 0xb4574b7e93a79caa, 0x04127dcde8893b57);
}

static void digest_of_devices(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    struct gpc_digest_input in = {
        .driver_version = 13000,
        .version = 13002,
        .pid = 0x1234,
        .thread = 0x89abcdef,
        .runtime_table = 0x7f0000001000,
        .digest_table = 0x7f0000002000,
        .function = 0x7f0000003000,
        .seconds = 0x6A000000,
        .device_get = fake_device,
    };
    digest_expect(&in, 0x5c817a614587e3df, 0x17f1c308ac6eb505);
    for (unsigned i = 0; i < 16; i++) {
        fake.devices[0].uuid[i] = (unsigned char)i;
        fake.devices[1].uuid[i] = (unsigned char)(0xF0 + i);
    }
    fake.devices[0].pci_bus = 0x17;
    fake.device_count = in.device_count = 1;
    digest_expect(&in, 0xdf35e5f7d12cbf08, 0x59f900a49ede5889);
    fake.devices[1].pci_domain = 1;
    fake.devices[1].pci_bus = 0xb3;
    fake.devices[1].pci_device = 0x1f;
    fake.device_count = in.device_count = 2;
    digest_expect(&in, 0xce511e1fc95e341c, 0x47115e97ffdd5f90);
}

/* Through the table, from this process's own numbers. */
static void digest_through_the_table(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.device_count = 2;
    fake.devices[1].pci_bus = 7;
    const void *const *runtime = table_of("6bd5fb6c-5bf4-e74a-8987-d93912fd9df9");
    const void *const *digest = table_of("d4082055-bde6-704b-8d34-ba123c66e1f2");
    CUresult (*ask)(uint32_t, uint64_t,
                    uint64_t *) = SLOT_OF(digest, 1, CUresult (*)(uint32_t, uint64_t, uint64_t *));
    struct gpc_digest_input in = {
        .driver_version = 13000,
        .version = 12092,
        .pid = (uint32_t)getpid(),
        .thread = (uint32_t)(uintptr_t)pthread_self(),
        .runtime_table = (uintptr_t)runtime,
        .digest_table = (uintptr_t)digest,
        .function = (uintptr_t)digest[1],
        .seconds = 77,
        .device_count = 2,
        .device_get = fake_device,
    };
    uint64_t expected[2], out[2];
    gpc_digest_compute(&in, expected);
    assert_int_equal(ask(12092, 77, out), CUDA_SUCCESS);
    assert_memory_equal(out, expected, sizeof out);
    assert_int_equal(ask(12092, 77, NULL), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(SLOT_OF(digest, 2, CUresult (*)(void))(), CUDA_SUCCESS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(md2_vectors),           cmocka_unit_test(hmac_is_by_definition),
        cmocka_unit_test(digest_without_a_hash), cmocka_unit_test(digest_of_a_real_driver),
        cmocka_unit_test(digest_of_devices),     cmocka_unit_test(digest_through_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
