/*
 * Where the variables of each thread lie. With glibc in the block that the thread has from its
 * start, which has room for a few words of a library that is opened late: no call, no allocation.
 * musl keeps no such room, but makes them for all threads when the library is opened: there, too,
 * a handler of a signal may use them.
 */
#ifndef GPC_THREAD_LOCAL_H
#define GPC_THREAD_LOCAL_H

#include <features.h>

#ifdef __GLIBC__
#define GPC_TLS_MODEL tls_model("initial-exec")
#else
#define GPC_TLS_MODEL tls_model("global-dynamic")
#endif

#endif
