/* The soft GPU's parser over hostile text. */
#include "ptx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_module *module = NULL;
    char log[256];
    if (size > 1u << 16)
        return 0;
    if (sg_module_parse((const char *)data, size, &module, log, sizeof log) == CUDA_SUCCESS)
        sg_module_free(module);
    return 0;
}
