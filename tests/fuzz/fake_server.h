/*
 * Servers and workers as a client has them, whose every word is drawn from an input: the front
 * end's answer, the greeting's, all others, and what comes unasked. They speak over the transport
 * that is in one process, and act when a message comes or when the client would block: then
 * they say what they have kept back, and in the end hang up. A byte of 0, and what comes when the
 * bytes have ended, is what an honest worker says.
 */
#ifndef FUZZ_FAKE_SERVER_H
#define FUZZ_FAKE_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_SERVERS 2u
/* GPUPOOL_SERVER for one of them, and for both. */
#define FAKE_SERVER "unix:///fuzz0"
#define FAKE_SERVER_BOTH "unix:///fuzz0,unix:///fuzz1"

/* Before the client is; `shares`: it can map memory with them. */
void fake_servers_open(bool shares);
/* From now on they draw from these bytes. The calling thread is about to make a call of CUDA's,
 * until fake_servers_rest. */
void fake_servers_act(const uint8_t *data, size_t size);
void fake_servers_rest(void);
/* One of them has hung up. */
bool fake_servers_gone(void);

#endif
