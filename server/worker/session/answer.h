/* Answers that wait until the GPU is through with something. */
#ifndef GPW_ANSWER_H
#define GPW_ANSWER_H

#include "session.h"

/* How a message is answered, later than it is handled. */
typedef int gpw_answer(struct gpw_session *s, struct gpw_token token, CUresult result);

/* Answer when everything submitted so far to the stream, or to the streams of a context
 * (NULL: the current one), is over. GPW_DEFERRED, or the error that is the answer now. */
CUresult gpw_answer_after_stream(struct gpw_session *s, struct gpw_token token, CUstream stream,
                                 gpw_answer *send);
/* The same behind work that is yet to be submitted: `r` is what submitting it gave. */
struct gpw_answer_wait;
CUresult gpw_answer_prepare(struct gpw_session *s, struct gpw_token token, CUstream stream,
                            gpw_answer *send, struct gpw_answer_wait **answer);
CUresult gpw_answer_submitted(struct gpw_session *s, struct gpw_answer_wait *answer,
                              CUstream stream, CUresult r);
/* Likewise with a number that the GPU writes behind the work; or else, asking (gpw_after_written). */
CUresult gpw_answer_prepare_unasked(struct gpw_session *s, struct gpw_token token, gpw_answer *send,
                                    struct gpw_answer_wait **answer);
CUresult gpw_answer_written(struct gpw_session *s, struct gpw_answer_wait *answer,
                            const uint64_t *word, uint64_t number);
CUresult gpw_answer_after_context(struct gpw_session *s, struct gpw_token token, CUcontext context,
                                  gpw_answer *send);

#endif
