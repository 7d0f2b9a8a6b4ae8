/* What ranks say to each other: what is sound decodes to itself, and nothing else decodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "nccl_api.h"
#include "wire.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
/* With one member changed it is refused. */
#define REFUSES(decode, message, member, value)                                                    \
    do {                                                                                           \
        __typeof__(message) changed = (message), out;                                              \
        memset(&out, 0x5a, sizeof out);                                                            \
        __typeof__(message) before = out;                                                          \
        changed.member = (value);                                                                  \
        CHECK(!decode(&changed, &out));                                                            \
        CHECK(memcmp(&out, &before, sizeof out) == 0);                                             \
    } while (0)
#define ACCEPTS(decode, message)                                                                   \
    do {                                                                                           \
        __typeof__(message) out;                                                                   \
        CHECK(decode(&(message), &out) && memcmp(&out, &(message), sizeof out) == 0);              \
    } while (0)

static const uint8_t secret[SN_SECRET_BYTES] = "0123456789abcde";
static struct sn_place place = {.address = {.ip = {127, 0, 0, 1}, .family = AF_INET, .port = 4000},
                                .device = 1};

static void ids(void)
{
    struct sn_id id = {.root = place.address}, out;
    char bytes[NCCL_UNIQUE_ID_BYTES];
    memcpy(id.secret, secret, sizeof id.secret);
    sn_id_encode(&id, bytes);
    CHECK(sn_id_decode(bytes, &out) && memcmp(out.secret, secret, sizeof secret) == 0 &&
          out.root.port == 4000);
    for (size_t i = sizeof id; i < sizeof bytes; i++) { /* the rest are zeros */
        bytes[i] = 1;
        CHECK(!sn_id_decode(bytes, &out));
        bytes[i] = 0;
    }
    bytes[0] ^= 1;
    CHECK(!sn_id_decode(bytes, &out));
}

static void places(void)
{
    struct sn_place six = place;
    ACCEPTS(sn_place_decode, place);
    six.address.family = AF_INET6;
    six.address.ip[15] = 1;
    ACCEPTS(sn_place_decode, six);
    REFUSES(sn_place_decode, place, address.family, AF_UNIX);
    REFUSES(sn_place_decode, place, address.ip[15], 1);
    REFUSES(sn_place_decode, place, address.port, 0);
    REFUSES(sn_place_decode, place, address.unused, 1);
    REFUSES(sn_place_decode, place, device, UINT32_MAX);
    REFUSES(sn_place_decode, place, unused, 1);
}

static void greetings(void)
{
    struct sn_hello hello = sn_hello_make(secret, 3, 2, &place);
    struct sn_join join = sn_join_make(secret, 2, 1);
    ACCEPTS(sn_hello_decode, hello);
    REFUSES(sn_hello_decode, hello, magic, hello.magic + 1);
    REFUSES(sn_hello_decode, hello, ranks, 0);
    REFUSES(sn_hello_decode, hello, ranks, 2);
    REFUSES(sn_hello_decode, hello, ranks, SN_RANKS_MAX + 1);
    REFUSES(sn_hello_decode, hello, rank, 3);
    REFUSES(sn_hello_decode, hello, place.address.port, 0);
    ACCEPTS(sn_join_decode, join);
    REFUSES(sn_join_decode, join, magic, hello.magic);
    REFUSES(sn_join_decode, join, from, 1);
    REFUSES(sn_join_decode, join, from, SN_RANKS_MAX);
    REFUSES(sn_join_decode, join, to, 2);
    CHECK(sn_secret_equal(hello.secret, join.secret));
    for (size_t i = 0; i < SN_SECRET_BYTES; i++) {
        struct sn_join other = join;
        other.secret[i] ^= 1;
        CHECK(!sn_secret_equal(hello.secret, other.secret));
    }
}

static void tables(void)
{
    struct sn_table table = sn_table_make(3, SN_OTHER_COUNT);
    ACCEPTS(sn_table_decode, table);
    REFUSES(sn_table_decode, table, magic, 0);
    REFUSES(sn_table_decode, table, ranks, 0);
    REFUSES(sn_table_decode, table, ranks, SN_RANKS_MAX + 1);
    REFUSES(sn_table_decode, table, refused, SN_RANK_TWICE + 1);
}

static void splits(void)
{
    struct sn_split split = {.place = place, .color = NCCL_SPLIT_NOCOLOR, .key = INT32_MIN};
    ACCEPTS(sn_split_decode, split);
    REFUSES(sn_split_decode, split, color, -2);
    REFUSES(sn_split_decode, split, place.address.family, 0);
}

static void headers(void)
{
    struct sn_header header = sn_header_make(SN_REDUCE, ncclFloat16, ncclAvg, 2, 1000), other;
    ACCEPTS(sn_header_decode, header);
    REFUSES(sn_header_decode, header, magic, header.magic - 1);
    REFUSES(sn_header_decode, header, kind, SN_KINDS);
    REFUSES(sn_header_decode, header, type, ncclNumTypes);
    REFUSES(sn_header_decode, header, op, ncclNumOps + 1);
    REFUSES(sn_header_decode, header, root, SN_RANKS_MAX);
    REFUSES(sn_header_decode, header, unused[4], 1);
    CHECK(!sn_header_differs(&header, &header));
#define DIFFERS(member, word)                                                                      \
    do {                                                                                           \
        other = header;                                                                            \
        other.member++;                                                                            \
        const char *differs = sn_header_differs(&other, &header);                                  \
        CHECK(differs && strstr(differs, word));                                                   \
    } while (0)
    DIFFERS(kind, "operation");
    DIFFERS(count, "count");
    DIFFERS(type, "data type");
    DIFFERS(op, "reduction");
    DIFFERS(root, "root");
    DIFFERS(sequence, "before it");
    DIFFERS(bytes, "bytes");
}

int main(void)
{
    ids();
    places();
    greetings();
    tables();
    splits();
    headers();
    return 0;
}
