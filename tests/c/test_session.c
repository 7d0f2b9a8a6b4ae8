/*
 * The end of a session: a call whose answer is being read does not return under the hands of
 * the thread that reads it, because its caller's memory may be gone then.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>

#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_worker.h"
#include "handle.h"
#include "module.h"
#include "shared.h"

#define PAGE ((size_t)4096)

/* Memory that stops whoever writes to it until the test lets go. */
static char *slow;
static sem_t inside, go_on;
static bool finished; /* the call whose memory it is has returned */

static void on_fault(int signal_, siginfo_t *info, void *context)
{
    (void)signal_, (void)context;
    if ((char *)info->si_addr < slow || (char *)info->si_addr >= slow + PAGE)
        abort();
    sem_post(&inside);
    while (sem_wait(&go_on) != 0)
        ;
    mprotect(slow, PAGE, PROT_READ | PROT_WRITE);
}

static int set_up(void **state)
{
    (void)state;
    slow = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(slow, MAP_FAILED);
    sem_init(&inside, 0, 0);
    sem_init(&go_on, 0, 0);
    finished = false;
    fake_session();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return munmap(slow, PAGE);
}

static bool has_finished(void)
{
    usleep(50000); /* time for a mistake */
    return __atomic_load_n(&finished, __ATOMIC_ACQUIRE);
}

/* A thread that reads for all, because it waits first. */
static void *reader(void *result)
{
    char none;
    uint32_t got = 0;
    *(CUresult *)result = gpc_wire_gp_captured_read(0, 1, &none, &got);
    return NULL;
}

static void *waiter(void *result)
{
    uint32_t got = 0;
    *(CUresult *)result = gpc_wire_gp_captured_read(0, PAGE, slow, &got);
    __atomic_store_n(&finished, true, __ATOMIC_RELEASE);
    return NULL;
}

static void answer_slowly(uint64_t seq)
{
    static char bytes[PAGE];
    memset(bytes, 7, sizeof bytes);
    struct gp_rep_gp_captured_read reply = {.r.result = 0, .n_data = PAGE};
    fake_answer(seq, &reply.r, sizeof reply, bytes, sizeof bytes);
}

static uint64_t start_reader(pthread_t *thread, CUresult *result)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL); /* cmocka has its own around each function */
    assert_int_equal(pthread_create(thread, NULL, reader, result), 0);
    return fake_asked(0);
}

/* The reader fills one call's memory while another thread finds the connection gone. */
static void lost_while_an_answer_is_read(void **state)
{
    (void)state;
    pthread_t reads, waits;
    CUresult read_ = 1, waited = 1;
    uint64_t asked = start_reader(&reads, &read_);
    assert_int_equal(pthread_create(&waits, NULL, waiter, &waited), 0);
    answer_slowly(fake_asked(asked));
    sem_wait(&inside);
    fake_fail_sends();
    char none;
    uint32_t got = 0;
    assert_int_equal(gpc_wire_gp_captured_read(0, 1, &none, &got), CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_false(has_finished());
    sem_post(&go_on);
    pthread_join(waits, NULL);
    pthread_join(reads, NULL);
    assert_int_equal(waited, CUDA_SUCCESS); /* its answer had come */
    assert_int_equal(slow[PAGE - 1], 7);
    assert_int_equal(read_, CUDA_ERROR_DEVICE_UNAVAILABLE);
}

static void answer_at_once(const struct gp_header *h)
{
    if (h->op != GP_OP_gp_captured_read || h->seq == 1)
        return;
    fake_channel.on_send = NULL;
    answer_slowly(h->seq);
    sem_wait(&inside);
    fake_fail_sends();
}

/* A worker answers a call that could not even be sent. */
static void unsent_but_answered(void **state)
{
    (void)state;
    pthread_t reads, waits;
    CUresult read_ = 1, waited = 1;
    start_reader(&reads, &read_);
    fake_channel.on_send = answer_at_once;
    assert_int_equal(pthread_create(&waits, NULL, waiter, &waited), 0);
    assert_false(has_finished());
    sem_post(&go_on);
    pthread_join(waits, NULL);
    assert_int_equal(waited, CUDA_ERROR_DEVICE_UNAVAILABLE);
    pthread_join(reads, NULL);
}

/* The session is lost after a call has found it working and before the call is listed:
 * sends go on working, so nothing but the list says that no answer will come. */
static void lose_now(const struct gp_header *h)
{
    if (h->op != GP_OP_gp_capture_mode_set)
        return;
    struct gp_reply bogus = {.result = 0};
    fake_answer(12345, &bogus, sizeof bogus, NULL, 0);
    while (gpc_session_works(gpc_session_at(0)))
        usleep(1000);
}

static void lost_before_it_is_listed(void **state)
{
    (void)state;
    pthread_t reads;
    CUresult read_ = CUDA_SUCCESS;
    struct gpc_session *s = gpc_session_at(0);
    start_reader(&reads, &read_);
    fake_channel.on_send = lose_now;
    s->wire_capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL; /* a message goes first */
    struct gp_req_gp_captured_open q = {.h = {.op = GP_OP_gp_captured_open}};
    struct gpc_call call = {.request = &q.h, .request_size = sizeof q};
    assert_int_equal(gpc_call_exchange(&call), CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_int_equal(call.state, GPC_CALL_FAILED);
    assert_null(s->waiting); /* `call` is this function's */
    pthread_join(reads, NULL);
    assert_int_equal(read_, CUDA_ERROR_DEVICE_UNAVAILABLE);
}

static void states_of_a_call(void **state)
{
    (void)state;
    struct gpc_session *s = gpc_session_at(0);
    struct gp_req_gp_captured_open q = {.h = {.op = GP_OP_gp_captured_open}};
    struct gp_reply reply = {.result = CUDA_ERROR_OUT_OF_MEMORY};
    struct gpc_call calls[3];
    for (unsigned i = 0; i < 3; i++) {
        calls[i] = (struct gpc_call){.request = &q.h, .request_size = sizeof q};
        assert_int_equal(gpc_call_begin(&calls[i]), CUDA_SUCCESS);
        assert_int_equal(calls[i].state, GPC_CALL_SENT);
    }
    fake_answer(calls[1].seq, &reply, sizeof reply, NULL, 0);
    gpc_session_poll(s);
    assert_int_equal(calls[1].state, GPC_CALL_DONE); /* a refusal is an answer */
    assert_int_equal(gpc_call_finish(&calls[1]), CUDA_ERROR_OUT_OF_MEMORY);
    fake_answer(calls[1].seq, &reply, sizeof reply, NULL, 0); /* once more: nobody's */
    gpc_session_poll(s);
    assert_int_equal(calls[0].state, GPC_CALL_FAILED);
    assert_int_equal(calls[2].state, GPC_CALL_FAILED);
    assert_null(s->waiting);
    assert_int_equal(gpc_call_finish(&calls[0]), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

/* Registered memory is the application's to free as soon as it hears of the loss. */
static void no_bytes_after_the_loss(void **state)
{
    (void)state;
    struct gpc_session *s = gpc_session_at(0);
    char bytes[8] = "before";
    uint64_t cookie = gpc_pinned_expect(s, bytes, sizeof bytes);
    assert_true(cookie != 0);
    const struct gp_req_gp_pinned_data q = {.cookie = cookie, .bytes = sizeof bytes};
    gpc_on_gp_pinned_data(s, &q, "during!");
    assert_string_equal(bytes, "during!");
    fake_fail_sends();
    assert_int_not_equal(gpc_wire_gp_captured_open(1, 1), CUDA_SUCCESS);
    gpc_on_gp_pinned_data(s, &q, "after!!");
    assert_string_equal(bytes, "during!");
    const struct gp_req_gp_pinned_data again = {.cookie = gpc_pinned_expect(s, bytes, sizeof bytes),
                                                .bytes = sizeof bytes};
    gpc_on_gp_pinned_data(s, &again, "after!!");
    assert_string_equal(bytes, "during!");
}

/* A fence holds back what follows, so it goes only where nothing has come in between: the end
 * of another thread's host function would never be heard of. */
static void a_fence_goes_behind_one_message_only(void **state)
{
    (void)state;
    struct gpc_session *s = gpc_session_at(0);
    struct gp_req_gp_fence q = {.h.op = GP_OP_gp_fence, .stream = GP_STREAM_LEGACY};
    struct gpc_call call = {.route.session = s, .request = &q.h, .request_size = sizeof q};
    assert_int_equal(gpc_call_post(&call), CUDA_SUCCESS);
    call.only_behind = call.seq;
    unsigned sent = fake_channel.sent;
    assert_int_equal(gpc_call_post(&call), CUDA_SUCCESS);
    assert_int_equal(fake_channel.sent, sent + 1);
    assert_int_equal(gpc_call_post(&call), CUDA_ERROR_NOT_READY);
    assert_int_equal(fake_channel.sent, sent + 1);
}

/* As a profiler's flush from a handler of exit(), where a signal's has interrupted a wait. */
static void nothing_is_sent_from_inside(void **state)
{
    (void)state;
    struct gp_req_gp_fence q = {.h.op = GP_OP_gp_fence, .stream = GP_STREAM_LEGACY};
    struct gpc_call call = {
        .route.session = gpc_session_at(0), .request = &q.h, .request_size = sizeof q};
    unsigned sent = fake_channel.sent;
    int cancel = gpc_inside_begin();
    assert_int_equal(gpc_call_post(&call), CUDA_ERROR_NOT_PERMITTED);
    assert_int_equal(gpc_call_begin(&call), CUDA_ERROR_NOT_PERMITTED);
    gpc_inside_end(cancel);
    assert_int_equal(fake_channel.sent, sent);
    assert_int_equal(gpc_call_post(&call), CUDA_SUCCESS);
}

/* Whatever number a worker says, the program gets an error of CUDA's. */
static void an_error_is_one_of_cudas(void **state)
{
    (void)state;
    const int32_t said[] = {-1, INT32_MIN, CUDA_ERROR_UNKNOWN + 1, INT32_MAX};
    struct gpc_session *s = gpc_session_at(0);
    for (unsigned i = 0; i < sizeof said / sizeof said[0]; i++) {
        struct gp_req_gp_captured_open q = {.h.op = GP_OP_gp_captured_open};
        struct gpc_call call = {.route.session = s, .request = &q.h, .request_size = sizeof q};
        struct gp_reply reply = {.result = said[i]};
        assert_int_equal(gpc_call_begin(&call), CUDA_SUCCESS);
        fake_answer(call.seq, &reply, sizeof reply, NULL, 0);
        assert_int_equal(gpc_call_finish(&call), CUDA_ERROR_UNKNOWN);
        struct gp_req_gp_async_error later = {.h = {sizeof later, GP_OP_gp_async_error, 0, 0},
                                              .result = said[i]};
        fake_say(&later, sizeof later);
        gpc_session_poll(s);
        assert_int_equal(gpc_session_take_pending(s), CUDA_ERROR_UNKNOWN);
    }
}

static char *guarded;
static unsigned opened, opened_before, busy;

/* As a program's own handler, which may take its time. */
static void open_guarded(int number, siginfo_t *info, void *context)
{
    struct gpc_session *s = gpc_session_at(0);
    char *page = (char *)((uintptr_t)info->si_addr & ~(PAGE - 1));
    (void)number, (void)context;
    if (page < guarded || page >= guarded + 3 * PAGE)
        abort();
    if (pthread_mutex_trylock(&s->submit_lock) == 0)
        pthread_mutex_unlock(&s->submit_lock);
    else
        busy++;
    busy += gpc_thread()->inside; /* it may call CUDA */
    opened++;
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
}

static void note_opened(const struct gp_header *h)
{
    (void)h;
    opened_before = opened;
}

static int take_nothing_back(struct gp_channel *ch)
{
    (void)ch;
    return 0;
}

/* A channel that lends reads in system calls and on other threads, where it could not fault. */
static void what_is_guarded_faults_before_it_is_lent(void **state)
{
    (void)state;
    struct gp_transport lends = fake_transport;
    struct gpc_session *s = gpc_session_at(0);
    struct sigaction opens = {.sa_sigaction = open_guarded, .sa_flags = SA_SIGINFO}, before;
    struct gp_req_gp_htod q = {
        .h.op = GP_OP_gp_htod, .stream = GP_STREAM_LEGACY, .bytes = 3 * PAGE, .n_data = 3 * PAGE};
    struct gpc_call call = {.route.session = s, .request = &q.h, .request_size = sizeof q};
    lends.take_back = take_nothing_back;
    s->transport = &lends;
    fake_channel.on_send = note_opened;
    guarded = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(guarded, MAP_FAILED);
    call.in[0] = (struct iovec){guarded, 3 * PAGE};
    call.in_count = 1;
    assert_int_equal(sigaction(SIGSEGV, &opens, &before), 0);
    assert_int_equal(gpc_call_post(&call), CUDA_SUCCESS);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    assert_int_equal(opened_before, 3);
    assert_int_equal(busy, 0);
    munmap(guarded, 3 * PAGE);
    fake_channel.on_send = NULL;
    s->transport = &fake_transport;
}

static unsigned lists;

/* One name more, each time. */
static void answer_with_a_name(const struct gp_header *h)
{
    if (h->op == GP_OP_gp_module_names) {
        struct gp_rep_gp_module_names reply = {.n_names = 2};
        lists++;
        fake_answer(h->seq, &reply.r, sizeof reply, "k", 2);
    } else if (h->op == GP_OP_gp_module_get_function) {
        struct gp_rep_gp_module_get_function reply = {.n_parameters = 0};
        fake_answer(h->seq, &reply.r, sizeof reply, "", 0);
    }
}

/* A worker that lists names without end is not asked without end. */
static void a_list_of_names_ends(void **state)
{
    (void)state;
    CUfunction found[1];
    uint64_t id = gpc_handle_new(GP_HANDLE_MODULE, 0);
    static struct gpc_image_shadow *kept; /* as by its handle, which no leak checker reads */
    assert_non_null(kept = gpc_image_shadow_new(id, false));
    lists = 0;
    fake_channel.on_send = answer_with_a_name;
    assert_int_equal(gpc_image_enumerate(GP_HANDLE_MODULE, id, found, 1), CUDA_ERROR_UNKNOWN);
    assert_true(lists > 1 && lists < 1000);
    fake_channel.on_send = NULL;
}

int main(void)
{
    alarm(120);
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(lost_while_an_answer_is_read), CASE(unsent_but_answered),
        CASE(lost_before_it_is_listed),     CASE(states_of_a_call),
        CASE(no_bytes_after_the_loss),      CASE(a_fence_goes_behind_one_message_only),
        CASE(nothing_is_sent_from_inside),  CASE(an_error_is_one_of_cudas),
        CASE(a_list_of_names_ends),         CASE(what_is_guarded_faults_before_it_is_lent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
