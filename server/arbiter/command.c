/* What the server says to an arbiter: one line a message, its words as below. The answer
 * begins with a number, 0 or more or a negative errno; after a blank comes the rest. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "arbiter_internal.h"

struct command {
    struct gp_arbiter *a;
    const char *words; /* behind its name */
    int *fds;          /* that came with it: who uses them sets them to -1 */
    char *out;         /* what follows the number */
    int size, length;
    int *send;
};

/* gpu POLICY MAX_INST PRIO_RATIO HARDWARE MEMORY_TOTAL */
static int do_gpu(struct command *c)
{
    struct gp_board_gpu gpu;
    unsigned long long total;
    if (sscanf(c->words, "%u %u %u %u %llu", &gpu.policy, &gpu.max_inst, &gpu.prio_ratio,
               &gpu.hardware, &total) != 5)
        return -EINVAL;
    gpu.memory_total = total;
    return gp_board_gpu_set(c->a->board, &gpu);
}

/* tenant NAME MEMORY_LIMIT WEIGHT SHARE CEILING HIGH_PRIORITY [FORCED [GANG]] */
static int do_tenant(struct command *c)
{
    struct gp_board_grant grant = {0};
    unsigned long long limit;
    char name[GP_BOARD_NAME];
    if (sscanf(c->words, "%95s %llu %u %u %u %u %u %u", name, &limit, &grant.weight, &grant.share,
               &grant.ceiling, &grant.high_priority, &grant.forced, &grant.gang) < 6)
        return -EINVAL;
    grant.memory_limit = limit;
    return gp_board_tenant_set(c->a->board, name, &grant);
}

/* remove NAME */
static int do_remove(struct command *c)
{
    char name[GP_BOARD_NAME];
    if (sscanf(c->words, "%95s", name) != 1)
        return -EINVAL;
    return gp_board_tenant_remove(c->a->board, name);
}

/* join NAME -> its seat, with the descriptors of its page and its bell */
static int do_join(struct command *c)
{
    char name[GP_BOARD_NAME];
    if (sscanf(c->words, "%95s", name) != 1)
        return -EINVAL;
    return gp_arbiter_join(c->a, name, &c->send[0], &c->send[1]);
}

/* adopt NAME PID, with the descriptors of its page and its bell -> its seat */
static int do_adopt(struct command *c)
{
    char name[GP_BOARD_NAME];
    int pid;
    if (sscanf(c->words, "%95s %d", name, &pid) != 2 || pid <= 0 || c->fds[1] < 0)
        return -EINVAL;
    int page = c->fds[0], bell = c->fds[1];
    c->fds[0] = c->fds[1] = -1;
    return gp_arbiter_adopt(c->a, name, pid, page, bell);
}

/* started SEAT PID */
static int do_started(struct command *c)
{
    int member, pid;
    if (sscanf(c->words, "%d %d", &member, &pid) != 2 || pid <= 0)
        return -EINVAL;
    return gp_arbiter_started(c->a, member, pid);
}

/* leave SEAT: whose worker could not be started */
static int do_leave(struct command *c)
{
    int member;
    if (sscanf(c->words, "%d", &member) != 1)
        return -EINVAL;
    gp_arbiter_leave(c->a, member);
    return 0;
}

/* reap PID -> how many seats that gave back */
static int do_reap(struct command *c)
{
    int pid;
    if (sscanf(c->words, "%d", &pid) != 1 || pid <= 0)
        return -EINVAL;
    int member = gp_arbiter_find(c->a, pid);
    gp_arbiter_leave(c->a, member);
    return member >= 0;
}

/* seat PID -> the descriptors of its page and its bell, for a server that has come anew */
static int do_seat(struct command *c)
{
    int pid;
    if (sscanf(c->words, "%d", &pid) != 1 || pid <= 0)
        return -EINVAL;
    return gp_arbiter_seat(c->a, gp_arbiter_find(c->a, pid), &c->send[0], &c->send[1]);
}

/* What was described in so many bytes, or could not be. */
static int described(struct command *c, int r)
{
    if (r < 0 || r >= c->size)
        return r < 0 ? r : -EMSGSIZE;
    c->length = r;
    return 0;
}

/* describe -> JSON (gp_board_describe) */
static int do_describe(struct command *c)
{
    return described(c, gp_board_describe(c->a->board, c->out, c->size));
}

/* turns SINCE -> JSON (gp_board_describe_turns) */
static int do_turns(struct command *c)
{
    unsigned long long since;
    if (sscanf(c->words, "%llu", &since) != 1)
        return -EINVAL;
    return described(c, gp_board_describe_turns(c->a->board, since, c->out, c->size));
}

/* charge NAME NS [WHOSE] (gp_board_charge) */
static int do_charge(struct command *c)
{
    unsigned long long ns;
    char name[GP_BOARD_NAME], whose[GP_BOARD_NAME] = "";
    if (sscanf(c->words, "%95s %llu %95s", name, &ns, whose) < 2)
        return -EINVAL;
    return gp_board_charge(c->a->board, name, whose, ns);
}

/* hello VERSION: of the commands and of pages, before anything else -> the arbiter's pid */
static int do_hello(struct command *c)
{
    unsigned version;
    if (sscanf(c->words, "%u", &version) != 1)
        return -EINVAL;
    if (version != GP_PAGE_VERSION)
        return -EPROTO;
    c->length = snprintf(c->out, (size_t)c->size, "%d", (int)getpid());
    return 0;
}

static const struct {
    const char *name;
    int (*perform)(struct command *c);
} commands[] = {{"hello", do_hello},     {"gpu", do_gpu},           {"tenant", do_tenant},
                {"remove", do_remove},   {"join", do_join},         {"adopt", do_adopt},
                {"started", do_started}, {"leave", do_leave},       {"reap", do_reap},
                {"seat", do_seat},       {"describe", do_describe}, {"turns", do_turns},
                {"charge", do_charge}};

#define NUMBER 16 /* bytes before the rest of an answer */

int gp_arbiter_command(struct gp_arbiter *a, const char *line, int fds[2], char *out, int size,
                       int send[2])
{
    size_t n = strcspn(line, " ");
    char number[NUMBER];
    struct command c = {a, line + n, fds, out + NUMBER, size - NUMBER, 0, send};
    int r = -ENOSYS;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strlen(commands[i].name) == n && memcmp(line, commands[i].name, n) == 0)
            r = commands[i].perform(&c);
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    snprintf(number, sizeof number, "%-*d", NUMBER - 1, r);
    memcpy(out, number, NUMBER - 1);
    out[NUMBER - 1] = ' ';
    return NUMBER + c.length;
}
