/* The last nodes of a capture: of a stream, and of an event that was recorded in it. */
#include "softgpu.h"

void sg_tips_clear(struct sg_tips *tips)
{
    free(tips->nodes);
    free(tips->data);
    *tips = (struct sg_tips){NULL, NULL, 0};
}

CUresult sg_tips_add(struct sg_tips *tips, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                     size_t count)
{
    size_t room = tips->count + count + 1;
    CUgraphNode *all = realloc(tips->nodes, room * sizeof(*all));
    if (all)
        tips->nodes = all;
    CUgraphEdgeData *kinds = all ? realloc(tips->data, room * sizeof(*kinds)) : NULL;
    if (!kinds)
        return CUDA_ERROR_OUT_OF_MEMORY;
    tips->data = kinds;
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        while (k < tips->count && all[k] != nodes[i])
            k++;
        if (k < tips->count)
            continue;
        all[k] = nodes[i];
        kinds[k] = data ? data[i] : (CUgraphEdgeData){0};
        tips->count++;
    }
    return CUDA_SUCCESS;
}

CUresult sg_tips_set(struct sg_tips *tips, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                     size_t count)
{
    struct sg_tips now = {NULL, NULL, 0};
    CUresult result = sg_tips_add(&now, nodes, data, count);
    if (result != CUDA_SUCCESS) {
        sg_tips_clear(&now);
        return result;
    }
    sg_tips_clear(tips);
    *tips = now;
    return CUDA_SUCCESS;
}
