/*
 * TLS 1.3's records (RFC 8446, 5) behind a handshake that is over: one direction of a connection
 * at one of its ends, with the secret that the handshake has left for it. Bytes are sealed where
 * the caller has them into what the socket is given, and opened from what the socket gave to
 * where the caller wants them: the cipher's own pass is the only one. Pure functions over memory,
 * no lock: a direction has one thread at a time, and knows nothing of the other one.
 *
 * A tag can be checked only behind the bytes that it covers, and these are then in the caller's
 * memory already. Where it is wrong the call fails, nothing is said to have come, and the
 * direction is of no more use: who called must neither look at that memory nor go on.
 */
#ifndef GP_TCP_SEAL_H
#define GP_TCP_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <openssl/types.h>

#define SEAL_SECRET_BYTES 32 /* SHA-256's, which both of our suites have */
#define SEAL_KEY_MOST 32
#define SEAL_NONCE_BYTES 12
#define SEAL_HEADER_BYTES 5
#define SEAL_TAG_BYTES 16
/* What a record carries, and what it takes beside that: header, inner type, tag. */
#define SEAL_CONTENT_MOST ((size_t)16 << 10)
#define SEAL_BESIDE ((size_t)SEAL_HEADER_BYTES + 1 + SEAL_TAG_BYTES)
#define SEAL_RECORD_MOST (SEAL_CONTENT_MOST + SEAL_BESIDE)
#define SEAL_REST_BYTES (SEAL_CONTENT_MOST + 1)
/* A direction's key is changed when so much has gone: far below what AES-GCM allows. */
#define SEAL_REKEY_BYTES ((uint64_t)256 << 20)
/* Records in a row that may bring nothing. */
#define SEAL_IDLE_MOST 32u

enum seal_type { SEAL_ALERT = 21, SEAL_HANDSHAKE = 22, SEAL_DATA = 23 };

struct seal {
    OSSL_LIB_CTX *library;
    EVP_CIPHER_CTX *cipher;
    unsigned char secret[SEAL_SECRET_BYTES], nonce[SEAL_NONCE_BYTES];
    uint64_t number; /* of the record that is next under this key */
    uint64_t bytes;  /* sealed under it */
    unsigned idle;   /* records in a row that brought nothing */
    bool broken;     /* something has failed: nothing is done any more */

    /* Of a record that was longer than what it was wanted for, or was not data alone. */
    unsigned char *rest; /* SEAL_REST_BYTES; NULL: it seals */
    size_t rest_at, rest_end;
};

/* `cipher` is OpenSSL's name. What opens is given SEAL_REST_BYTES of memory for itself, what seals
 * NULL. -ENOMEM, -ENOTSUP; seal_end is right behind either. */
int seal_begin(struct seal *s, OSSL_LIB_CTX *library, const char *cipher,
               const unsigned char secret[SEAL_SECRET_BYTES], unsigned char *rest);
void seal_end(struct seal *s);

/* Make records of at most `size` bytes in `room`, and say in `*taken` how many these were: all if
 * there is room for them. How long the records are, or -EPROTO. */
ssize_t seal_write(struct seal *s, const void *from, size_t size, unsigned char *to, size_t room,
                   size_t *taken);
/* One record of any type and at most SEAL_CONTENT_MOST bytes: its length, or -EPROTO. */
ssize_t seal_record(struct seal *s, unsigned char type, const void *from, size_t size,
                    unsigned char *to);
/* Say that the key is another from now on: the record's length, or -EPROTO. */
ssize_t seal_rekey(struct seal *s, unsigned char *to);

/* Open what has come, whole records from the front, and say in `*used` how long these were: bytes
 * at `to`, as many as fit or have come; -EAGAIN there are none; -EPROTO what came is not what a
 * peer of ours sends, or was changed. All of `to` may be written to, whatever comes of it. */
ssize_t seal_read(struct seal *s, const unsigned char *from, size_t size, size_t *used, void *to,
                  size_t room);

#endif
