/* What another rank may send: what decodes is within all bounds, and is what was sent. */
#include <stdlib.h>
#include <string.h>

#include "nccl_api.h"
#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)
/* The bytes end where the message does, and that is guarded. */
#define DECODED(decode, type, out)                                                                 \
    type out;                                                                                      \
    if (size != sizeof out || !decode(bytes, &out))                                                \
        return;                                                                                    \
    MUST(memcmp(&out, bytes, sizeof out) == 0)

static void id(const void *bytes, size_t size)
{
    struct sn_id out;
    char again[NCCL_UNIQUE_ID_BYTES];
    if (size != sizeof again || !sn_id_decode(bytes, &out))
        return;
    sn_id_encode(&out, again);
    MUST(memcmp(again, bytes, sizeof again) == 0);
}

static void hello(const void *bytes, size_t size)
{
    DECODED(sn_hello_decode, struct sn_hello, out);
    struct sn_hello again = sn_hello_make(out.secret, out.ranks, out.rank, &out.place);
    MUST(memcmp(&again, bytes, sizeof again) == 0);
    MUST(out.rank < out.ranks && out.ranks <= SN_RANKS_MAX);
}

static void table(const void *bytes, size_t size)
{
    DECODED(sn_table_decode, struct sn_table, out);
    MUST(out.ranks > 0 && out.ranks <= SN_RANKS_MAX);
}

static void place(const void *bytes, size_t size)
{
    DECODED(sn_place_decode, struct sn_place, out);
    MUST(out.address.port != 0);
}

static void join(const void *bytes, size_t size)
{
    DECODED(sn_join_decode, struct sn_join, out);
    MUST(out.to < out.from && out.from < SN_RANKS_MAX);
}

static void header(const void *bytes, size_t size)
{
    DECODED(sn_header_decode, struct sn_header, out);
    struct sn_header expected = sn_header_make((enum sn_kind)out.kind, out.type, out.op, out.root,
                                               out.count);
    expected.sequence = out.sequence;
    expected.bytes = out.bytes;
    MUST(!sn_header_differs(&out, &expected));
    expected.bytes++;
    MUST(sn_header_differs(&out, &expected));
}

static void split(const void *bytes, size_t size)
{
    DECODED(sn_split_decode, struct sn_split, out);
    MUST(out.color >= NCCL_SPLIT_NOCOLOR);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const messages[])(const void *, size_t) = {id,   hello,  table, place,
                                                             join, header, split};
    if (!size)
        return 0;
    unsigned char *bytes = malloc(size > 1 ? size - 1 : 1);
    if (!bytes)
        return 0;
    memcpy(bytes, data + 1, size - 1);
    messages[data[0] % (sizeof messages / sizeof *messages)](bytes, size - 1);
    free(bytes);
    return 0;
}
