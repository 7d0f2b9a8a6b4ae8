/*
 * Answers that stay true: kept by the bytes of the question, with the context
 * it was asked in and the state that it depends on. An entry is never changed once it is visible, so reading takes
 * no lock; `gpc_cache_forget` moves an operation to a new epoch, which no old
 * entry matches.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "session.h"

#define BUCKETS 4096
#define ENTRIES_MAX 200000
#define OWN_PARTS 6 /* of a key, before the call's tails */

struct answer {
    struct answer *next;
    uint64_t hash;
    uint32_t epoch;
    uint32_t key_size;
    uint32_t reply_size;
    CUresult result;
    uint32_t got[GPC_CALL_TAILS];
    unsigned char bytes[]; /* key, reply, then the outs at their full room */
};

static struct answer *buckets[BUCKETS];
static uint32_t epochs[GP_OP_COUNT];
static unsigned entries;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct key {
    unsigned char bytes[1024];
    uint32_t size;
    uint64_t hash;
};

/* False when the question is too long to keep. */
static bool key_make(struct gpc_call *call, struct key *key)
{
    const uint32_t skip = sizeof(struct gp_header);
    CUcontext context = call->route.context;
    key->size = 0;
    uint32_t session = gpc_call_index(call), life = gpc_context_life(context);
    struct iovec parts[OWN_PARTS + GPC_CALL_TAILS] = {
        {&call->request->op, sizeof call->request->op},
        {&session, sizeof session},
        {&life, sizeof life},
        {&context, sizeof context},
        {&call->salt, sizeof call->salt},
        {(char *)call->request + skip, call->request_size - skip},
    };
    memcpy(&parts[OWN_PARTS], call->in, call->in_count * sizeof call->in[0]);
    for (unsigned i = 0; i < OWN_PARTS + call->in_count; i++) {
        if (parts[i].iov_len > sizeof key->bytes - key->size)
            return false;
        memcpy(key->bytes + key->size, parts[i].iov_base, parts[i].iov_len);
        key->size += (uint32_t)parts[i].iov_len;
    }
    key->hash = UINT64_C(14695981039346656037); /* FNV-1a */
    for (uint32_t i = 0; i < key->size; i++)
        key->hash = (key->hash ^ key->bytes[i]) * UINT64_C(1099511628211);
    return true;
}

static const struct answer *find(const struct key *key, uint32_t epoch)
{
    /* pairs with the release in keep() */
    const struct answer *a = __atomic_load_n(&buckets[key->hash % BUCKETS], __ATOMIC_ACQUIRE);
    for (; a; a = a->next)
        if (a->hash == key->hash && a->epoch == epoch && a->key_size == key->size &&
            memcmp(a->bytes, key->bytes, key->size) == 0)
            return a;
    return NULL;
}

/* A refusal that the same question will meet again. */
static bool lasts(CUresult r)
{
    return r == CUDA_SUCCESS || r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_NOT_FOUND ||
           r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_UNSUPPORTED_LIMIT ||
           r == CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

static void keep(struct gpc_call *call, const struct key *key, uint32_t epoch, CUresult result)
{
    if (result != CUDA_SUCCESS) { /* nothing was filled */
        call->reply_size = 0;
        call->out_count = 0;
    }
    size_t size = sizeof(struct answer) + key->size + call->reply_size;
    for (unsigned i = 0; i < call->out_count; i++)
        size += call->out[i].got;
    struct answer *a = malloc(size);
    if (!a)
        return; /* asked again next time */
    a->hash = key->hash;
    a->epoch = epoch;
    a->key_size = key->size;
    a->reply_size = call->reply_size;
    a->result = result;
    unsigned char *to = a->bytes;
    memcpy(to, key->bytes, key->size);
    to += key->size;
    if (call->reply_size)
        memcpy(to, call->reply, call->reply_size);
    to += call->reply_size;
    for (unsigned i = 0; i < call->out_count; i++) {
        a->got[i] = call->out[i].got;
        memcpy(to, call->out[i].to, call->out[i].got);
        to += call->out[i].got;
    }
    pthread_mutex_lock(&lock);
    if (entries < ENTRIES_MAX) {
        struct answer **bucket = &buckets[key->hash % BUCKETS];
        a->next = *bucket;
        __atomic_store_n(bucket, a, __ATOMIC_RELEASE);
        entries++;
        a = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(a);
}

CUresult gpc_call_cached(struct gpc_call *call)
{
    struct key key;
    if (!key_make(call, &key))
        return gpc_call_exchange(call);
    uint32_t epoch = __atomic_load_n(&epochs[call->request->op], __ATOMIC_ACQUIRE);
    const struct answer *a = find(&key, epoch);
    if (a && a->result != CUDA_SUCCESS)
        return a->result;
    if (a && a->reply_size == call->reply_size) {
        const unsigned char *from = a->bytes + a->key_size;
        memcpy(call->reply, from, call->reply_size);
        from += call->reply_size;
        for (unsigned i = 0; i < call->out_count; i++) {
            memcpy(call->out[i].to, from, a->got[i]);
            call->out[i].got = a->got[i];
            from += a->got[i];
        }
        return CUDA_SUCCESS;
    }
    CUresult r = gpc_call_exchange(call);
    if (lasts(r))
        keep(call, &key, epoch, r);
    return r;
}

CUresult gpc_call_tried(struct gpc_call *call)
{
    struct key key;
    bool kept = key_make(call, &key);
    if (kept && find(&key, 0))
        return gpc_call_post(call);
    CUresult r = gpc_call_exchange(call);
    if (r == CUDA_SUCCESS && kept)
        keep(call, &key, 0, r);
    return r;
}

void gpc_cache_forget(uint16_t op)
{
    __atomic_fetch_add(&epochs[op], 1, __ATOMIC_RELEASE);
}
