/* The compile cache behind table da9151d3: what its three files share. */
#ifndef GPC_PRIVATE_COMPILE_H
#define GPC_PRIVATE_COMPILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "private_tables.h"

#define GPC_COMPILE_KEY 32 /* bytes: a SHA-256 */

/* --- what is kept in memory (private_compile_memory.c) --- */

/* A copy that free() takes, NULL on a miss. */
void *gpc_compile_memory_get(const unsigned char key[GPC_COMPILE_KEY], size_t *size);
/* Keep a copy, within `limit` bytes for all of them. */
void gpc_compile_memory_put(const unsigned char key[GPC_COMPILE_KEY], const void *data, size_t size,
                            uint64_t limit);

/* --- what is kept in files (private_compile_files.c) --- */

/* A file's first bytes; what was compiled follows. In the machine's own byte order: a file
 * of another kind of machine is no file of ours. */
struct gpc_compile_header {
    char magic[8];
    uint32_t version;
    uint32_t header_size;
    uint64_t size; /* of what follows */
    unsigned char key[GPC_COMPILE_KEY];
    unsigned char hash[32]; /* SHA-256 of what follows */
};

/* Whether the bytes are a whole, undamaged file for this key. */
bool gpc_compile_file_sound(const void *bytes, size_t size,
                            const unsigned char key[GPC_COMPILE_KEY]);
/* The file of this key in `folder`; a copy that free() takes, NULL when there is none that is
 * sound and ours alone. `most`: the bytes that a file may have. */
void *gpc_compile_file_get(const char *folder, const unsigned char key[GPC_COMPILE_KEY],
                           uint64_t most, size_t *size);
/* Write it, and keep the folder's files within `limit` bytes. False: it could not be kept. */
bool gpc_compile_file_put(const char *folder, const unsigned char key[GPC_COMPILE_KEY],
                          const void *data, size_t size, uint64_t limit);
/* Remove the files unused for longest, and what broken-off writes have left. */
void gpc_compile_folder_trim(const char *folder, uint64_t limit);
/* Make the folder, if need be: 0, or an errno; EPERM where what is there is not a folder of
 * this user's alone. */
int gpc_compile_folder_make(const char *folder);

/* --- the table's slots (private_compile.c) --- */

struct gpc_compile_entry;
CUresult gpc_compile_open(struct gpc_compile_entry **entry, int kind, const void *input,
                          size_t input_size, const char *options, const char *tag,
                          const char *build, int arch, int zero);
CUresult gpc_compile_close(struct gpc_compile_entry *entry, int zero);
CUresult gpc_compile_get(struct gpc_compile_entry *entry, int zero, void **data, uint32_t *size);
CUresult gpc_compile_put(struct gpc_compile_entry *entry, int zero, const void *data, size_t size);
CUresult gpc_compile_free(void *data);

#endif
