/* Lists of edges from which a node is taken out, as those are that the client does not know. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "graph_edges.h"

#define NODE(n) ((CUgraphNode)(uintptr_t)(n))
#define HIDDEN 9

/* Edges as texts: "12 29" is from 1 to 2 and from 2 to 9. */
static struct gpw_edges edges(const char *text)
{
    struct gpw_edges e;
    assert_int_equal(gpw_edges_new(&e, (strlen(text) + 1) / 3), CUDA_SUCCESS);
    for (size_t i = 0; i < e.count; i++) {
        e.from[i] = NODE(text[3 * i] - '0');
        e.to[i] = NODE(text[3 * i + 1] - '0');
        e.data[i].from_port = (unsigned char)(i + 1);
    }
    return e;
}

static void expect(const struct gpw_edges *e, const char *text)
{
    assert_int_equal(e->count, (strlen(text) + 1) / 3);
    for (size_t i = 0; i < e->count; i++) {
        assert_ptr_equal(e->from[i], NODE(text[3 * i] - '0'));
        assert_ptr_equal(e->to[i], NODE(text[3 * i + 1] - '0'));
    }
}

static void without(const char *from, const char *to)
{
    struct gpw_edges e = edges(from);
    assert_int_equal(gpw_edges_without(&e, NODE(HIDDEN)), CUDA_SUCCESS);
    expect(&e, to);
    gpw_edges_free(&e);
}

static void it_is_stepped_over(void **state)
{
    (void)state;
    without("19 92", "12");
    without("19 29 93", "13 23"); /* in front of a copy */
    without("19 92 93", "12 13"); /* behind one */
    without("12 23", "12 23");    /* there is none */
    without("92 23", "23");       /* a root */
    without("12 29", "12");       /* a leaf */
    without("19 29", "");         /* a leaf behind two */
    without("92 93", "");         /* a root of two */
    without("12 19 92 23", "12 12 23");
    without("", "");
}

static void an_edge_keeps_what_it_has(void **state)
{
    struct gpw_edges e = edges("19 92 93");
    (void)state;
    assert_int_equal(gpw_edges_without(&e, NODE(HIDDEN)), CUDA_SUCCESS);
    assert_int_equal(e.data[0].from_port, 1);
    assert_int_equal(e.data[1].from_port, 1);
    gpw_edges_free(&e);
}

/* Nothing makes a list longer than it is. */
static void several_on_both_sides_are_refused(void **state)
{
    struct gpw_edges e = edges("19 29 93 94");
    (void)state;
    assert_int_equal(gpw_edges_without(&e, NODE(HIDDEN)), CUDA_ERROR_NOT_SUPPORTED);
    expect(&e, "19 29 93 94");
    gpw_edges_free(&e);
}

static void one_nodes_neighbours(void **state)
{
    struct gpw_edges e = edges("12 32 24 25");
    (void)state;
    gpw_edges_at(&e, NODE(2), true);
    assert_int_equal(e.count, 2);
    assert_ptr_equal(e.to[0], NODE(4));
    assert_ptr_equal(e.to[1], NODE(5));
    assert_int_equal(e.data[1].from_port, 4);
    gpw_edges_free(&e);
    e = edges("12 32 24 25");
    gpw_edges_at(&e, NODE(2), false);
    assert_int_equal(e.count, 2);
    assert_ptr_equal(e.to[0], NODE(1));
    assert_ptr_equal(e.to[1], NODE(3));
    gpw_edges_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_stepped_over),
        cmocka_unit_test(an_edge_keeps_what_it_has),
        cmocka_unit_test(several_on_both_sides_are_refused),
        cmocka_unit_test(one_nodes_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
