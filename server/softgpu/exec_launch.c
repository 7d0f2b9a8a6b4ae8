/* A launch: what CUDA refuses, parameters, the threads that run it. */
#include "exec_grid.h"
#include "monotonic.h"

#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 1024u
#define MAX_CLUSTER 16u

static CUresult refuse(struct sg_run *run, const char *why)
{
    const struct sg_grid *grid = run->grid;
    if (grid->fault && grid->fault_size)
        snprintf(grid->fault, grid->fault_size, "%s: %s",
                 run->function ? run->function->info.name : "launch", why);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_cluster(struct sg_run *run)
{
    const struct sg_launch *l = run->launch;
    run->cluster_size = 1;
    for (unsigned i = 0; i < 3; i++) {
        uint32_t c = l->cluster[i] ? l->cluster[i] : 1;
        if (c > MAX_CLUSTER || l->grid[i] % c)
            return refuse(run, "the grid is no multiple of the cluster, or the cluster too large");
        run->cluster_dim[i] = c;
        run->cluster_size *= c;
    }
    if (run->cluster_size > MAX_CLUSTER)
        return refuse(run, "a cluster has more than 16 blocks");
    return CUDA_SUCCESS;
}

static CUresult check_shape(struct sg_run *run)
{
    const struct sg_launch *l = run->launch;
    const struct sg_function_info *info = &run->function->info;
    uint64_t threads = (uint64_t)l->block[0] * l->block[1];
    if (!run->function->entry || !run->function->defined || !run->module->placed)
        return refuse(run, "not an entry of a placed module");
    if (!l->grid[0] || !l->grid[1] || !l->grid[2] || !l->block[2] || !threads)
        return refuse(run, "a dimension of the grid or the block is 0");
    if (l->grid[0] > INT32_MAX || l->grid[1] > 65535 || l->grid[2] > 65535)
        return refuse(run, "the grid is too large");
    if (threads > MAX_THREADS || l->block[2] > MAX_THREADS || threads * l->block[2] > MAX_THREADS)
        return refuse(run, "the block has more than 1024 threads");
    if (info->parameter_bytes && !l->parameters)
        return refuse(run, "the parameters are missing");
    run->threads = (uint32_t)threads * l->block[2];
    run->warps = (run->threads + SG_LANES - 1) / SG_LANES;
    uint64_t shared = (uint64_t)info->static_shared_bytes + l->dynamic_shared_bytes;
    if (shared > SG_MAX_SHARED)
        return refuse(run, "more shared memory than a block may have");
    run->shared_reserved = ((uint32_t)shared + 15) / 16 * 16;
    run->shared_bytes = run->module->reserves_shared ? run->shared_reserved + SG_SHARED_RESERVED
                                                     : (uint32_t)shared;
    return check_cluster(run);
}

static bool copy_parameters(struct sg_run *run)
{
    uint32_t n = run->function->info.parameter_bytes;
    run->parameters = aligned_alloc(64, ((size_t)n / 64 + 1) * 64);
    if (!run->parameters)
        return false;
    if (n)
        memcpy(run->parameters, run->launch->parameters, n);
    return true;
}

/* The thread that launches leads the others. */
static CUresult run_grid(struct sg_run *run)
{
    struct sg_grid *grid = run->grid;
    const struct sg_run plan = *run;
    const struct sg_launch *l = run->launch;
    const uint32_t *c = run->cluster_dim;
    grid->start = gp_now_ns();
    grid->total = (uint64_t)(l->grid[0] / c[0]) * (l->grid[1] / c[1]) * (l->grid[2] / c[2]);
    grid->plan = &plan;
    if (sg_grid_open(grid) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    run->leads = true;
    sg_grid_join(run);
    if (l->cooperative && grid->total > 1)
        sg_crew_call(grid);
    sg_grid_run(run);
    sg_crew_dismiss(run);
    sg_grid_leave(run);
    sg_grid_close(grid);
    if (l->instructions)
        *l->instructions += grid->instructions;
    return (CUresult)grid->result;
}

CUresult sg_launch_check(const struct sg_launch *launch)
{
    struct sg_grid grid = {.launch = launch};
    struct sg_run run = {.launch = launch, .grid = &grid, .function = launch->function};
    run.module = run.function->module;
    return check_shape(&run);
}

static CUresult run_one(struct sg_grid *grid)
{
    static uint64_t grids;
    const struct sg_launch *launch = grid->launch;
    struct sg_run run = {.launch = launch, .grid = grid, .oldest = SG_NO_CLUSTER};
    if (!launch || !launch->function)
        return refuse(&run, "no function");
    run.function = launch->function;
    run.module = run.function->module;
    CUresult result = check_shape(&run);
    if (result != CUDA_SUCCESS)
        return result;
    grid->workspace[0] = sizeof(grid->workspace);
    run.grid_id = __atomic_add_fetch(&grids, 1, __ATOMIC_RELAXED);
    if (!copy_parameters(&run)) {
        refuse(&run, "no memory for the parameters");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = run_grid(&run);
    free(run.parameters);
    return result;
}

/* Between two grids: each may be too short to ask by itself. */
static CUresult breathe(const struct sg_launch *launch)
{
    if (launch->breathe && (!launch->due || launch->due(launch->breathe_context)))
        launch->breathe(launch->breathe_context);
    return launch->cancel && *launch->cancel ? CUDA_ERROR_LAUNCH_TIMEOUT : CUDA_SUCCESS;
}

/* And what its kernels launch, until nothing waits any more. */
CUresult sg_launch_run(const struct sg_launch *launch, char *fault, size_t fault_size)
{
    struct sg_child *waiting = NULL, *child = NULL;
    struct sg_family family = {0};
    CUresult result;
    if (fault && fault_size)
        fault[0] = 0;
    do {
        struct sg_grid grid = {.launch = child ? sg_child_launch(child) : launch,
                               .fault = fault,
                               .fault_size = fault_size,
                               .family = &family};
        result = run_one(&grid);
        if (child)
            sg_child_done(&grid, child);
        sg_children_queue(&grid, &waiting);
        if (result == CUDA_SUCCESS && waiting)
            result = breathe(launch);
        child = result == CUDA_SUCCESS ? sg_child_take(&waiting) : NULL;
    } while (child);
    sg_children_drop(waiting);
    return result;
}
