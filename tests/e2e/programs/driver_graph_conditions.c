/* Conditional nodes: if, else, while, switch, within each other, filled by hand and by captures. */
#include "driver.h"

#include <stdbool.h>

/*
 * decide(handle, words, word): the condition becomes that word.
 * step(words, word): adds one to the word.
 * turn(handle, words): takes one from the first word; the condition is whether any is left.
 * As nvcc 13 calls cudaGraphSetConditional.
 */
static const char ptx[] =
    ".version 8.3\n.target sm_75\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional\n(\n"
    "\t.param .b64 cudaGraphSetConditional_param_0,\n"
    "\t.param .b32 cudaGraphSetConditional_param_1\n)\n" /* without a semicolon, as XLA has it */
    ".visible .entry decide(.param .u64 handle, .param .u64 words, .param .u32 word)\n{\n"
    "\t.reg .b64 %rd<5>;\n\t.reg .b32 %r<3>;\n"
    "\tld.param.u64 %rd1, [handle];\n\tld.param.u64 %rd2, [words];\n"
    "\tld.param.u32 %r1, [word];\n\tmul.wide.u32 %rd3, %r1, 4;\n\tadd.u64 %rd4, %rd2, %rd3;\n"
    "\tld.global.u32 %r2, [%rd4];\n"
    "\t{\n\t.param .b64 param0;\n\tst.param.b64 [param0+0], %rd1;\n"
    "\t.param .b32 param1;\n\tst.param.b32 [param1+0], %r2;\n"
    "\tcall.uni\n\tcudaGraphSetConditional,\n\t(\n\tparam0,\n\tparam1\n\t);\n\t}\n\tret;\n}\n"
    ".visible .entry step(.param .u64 words, .param .u32 word)\n{\n"
    "\t.reg .b64 %rd<4>;\n\t.reg .b32 %r<4>;\n"
    "\tld.param.u64 %rd1, [words];\n\tld.param.u32 %r1, [word];\n"
    "\tmul.wide.u32 %rd2, %r1, 4;\n\tadd.u64 %rd3, %rd1, %rd2;\n"
    "\tld.global.u32 %r2, [%rd3];\n\tadd.u32 %r3, %r2, 1;\n\tst.global.u32 [%rd3], %r3;\n"
    "\tret;\n}\n"
    ".visible .entry turn(.param .u64 handle, .param .u64 words)\n{\n"
    "\t.reg .b64 %rd<3>;\n\t.reg .b32 %r<4>;\n\t.reg .pred %p<2>;\n"
    "\tld.param.u64 %rd1, [handle];\n\tld.param.u64 %rd2, [words];\n"
    "\tld.global.u32 %r1, [%rd2];\n\tsub.u32 %r2, %r1, 1;\n\tst.global.u32 [%rd2], %r2;\n"
    "\tsetp.ne.u32 %p1, %r2, 0;\n\tselp.u32 %r3, 1, 0, %p1;\n"
    "\t{\n\t.param .b64 param0;\n\tst.param.b64 [param0+0], %rd1;\n"
    "\t.param .b32 param1;\n\tst.param.b32 [param1+0], %r3;\n"
    "\tcall.uni\n\tcudaGraphSetConditional,\n\t(\n\tparam0,\n\tparam1\n\t);\n\t}\n\tret;\n}\n";

enum { WORDS = 16 };

static CUstream stream;
static CUfunction decide, step, turn;
static CUdeviceptr words;

static void set_word(int word, unsigned value)
{
    CU(cuMemsetD32Async(words + (CUdeviceptr)word * 4, value, 1, stream));
}

static void expect_word(int word, unsigned wanted, const char *when)
{
    unsigned got = 0;
    CU(cuMemcpyDtoHAsync(&got, words + (CUdeviceptr)word * 4, 4, stream));
    CU(cuStreamSynchronize(stream));
    EXPECT(got == wanted, "%s: word %d is %u, expected %u", when, word, got, wanted);
}

static CUgraphNode add_kernel(CUgraph graph, const CUgraphNode *behind, CUfunction f,
                              void **parameters)
{
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS p = {.func = f,
                                 .gridDimX = 1,
                                 .gridDimY = 1,
                                 .gridDimZ = 1,
                                 .blockDimX = 1,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .kernelParams = parameters};
    CU(cuGraphAddKernelNode(&node, graph, behind, behind != NULL, &p));
    return node;
}

static CUgraphNode add_step(CUgraph graph, const CUgraphNode *behind, int word)
{
    return add_kernel(graph, behind, step, (void *[]){&words, &word});
}

static CUgraphNode add_decide(CUgraph graph, const CUgraphNode *behind,
                              CUgraphConditionalHandle handle, int word)
{
    return add_kernel(graph, behind, decide, (void *[]){&handle, &words, &word});
}

static CUgraphNode add_condition(CUgraph graph, const CUgraphNode *behind,
                                 CUgraphConditionalHandle handle, CUgraphConditionalNodeType type,
                                 unsigned size, CUgraph **bodies)
{
    CUgraphNode node;
    CUgraphNodeType got;
    CUgraphNodeParams p = {
        .type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
        .conditional = {.handle = handle, .type = type, .size = size, .ctx = driver_context}};
    CU(cuGraphAddNode(&node, graph, behind, NULL, behind != NULL, &p));
    CU(cuGraphNodeGetType(node, &got));
    EXPECT(got == CU_GRAPH_NODE_TYPE_CONDITIONAL, "the type is %d", (int)got);
    REQUIRE(p.conditional.phGraph_out && p.conditional.phGraph_out[size - 1], "there is no body");
    *bodies = p.conditional.phGraph_out;
    return node;
}

static CUgraphConditionalHandle condition(CUgraph graph, unsigned value, unsigned flags)
{
    CUgraphConditionalHandle handle = 0;
    CU(cuGraphConditionalHandleCreate(&handle, graph, driver_context, value, flags));
    EXPECT(handle != 0, "the condition has no handle");
    return handle;
}

static void run(CUgraphExec exec)
{
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
}

static CUgraphExec ready(CUgraph graph)
{
    CUgraphExec exec;
    CU(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void either_or(void)
{
    CUgraph graph, *bodies;
    CUgraphNode first, node, nodes[4];
    size_t count = 4;
    CU(cuGraphCreate(&graph, 0));
    CUgraphConditionalHandle handle = condition(graph, 0, 0);
    first = add_decide(graph, NULL, handle, 0);
    node = add_condition(graph, &first, handle, CU_GRAPH_COND_TYPE_IF, 2, &bodies);
    add_step(bodies[0], NULL, 1);
    add_step(bodies[1], NULL, 2);
    add_step(graph, &node, 3);
    CU(cuGraphGetNodes(bodies[0], nodes, &count));
    EXPECT(count == 1, "the body has %zu nodes", count);
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(bodies[0]));
    CUgraphExec exec = ready(graph);
    set_word(0, 7);
    run(exec);
    expect_word(1, 1, "if it is so");
    expect_word(2, 0, "if it is so");
    expect_word(3, 1, "behind both");
    set_word(0, 0);
    run(exec);
    expect_word(1, 1, "if it is not so");
    expect_word(2, 1, "if it is not so");
    expect_word(3, 2, "behind both");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* Nothing sets the condition: it is what each launch begins with. */
static void by_default(void)
{
    CUgraph graph, *bodies;
    CU(cuGraphCreate(&graph, 0));
    CUgraphConditionalHandle handle = condition(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    add_condition(graph, NULL, handle, CU_GRAPH_COND_TYPE_IF, 1, &bodies);
    CUgraphNode one = add_step(bodies[0], NULL, 4);
    add_decide(bodies[0], &one, handle, 5); /* not so any more, until the next launch */
    CUgraphExec exec = ready(graph);
    run(exec);
    run(exec);
    expect_word(4, 2, "a default");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static void again_and_again(void)
{
    CUgraph graph, *bodies;
    CU(cuGraphCreate(&graph, 0));
    CUgraphConditionalHandle handle = condition(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    add_condition(graph, NULL, handle, CU_GRAPH_COND_TYPE_WHILE, 1, &bodies);
    CUgraphNode one = add_step(bodies[0], NULL, 6);
    add_kernel(bodies[0], &one, turn, (void *[]){&handle, &words});
    CUgraphExec exec = ready(graph);
    for (int i = 1; i <= 2; i++) {
        set_word(0, 10);
        run(exec);
        expect_word(0, 0, "a loop");
        expect_word(6, 10 * (unsigned)i, "a loop");
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static void one_of_many(void)
{
    CUgraph graph, *bodies;
    CU(cuGraphCreate(&graph, 0));
    CUgraphConditionalHandle handle = condition(graph, 0, 0);
    CUgraphNode first = add_decide(graph, NULL, handle, 0);
    add_condition(graph, &first, handle, CU_GRAPH_COND_TYPE_SWITCH, 3, &bodies);
    for (int i = 0; i < 3; i++)
        add_step(bodies[i], NULL, 7 + i);
    CUgraphExec exec = ready(graph);
    for (unsigned i = 0; i < 5; i++) { /* beyond the last, none */
        set_word(0, i);
        run(exec);
    }
    for (int i = 0; i < 3; i++)
        expect_word(7 + i, 1, "a switch");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

/* The body of a loop is captured, with a condition of its own within. */
static void captured_within(void)
{
    CUgraph graph, *bodies, *inner;
    int word = 10;
    CU(cuGraphCreate(&graph, 0));
    CUgraphConditionalHandle loop = condition(graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    add_condition(graph, NULL, loop, CU_GRAPH_COND_TYPE_WHILE, 1, &bodies);
    CU(cuStreamBeginCaptureToGraph(stream, bodies[0], NULL, NULL, 0,
                                   CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuLaunchKernel(step, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&words, &word}, NULL));
    CU(cuLaunchKernel(turn, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&loop, &words}, NULL));
    CU(cuMemsetD32Async(words + 11 * 4, 5, 1, stream));
    CU(cuStreamEndCapture(stream, NULL)); /* the graph is the body, as the program knows */
    CUgraphConditionalHandle last = condition(bodies[0], 0, 0);
    CUgraphNode decides = add_decide(bodies[0], NULL, last, 12);
    add_condition(bodies[0], &decides, last, CU_GRAPH_COND_TYPE_IF, 1, &inner);
    add_step(inner[0], NULL, 13);
    CUgraphExec exec = ready(graph);
    set_word(0, 3);
    set_word(12, 1);
    run(exec);
    expect_word(10, 3, "a captured body");
    expect_word(11, 5, "a captured body");
    expect_word(13, 3, "a condition within a loop");
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
}

static void wrong(void)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUgraphConditionalHandle handle;
    CU(cuGraphCreate(&graph, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphConditionalHandleCreate(NULL, graph, driver_context, 0, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphConditionalHandleCreate(&handle, graph, driver_context, 0, 2));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE,
             cuGraphConditionalHandleCreate(&handle, NULL, driver_context, 0, 0));
    handle = condition(graph, 0, 0);
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = 0};
    CUresult unused = cuGraphInstantiateWithParams(&exec, graph, &how);
    EXPECT(unused != CUDA_SUCCESS &&
               how.result_out == CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED,
           "a condition that no node has: %s, %d", driver_name(unused), (int)how.result_out);
    static const struct {
        CUgraphConditionalNodeType type;
        unsigned size;
    } sizes[] = {{CU_GRAPH_COND_TYPE_IF, 0},     {CU_GRAPH_COND_TYPE_IF, 3},
                 {CU_GRAPH_COND_TYPE_WHILE, 0},  {CU_GRAPH_COND_TYPE_WHILE, 2},
                 {CU_GRAPH_COND_TYPE_SWITCH, 0}, {(CUgraphConditionalNodeType)9, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CUgraphNodeParams p = {
            .type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
            .conditional = {handle, sizes[i].type, sizes[i].size, NULL, driver_context}};
        CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, graph, NULL, NULL, 0, &p));
    }
    CU(cuGraphDestroy(graph));
}

int main(void)
{
    CUmodule module;
    driver_start();
    CU(cuModuleLoadData(&module, ptx));
    decide = driver_function(module, "decide");
    step = driver_function(module, "step");
    turn = driver_function(module, "turn");
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&words, WORDS * 4));
    CU(cuMemsetD8Async(words, 0, WORDS * 4, stream));
    either_or();
    by_default();
    again_and_again();
    one_of_many();
    captured_within();
    wrong();
    CU(cuMemFree(words));
    CU(cuStreamDestroy(stream));
    driver_stop();
    return finish("driver_graph_conditions");
}
