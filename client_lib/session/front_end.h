/*
 * The question a client asks gpupool-server before it has a worker, and the
 * answer: lines of text (proto/wire-format.md, "The front end").
 */
#ifndef GPC_FRONT_END_H
#define GPC_FRONT_END_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpc_admission {
    char session[64];
    uint8_t secret[16];
    char shm[256]; /* addresses to connect to, empty if not offered */
    char tcp[256];
    char zmq[256];
    char ucx[256];
    char boot_id[64]; /* of the server's machine */
    bool simulated;   /* its GPUs are soft ones that nobody asked for */
    bool visible;     /* its devices are those that are visible, in their order */
    char note[320];   /* for the user: what was asked for and changes nothing; mostly empty */
};

/* How this client may reach its worker, and of how many servers it asks for sessions: workers of
 * several speak to each other. */
struct gpc_reach {
    bool shm, tcp, zmq, ucx;
    unsigned servers;
    const char *visible; /* the indices of CUDA_VISIBLE_DEVICES, for one server; NULL: none */
};

/* Ask `server` for a session. On failure a CUDA error, and `why` (a line). */
CUresult gpc_front_end_ask(const char *server, const char *token, const struct gpc_reach *reach,
                           const char *plugin_dir, struct gpc_admission *out, char *why,
                           size_t why_size);

/* Read an answer of `size` bytes; -1 and `why` when it is no answer to a hello.
 * On a refusal 1, with `code` and `why` as the server put them. */
int gpc_front_end_parse(const char *answer, size_t size, struct gpc_admission *out, char code[32],
                        char *why, size_t why_size);

#endif
