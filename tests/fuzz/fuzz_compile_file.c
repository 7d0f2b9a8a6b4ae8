/*
 * Hostile files in the compile cache: what is found sound has a whole header, the key that was
 * asked for, and as many bytes as it says. Half of the inputs get the right key and hash, so
 * that the rest is reached.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "private_compile.h"
#include "sha256.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned char key[GPC_COMPILE_KEY] = {1, 2, 3};
    struct gpc_compile_header h;
    if (size == 0)
        return 0;
    uint8_t *file = malloc(size); /* of the size itself: one byte beyond is an error */
    memcpy(file, data, size);
    if (size > sizeof h && (data[size - 1] & 1)) {
        memcpy(&h, file, sizeof h);
        memcpy(h.key, key, sizeof h.key);
        gp_sha256(file + sizeof h, size - sizeof h, h.hash);
        memcpy(file, &h, sizeof h);
    }
    if (gpc_compile_file_sound(file, size, key)) {
        memcpy(&h, file, sizeof h);
        if (h.size != size - sizeof h || memcmp(h.key, key, sizeof key) != 0)
            abort();
    }
    free(file);
    return 0;
}
