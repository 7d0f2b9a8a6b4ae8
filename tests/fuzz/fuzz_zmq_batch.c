/* The bytes of one ZeroMQ message from a hostile peer, walked to the end. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/batch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Where every byte goes, so that reading it is not optimised away. */
static volatile unsigned char sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char *bytes = malloc(size ? size : 1); /* aligned, and its end is guarded */
    if (!bytes)
        return 0;
    if (size)
        memcpy(bytes, data, size);
    struct gp_batch_reader r = {.bytes = bytes, .size = size};
    const void *message;
    size_t length, before = 0;
    int rc;
    while ((rc = gp_batch_next(&r, &message, &length)) == 0) {
        if (length < sizeof(struct gp_header) || length > GP_MESSAGE_MAX || r.at <= before)
            abort();
        if ((uintptr_t)message % 8 != 0)
            abort();
        for (size_t i = 0; i < length; i++)
            sink = ((const unsigned char *)message)[i];
        before = r.at;
    }
    if ((rc != -EAGAIN && rc != -EPROTO) || r.at > r.size || (rc == -EAGAIN && size == 0))
        abort();
    free(bytes);
    return 0;
}
