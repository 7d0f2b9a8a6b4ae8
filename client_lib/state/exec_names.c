#include "exec_names.h"

#include <pthread.h>
#include <stdlib.h>

#include "handle.h"
#include "session.h"

struct named {
    uint64_t name, id;
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct named *list; /* a few; one whose number is not live any more gives its place */
static size_t count, room;

/* Where a name is, or may be put. */
static size_t place_of(uint64_t name)
{
    size_t free_one = count;
    for (size_t i = 0; i < count; i++) {
        if (list[i].name == name)
            return i;
        if (!gpc_handle_live(GP_HANDLE_GRAPH_EXEC, list[i].id))
            free_one = i;
    }
    return free_one;
}

static bool grow(void)
{
    size_t more = room ? 2 * room : 8;
    struct named *grown = realloc(list, more * sizeof *list);
    if (!grown)
        return false;
    list = grown;
    room = more;
    return true;
}

/* The drivers of two hosts may have one name for two graphs. */
static bool is_another_hosts(size_t at, uint64_t id)
{
    return at < count && gpc_handle_live(GP_HANDLE_GRAPH_EXEC, list[at].id) &&
           gpc_session_of_handle(list[at].id) != gpc_session_of_handle(id);
}

bool gpc_exec_name(uint64_t id, uint64_t name)
{
    if (name == 0 || gp_handle_kind(name) == GP_HANDLE_GRAPH_EXEC)
        return false;
    pthread_rwlock_wrlock(&lock);
    size_t at = place_of(name);
    bool fits = !is_another_hosts(at, id) && (at < room || grow());
    if (fits)
        list[at] = (struct named){name, id};
    if (fits && at == count)
        count++;
    pthread_rwlock_unlock(&lock);
    return fits;
}

uint64_t gpc_exec_number(uint64_t named)
{
    uint64_t id = named;
    if (named == 0 || gp_handle_kind(named) == GP_HANDLE_GRAPH_EXEC)
        return named;
    pthread_rwlock_rdlock(&lock);
    for (size_t i = 0; i < count; i++)
        if (list[i].name == named)
            id = list[i].id;
    pthread_rwlock_unlock(&lock);
    return id;
}
