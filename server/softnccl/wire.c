#include "wire.h"

#include <string.h>
#include <sys/socket.h>

#include "nccl_api.h"

/* One for each message, so that none is taken for another; a change of form changes them. */
#define MAGIC_ID UINT64_C(0x31647463636e6673)
#define MAGIC_HELLO UINT64_C(0x3168746363736e66)
#define MAGIC_TABLE UINT64_C(0x31747463636e7366)
#define MAGIC_JOIN UINT64_C(0x316a7463636e7366)
#define MAGIC_HEADER UINT64_C(0x316f7463636e7366)

static bool address_sound(const struct sn_address *a)
{
    static const uint8_t nothing[12];
    bool four = a->family == AF_INET && memcmp(a->ip + 4, nothing, sizeof nothing) == 0;
    return (four || a->family == AF_INET6) && a->port != 0 && a->unused == 0;
}

static bool place_sound(const struct sn_place *p)
{
    return address_sound(&p->address) && p->device <= INT_MAX && p->unused == 0;
}

static bool ranks_sound(uint32_t ranks, uint32_t rank)
{
    return ranks >= 1 && ranks <= SN_RANKS_MAX && rank < ranks;
}

bool sn_id_decode(const void *bytes, struct sn_id *out)
{
    static const char nothing[NCCL_UNIQUE_ID_BYTES - sizeof(struct sn_id)];
    struct sn_id id;
    memcpy(&id, bytes, sizeof id);
    if (id.magic != MAGIC_ID || !address_sound(&id.root) ||
        memcmp((const char *)bytes + sizeof id, nothing, sizeof nothing) != 0)
        return false;
    *out = id;
    return true;
}

void sn_id_encode(const struct sn_id *id, char bytes[NCCL_UNIQUE_ID_BYTES])
{
    struct sn_id whole = *id;
    whole.magic = MAGIC_ID;
    memset(bytes, 0, NCCL_UNIQUE_ID_BYTES);
    memcpy(bytes, &whole, sizeof whole);
}

bool sn_hello_decode(const void *bytes, struct sn_hello *out)
{
    struct sn_hello hello;
    memcpy(&hello, bytes, sizeof hello);
    if (hello.magic != MAGIC_HELLO || !ranks_sound(hello.ranks, hello.rank) ||
        !place_sound(&hello.place))
        return false;
    *out = hello;
    return true;
}

struct sn_hello sn_hello_make(const uint8_t *secret, uint32_t ranks, uint32_t rank,
                              const struct sn_place *place)
{
    struct sn_hello hello = {.magic = MAGIC_HELLO, .ranks = ranks, .rank = rank, .place = *place};
    memcpy(hello.secret, secret, SN_SECRET_BYTES);
    return hello;
}

bool sn_table_decode(const void *bytes, struct sn_table *out)
{
    struct sn_table table;
    memcpy(&table, bytes, sizeof table);
    if (table.magic != MAGIC_TABLE || table.refused > SN_RANK_TWICE || !ranks_sound(table.ranks, 0))
        return false;
    *out = table;
    return true;
}

struct sn_table sn_table_make(uint32_t ranks, enum sn_refusal refused)
{
    return (struct sn_table){.magic = MAGIC_TABLE, .ranks = ranks, .refused = refused};
}

bool sn_place_decode(const void *bytes, struct sn_place *out)
{
    struct sn_place place;
    memcpy(&place, bytes, sizeof place);
    if (!place_sound(&place))
        return false;
    *out = place;
    return true;
}

bool sn_join_decode(const void *bytes, struct sn_join *out)
{
    struct sn_join join;
    memcpy(&join, bytes, sizeof join);
    if (join.magic != MAGIC_JOIN || join.from >= SN_RANKS_MAX || join.to >= SN_RANKS_MAX ||
        join.from <= join.to)
        return false;
    *out = join;
    return true;
}

struct sn_join sn_join_make(const uint8_t *secret, uint32_t from, uint32_t to)
{
    struct sn_join join = {.magic = MAGIC_JOIN, .from = from, .to = to};
    memcpy(join.secret, secret, SN_SECRET_BYTES);
    return join;
}

bool sn_header_decode(const void *bytes, struct sn_header *out)
{
    static const uint8_t nothing[sizeof out->unused];
    struct sn_header header;
    memcpy(&header, bytes, sizeof header);
    if (header.magic != MAGIC_HEADER || header.kind >= SN_KINDS || header.type >= ncclNumTypes ||
        header.op > ncclNumOps || header.root >= SN_RANKS_MAX ||
        memcmp(header.unused, nothing, sizeof nothing) != 0)
        return false;
    *out = header;
    return true;
}

struct sn_header sn_header_make(enum sn_kind kind, uint8_t type, uint8_t op, uint32_t root,
                                uint64_t count)
{
    return (struct sn_header){.magic = MAGIC_HEADER,
                              .count = count,
                              .root = root,
                              .kind = (uint8_t)kind,
                              .type = type,
                              .op = op};
}

const char *sn_header_differs(const struct sn_header *got, const struct sn_header *expected)
{
    if (got->kind != expected->kind)
        return "the operation";
    if (got->count != expected->count)
        return "the count";
    if (got->type != expected->type)
        return "the data type";
    if (got->op != expected->op)
        return "the reduction";
    if (got->root != expected->root)
        return "the root";
    if (got->sequence != expected->sequence)
        return "the number of operations before it";
    return got->bytes != expected->bytes ? "the number of bytes" : NULL;
}

bool sn_split_decode(const void *bytes, struct sn_split *out)
{
    struct sn_split split;
    memcpy(&split, bytes, sizeof split);
    if (!place_sound(&split.place) || split.color < NCCL_SPLIT_NOCOLOR)
        return false;
    *out = split;
    return true;
}

bool sn_secret_equal(const uint8_t *a, const uint8_t *b)
{
    unsigned differs = 0;
    for (unsigned i = 0; i < SN_SECRET_BYTES; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}
