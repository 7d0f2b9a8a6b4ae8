/* Long messages over several connections: what only our own TCP has. */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/tcp_frames.h"

/* --- what a peer writes --------------------------------------------------------- */

static void test_notes_in_a_stream(void **state)
{
    (void)state;
    static const struct {
        struct stripe_note note;
        int rc;
    } cases[] = {
        {{2, STRIPE_NOTE_LANES}, 0},
        {{STRIPE_LANES_MAX, STRIPE_NOTE_LANES}, 0},
        {{1, STRIPE_NOTE_LANES}, -EPROTO},
        {{STRIPE_LANES_MAX + 1, STRIPE_NOTE_LANES}, -EPROTO},
        {{STRIPE_LEAST, STRIPE_NOTE_MESSAGE}, 0},
        {{GP_MESSAGE_MAX, STRIPE_NOTE_MESSAGE}, 0},
        {{STRIPE_LEAST - 1, STRIPE_NOTE_MESSAGE}, -EPROTO},
        {{GP_MESSAGE_MAX + 1, STRIPE_NOTE_MESSAGE}, -EPROTO},
        {{64, GP_BATCH_MESSAGE}, -EAGAIN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tcp_frames f = {.bytes = malloc(FRAMES_ROOM)};
        struct stripe_note note = {0, 0};
        size_t room;
        memcpy(tcp_frames_space(&f, &room), &cases[i].note, 5);
        tcp_frames_filled(&f, 5);
        assert_int_equal(tcp_frames_note(&f, &note), -EAGAIN);
        memcpy(tcp_frames_space(&f, &room), (const char *)&cases[i].note + 5, 3);
        tcp_frames_filled(&f, 3);
        assert_int_equal(tcp_frames_note(&f, &note), cases[i].rc);
        if (cases[i].rc == 0)
            assert_memory_equal(&note, &cases[i].note, sizeof note);
        free(f.bytes);
    }
}

static void test_a_piece_s_head(void **state)
{
    (void)state;
    const struct stripe_head right = stripe_head_make(3, STRIPE_LEAST + 16, 7);
    size_t size = 0;
    assert_int_equal(stripe_head_check(&right, 3, 7, &size), 0);
    assert_int_equal(size, STRIPE_LEAST + 16);
    assert_int_equal(stripe_head_check(&right, 2, 7, &size), -EPROTO);
    assert_int_equal(stripe_head_check(&right, 3, 8, &size), -EPROTO);
    static const size_t wrong[] = {0, STRIPE_LEAST - 1, GP_MESSAGE_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct stripe_head h = stripe_head_make(3, wrong[i], 7);
        assert_int_equal(stripe_head_check(&h, 3, 7, &size), -EPROTO);
    }
    struct stripe_head h = right;
    h.magic++;
    assert_int_equal(stripe_head_check(&h, 3, 7, &size), -EPROTO);
}

/* Pieces are a message again, however it was gathered. */
static void test_pieces_are_the_whole(void **state)
{
    (void)state;
    static unsigned char bytes[GP_MESSAGE_MAX];
    static const size_t sizes[] = {STRIPE_LEAST, STRIPE_LEAST + 1, 777777, GP_MESSAGE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (unsigned lanes = 2; lanes <= STRIPE_LANES_MAX; lanes++) {
            struct iovec list[4] = {{bytes, 16},
                                    {bytes + 16, 0},
                                    {bytes + 16, 70000},
                                    {bytes + 70016, sizes[i] - 70016}};
            size_t at = 0;
            for (unsigned k = 0; k < lanes; k++) {
                struct iovec out[GP_GATHER_MAX];
                struct stripe_piece piece = stripe_piece_of(sizes[i], k, lanes);
                assert_int_equal(piece.begin, at);
                assert_true(piece.size > 0);
                int n = stripe_gather(list, 4, piece, out);
                for (int j = 0; j < n; j++) {
                    assert_ptr_equal(out[j].iov_base, bytes + at);
                    at += out[j].iov_len;
                }
                assert_int_equal(at, piece.begin + piece.size);
            }
            assert_int_equal(at, sizes[i]);
        }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_notes_in_a_stream),
        cmocka_unit_test(test_a_piece_s_head),
        cmocka_unit_test(test_pieces_are_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
