/*
 * What tests of waits begin and end with: a session over a driver whose streams finish when the test
 * says so (streams_driver.h), and a story of what was answered, a letter each.
 */
#ifndef WAITS_STORY_H
#define WAITS_STORY_H

#include <string.h>

#include "handles.h"
#include "story.h"
#include "streams_driver.h"

static struct gpw_session session;

static int begin(void **state)
{
    (void)state;
    memset(&gpu, 0, sizeof gpu);
    gpu.current = CONTEXT_A;
    for (unsigned i = 0; i < STREAMS; i++)
        gpu.streams[i].context = CONTEXT_A;
    session = (struct gpw_session){.driver = &streams_driver, .handles = gpw_handles_new()};
    story[0] = '\0';
    return session.handles ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    gpw_waits_cancel(&session);
    gpw_waits_context_ended(&session, CONTEXT_A); /* what is kept is of this test's driver */
    gpw_waits_context_ended(&session, CONTEXT_B);
    gpw_handles_free(session.handles);
    return 0;
}

struct answer {
    char letter;
    unsigned times;
    CUresult result;
};

static void answered(struct gpw_session *s, void *arg, CUresult result)
{
    assert_ptr_equal(s, &session);
    struct answer *to = arg;
    tell(to->letter);
    to->times++;
    to->result = result;
}

static void submit(unsigned stream)
{
    gpu.streams[stream].submitted++;
}

static void complete(unsigned stream)
{
    gpu.streams[stream].done++;
}

static void after(unsigned stream, struct answer *to)
{
    assert_int_equal(gpw_after_stream(&session, stream_at(stream), answered, to), CUDA_SUCCESS);
}

#endif
