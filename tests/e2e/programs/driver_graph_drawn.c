/* Graphs as drawings, in a file of this machine: those built by hand and others. */
#include "driver.h"

#include <unistd.h>

static int arrows_in(int file)
{
    char line[4096];
    int arrows = 0;
    FILE *text = fdopen(file, "r");
    REQUIRE(text != NULL, "the drawing cannot be read");
    while (fgets(line, sizeof line, text))
        arrows += strstr(line, "->") != NULL;
    fclose(text);
    return arrows;
}

/* A drawing has a line for each edge. */
static void drawn(CUgraph graph, int edges, const char *what)
{
    char path[] = "/tmp/graph-XXXXXX";
    int file = mkstemp(path);
    REQUIRE(file >= 0, "no file can be made in /tmp");
    CU(cuGraphDebugDotPrint(graph, path, 0));
    int arrows = arrows_in(file);
    EXPECT(arrows == edges, "the drawing of %s has %d edges, expected %d", what, arrows, edges);
    unlink(path);
}

int main(void)
{
    CUgraph graph, clone;
    CUgraphNode first, second, third;

    driver_start();
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphAddEmptyNode(&first, graph, NULL, 0));
    CU(cuGraphAddEmptyNode(&second, graph, &first, 1));
    CU(cuGraphAddEmptyNode(&third, graph, &first, 1));
    CU(cuGraphClone(&clone, graph));
    drawn(graph, 2, "a graph built by hand");
    drawn(clone, 2, "a clone");
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDebugDotPrint(graph, NULL, 0));
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDebugDotPrint(NULL, "/tmp/nothing", 0));
    CU_GIVES(CUDA_ERROR_OPERATING_SYSTEM, cuGraphDebugDotPrint(graph, "/no/such/folder/f", 0));
    CU(cuGraphDestroy(clone));
    CU(cuGraphDestroy(graph));
    driver_stop();
    return finish("driver_graph_drawn");
}
