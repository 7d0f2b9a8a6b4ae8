#include "transport/tcp_seal.h"

#include <errno.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/evp.h>

#define VERSION_MAJOR 3 /* of a record: that of TLS 1.2, for ever */
#define VERSION_MINOR 3
#define KEY_UPDATE 24 /* a message of a handshake */
#define KEY_UPDATE_BYTES 5

/* --- keys -------------------------------------------------------------------------------- */

/* HKDF-Expand-Label without a context; one block of it, which is all that is ever wanted. */
static int label_expand(struct seal *s, const char *label, unsigned char *out, size_t size)
{
    unsigned char info[64] = {0, (unsigned char)size}, block[SEAL_SECRET_BYTES];
    size_t length = strlen(label), at = 2, made = 0;
    info[at++] = (unsigned char)(6 + length);
    memcpy(info + at, "tls13 ", 6);
    memcpy(info + at + 6, label, length);
    at += 6 + length;
    info[at++] = 0; /* the context's length */
    info[at++] = 1; /* the block's number */
    const void *mac = EVP_Q_mac(s->library, "HMAC", NULL, "SHA256", NULL, s->secret,
                                sizeof s->secret, info, at, block, sizeof block, &made);
    if (mac && made == sizeof block)
        memcpy(out, block, size);
    explicit_bzero(block, sizeof block);
    return mac && made == sizeof block ? 0 : -ENOTSUP;
}

/* Of the secret that it has. */
static int key_set(struct seal *s)
{
    unsigned char key[SEAL_KEY_MOST];
    size_t size = (size_t)EVP_CIPHER_CTX_get_key_length(s->cipher);
    int rc = size <= sizeof key ? label_expand(s, "key", key, size) : -ENOTSUP;
    if (rc == 0)
        rc = label_expand(s, "iv", s->nonce, sizeof s->nonce);
    if (rc == 0 && !EVP_CipherInit_ex2(s->cipher, NULL, key, NULL, s->rest == NULL, NULL))
        rc = -ENOTSUP;
    explicit_bzero(key, sizeof key);
    s->number = s->bytes = 0;
    return rc;
}

static int key_change(struct seal *s)
{
    unsigned char next[SEAL_SECRET_BYTES];
    int rc = label_expand(s, "traffic upd", next, sizeof next);
    if (rc == 0) {
        memcpy(s->secret, next, sizeof next);
        rc = key_set(s);
    }
    explicit_bzero(next, sizeof next);
    s->broken = rc != 0;
    return rc ? -EPROTO : 0;
}

static int seal_make(struct seal *s, const char *name)
{
    EVP_CIPHER *cipher = EVP_CIPHER_fetch(s->library, name, NULL);
    s->cipher = EVP_CIPHER_CTX_new();
    int rc = s->cipher ? 0 : -ENOMEM;
    if (rc == 0 && (!cipher || EVP_CIPHER_get_iv_length(cipher) != SEAL_NONCE_BYTES ||
                    !EVP_CipherInit_ex2(s->cipher, cipher, NULL, NULL, s->rest == NULL, NULL)))
        rc = -ENOTSUP;
    EVP_CIPHER_free(cipher);
    return rc ? rc : key_set(s);
}

int seal_begin(struct seal *s, OSSL_LIB_CTX *library, const char *cipher,
               const unsigned char secret[SEAL_SECRET_BYTES], unsigned char *rest)
{
    *s = (struct seal){.library = library, .rest = rest};
    memcpy(s->secret, secret, sizeof s->secret);
    ERR_set_mark();
    int rc = seal_make(s, cipher);
    ERR_pop_to_mark();
    return rc;
}

void seal_end(struct seal *s)
{
    EVP_CIPHER_CTX_free(s->cipher);
    explicit_bzero(s, sizeof *s);
}

/* --- one record --------------------------------------------------------------------------- */

/* Begin the record that is next. */
static bool record_begin(struct seal *s, const unsigned char *header)
{
    unsigned char nonce[SEAL_NONCE_BYTES];
    int none;
    memcpy(nonce, s->nonce, sizeof nonce);
    for (int i = 0; i < 8; i++)
        nonce[sizeof nonce - 1 - (size_t)i] ^= (unsigned char)(s->number >> (8 * i));
    return !s->broken && s->number != UINT64_MAX &&
           EVP_CipherInit_ex2(s->cipher, NULL, NULL, nonce, -1, NULL) &&
           EVP_CipherUpdate(s->cipher, NULL, &none, header, SEAL_HEADER_BYTES);
}

static bool pass(struct seal *s, void *to, const void *from, size_t size)
{
    int done = 0;
    return size == 0 ||
           (EVP_CipherUpdate(s->cipher, to, &done, from, (int)size) && (size_t)done == size);
}

static bool tag_make(struct seal *s, unsigned char *tag)
{
    int none;
    return EVP_CipherFinal_ex(s->cipher, tag, &none) &&
           EVP_CIPHER_CTX_ctrl(s->cipher, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG_BYTES, tag);
}

static bool tag_check(struct seal *s, const unsigned char *tag)
{
    unsigned char none[SEAL_TAG_BYTES];
    int size;
    return EVP_CIPHER_CTX_ctrl(s->cipher, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG_BYTES, (void *)tag) &&
           EVP_CipherFinal_ex(s->cipher, none, &size);
}

/* --- sealing -------------------------------------------------------------------------------- */

ssize_t seal_record(struct seal *s, unsigned char type, const void *from, size_t size,
                    unsigned char *to)
{
    size_t inner = size + 1, covered = inner + SEAL_TAG_BYTES;
    const unsigned char header[SEAL_HEADER_BYTES] = {SEAL_DATA, VERSION_MAJOR, VERSION_MINOR,
                                                     (unsigned char)(covered >> 8),
                                                     (unsigned char)covered};
    unsigned char *at = to + SEAL_HEADER_BYTES;
    memcpy(to, header, sizeof header);
    if (!record_begin(s, header) || !pass(s, at, from, size) || !pass(s, at + size, &type, 1) ||
        !tag_make(s, at + inner)) {
        s->broken = true; /* a number is never used for two records */
        return -EPROTO;
    }
    s->number++;
    return (ssize_t)(SEAL_HEADER_BYTES + covered);
}

ssize_t seal_rekey(struct seal *s, unsigned char *to)
{
    static const unsigned char update[KEY_UPDATE_BYTES] = {KEY_UPDATE, 0, 0, 1, 0};
    ssize_t n = seal_record(s, SEAL_HANDSHAKE, update, sizeof update, to);
    return n > 0 && key_change(s) != 0 ? -EPROTO : n;
}

static ssize_t next_write(struct seal *s, const void *from, size_t size, unsigned char *to)
{
    ssize_t change = 0, n;
    s->bytes += size;
    if (s->bytes > SEAL_REKEY_BYTES && (change = seal_rekey(s, to)) > 0)
        s->bytes = size;
    if (change < 0)
        return change;
    n = seal_record(s, SEAL_DATA, from, size, to + change);
    return n < 0 ? n : n + change;
}

/* What a record of so much may take, with a change of keys before it. */
static size_t room_for(size_t size)
{
    return size + SEAL_BESIDE + KEY_UPDATE_BYTES + SEAL_BESIDE;
}

ssize_t seal_write(struct seal *s, const void *from, size_t size, unsigned char *to, size_t room,
                   size_t *taken)
{
    size_t made = 0;
    ssize_t n = 0;
    *taken = 0;
    ERR_set_mark();
    while (n >= 0 && *taken < size) {
        size_t left = size - *taken, part = left < SEAL_CONTENT_MOST ? left : SEAL_CONTENT_MOST;
        if (room_for(part) > room - made)
            break;
        n = next_write(s, (const char *)from + *taken, part, to + made);
        made += n > 0 ? (size_t)n : 0;
        *taken += part;
    }
    ERR_pop_to_mark();
    return n < 0 ? n : (ssize_t)made;
}

/* --- opening -------------------------------------------------------------------------------- */

/* How long what a record carries is, with its type: 0, -EAGAIN it has not all come, -EPROTO. */
static int header_read(const unsigned char *at, size_t left, size_t *inner)
{
    static const unsigned char begin[] = {SEAL_DATA, VERSION_MAJOR, VERSION_MINOR};
    if (memcmp(at, begin, left < sizeof begin ? left : sizeof begin) != 0)
        return -EPROTO;
    if (left < SEAL_HEADER_BYTES)
        return -EAGAIN;
    size_t covered = (size_t)at[3] << 8 | at[4];
    if (covered < 1 + SEAL_TAG_BYTES || covered > SEAL_CONTENT_MOST + 1 + SEAL_TAG_BYTES)
        return -EPROTO;
    *inner = covered - SEAL_TAG_BYTES;
    return left - SEAL_HEADER_BYTES < covered ? -EAGAIN : 0;
}

/* All but the last byte, which goes to `last`: false, it is not what was sealed. */
static bool record_open(struct seal *s, const unsigned char *at, size_t inner, void *to,
                        unsigned char *last)
{
    const unsigned char *sealed = at + SEAL_HEADER_BYTES;
    return record_begin(s, at) && pass(s, to, sealed, inner - 1) &&
           pass(s, last, sealed + inner - 1, 1) && tag_check(s, sealed + inner);
}

static bool is_key_update(const unsigned char *bytes, size_t size)
{
    static const unsigned char update[KEY_UPDATE_BYTES] = {KEY_UPDATE, 0, 0, 1, 0};
    return size == sizeof update && memcmp(bytes, update, sizeof update) == 0;
}

/* A record in memory of our own: what is data in it waits there. */
static int rest_fill(struct seal *s, const unsigned char *at, size_t inner)
{
    if (!record_open(s, at, inner, s->rest, s->rest + inner - 1))
        return -EPROTO;
    size_t end = inner;
    while (end > 0 && s->rest[end - 1] == 0) /* zeros may stand behind the type */
        end--;
    if (end == 0)
        return -EPROTO;
    unsigned char type = s->rest[--end];
    s->number++;
    if ((end == 0 || type != SEAL_DATA) && ++s->idle > SEAL_IDLE_MOST)
        return -EPROTO;
    if (type == SEAL_HANDSHAKE && is_key_update(s->rest, end))
        return key_change(s);
    if (type != SEAL_DATA)
        return -EPROTO;
    s->rest_at = 0;
    s->rest_end = end;
    return 0;
}

static size_t rest_take(struct seal *s, void *to, size_t room)
{
    size_t left = s->rest_end - s->rest_at, n = left < room ? left : room;
    if (n > 0)
        memcpy(to, s->rest + s->rest_at, n);
    s->rest_at += n;
    return n;
}

/* The record that is next, of which `to` has room for some: bytes, or -EPROTO. */
static ssize_t next_read(struct seal *s, const unsigned char *at, size_t inner, void *to,
                         size_t room)
{
    unsigned char type;
    if (inner > 1 && inner - 1 <= room) {
        if (!record_open(s, at, inner, to, &type))
            return -EPROTO;
        if (type == SEAL_DATA) {
            s->number++;
            s->idle = 0;
            return (ssize_t)(inner - 1);
        }
    }
    /* Too long, or not data alone: that is looked at where nobody else writes. */
    int rc = rest_fill(s, at, inner);
    if (rc)
        return rc;
    size_t n = rest_take(s, to, room);
    if (n > 0)
        s->idle = 0;
    return (ssize_t)n;
}

ssize_t seal_read(struct seal *s, const unsigned char *from, size_t size, size_t *used, void *to,
                  size_t room)
{
    size_t got = rest_take(s, to, room), inner;
    int rc = s->broken ? -EPROTO : 0;
    *used = 0;
    ERR_set_mark();
    while (rc == 0 && got < room && (rc = header_read(from + *used, size - *used, &inner)) == 0) {
        ssize_t n = next_read(s, from + *used, inner, (char *)to + got, room - got);
        if (n < 0) {
            rc = (int)n;
            break;
        }
        got += (size_t)n;
        *used += SEAL_HEADER_BYTES + inner + SEAL_TAG_BYTES;
    }
    ERR_pop_to_mark();
    if (rc == -EPROTO) {
        s->broken = true;
        return rc;
    }
    return got > 0 ? (ssize_t)got : -EAGAIN;
}
