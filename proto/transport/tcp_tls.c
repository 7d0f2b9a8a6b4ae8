#include "transport/tcp_tls.h"

#include <sys/types.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "transport/hex.h"
#include "transport/tcp_seal.h"

/* Sealed bytes of a chunk, with what records and a change of keys add, and a piece's opening. */
#define SEALED_ROOM (TLS_CHUNK + ((size_t)8 << 10))
_Static_assert(SEALED_ROOM - TLS_CHUNK >= (TLS_CHUNK / SEAL_CONTENT_MOST + 2) * SEAL_BESIDE + 512,
               "a chunk's records, and what goes with them");
#define OPENING_ROOM ((size_t)128 << 10)
/* Of a handshake, no honest peer needs more. */
#define SHAKE_MOST ((size_t)16 << 10)
#define IDENTITY "gpupool"
/* SHA-256, as the key's: that excludes AES-256, whose suite has SHA-384. The word has 128
 * bits, so nothing is lost. */
#define SUITES "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"

/* What all connections of the process have in common, for as long as it lives: threads keep
 * generators of random numbers in the library context. */
static struct {
    pthread_once_t once;
    OSSL_LIB_CTX *library;
    SSL_CTX *context;
    BIO_METHOD *method;
} common = {.once = PTHREAD_ONCE_INIT};

struct bytes {
    unsigned char *at;
    size_t begin, end, room;
};

struct tcp_tls {
    SSL *ssl; /* NULL: the handshake is over */
    unsigned char key[TLS_KEY_BYTES];
    bool accepts;
    size_t shake_bytes;
    unsigned char client_secret[SEAL_SECRET_BYTES], server_secret[SEAL_SECRET_BYTES];
    bool client_known, server_known;
    unsigned char word[TLS_WORD_BYTES];

    /* The sender's, and the receiver's: between them is nothing. */
    struct bytes out;
    struct seal seals;
    struct bytes in;
    struct seal opens;
    unsigned char *memory; /* of both buffers, and of what opens */
};

/* --- the socket's side, as OpenSSL sees it -------------------------------------------- */

static int bio_write(BIO *bio, const char *from, int size)
{
    struct tcp_tls *t = BIO_get_data(bio);
    struct bytes *out = &t->out;
    if (size <= 0 || (size_t)size > out->room - out->end)
        return -1;
    memcpy(out->at + out->end, from, (size_t)size);
    out->end += (size_t)size;
    return size;
}

static int bio_read(BIO *bio, char *to, int size)
{
    struct bytes *in = &((struct tcp_tls *)BIO_get_data(bio))->in;
    size_t left = in->end - in->begin;
    BIO_clear_retry_flags(bio);
    if (left == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    if (size < 0 || left > (size_t)size)
        left = size < 0 ? 0 : (size_t)size;
    memcpy(to, in->at + in->begin, left);
    in->begin += left;
    if (in->begin == in->end)
        in->begin = in->end = 0;
    return (int)left;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static int bio_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

static BIO_METHOD *method_new(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "gpupool");
    if (!m || !BIO_meth_set_write(m, bio_write) || !BIO_meth_set_read(m, bio_read) ||
        !BIO_meth_set_ctrl(m, bio_control) || !BIO_meth_set_create(m, bio_create)) {
        BIO_meth_free(m);
        return NULL;
    }
    return m;
}

/* --- the key that both have ----------------------------------------------------------- */

static SSL_SESSION *session_of_key(SSL *ssl, const unsigned char *key)
{
    static const unsigned char suite[2] = {0x13, 0x01}; /* tells the key's hash */
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
    SSL_SESSION *s = SSL_SESSION_new();
    if (s && cipher && SSL_SESSION_set1_master_key(s, key, TLS_KEY_BYTES) &&
        SSL_SESSION_set_cipher(s, cipher) && SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    SSL_SESSION_free(s);
    return NULL;
}

static int key_show(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *id_size,
                    SSL_SESSION **session)
{
    const struct tcp_tls *t = SSL_get_app_data(ssl);
    *session = NULL;
    *id = (const unsigned char *)IDENTITY;
    *id_size = strlen(IDENTITY);
    if (digest && !EVP_MD_is_a(digest, "SHA256"))
        return 1; /* a suite that we do not have: no key for it */
    *session = session_of_key(ssl, t->key);
    return *session != NULL;
}

static int key_find(SSL *ssl, const unsigned char *id, size_t id_size, SSL_SESSION **session)
{
    const struct tcp_tls *t = SSL_get_app_data(ssl);
    *session = NULL;
    if (id_size != strlen(IDENTITY) || memcmp(id, IDENTITY, id_size) != 0)
        return 1; /* not known, which ends the handshake: there are no certificates */
    *session = session_of_key(ssl, t->key);
    return *session != NULL;
}

/* --- what a handshake leaves -------------------------------------------------------------- */

/* The secret of a line "NAME NONCE SECRET", if it has that name. */
static bool secret_read(const char *line, const char *name, unsigned char *secret)
{
    size_t length = strlen(name);
    const char *hex = strrchr(line, ' ');
    return strncmp(line, name, length) == 0 && line[length] == ' ' &&
           gp_hex_read(hex + 1, secret, SEAL_SECRET_BYTES) == 0;
}

/* The only way to them that OpenSSL has; nobody else sees the line. */
static void secret_note(const SSL *ssl, const char *line)
{
    struct tcp_tls *t = SSL_get_app_data(ssl);
    if (secret_read(line, "CLIENT_TRAFFIC_SECRET_0", t->client_secret))
        t->client_known = true;
    if (secret_read(line, "SERVER_TRAFFIC_SECRET_0", t->server_secret))
        t->server_known = true;
}

static int word_make(struct tcp_tls *t)
{
    static const char label[] = "EXPERIMENTAL gpupool lanes";
    return SSL_export_keying_material(t->ssl, t->word, sizeof t->word, label, sizeof label - 1,
                                      NULL, 0, 0) == 1
               ? 0
               : -EPROTO;
}

static void secrets_wipe(struct tcp_tls *t)
{
    explicit_bzero(t->key, sizeof t->key);
    explicit_bzero(t->client_secret, sizeof t->client_secret);
    explicit_bzero(t->server_secret, sizeof t->server_secret);
}

static const char *cipher_name(const SSL *ssl)
{
    bool aes = SSL_CIPHER_get_id(SSL_get_current_cipher(ssl)) == TLS1_3_CK_AES_128_GCM_SHA256;
    return aes ? "AES-128-GCM" : "ChaCha20-Poly1305";
}

/* Both sides' keys are set, and OpenSSL has no part in what follows. It takes no more from its
 * side of the socket than the record that it reads: what lies behind is for us. */
static int shaken(struct tcp_tls *t)
{
    const char *cipher = cipher_name(t->ssl);
    /* There is no way in without the key, and this says so once more. */
    bool right = SSL_session_reused(t->ssl) && SSL_version(t->ssl) == TLS1_3_VERSION &&
                 SSL_has_pending(t->ssl) == 0 && t->client_known && t->server_known;
    int rc = right ? word_make(t) : -EPROTO;
    const unsigned char *ours = t->accepts ? t->server_secret : t->client_secret;
    const unsigned char *theirs = t->accepts ? t->client_secret : t->server_secret;
    if (rc == 0)
        rc = seal_begin(&t->seals, common.library, cipher, ours, NULL);
    if (rc == 0)
        rc = seal_begin(&t->opens, common.library, cipher, theirs, t->in.at + OPENING_ROOM);
    ERR_clear_error();
    if (rc)
        return rc;
    secrets_wipe(t);
    SSL_free(t->ssl);
    t->ssl = NULL;
    return 0;
}

/* --- life ------------------------------------------------------------------------------ */

static int context_set(SSL_CTX *c)
{
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL); /* and nobody is trusted: the key alone */
    SSL_CTX_set_psk_use_session_callback(c, key_show);
    SSL_CTX_set_psk_find_session_callback(c, key_find);
    SSL_CTX_set_keylog_callback(c, secret_note);
    SSL_CTX_set_read_ahead(c, 0);
    return SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) &&
           SSL_CTX_set_ciphersuites(c, SUITES) && SSL_CTX_set1_groups_list(c, "X25519:P-256") &&
           SSL_CTX_set_num_tickets(c, 0);
}

/* In one piece, which the system takes back whole and of which what is never used costs nothing. */
static bool memory_make(struct tcp_tls *t)
{
    t->memory = malloc(SEALED_ROOM + OPENING_ROOM + SEAL_REST_BYTES);
    if (!t->memory)
        return false;
    t->out = (struct bytes){.at = t->memory, .room = SEALED_ROOM};
    t->in = (struct bytes){.at = t->memory + SEALED_ROOM, .room = OPENING_ROOM};
    return true;
}

static void common_make(void)
{
    if (!OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL)) /* other threads may outlive main */
        return;
    common.library = OSSL_LIB_CTX_new();
    common.method = method_new();
    SSL_CTX *c = common.library ? SSL_CTX_new_ex(common.library, NULL, TLS_method()) : NULL;
    if (c && context_set(c))
        common.context = c;
    else
        SSL_CTX_free(c);
}

static int tls_open(struct tcp_tls *t)
{
    pthread_once(&common.once, common_make);
    if (!common.context || !common.method)
        return -ENOTSUP;
    t->ssl = SSL_new(common.context);
    BIO *bio = BIO_new(common.method);
    if (!t->ssl || !bio || !memory_make(t)) {
        BIO_free(bio);
        return -ENOMEM;
    }
    BIO_set_data(bio, t);
    SSL_set_bio(t->ssl, bio, bio);
    SSL_set_app_data(t->ssl, t);
    if (t->accepts && !SSL_set_session_id_context(t->ssl, (const void *)IDENTITY, strlen(IDENTITY)))
        return -ENOMEM;
    if (t->accepts)
        SSL_set_accept_state(t->ssl);
    else
        SSL_set_connect_state(t->ssl);
    return 0;
}

int tcp_tls_new(const unsigned char key[TLS_KEY_BYTES], bool accepts, struct tcp_tls **out)
{
    struct tcp_tls *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->accepts = accepts;
    memcpy(t->key, key, sizeof t->key);
    int rc = tls_open(t);
    ERR_clear_error();
    if (rc) {
        tcp_tls_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void tcp_tls_free(struct tcp_tls *t)
{
    if (!t)
        return;
    SSL_free(t->ssl);
    seal_end(&t->seals);
    seal_end(&t->opens);
    free(t->memory);
    explicit_bzero(t, sizeof *t);
    free(t);
}

/* --- the handshake ----------------------------------------------------------------------- */

/* With the queue of errors left empty: it is the application's thread. */
static int ssl_result(struct tcp_tls *t, int result)
{
    int why = result > 0 ? SSL_ERROR_NONE : SSL_get_error(t->ssl, result);
    ERR_clear_error();
    return why == SSL_ERROR_NONE ? 0 : why == SSL_ERROR_WANT_READ ? -EAGAIN : -EPROTO;
}

int tcp_tls_shake(struct tcp_tls *t)
{
    ERR_clear_error();
    int rc = ssl_result(t, SSL_do_handshake(t->ssl));
    return rc ? rc : shaken(t);
}

/* What a handshake has to say is little, and the first that is sent there: it fits. */
static int shake_send(struct tcp_tls *t, int fd)
{
    struct iovec said = tcp_tls_sealed(t);
    if (said.iov_len > 0 &&
        send(fd, said.iov_base, said.iov_len, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)said.iov_len)
        return -EPIPE;
    tcp_tls_sent(t, said.iov_len);
    return 0;
}

int tcp_tls_pump(struct tcp_tls *t, int fd)
{
    for (;;) {
        int rc = tcp_tls_shake(t), sent = shake_send(t, fd);
        if (rc != -EAGAIN || sent)
            return rc == -EAGAIN || rc == 0 ? (sent ? sent : rc) : rc;
        size_t room;
        void *to = tcp_tls_space(t, &room);
        if (room == 0)
            return -EPROTO;
        ssize_t n = recv(fd, to, room, MSG_DONTWAIT);
        if (n <= 0)
            return n < 0 && (errno == EAGAIN || errno == EINTR) ? -EAGAIN : -EPIPE;
        tcp_tls_filled(t, (size_t)n);
    }
}

void tcp_tls_word(const struct tcp_tls *t, unsigned char word[TLS_WORD_BYTES])
{
    memcpy(word, t->word, TLS_WORD_BYTES);
}

/* --- receiving ---------------------------------------------------------------------------- */

void *tcp_tls_space(struct tcp_tls *t, size_t *room)
{
    struct bytes *in = &t->in;
    if (in->begin > 0) {
        memmove(in->at, in->at + in->begin, in->end - in->begin);
        in->end -= in->begin;
        in->begin = 0;
    }
    /* A peer that is done shaking hands may send on at once: what comes behind it stays for
     * later, and counts for nothing once it is over. */
    *room = !t->ssl ? in->room - in->end : SHAKE_MOST - t->shake_bytes;
    return in->at + in->end;
}

void tcp_tls_filled(struct tcp_tls *t, size_t size)
{
    t->in.end += size;
    if (t->ssl)
        t->shake_bytes += size;
}

ssize_t tcp_tls_open(struct tcp_tls *t, void *to, size_t size)
{
    struct bytes *in = &t->in;
    size_t used;
    ssize_t n = seal_read(&t->opens, in->at + in->begin, in->end - in->begin, &used, to, size);
    in->begin += used;
    if (in->begin == in->end)
        in->begin = in->end = 0;
    return n;
}

/* --- sending ------------------------------------------------------------------------------ */

ssize_t tcp_tls_seal(struct tcp_tls *t, const void *from, size_t size)
{
    struct bytes *out = &t->out;
    size_t taken;
    ssize_t n = seal_write(&t->seals, from, size, out->at + out->end, out->room - out->end, &taken);
    if (n < 0)
        return n;
    out->end += (size_t)n;
    return (ssize_t)taken;
}

struct iovec tcp_tls_sealed(const struct tcp_tls *t)
{
    return (struct iovec){t->out.at + t->out.begin, t->out.end - t->out.begin};
}

void tcp_tls_sent(struct tcp_tls *t, size_t size)
{
    t->out.begin += size;
    if (t->out.begin == t->out.end)
        t->out.begin = t->out.end = 0;
}
