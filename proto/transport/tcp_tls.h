/*
 * TLS 1.3 with a key that both sides have (an external PSK, in psk_dhe_ke mode): no
 * certificates, and forward secrecy by X25519 or P-256. Bytes go in and out through buffers
 * of ours, so that one thread may send while another receives: the lock is held while
 * records are made or opened, never while the socket is waited for.
 *
 * All have one OpenSSL library context of their own: what the application configures in
 * OpenSSL or takes down at its exit does not reach this.
 */
#ifndef GP_TCP_TLS_H
#define GP_TCP_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define TLS_KEY_BYTES 32
/* What is sealed at once, and records of as much in the socket's direction. */
#define TLS_CHUNK ((size_t)64 << 10)
/* A direction's key is changed when so much has gone: far below what AES-GCM allows. */
#define TLS_REKEY_BYTES ((uint64_t)256 << 20)

struct tcp_tls;

/* -ENOMEM, -ENOTSUP (OpenSSL cannot do it). */
int tcp_tls_new(const unsigned char key[TLS_KEY_BYTES], bool accepts, struct tcp_tls **out);
void tcp_tls_free(struct tcp_tls *t);

/* Shake hands over a socket that does not block: 0 it is over and the peer has the key,
 * -EAGAIN more must come, -EPIPE it has gone, -EPROTO it has another key or speaks otherwise. */
int tcp_tls_pump(struct tcp_tls *t, int fd);
/* A step of it, without the socket: 0, -EAGAIN, -EPROTO. */
int tcp_tls_shake(struct tcp_tls *t);

/* A word of `size` bytes that only these two have, of the handshake that is over: 0 or -EIO. */
int tcp_tls_word(struct tcp_tls *t, unsigned char *word, size_t size);

/* Bytes of the peer's: where they go, and that they came. */
void *tcp_tls_space(struct tcp_tls *t, size_t *room);
void tcp_tls_filled(struct tcp_tls *t, size_t size);
/* Open what has come: bytes, -EAGAIN more must come, -EPROTO it was changed on its way. */
ssize_t tcp_tls_open(struct tcp_tls *t, void *to, size_t size);

/* Seal at most TLS_CHUNK bytes, together with what was sealed and has not been sent. -EPROTO. */
int tcp_tls_seal(struct tcp_tls *t, const void *from, size_t size);
/* What is to be sent, and that so much of it was. */
struct iovec tcp_tls_sealed(const struct tcp_tls *t);
void tcp_tls_sent(struct tcp_tls *t, size_t size);

#endif
