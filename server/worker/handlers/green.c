/*
 * Green contexts, and the resources that they are made of. A resource is bytes of the driver's
 * that it believes when they come back. So the client has a name in their place, and its own
 * copies of the numbers beside, which nobody reads here.
 */
#include "green.h"

#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "gpw_handlers.h"

struct gpw_resource {
    struct gpw_resource *next;
    uint64_t name;
    CUdevResource real;
};

/* --- resources ---------------------------------------------------------------------------- */

static struct gpw_resource *resource_new(struct gpw_session *s, const CUdevResource *real)
{
    struct gpw_resource *r = NULL;
    if (gpw_budget_take(s, GPW_USE_OBJECTS, sizeof *r) && !(r = malloc(sizeof *r)))
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *r);
    if (!r)
        return NULL;
    *r = (struct gpw_resource){
        .next = s->resources, .name = s->resources ? s->resources->name + 1 : 1, .real = *real};
    s->resources = r;
    return r;
}

/* The name goes where the driver's bytes are. The same bytes have one name, so asking again and
 * again makes nothing grow. Nothing is left where the driver left nothing. */
static CUresult resource_hide(struct gpw_session *s, CUdevResource *resource)
{
    const struct gpw_resource *r = s->resources;
    while (r && memcmp(&r->real, resource, sizeof *resource) != 0)
        r = r->next;
    bool is_one = resource->type != CU_DEV_RESOURCE_TYPE_INVALID;
    if (is_one && !r && !(r = resource_new(s, resource)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(resource->_internal_padding, 0, sizeof resource->_internal_padding);
    if (is_one)
        memcpy(resource->_internal_padding, &r->name, sizeof r->name);
    return CUDA_SUCCESS;
}

/* What the driver gave under the name. */
static CUresult resource_find(struct gpw_session *s, const CUdevResource *named,
                              CUdevResource *real)
{
    uint64_t name;
    memcpy(&name, named->_internal_padding, sizeof name);
    for (const struct gpw_resource *r = s->resources; r; r = r->next)
        if (r->name == name) {
            *real = r->real;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_RESOURCE_TYPE;
}

CUresult gpw_resource_of(struct gpw_session *s, CUdevResource *resource, CUdevResourceType type,
                         CUcontext context, CUdevice device)
{
    CUresult r = context ? s->driver->cuCtxGetDevResource(context, resource, type)
                         : s->driver->cuDeviceGetDevResource(device, resource, type);
    return r ? r : resource_hide(s, resource);
}

CUresult gpw_gp_resource_split(struct gpw_session *s, const CUdevResource *input, uint32_t room,
                               uint32_t flags, uint32_t least, uint32_t *count,
                               CUdevResource *remaining, CUdevResource *groups, uint32_t *n_groups)
{
    CUdevResource real;
    unsigned made = room;
    *n_groups = 0;
    if (room > GP_RESOURCES_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = resource_find(s, input, &real);
    if (r == CUDA_SUCCESS)
        r = s->driver->cuDevSmResourceSplitByCount(room ? groups : NULL, &made, &real,
                                                   room ? remaining : NULL, flags, least);
    if (r != CUDA_SUCCESS)
        return r;
    *count = made;
    for (unsigned i = 0; i < made && i < room && r == CUDA_SUCCESS;
         i++, *n_groups += sizeof *groups)
        r = resource_hide(s, &groups[i]);
    return r ? r : resource_hide(s, remaining);
}

CUresult gpw_cuDevResourceGenerateDesc(struct gpw_session *s, CUdevResourceDesc *phDesc,
                                       CUdevResource *resources, unsigned int nbResources)
{
    CUdevResource real[GP_RESOURCES_MAX];
    if (nbResources == 0 || nbResources > GP_RESOURCES_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < nbResources && r == CUDA_SUCCESS; i++)
        r = resource_find(s, &resources[i], &real[i]);
    return r ? r : s->driver->cuDevResourceGenerateDesc(phDesc, real, nbResources);
}

/* --- contexts ----------------------------------------------------------------------------- */

static struct gpw_green **find(struct gpw_session *s, CUcontext context)
{
    struct gpw_green **at = &s->greens;
    while (*at && (*at)->context != context)
        at = &(*at)->next;
    return at;
}

bool gpw_green_ending(struct gpw_session *s, CUcontext context)
{
    struct gpw_green *g = *find(s, context);
    if (g)
        g->ending = true;
    return g != NULL;
}

static void drop(struct gpw_session *s, struct gpw_green **at)
{
    struct gpw_green *g = *at;
    *at = g->next;
    s->driver->cuGreenCtxDestroy(g->green);
    free(g);
    gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *g);
}

bool gpw_green_destroy(struct gpw_session *s, CUcontext context)
{
    struct gpw_green **at = find(s, context);
    bool found = *at != NULL;
    if (found)
        drop(s, at);
    return found;
}

bool gpw_green_is_of(const struct gpw_session *s, CUcontext primary)
{
    const struct gpw_green *g = s->greens;
    while (g && (g->primary != primary || g->ending))
        g = g->next;
    return g != NULL;
}

static CUresult make(struct gpw_session *s, struct gpw_green *g, CUdevResourceDesc desc,
                     CUdevice device, uint32_t flags)
{
    CUresult r = s->driver->cuGreenCtxCreate(&g->green, desc, device, flags);
    if (r != CUDA_SUCCESS)
        return r;
    r = s->driver->cuCtxFromGreenCtx(&g->context, g->green);
    if (r != CUDA_SUCCESS)
        s->driver->cuGreenCtxDestroy(g->green);
    return r;
}

CUresult gpw_green_make(struct gpw_session *s, CUcontext *ctx, CUdevResourceDesc desc,
                        uint32_t ordinal, uint32_t flags)
{
    struct gpw_green *g = NULL;
    if (!s->primary[ordinal]) { /* the client retains it before */
        gpw_session_broken(s, "a green context of a primary context that is not retained");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (gpw_budget_take(s, GPW_USE_OBJECTS, sizeof *g) && !(g = calloc(1, sizeof *g)))
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *g);
    if (!g)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = make(s, g, desc, s->devices[ordinal], flags);
    if (r != CUDA_SUCCESS) {
        free(g);
        gpw_budget_give(s, GPW_USE_OBJECTS, sizeof *g);
        return r;
    }
    g->primary = s->primary[ordinal];
    g->next = s->greens;
    s->greens = g;
    *ctx = g->context;
    return CUDA_SUCCESS;
}
