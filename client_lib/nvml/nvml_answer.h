/*
 * What the server says of its devices, and how its answer to "nvml" is read. Knows
 * nothing of NVML itself; the facts are those of proto/spec_nvml/facts.toml.
 */
#ifndef GPC_NVML_ANSWER_H
#define GPC_NVML_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpc_nvml_facts.h"

#define GPC_NVML_DEVICES 64    /* at most, in one pool */
#define GPC_NVML_PROCESSES 128 /* named for one device; the server names no more */
#define GPC_NVML_UNKNOWN UINT64_MAX

struct gpc_nvml_process {
    uint32_t pid;
    uint64_t memory; /* bytes, GPC_NVML_UNKNOWN if the card cannot say */
};

struct gpc_nvml_device {
#define FIELD(name, word, field, size) char field[size];
    GPC_NVML_TEXTS(FIELD)
#undef FIELD
    bool has[GP_NVML_FACT_COUNT];
    uint64_t fact[GP_NVML_FACT_COUNT];
    uint32_t server; /* whose it is, and that one's first device in the list of all */
    uint32_t first;
    uint32_t process_count;
    struct gpc_nvml_process process[GPC_NVML_PROCESSES];
};

/* All devices. Large: never on a stack. */
struct gpc_nvml_state {
    char driver_version[80]; /* these are empty or 0 if the server's NVML does not say */
    char nvml_version[80];
    uint32_t cuda_version;
    uint32_t count;
    struct gpc_nvml_device device[GPC_NVML_DEVICES];
};

/* One answer of several: what it says beside the state. */
struct gpc_nvml_page {
    uint32_t next;     /* the first device of the next page, 0 if there is none */
    char code[32];     /* of a refusal */
    char message[512]; /* of a refusal, or what is wrong with the answer */
};

/* Add an answer of `size` bytes to `state`. 0; 1 refused, -1 no answer to "nvml"; then
 * the page has the reason. */
int gpc_nvml_answer_read(const char *answer, size_t size, struct gpc_nvml_state *state,
                         struct gpc_nvml_page *page);

/* Whether every device was named, with all that a device must have. */
bool gpc_nvml_answer_complete(const struct gpc_nvml_state *state);

/* Take the facts that change from an answer that is newer; false: the device is gone. */
bool gpc_nvml_device_renew(struct gpc_nvml_device *d, const struct gpc_nvml_state *newer);

#endif
