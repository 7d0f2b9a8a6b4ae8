/* Names of the parser: one hash table, inner scopes in front of outer ones. */
#include "ptx_parse.h"

static uint32_t hash_name(const char *name, size_t size)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < size; i++)
        h = (h ^ (unsigned char)name[i]) * 16777619u;
    return h;
}

static struct sg_symbol *find_exact(struct sg_parser *p, const char *name, size_t size)
{
    uint32_t hash = hash_name(name, size);

    for (struct sg_symbol *s = p->buckets[hash % SG_BUCKETS]; s; s = s->next)
        if (s->hash == hash && s->size_of_name == size && !memcmp(s->name, name, size))
            return s;
    return NULL;
}

/* %r17 of a range %r<20>: the symbol of the range, made to look like one. */
static struct sg_symbol *find_in_range(struct sg_parser *p, const char *name, size_t size)
{
    size_t digits = 0;
    uint64_t number = 0;

    while (digits < size && digits < 8 && name[size - 1 - digits] >= '0' &&
           name[size - 1 - digits] <= '9') {
        digits++;
        struct sg_symbol *range = find_exact(p, name, size - digits);
        if (!range || range->kind != SG_N_REGISTERS)
            continue;
        if (digits > 1 && name[size - digits] == '0')
            continue;
        number = 0;
        for (size_t i = size - digits; i < size; i++)
            number = number * 10 + (uint64_t)(name[i] - '0');
        if (number < range->count)
            return range;
    }
    return NULL;
}

struct sg_symbol *sg_symbol_find(struct sg_parser *p, const char *name, size_t size)
{
    struct sg_symbol *s = find_exact(p, name, size);

    if (s && s->kind != SG_N_REGISTERS)
        return s;
    struct sg_symbol *range = find_in_range(p, name, size);
    if (!range)
        return NULL;
    /* Declared on first sight, so that the next look-up is direct; it dies with
     * the scope in which it was seen, which is never outside its range's. */
    const char *digits = name + range->size_of_name;
    uint32_t number = 0;
    for (size_t i = 0; i < size - range->size_of_name; i++)
        number = number * 10 + (uint32_t)(digits[i] - '0');
    struct sg_token token = {.kind = SG_K_NAME, .text = name, .size = size};
    s = sg_symbol_declare(p, &token, SG_N_REGISTER);
    s->type = range->type;
    s->slot = range->slot + number * range->step;
    return s;
}

struct sg_symbol *sg_symbol_declare(struct sg_parser *p, const struct sg_token *name,
                                    enum sg_symbol_kind kind)
{
    if (name->kind != SG_K_NAME)
        sg_fail(p, name->line, "expected a name");
    struct sg_symbol *s = sg_take_scratch(p, sizeof(*s));
    s->name = name->text;
    s->size_of_name = (uint32_t)name->size;
    s->hash = hash_name(name->text, name->size);
    s->bucket = s->hash % SG_BUCKETS;
    s->kind = kind;
    s->next = p->buckets[s->bucket];
    p->buckets[s->bucket] = s;
    s->previous = p->last;
    p->last = s;
    return s;
}

void sg_fixup_add(struct sg_parser *p, const char *name, size_t size, uint32_t line, uint32_t insn,
                  uint32_t *patch)
{
    p->fixups = sg_grow(p, p->fixups, p->fixup_count, &p->fixup_capacity, sizeof(*p->fixups));
    p->fixups[p->fixup_count++] = (struct sg_fixup){
        .name = name, .size = (uint32_t)size, .line = line, .insn = insn, .patch = patch};
}

/* Labels of this scope answer the branches inside it; the rest is left to the
 * scope around, and is an error in the outermost one. */
static void solve_fixups(struct sg_parser *p, uint32_t first, bool outermost)
{
    uint32_t kept = first;

    for (uint32_t i = first; i < p->fixup_count; i++) {
        struct sg_fixup *f = &p->fixups[i];
        struct sg_symbol *label = find_exact(p, f->name, f->size);
        if (label && label->kind == SG_N_LABEL) {
            if (f->patch)
                *f->patch = label->slot;
            else
                p->module->code[f->insn].target = label->slot;
        } else if (label && label->kind == SG_N_TARGETS && !f->patch) {
            p->module->code[f->insn].targets = label->targets;
        } else if (outermost) {
            sg_fail(p, f->line, "label '%.*s' is not defined", (int)(f->size < 200 ? f->size : 200),
                    f->name);
        } else {
            p->fixups[kept++] = *f;
        }
    }
    p->fixup_count = kept;
}

void sg_scope_close(struct sg_parser *p, struct sg_symbol *mark, uint32_t first_fixup,
                    bool outermost)
{
    solve_fixups(p, first_fixup, outermost);
    while (p->last != mark) {
        struct sg_symbol *s = p->last;
        p->buckets[s->bucket] = s->next;
        p->last = s->previous;
    }
}

/* clang-format off */
static const struct { const char *name; int special; } specials[] = {
    {"%tid.x", SG_X_TID_X}, {"%tid.y", SG_X_TID_Y}, {"%tid.z", SG_X_TID_Z},
    {"%ntid.x", SG_X_NTID_X}, {"%ntid.y", SG_X_NTID_Y}, {"%ntid.z", SG_X_NTID_Z},
    {"%ctaid.x", SG_X_CTAID_X}, {"%ctaid.y", SG_X_CTAID_Y}, {"%ctaid.z", SG_X_CTAID_Z},
    {"%nctaid.x", SG_X_NCTAID_X}, {"%nctaid.y", SG_X_NCTAID_Y}, {"%nctaid.z", SG_X_NCTAID_Z},
    {"%laneid", SG_X_LANEID}, {"%warpid", SG_X_WARPID}, {"%nwarpid", SG_X_NWARPID},
    {"%smid", SG_X_SMID}, {"%nsmid", SG_X_NSMID}, {"%gridid", SG_X_GRIDID},
    {"%lanemask_eq", SG_X_LANEMASK_EQ}, {"%lanemask_le", SG_X_LANEMASK_LE},
    {"%lanemask_lt", SG_X_LANEMASK_LT}, {"%lanemask_ge", SG_X_LANEMASK_GE},
    {"%lanemask_gt", SG_X_LANEMASK_GT}, {"%clock", SG_X_CLOCK}, {"%clock_hi", SG_X_CLOCK_HI},
    {"%clock64", SG_X_CLOCK64}, {"%globaltimer", SG_X_GLOBALTIMER},
    {"%globaltimer_lo", SG_X_GLOBALTIMER_LO}, {"%globaltimer_hi", SG_X_GLOBALTIMER_HI},
    {"%dynamic_smem_size", SG_X_DYNAMIC_SMEM}, {"%total_smem_size", SG_X_TOTAL_SMEM},
    {"%aggr_smem_size", SG_X_TOTAL_SMEM}, {"%reserved_smem_offset_1", SG_X_RESERVED_SMEM},
    {"%clusterid.x", SG_X_CLUSTERID_X}, {"%clusterid.y", SG_X_CLUSTERID_Y},
    {"%clusterid.z", SG_X_CLUSTERID_Z}, {"%nclusterid.x", SG_X_NCLUSTERID_X},
    {"%nclusterid.y", SG_X_NCLUSTERID_Y}, {"%nclusterid.z", SG_X_NCLUSTERID_Z},
    {"%cluster_ctaid.x", SG_X_CLUSTER_CTAID_X}, {"%cluster_ctaid.y", SG_X_CLUSTER_CTAID_Y},
    {"%cluster_ctaid.z", SG_X_CLUSTER_CTAID_Z}, {"%cluster_nctaid.x", SG_X_CLUSTER_NCTAID_X},
    {"%cluster_nctaid.y", SG_X_CLUSTER_NCTAID_Y}, {"%cluster_nctaid.z", SG_X_CLUSTER_NCTAID_Z},
    {"%cluster_ctarank", SG_X_CLUSTER_CTARANK}, {"%cluster_nctarank", SG_X_CLUSTER_NCTARANK},
    {"%is_explicit_cluster", SG_X_IS_EXPLICIT_CLUSTER},
    {"%envreg1", SG_X_ENVREG1}, {"%envreg2", SG_X_ENVREG2},
    {"%current_graph_exec", SG_X_ZERO}, /* no kernel launches graphs here */
    {"%reserved_smem_offset_begin", SG_X_ZERO}, {"%reserved_smem_offset_end", SG_X_ZERO},
};
/* clang-format on */

int sg_special_find(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof(specials) / sizeof(specials[0]); i++)
        if (strlen(specials[i].name) == size && !memcmp(specials[i].name, name, size))
            return specials[i].special;
    if (size > 7 && !memcmp(name, "%envreg", 7))
        return SG_X_ZERO;
    if (size > 3 && !memcmp(name, "%pm", 3))
        return SG_X_ZERO;
    return -1;
}
