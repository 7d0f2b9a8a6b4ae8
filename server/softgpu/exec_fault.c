/* The one line that says why a launch ended. */
#include "exec_grid.h"

#include <stdarg.h>

enum sg_step sg_fault(struct sg_warp *w, const struct sg_insn *in, unsigned lane, CUresult result,
                      const char *format, ...)
{
    const struct sg_run *run = w->block->run;
    const struct sg_grid *grid = run->grid;
    if (!sg_grid_fail(run->grid, result) || !grid->fault || !grid->fault_size)
        return SG_FAULT;
    char what[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    const uint32_t *n = run->launch->block, *b = w->block->id;
    uint32_t t = w->index * SG_LANES + lane;
    char line[32] = "";
    if (in)
        snprintf(line, sizeof(line), ", PTX line %u", in->line);
    snprintf(grid->fault, grid->fault_size, "%s: block (%u,%u,%u), thread (%u,%u,%u)%s: %s",
             run->function->info.name, b[0], b[1], b[2], t % n[0], t / n[0] % n[1], t / n[0] / n[1],
             line, what);
    return SG_FAULT;
}
