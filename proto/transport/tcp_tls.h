/*
 * TLS 1.3 with a key that both sides have (an external PSK, in psk_dhe_ke mode): no
 * certificates, and forward secrecy by X25519 or P-256. OpenSSL shakes hands; the records behind
 * that are ours (tcp_seal.h), since OpenSSL copies each byte twice beside the cipher. Bytes of the
 * socket go in and out through buffers of ours. One thread may send while another receives: what
 * they use is not the same.
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
#define TLS_WORD_BYTES 16
/* What is sealed at once, for one call of the socket's. */
#define TLS_CHUNK ((size_t)64 << 10)

struct tcp_tls;

/* -ENOMEM, -ENOTSUP (OpenSSL cannot do it). */
int tcp_tls_new(const unsigned char key[TLS_KEY_BYTES], bool accepts, struct tcp_tls **out);
void tcp_tls_free(struct tcp_tls *t);

/* Shake hands over a socket that does not block: 0 it is over and the peer has the key,
 * -EAGAIN more must come, -EPIPE it has gone, -EPROTO it has another key or speaks otherwise. */
int tcp_tls_pump(struct tcp_tls *t, int fd);
/* A step of it, without the socket: 0, -EAGAIN, -EPROTO. */
int tcp_tls_shake(struct tcp_tls *t);

/* A word that only these two have, of the handshake that is over. */
void tcp_tls_word(const struct tcp_tls *t, unsigned char word[TLS_WORD_BYTES]);

/* Bytes of the peer's: where they go, and that they came. */
void *tcp_tls_space(struct tcp_tls *t, size_t *room);
void tcp_tls_filled(struct tcp_tls *t, size_t size);
/* Open what has come: bytes, fewer than `size` if that is all; -EAGAIN more must come; -EPROTO it
 * was changed on its way, or is nothing that a peer of ours sends. Any of `to` may be written to,
 * also by what turns out to be wrong, and is not to be looked at then. */
ssize_t tcp_tls_open(struct tcp_tls *t, void *to, size_t size);

/* Seal what there is room for, behind what was sealed and has not been sent: bytes, 0 none before
 * that is sent, -EPROTO. Where nothing waits to be sent, there is room for TLS_CHUNK. Each call
 * begins a record, and ends one: a receiver opens those straight to where it wants them that end
 * where it does. */
ssize_t tcp_tls_seal(struct tcp_tls *t, const void *from, size_t size);
/* What is to be sent, and that so much of it was. */
struct iovec tcp_tls_sealed(const struct tcp_tls *t);
void tcp_tls_sent(struct tcp_tls *t, size_t size);

#endif
