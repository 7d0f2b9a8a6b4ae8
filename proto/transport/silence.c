#include "transport/silence.h"

#include <errno.h>
#include <stdlib.h>

#define SILENCE_S 90
#define SILENCE_MIN_S 2
#define SILENCE_MAX_S 86400
#define IDLE_MOST_S 20
#define INTERVAL_MOST_S 10

static int share_of(int seconds, int part, int most)
{
    int value = seconds / part > 0 ? seconds / part : 1;
    return value < most ? value : most;
}

static void silence_set(struct gp_silence *out, int seconds)
{
    *out = (struct gp_silence){.seconds = seconds,
                               .idle = share_of(seconds, 3, IDLE_MOST_S),
                               .interval = share_of(seconds, 6, INTERVAL_MOST_S)};
}

int gp_silence_read(struct gp_silence *out, struct gp_error *err)
{
    const char *text = getenv("GPUPOOL_SILENCE");
    silence_set(out, SILENCE_S);
    if (!text || !*text)
        return 0;
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < SILENCE_MIN_S || value > SILENCE_MAX_S) {
        gp_error_set(err, "GPUPOOL_SILENCE=%.40s: must be a whole number of seconds, %d to %d",
                     text, SILENCE_MIN_S, SILENCE_MAX_S);
        return -EINVAL;
    }
    silence_set(out, (int)value);
    return 0;
}
