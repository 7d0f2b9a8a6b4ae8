/*
 * Pinned memory of a client over a network that kernels reach: memory of this process's own at the
 * client's address. The client sends what its host has written, and asks for what is there, also
 * while kernels use it; both are done at once, whatever the GPU does.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "budget.h"
#include "gpw_handlers.h"
#include "look.h"
#include "memory_internal.h"

static void budgets_give(struct gpw_session *s, uint64_t bytes)
{
    gpw_budget_give(s, GPW_USE_PINNED, bytes);
    gpw_budget_give(s, GPW_USE_SHARES, 1);
}

static CUresult budgets_take(struct gpw_session *s, uint64_t bytes)
{
    if (!gpw_budget_take(s, GPW_USE_SHARES, 1))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (gpw_budget_take(s, GPW_USE_PINNED, bytes))
        return CUDA_SUCCESS;
    gpw_budget_give(s, GPW_USE_SHARES, 1);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Never over what this process has. NULL: something is there. */
static void *map_at(uint64_t address, uint64_t bytes)
{
    void *at = (void *)(uintptr_t)address;
    void *got = mmap(at, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != MAP_FAILED && got != at) { /* a kernel before 4.17 takes it for a hint */
        munmap(got, bytes);
        got = MAP_FAILED;
    }
    return got == MAP_FAILED ? NULL : got;
}

/* Whole pages, where no device has its window. */
static bool place_right(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    bool right = address && bytes && address % page == 0 && bytes % page == 0 &&
                 address < GP_WINDOW_END && bytes <= GP_WINDOW_END - address;
    for (uint32_t i = 0; right && i < s->device_count; i++) {
        uint64_t begin, end;
        gpw_memory_window(s, i, &begin, &end);
        right = address >= end || address + bytes <= begin;
    }
    return right;
}

void gpw_mapped_give(struct gpw_session *s, struct gpw_pinned *p)
{
    munmap(p->share.addr, p->share.size);
    budgets_give(s, p->share.size);
}

CUresult gpw_gp_mapped_open(struct gpw_session *s, uint64_t address, uint64_t bytes)
{
    if (!place_right(s, address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = budgets_take(s, bytes);
    if (r != CUDA_SUCCESS)
        return r;
    struct gpw_pinned *p = calloc(1, sizeof *p);
    void *at = p ? map_at(address, bytes) : NULL;
    if (!at) {
        budgets_give(s, bytes);
        r = p ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OUT_OF_MEMORY;
        free(p);
        return r;
    }
    *p = (struct gpw_pinned){.address = address, .own = true, .share = {.addr = at, .size = bytes}};
    r = gpw_pinned_register(s, p);
    if (r == CUDA_SUCCESS && p->device_address != address) {
        gpw_gp_pinned_close(s, address); /* a system without one address for both */
        r = CUDA_ERROR_NOT_SUPPORTED;
    }
    return r;
}

/* By whole words, because a kernel may be waiting for one of them. */
static void put(char *to, const char *from, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes;) {
        uint64_t both;
        uint32_t one;
        if (((uintptr_t)(to + at) & 7) == 0 && bytes - at >= sizeof both) {
            memcpy(&both, from + at, sizeof both);
            __atomic_store_n((uint64_t *)(void *)(to + at), both, __ATOMIC_RELEASE);
            at += sizeof both;
        } else {
            memcpy(&one, from + at, sizeof one);
            __atomic_store_n((uint32_t *)(void *)(to + at), one, __ATOMIC_RELEASE);
            at += sizeof one;
        }
    }
}

CUresult gpw_gp_mapped_write(struct gpw_session *s, uint32_t count, const uint64_t *addresses,
                             const uint32_t *sizes, uint32_t bytes, const void *data)
{
    const char *from = data;
    for (uint32_t i = 0; i < count; i++) {
        char *to = gpw_pinned_find(s, addresses[i], sizes[i]);
        if (!to || (addresses[i] | sizes[i]) % sizeof(uint32_t) || sizes[i] > bytes)
            return CUDA_ERROR_INVALID_VALUE;
        put(to, from, sizes[i]);
        from += sizes[i];
        bytes -= sizes[i];
    }
    return bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpw_gp_mapped_read(struct gpw_session *s, uint64_t address, uint32_t bytes, void *data,
                            uint32_t *n_data)
{
    const void *from = gpw_pinned_find(s, address, bytes);
    if (!from || bytes > *n_data)
        return CUDA_ERROR_INVALID_VALUE;
    *n_data = bytes;
    const struct gp_look l = {.count = 1, .at = {from}, .sizes = {bytes}};
    if ((address | bytes) % GP_LOOK_STEP == 0)
        gp_look_take(&l, data);
    else
        memcpy(data, from, bytes);
    return CUDA_SUCCESS;
}

/* --- blocks that a host looks at again and again ------------------------------------------------ */

static bool look_make(struct gpw_session *s, struct gp_look *l, const uint64_t *addresses,
                      const uint32_t *sizes, uint32_t bytes)
{
    if (l->count > GP_LOOK_MOST)
        return false;
    for (uint32_t i = 0; i < l->count; i++) {
        l->at[i] = gpw_pinned_find(s, addresses[i], sizes[i]);
        l->sizes[i] = sizes[i];
        if (!l->at[i] || (addresses[i] | sizes[i]) % GP_LOOK_STEP || sizes[i] > bytes)
            return false;
        bytes -= sizes[i];
    }
    return bytes == 0;
}

CUresult gpw_gp_mapped_look(struct gpw_session *s, uint32_t count, const uint64_t *addresses,
                            const uint32_t *sizes, const uint64_t *digests, uint32_t bytes,
                            uint64_t *changed, void *data, uint32_t *n_data)
{
    struct gp_look l = {.count = count};
    char *from = data, *to = data;
    if (bytes > *n_data || !look_make(s, &l, addresses, sizes, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    *changed = gp_look_take(&l, data) ? 0 : GP_LOOK_MOVES;
    for (uint32_t i = 0; i < count; from += sizes[i++]) {
        if (gp_look_digest(from, sizes[i]) == digests[i])
            continue;
        *changed |= UINT64_C(1) << i;
        memmove(to, from, sizes[i]);
        to += sizes[i];
    }
    *n_data = (uint32_t)(to - (char *)data);
    return CUDA_SUCCESS;
}
