/* A client as the worker's transport has it: it draws its messages from an input, and learns
 * from the answers. */
#ifndef FUZZ_FAKE_CLIENT_H
#define FUZZ_FAKE_CLIENT_H

#include "draw.h"
#include "session.h"

void fake_client_open(struct gpw_session *s);
/* From now on its messages are the steps of this input, and of those that come behind it
 * (apart.h); then it hangs up. */
void fake_client_start(const uint8_t *data, size_t size);
struct draw *fake_client_draw(void);
uint64_t fake_client_next_seq(void);
int fake_client_result(void); /* of the last reply */
/* No message has changed the worker's own memory that it was led to. */
bool fake_client_unharmed(void);

#endif
