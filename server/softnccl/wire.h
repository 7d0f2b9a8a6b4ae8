/*
 * What ranks say to each other, each a structure of fixed size in the order of bytes of the machine
 * (a little-endian one, on all hosts). Nothing is read from one before it is decoded here.
 *
 * A rank says hello to the root, which answers with the table of all ranks when all are there; then
 * each rank joins those before it. From then on a connection carries transfers: a header, and the
 * bytes that it announces.
 */
#ifndef SN_WIRE_H
#define SN_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SN_RANKS_MAX 256u
#define SN_SECRET_BYTES 16u

/* An address, as ranks tell each other of it. */
struct sn_address {
    uint8_t ip[16];
    uint16_t family; /* AF_INET (the first 4 bytes) or AF_INET6 */
    uint16_t port;   /* of this machine's byte order */
    uint32_t unused;
};

/* Where a rank is. */
struct sn_place {
    struct sn_address address;
    uint8_t uuid[16]; /* of its device */
    uint64_t host;
    uint32_t device, unused;
};

/* What ncclGetUniqueId gives, in 128 bytes; the rest are zeros. */
struct sn_id {
    uint64_t magic;
    uint8_t secret[SN_SECRET_BYTES];
    struct sn_address root;
};

/* The first word of a connection. The secret is compared before anything else. */
struct sn_hello {
    uint8_t secret[SN_SECRET_BYTES];
    uint64_t magic;
    uint32_t ranks, rank;
    struct sn_place place;
};

/* The root's answer; `ranks` places follow. */
struct sn_table {
    uint64_t magic;
    uint32_t ranks;
    uint32_t refused; /* why not, enum sn_refusal */
};
enum sn_refusal { SN_TAKEN, SN_OTHER_COUNT, SN_RANK_TWICE };

struct sn_join {
    uint8_t secret[SN_SECRET_BYTES];
    uint64_t magic;
    uint32_t from, to;
};

enum sn_kind {
    SN_ALL_REDUCE,
    SN_REDUCE,
    SN_BROADCAST,
    SN_ALL_GATHER,
    SN_REDUCE_SCATTER,
    SN_ALL_TO_ALL,
    SN_GATHER,
    SN_SCATTER,
    SN_POINT_TO_POINT,
    SN_SPLIT, /* what ranks tell each other for a new communicator */
    SN_KINDS
};

/* Before each transfer. Both ends know what it must be. */
struct sn_header {
    uint64_t magic;
    uint64_t count;    /* elements, as the call has it */
    uint64_t bytes;    /* that follow */
    uint32_t sequence; /* of this direction of the connection */
    uint32_t root;
    uint8_t kind, type, op;
    uint8_t unused[5];
};

/* What a rank says for ncclCommSplit. */
struct sn_split {
    uint8_t secret[SN_SECRET_BYTES]; /* of the new communicator, if this rank is its first */
    struct sn_place place;
    int32_t color, key;
};

/* A decoder says false, and writes nothing, unless the message is sound. */
bool sn_id_decode(const void *bytes, struct sn_id *out);
bool sn_hello_decode(const void *bytes, struct sn_hello *out);
bool sn_table_decode(const void *bytes, struct sn_table *out);
bool sn_place_decode(const void *bytes, struct sn_place *out);
bool sn_join_decode(const void *bytes, struct sn_join *out);
bool sn_header_decode(const void *bytes, struct sn_header *out);
bool sn_split_decode(const void *bytes, struct sn_split *out);

void sn_id_encode(const struct sn_id *id, char bytes[128]);
struct sn_hello sn_hello_make(const uint8_t *secret, uint32_t ranks, uint32_t rank,
                              const struct sn_place *place);
struct sn_table sn_table_make(uint32_t ranks, enum sn_refusal refused);
struct sn_join sn_join_make(const uint8_t *secret, uint32_t from, uint32_t to);
struct sn_header sn_header_make(enum sn_kind kind, uint8_t type, uint8_t op, uint32_t root,
                                uint64_t count);
/* What differs, in a word; NULL: nothing. */
const char *sn_header_differs(const struct sn_header *got, const struct sn_header *expected);
/* In a time that does not depend on where they differ. */
bool sn_secret_equal(const uint8_t *a, const uint8_t *b);

#endif
