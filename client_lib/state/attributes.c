#include "attributes.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "gpc_wire.h"
#include "module.h"
#include "session.h"

/* An attribute as one member of the family has set it. */
struct gpc_setting {
    struct gpc_setting *next;
    const struct gpc_kernel *by;
    int value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct gpc_kernel *head_of(struct gpc_kernel *k)
{
    return k->kernel ? k->kernel : k;
}

static bool in_range(CUfunction_attribute attribute)
{
    return (unsigned)attribute < GP_FUNCTION_ATTRIBUTES;
}

struct gpc_attributes *gpc_attributes_on(const struct gpc_kernel *k, CUdevice device)
{
    /* pairs with the release in make() */
    struct gpc_attributes *a = __atomic_load_n(&k->attributes, __ATOMIC_ACQUIRE);
    while (a && a->device != device)
        a = a->next;
    return a;
}

static struct gpc_attributes *make(struct gpc_kernel *k, CUdevice device)
{
    struct gpc_attributes *a = gpc_attributes_on(k, device);
    if (a || !(a = calloc(1, sizeof *a)))
        return a;
    a->device = device;
    a->next = k->attributes;
    __atomic_store_n(&k->attributes, a, __ATOMIC_RELEASE);
    return a;
}

static bool is_known(const struct gpc_attributes *a, unsigned attribute)
{
    return __atomic_load_n(&a->known, __ATOMIC_ACQUIRE) >> attribute & 1;
}

static void write_value(struct gpc_attributes *a, unsigned attribute, int value)
{
    __atomic_store_n(&a->values[attribute], value, __ATOMIC_RELAXED);
    __atomic_fetch_or(&a->known, 1u << attribute, __ATOMIC_RELEASE);
}

static bool has_flags(const struct gpc_attributes *a, uint32_t flags)
{
    return a && (__atomic_load_n(&a->flags, __ATOMIC_ACQUIRE) & flags) == flags;
}

/* --- what the worker says ------------------------------------------------------- */

/* What was set is read back; of other attributes the driver may make something else (a yes
 * is a 1). */
static bool reads_back(unsigned attribute)
{
    return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
           attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
}

/* Take over what is not left open by a setter of `head`'s family. */
static void fill(struct gpc_attributes *a, const struct gpc_attributes *head,
                 const struct gp_function_attributes *from)
{
    for (unsigned i = 0; i < GP_FUNCTION_ATTRIBUTES; i++)
        if ((from->known >> i & 1) && (reads_back(i) || !(head && head->settings[i])))
            write_value(a, i, from->values[i]);
    __atomic_fetch_or(&a->flags, from->flags, __ATOMIC_RELEASE);
}

bool gpc_attributes_begin(struct gpc_kernel *k, CUdevice device,
                          const struct gp_function_attributes *from)
{
    if (!from->known || device < 0)
        return true;
    struct gpc_attributes *a = make(k, device);
    if (a)
        fill(a, NULL, from);
    return a != NULL;
}

bool gpc_attributes_inherit(struct gpc_kernel *function, CUdevice device)
{
    const struct gpc_attributes *head = gpc_attributes_on(function->kernel, device);
    struct gp_function_attributes from = {0};
    if (!head)
        return true;
    pthread_mutex_lock(&lock);
    from.known = head->known;
    from.flags = head->flags;
    memcpy(from.values, head->values, sizeof from.values);
    struct gpc_attributes *a = make(function, device);
    if (a)
        fill(a, head, &from);
    pthread_mutex_unlock(&lock);
    return a != NULL;
}

/* Ask for everything. Without `load`, a function that the driver has not loaded is left so,
 * which is an error. Under `lock`. */
static CUresult describe(struct gpc_kernel *k, CUdevice device, const struct gpc_route *on,
                         bool load)
{
    struct gp_function_attributes from;
    uint32_t got = 0;
    struct gp_parameter *parameters = malloc(GP_PARAMETERS_MAX * sizeof *parameters);
    struct gpc_attributes *a = make(k, device);
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    if (parameters && a)
        r = gpc_kernel_is_contextless(k)
                ? gpc_wire_gp_kernel_describe_on(on, (CUkernel)k->handle, device, &from, parameters,
                                                 &got)
                : gpc_wire_gp_function_describe_on(on, k->handle, load, &from, parameters, &got);
    if (r == CUDA_SUCCESS && (from.flags & GP_DESCRIBED_PARAMETERS))
        r = gpc_kernel_parameters(k, parameters, got / sizeof *parameters);
    if (r == CUDA_SUCCESS)
        fill(a, gpc_attributes_on(head_of(k), device), &from);
    if (r == CUDA_SUCCESS && !k->parameters)
        r = CUDA_ERROR_UNKNOWN;
    free(parameters);
    return r;
}

CUresult gpc_attributes_ready(struct gpc_kernel *k, CUdevice device, const struct gpc_route *on)
{
    const uint32_t flags = GP_DESCRIBED_PARAMETERS | GP_DESCRIBED_LOADED;
    if (has_flags(gpc_attributes_on(k, device), flags))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    CUresult r = CUDA_SUCCESS;
    if (!has_flags(gpc_attributes_on(k, device), flags))
        r = describe(k, device, on, true);
    pthread_mutex_unlock(&lock);
    return r;
}

CUresult gpc_attributes_parameters(struct gpc_kernel *k)
{
    if (__atomic_load_n(&k->parameters, __ATOMIC_ACQUIRE))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    CUresult r = k->parameters ? CUDA_SUCCESS : describe(k, gpc_kernel_device(k), NULL, true);
    pthread_mutex_unlock(&lock);
    return r;
}

/* One attribute, in the state that the family is in. Under `lock`. */
static CUresult ask(struct gpc_kernel *k, CUdevice device, CUfunction_attribute attribute,
                    int *value)
{
    struct gpc_attributes *a = in_range(attribute) ? make(k, device) : NULL;
    CUresult r = gpc_kernel_is_contextless(k)
                     ? gpc_wire_cuKernelGetAttribute(value, attribute, (CUkernel)k->handle, device)
                     : gpc_wire_cuFuncGetAttribute(value, attribute, k->handle);
    if (r == CUDA_SUCCESS && a)
        write_value(a, (unsigned)attribute, *value);
    return r;
}

bool gpc_attributes_know(const struct gpc_kernel *k, CUdevice device,
                         CUfunction_attribute attribute, int *value)
{
    const struct gpc_attributes *a = gpc_attributes_on(k, device);
    if (!a || !in_range(attribute) || !is_known(a, (unsigned)attribute))
        return false;
    *value = __atomic_load_n(&a->values[attribute], __ATOMIC_RELAXED);
    return true;
}

static CUresult look(struct gpc_kernel *k, CUdevice device, CUfunction_attribute attribute,
                     int *value)
{
    CUresult r = CUDA_SUCCESS;
    if (in_range(attribute) && !has_flags(gpc_attributes_on(k, device), GP_DESCRIBED_PARAMETERS))
        r = describe(k, device, NULL, !__atomic_load_n(&k->listed, __ATOMIC_RELAXED));
    if (r == CUDA_ERROR_FUNCTION_NOT_LOADED)
        return r; /* of other failures the question itself has the right error */
    return gpc_attributes_know(k, device, attribute, value) ? CUDA_SUCCESS
                                                            : ask(k, device, attribute, value);
}

CUresult gpc_attribute_get(struct gpc_kernel *k, CUdevice device, CUfunction_attribute attribute,
                           int *value)
{
    if (gpc_attributes_know(k, device, attribute, value))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    CUresult r = look(k, device, attribute, value);
    pthread_mutex_unlock(&lock);
    return r;
}

/* --- what the application sets -------------------------------------------------- */

static void mix(uint64_t *hash, uint64_t value)
{
    *hash = (*hash ^ value) * UINT64_C(1099511628211);
    *hash ^= *hash >> 29;
}

/* A number for everything that the family has set, in its order. */
static uint64_t salt_of(const struct gpc_attributes *head)
{
    uint64_t salt = UINT64_C(14695981039346656037);
    for (unsigned i = 0; i < GP_FUNCTION_ATTRIBUTES; i++)
        for (const struct gpc_setting *s = head->settings[i]; s; s = s->next) {
            mix(&salt, i);
            mix(&salt, (uint64_t)s->by->handle);
            mix(&salt, (uint64_t)s->value);
        }
    return salt;
}

/* Put a setting before all others; the same member's older one goes. */
static void setting_put(struct gpc_setting **list, struct gpc_setting *s)
{
    for (struct gpc_setting **at = list; *at; at = &(*at)->next)
        if ((*at)->by == s->by) {
            struct gpc_setting *old = *at;
            *at = old->next;
            free(old);
            break;
        }
    s->next = *list;
    *list = s;
}

static bool has_own(const struct gpc_attributes *head, const struct gpc_kernel *k,
                    unsigned attribute)
{
    const struct gpc_setting *s = head->settings[attribute];
    while (s && s->by != k)
        s = s->next;
    return s != NULL;
}

/* What a setter makes of one other member of its family. What is set on a kernel is its
 * functions', but not where they have a setting of their own; and none of theirs is the
 * kernel's. Of an attribute that may be changed on its way, the driver is asked again. */
static void note_at(struct gpc_kernel *member, const struct gpc_attributes *head, bool by_kernel,
                    unsigned attribute, int value)
{
    struct gpc_attributes *a = gpc_attributes_on(member, head->device);
    if (!a)
        return;
    if (!reads_back(attribute))
        __atomic_fetch_and(&a->known, ~(1u << attribute), __ATOMIC_RELEASE);
    else if (by_kernel && !has_own(head, member, attribute))
        write_value(a, attribute, value);
}

static void note(struct gpc_kernel *k, struct gpc_attributes *own, struct gpc_attributes *head,
                 unsigned attribute, int value)
{
    struct gpc_kernel *kernel = head_of(k);
    note_at(kernel, head, false, attribute, value);
    for (struct gpc_kernel *f = gpc_kernel_functions(kernel); f; f = f->next_function)
        note_at(f, head, k == kernel, attribute, value);
    if (reads_back(attribute))
        write_value(own, attribute, value);
    __atomic_store_n(&head->salt, salt_of(head), __ATOMIC_RELAXED);
}

static CUresult send(struct gpc_kernel *k, CUdevice device, CUfunction_attribute attribute,
                     int value)
{
    return gpc_kernel_is_contextless(k)
               ? gpc_wire_cuKernelSetAttribute(attribute, value, (CUkernel)k->handle, device)
               : gpc_wire_cuFuncSetAttribute(k->handle, attribute, value);
}

static CUresult set(struct gpc_kernel *k, CUdevice device, CUfunction_attribute attribute,
                    int value)
{
    struct gpc_attributes *own = make(k, device), *head = make(head_of(k), device);
    if (!own || !head)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct gpc_setting *last = head->settings[attribute];
    if (last && last->by == k && last->value == value)
        return CUDA_SUCCESS; /* frameworks do so before every launch */
    struct gpc_setting *s = malloc(sizeof *s);
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *s = (struct gpc_setting){.by = k, .value = value};
    CUresult r = send(k, device, attribute, value);
    if (r != CUDA_SUCCESS) {
        free(s);
        return r;
    }
    setting_put(&head->settings[attribute], s);
    note(k, own, head, (unsigned)attribute, value);
    return CUDA_SUCCESS;
}

CUresult gpc_attribute_set(struct gpc_kernel *k, CUdevice device, CUfunction_attribute attribute,
                           int value)
{
    pthread_mutex_lock(&lock);
    CUresult r = set(k, device, attribute, value);
    pthread_mutex_unlock(&lock);
    return r;
}

uint64_t gpc_attributes_salt(uint64_t function)
{
    struct gpc_kernel *k = gpc_kernel_of((CUfunction)function);
    uint64_t salt = 0;
    if (!k)
        return 0;
    struct gpc_attributes *a = __atomic_load_n(&head_of(k)->attributes, __ATOMIC_ACQUIRE);
    for (; a; a = a->next)
        salt ^= __atomic_load_n(&a->salt, __ATOMIC_RELAXED);
    return salt;
}

/* --- ends ------------------------------------------------------------------------ */

static void settings_free(struct gpc_attributes *a)
{
    for (unsigned i = 0; i < GP_FUNCTION_ATTRIBUTES; i++)
        while (a->settings[i]) {
            struct gpc_setting *s = a->settings[i];
            a->settings[i] = s->next;
            free(s);
        }
}

void gpc_attributes_context_ended(struct gpc_kernel *k, CUdevice device)
{
    pthread_mutex_lock(&lock);
    struct gpc_attributes *a = gpc_attributes_on(k, device);
    if (a) {
        settings_free(a);
        __atomic_store_n(&a->known, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&a->flags, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&a->salt, 0, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
}

void gpc_attributes_free(struct gpc_kernel *k)
{
    while (k->attributes) {
        struct gpc_attributes *a = k->attributes;
        k->attributes = a->next;
        settings_free(a);
        free(a);
    }
}
