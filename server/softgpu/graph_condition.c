/*
 * Conditional nodes: a handle names a value that kernels set, and its node runs one of its bodies
 * by that, or one again and again. A body is a graph that its node owns.
 */
#include "softgpu.h"

#define DEPTH_MOST 64u
#define BODIES_MOST 1024u

struct sg_condition {
    struct sg_condition *next;
    uint64_t id;
    int refs;      /* its graph, and operations */
    CUgraph graph; /* NULL: gone */
    uint32_t value, initial;
    bool assigns; /* each launch begins with the initial value */
    bool used;    /* a node has it */
};

static struct sg_condition *conditions;                      /* under sg.lock and this */
static pthread_mutex_t set_lock = PTHREAD_MUTEX_INITIALIZER; /* for kernels, which have no other */

/* ---- handles ---- */
static void unref(struct sg_condition *c)
{
    struct sg_condition **link = &conditions;
    if (--c->refs)
        return;
    pthread_mutex_lock(&set_lock);
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    pthread_mutex_unlock(&set_lock);
    free(c);
}

static struct sg_condition *find(uint64_t id)
{
    struct sg_condition *c = conditions;
    while (c && c->id != id)
        c = c->next;
    return c;
}

void sg_condition_set(void *context, uint64_t id, uint32_t value)
{
    (void)context;
    pthread_mutex_lock(&set_lock);
    struct sg_condition *c = find(id);
    if (c)
        __atomic_store_n(&c->value, value, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&set_lock);
}

void sg_conditions_of_graph_gone(CUgraph graph)
{
    struct sg_condition *next;
    for (struct sg_condition *c = conditions; c; c = next) {
        next = c->next;
        if (c->graph == graph) {
            c->graph = NULL;
            unref(c);
        }
    }
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *pHandle_out, CUgraph hGraph,
                                        CUcontext ctx, unsigned int defaultLaunchValue,
                                        unsigned int flags)
{
    SG_GRAPH_CHECK(hGraph);
    CUcontext context;
    SG_TRY(sg_context_of(ctx, &context));
    if (!pHandle_out || (flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_condition *c = calloc(1, sizeof(*c));
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *c = (struct sg_condition){.next = conditions,
                               .id = ++sg.next_id,
                               .refs = 1,
                               .graph = hGraph,
                               .initial = defaultLaunchValue,
                               .assigns = flags != 0};
    pthread_mutex_lock(&set_lock);
    conditions = c;
    pthread_mutex_unlock(&set_lock);
    *pHandle_out = c->id;
    return CUDA_SUCCESS;
}

/* ---- nodes ---- */
static bool has_size(const CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    switch (p->type) {
    case CU_GRAPH_COND_TYPE_IF:
        return p->size == 1 || p->size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
        return p->size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
        return p->size && p->size <= BODIES_MOST;
    default:
        return false;
    }
}

static struct sg_op *op_new(enum sg_op_kind kind, CUcontext context, struct sg_condition *c)
{
    struct sg_op *op = sg_op_new(kind, context);
    if (!op)
        return NULL;
    op->condition.its = c;
    c->refs++;
    return op;
}

void sg_condition_op_gone(const struct sg_op *op)
{
    for (unsigned i = 0; i < op->condition.count; i++)
        sg_op_unref(op->condition.bodies[i]);
    free(op->condition.bodies);
    unref(op->condition.its);
}

static CUresult add_bodies(CUgraphNode node, unsigned count)
{
    node->bodies = calloc(count, sizeof(*node->bodies));
    if (!node->bodies)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (; node->body_count < count; node->body_count++) {
        CUgraph body = sg_graph_new();
        if (!body)
            return CUDA_ERROR_OUT_OF_MEMORY;
        body->owned = body->is_body = true;
        body->depth = node->graph->depth + 1;
        node->bodies[node->body_count] = body;
    }
    return CUDA_SUCCESS;
}

CUresult sg_condition_node_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *depends,
                               size_t count, CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    SG_LOCKED;
    CUcontext context;
    SG_TRY(sg_node_check(out, graph, depends, count));
    SG_TRY(sg_context_of(p->ctx, &context));
    struct sg_condition *c = find(p->handle);
    if (!c || !c->graph || c->used || !has_size(p))
        return CUDA_ERROR_INVALID_VALUE;
    if (graph->depth >= DEPTH_MOST)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct sg_op *op = op_new(SG_OP_CONDITION, context, c);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->condition.type = p->type;
    CUgraphNode node;
    SG_TRY(sg_graph_add(graph, op, CU_GRAPH_NODE_TYPE_CONDITIONAL, depends, count, &node));
    CUresult result = add_bodies(node, p->size);
    if (result != CUDA_SUCCESS) {
        sg_graph_drop(node);
        return result;
    }
    c->used = true;
    p->phGraph_out = node->bodies;
    *out = node;
    return CUDA_SUCCESS;
}

CUresult sg_condition_copy(CUgraphNode from, CUgraphNode to)
{
    to->bodies = calloc(from->body_count, sizeof(*to->bodies));
    if (!to->bodies)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (; to->body_count < from->body_count; to->body_count++) {
        CUgraph *body = &to->bodies[to->body_count];
        SG_TRY(sg_graph_copy(from->bodies[to->body_count], body));
        (*body)->owned = (*body)->is_body = true;
        (*body)->depth = to->graph->depth + 1;
    }
    return CUDA_SUCCESS;
}

void sg_condition_node_gone(CUgraphNode node)
{
    if (!node->origin) /* no copy: another node may have the handle */
        node->op->condition.its->used = false;
    for (unsigned i = 0; i < node->body_count; i++)
        sg_graph_free(node->bodies[i]);
    free(node->bodies);
}

/* ---- executables ---- */
static bool may_be_in_body(CUgraphNodeType type)
{
    return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_EMPTY ||
           type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_MEMSET ||
           type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

static CUresult check_bodies(CUgraph graph, bool within, CUgraphNode *wrong)
{
    for (size_t i = 0; i < graph->node_count; i++) {
        CUgraphNode node = graph->nodes[i];
        *wrong = node;
        if (within && !may_be_in_body(node->type))
            return CUDA_ERROR_NOT_SUPPORTED;
        if (node->child)
            SG_TRY(check_bodies(node->child, within, wrong));
        for (unsigned k = 0; k < node->body_count; k++)
            SG_TRY(check_bodies(node->bodies[k], true, wrong));
    }
    *wrong = NULL;
    return CUDA_SUCCESS;
}

CUresult sg_conditions_check(CUgraph graph, CUgraphInstantiateResult *why, CUgraphNode *wrong)
{
    *wrong = NULL;
    for (const struct sg_condition *c = conditions; c; c = c->next)
        if (c->graph == graph && !c->used) {
            *why = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
            return CUDA_ERROR_INVALID_VALUE;
        }
    CUresult result = check_bodies(graph, false, wrong);
    if (result != CUDA_SUCCESS)
        *why = CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

size_t sg_condition_resets(CUgraph graph, struct sg_op **list)
{
    size_t count = 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        CUgraphNode node = graph->nodes[i];
        if (node->child)
            count += sg_condition_resets(node->child, list ? list + count : NULL);
        if (node->body_count && node->op->condition.its->assigns) {
            if (list)
                list[count] = op_new(SG_OP_CONDITION_RESET, node->op->context,
                                     node->op->condition.its);
            count++;
        }
        for (unsigned k = 0; k < node->body_count; k++)
            count += sg_condition_resets(node->bodies[k], list ? list + count : NULL);
    }
    return count;
}

CUresult sg_condition_launch(CUgraphNode node, struct sg_op **out)
{
    struct sg_op *op = op_new(SG_OP_CONDITION, node->op->context, node->op->condition.its);
    CUresult result = op ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (op) {
        op->condition.type = node->op->condition.type;
        op->condition.bodies = calloc(node->body_count, sizeof(*op->condition.bodies));
        if (!op->condition.bodies)
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (unsigned i = 0; result == CUDA_SUCCESS && i < node->body_count; i++) {
        result = sg_graph_op(node->bodies[i], op->context, false, &op->condition.bodies[i]);
        op->condition.count += result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS) {
        sg_op_unref(op);
        return result;
    }
    *out = op;
    return CUDA_SUCCESS;
}

/* ---- running ---- */
static uint32_t value_of(const struct sg_op *op)
{
    return __atomic_load_n(&op->condition.its->value, __ATOMIC_SEQ_CST);
}

static bool is_cancelled(const struct sg_op *op)
{
    return __atomic_load_n(&op->context->cancel, __ATOMIC_RELAXED);
}

CUresult sg_condition_run(const struct sg_op *op)
{
    uint32_t value = value_of(op);
    if (op->kind == SG_OP_CONDITION_RESET) {
        __atomic_store_n(&op->condition.its->value, op->condition.its->initial, __ATOMIC_SEQ_CST);
        return CUDA_SUCCESS;
    }
    if (op->condition.type == CU_GRAPH_COND_TYPE_WHILE) {
        for (; value && !is_cancelled(op); value = value_of(op))
            SG_TRY(sg_op_run(op->condition.bodies[0]));
        return CUDA_SUCCESS;
    }
    if (op->condition.type == CU_GRAPH_COND_TYPE_IF)
        value = value ? 0 : 1;
    return value < op->condition.count ? sg_op_run(op->condition.bodies[value]) : CUDA_SUCCESS;
}
