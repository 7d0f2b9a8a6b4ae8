/* Images as they arrive, until they are loaded. */
#ifndef GPW_MODULE_H
#define GPW_MODULE_H

#include "session.h"

/* 0 or -1. */
int gpw_modules_open(struct gpw_session *s);
void gpw_modules_close(struct gpw_session *s);
/* Whether some kernel was launched that may print, or is in a graph: one of an image that may, or of one
 * that is not known. Nobody asks where no memory is shared. */
bool gpw_modules_print(const struct gpw_session *s);
bool gpw_function_prints(struct gpw_session *s, CUfunction function);
void gpw_modules_launched(struct gpw_session *s, bool prints);

struct gpw_image {
    struct gpw_image *next;
    uint8_t hash[32];
    uint64_t total, received;
    unsigned char *bytes; /* a NUL is behind them; with `stored` they may not be writable */
    bool mapped;          /* they are a file's, else in the heap */
    int file;             /* that is to be handed on with them, -1: none */
    bool stored;          /* not the client's word, but the store's (image_store.h) */
    uint32_t fatbins;     /* what is linked and what is to be; known when it is taken */
};

/* An image that has come whole, or NULL with `state` or an error. With `sound` it must be what a
 * driver can load by its address alone. */
const struct gpw_image *gpw_image_take(struct gpw_session *s, const uint8_t *hash, bool sound,
                                       uint32_t *state, CUresult *r);
void gpw_image_drop(struct gpw_session *s, const uint8_t *hash);

/* Load an image that has come; one of `module` and `library` is NULL. */
CUresult gpw_image_load(struct gpw_session *s, CUmodule *module, CUlibrary *library,
                        const uint8_t *hash, uint32_t option_count, const uint64_t *options,
                        uint32_t library_option_count, const uint64_t *library_options,
                        uint32_t info_size, uint32_t error_size, uint32_t *state,
                        int32_t *load_result, float *wall_time, char *info_log,
                        uint32_t *n_info_log, char *error_log, uint32_t *n_error_log);

#endif
