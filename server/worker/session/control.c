#include "control.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "budget.h"
#include "memory.h"
#include "peer.h"

#define PEERS 8
/* "stop" or "say", and what the client is told. */
#define COMMAND_BYTES 512

static char path_of[108];
static char session_id[64];
static struct gpw_session *session;
static int listener = -1;
static bool stopped;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char said[COMMAND_BYTES]; /* under the lock; empty: nothing new */

bool gpw_control_stopped(void)
{
    return __atomic_load_n(&stopped, __ATOMIC_ACQUIRE);
}

bool gpw_control_said(char *text, size_t size)
{
    pthread_mutex_lock(&lock);
    snprintf(text, size, "%s", said);
    said[0] = '\0';
    pthread_mutex_unlock(&lock);
    return text[0] != '\0';
}

/* The latest counts: an end is said last. */
static void keep_said(const char *text)
{
    pthread_mutex_lock(&lock);
    snprintf(said, sizeof said, "%s", text);
    pthread_mutex_unlock(&lock);
}

/* What follows the word of a command: " TEXT" or nothing. NULL: it is another command. */
static const char *after_word(const char *line, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(line, word, length) != 0 || (line[length] && line[length] != ' '))
        return NULL;
    return line[length] ? line + length + 1 : line + length;
}

static int status(char *out, size_t size)
{
    uint64_t sent, received;
    char host[256];
    gpw_peers_bytes(&sent, &received);
    gpw_budget_describe(host, sizeof host);
    return snprintf(out, size,
                    "{\"session\": \"%s\", \"pid\": %d, \"client_pid\": %u, \"program\": \"%s\", "
                    "\"devices\": %u, \"memory_bytes\": %llu, \"calls\": %llu, "
                    "\"peer_bytes_sent\": %llu, \"peer_bytes_received\": %llu, \"connected\": %s, "
                    "\"host_bytes\": %llu, \"host_limit\": %llu, \"host_refused\": %llu, "
                    "\"host\": %s}\n",
                    session_id, (int)getpid(), session->client_pid, session->program,
                    session->device_count, (unsigned long long)gpw_memory_bytes(session),
                    (unsigned long long)session->calls, (unsigned long long)sent,
                    (unsigned long long)received, session->greeted ? "true" : "false",
                    (unsigned long long)gpw_budget_used(), (unsigned long long)gpw_budget_limit(),
                    (unsigned long long)gpw_budget_refused(), host);
}

/* Lines may come in pieces: only whole ones are commands. */
struct peer {
    int fd;
    unsigned used;
    char line[COMMAND_BYTES];
};

/* False when the peer is to be closed. */
static bool serve(struct peer *p)
{
    ssize_t n = recv(p->fd, p->line + p->used, sizeof p->line - 1 - p->used, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    p->used += (unsigned)n;
    p->line[p->used] = '\0';
    char *end;
    while ((end = strchr(p->line, '\n')) != NULL) {
        *end = '\0';
        char answer[2048];
        const char *text;
        int length = 0;
        if (strcmp(p->line, "status") == 0) {
            length = status(answer, sizeof answer);
        } else if ((text = after_word(p->line, "stop")) != NULL) {
            keep_said(text);
            __atomic_store_n(&stopped, true, __ATOMIC_RELEASE);
        } else if ((text = after_word(p->line, "say")) != NULL) {
            keep_said(text);
        } else {
            length = snprintf(answer, sizeof answer, "{\"error\": \"unknown command\"}\n");
        }
        if (length > 0 && send(p->fd, answer, (size_t)length, MSG_NOSIGNAL) < 0)
            return false;
        p->used -= (unsigned)(end + 1 - p->line);
        memmove(p->line, end + 1, p->used + 1);
    }
    return p->used < sizeof p->line - 1;
}

static void *control_thread(void *unused)
{
    (void)unused;
    struct peer peers[PEERS];
    unsigned count = 0;
    for (;;) {
        struct pollfd polled[PEERS + 1] = {{listener, POLLIN, 0}};
        for (unsigned i = 0; i < count; i++)
            polled[i + 1] = (struct pollfd){peers[i].fd, POLLIN, 0};
        if (poll(polled, count + 1, -1) < 0 && errno != EINTR)
            return NULL;
        if (polled[0].revents & (POLLERR | POLLNVAL | POLLHUP))
            return NULL;
        for (unsigned i = count; i-- > 0;)
            if (polled[i + 1].revents && !serve(&peers[i])) {
                close(peers[i].fd);
                peers[i] = peers[--count];
            }
        if (polled[0].revents & POLLIN) {
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0 && count == PEERS) {
                close(fd);
            } else if (fd >= 0) {
                memset(&peers[count], 0, sizeof peers[count]);
                peers[count++].fd = fd;
            }
        }
    }
}

int gpw_control_open(const char *path, const char *id, struct gpw_session *s)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        gpw_log("error", "--control %s: a Unix socket's path has at most 107 bytes", path);
        return -1;
    }
    strcpy(address.sun_path, path);
    snprintf(path_of, sizeof path_of, "%s", path);
    snprintf(session_id, sizeof session_id, "%s", id);
    session = s;
    unlink(path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t before = umask(077);
    int r = listener < 0 ? -1 : bind(listener, (struct sockaddr *)&address, sizeof address);
    umask(before);
    pthread_t thread;
    if (r != 0 || listen(listener, PEERS) != 0 ||
        pthread_create(&thread, NULL, control_thread, NULL) != 0) {
        gpw_log("error", "cannot listen at the control socket %s: %m", path);
        return -1;
    }
    pthread_detach(thread);
    return 0;
}

void gpw_control_close(void)
{
    if (path_of[0])
        unlink(path_of);
}
