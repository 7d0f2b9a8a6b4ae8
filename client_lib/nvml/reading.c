/* What changes while programs run: memory, temperatures, clocks, errors. */
#include <string.h>
#include <time.h>

#include "nvml_device.h"

struct memory {
    unsigned long long total, reserved, used;
};

static nvmlReturn_t memory_read(nvmlDevice_t device, struct memory *m)
{
    nvmlReturn_t r = gpc_nvml_fact(device, GP_NVML_MEMORY_TOTAL, &m->total);
    if (r == NVML_SUCCESS)
        r = gpc_nvml_fact_or(device, GP_NVML_MEMORY_RESERVED, 0, &m->reserved);
    if (r == NVML_SUCCESS)
        r = gpc_nvml_fact(device, GP_NVML_MEMORY_USED, &m->used);
    if (r != NVML_SUCCESS)
        return r;
    if (m->reserved > m->total)
        m->reserved = m->total;
    if (m->used > m->total - m->reserved)
        m->used = m->total - m->reserved;
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct memory m;
    nvmlReturn_t r = memory_read(device, &m);
    if (r != NVML_SUCCESS)
        return r;
    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    memory->total = m.total;
    memory->used = m.used + m.reserved; /* of old, what the driver keeps counts as used */
    memory->free = m.total - memory->used;
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device,
                                                        nvmlMemory_v2_t *memory)
{
    struct memory m;
    nvmlReturn_t r = memory_read(device, &m);
    if (r != NVML_SUCCESS)
        return r;
    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = m.total;
    memory->reserved = m.reserved;
    memory->used = m.used;
    memory->free = m.total - m.reserved - m.used;
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device,
                                                         nvmlBAR1Memory_t *bar1Memory)
{
    static const enum gpc_nvml_fact wanted[] = {GP_NVML_BAR1_TOTAL, GP_NVML_BAR1_USED};
    unsigned long long got[2];
    nvmlReturn_t r = gpc_nvml_facts(device, wanted, 2, got);
    if (r != NVML_SUCCESS)
        return r;
    if (!bar1Memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    bar1Memory->bar1Total = got[0];
    bar1Memory->bar1Used = got[1] < got[0] ? got[1] : got[0];
    bar1Memory->bar1Free = got[0] - bar1Memory->bar1Used;
    return NVML_SUCCESS;
}

/* --- temperatures, fans --------------------------------------------------- */

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device,
                                                      nvmlTemperatureSensors_t sensorType,
                                                      unsigned int *temp)
{
    unsigned long long got;
    if (!temp || sensorType != NVML_TEMPERATURE_GPU)
        return gpc_nvml_bad_argument(device);
    nvmlReturn_t r = gpc_nvml_fact(device, GP_NVML_TEMPERATURE, &got);
    if (r == NVML_SUCCESS)
        *temp = (unsigned int)got;
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device,
                                                       nvmlTemperature_t *temperature)
{
    unsigned int got;
    if (!temperature)
        return gpc_nvml_bad_argument(device);
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t r = nvmlDeviceGetTemperature(device, temperature->sensorType, &got);
    if (r == NVML_SUCCESS)
        temperature->temperature = (int)got;
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device,
                                                            nvmlMarginTemperature_t *marginTempInfo)
{
    unsigned long long got;
    if (!marginTempInfo)
        return gpc_nvml_bad_argument(device);
    if (marginTempInfo->version != nvmlMarginTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t r = gpc_nvml_fact(device, GP_NVML_TEMPERATURE_MARGIN, &got);
    if (r == NVML_SUCCESS)
        marginTempInfo->marginTemperature = (int)got;
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(
    nvmlDevice_t device, nvmlTemperatureThresholds_t thresholdType, unsigned int *temp)
{
    static const enum gpc_nvml_fact facts[] = {
        [NVML_TEMPERATURE_THRESHOLD_SHUTDOWN] = GP_NVML_TEMPERATURE_SHUTDOWN,
        [NVML_TEMPERATURE_THRESHOLD_SLOWDOWN] = GP_NVML_TEMPERATURE_SLOWDOWN,
        [NVML_TEMPERATURE_THRESHOLD_MEM_MAX] = GP_NVML_TEMPERATURE_MEMORY_MAX,
        [NVML_TEMPERATURE_THRESHOLD_GPU_MAX] = GP_NVML_TEMPERATURE_GPU_MAX,
    };
    unsigned long long got;
    if (!temp || (unsigned)thresholdType >= NVML_TEMPERATURE_THRESHOLD_COUNT)
        return gpc_nvml_bad_argument(device);
    if ((unsigned)thresholdType >= sizeof facts / sizeof facts[0])
        return gpc_nvml_refuse_device(__func__, device);
    nvmlReturn_t r = gpc_nvml_fact(device, facts[thresholdType], &got);
    if (r == NVML_SUCCESS)
        *temp = (unsigned int)got;
    return r;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan,
                                                      unsigned int *speed)
{
    unsigned long long fans, got;
    nvmlReturn_t r = gpc_nvml_fact_or(device, GP_NVML_FANS, 0, &fans);
    if (r != NVML_SUCCESS)
        return r;
    if (!speed || (fans && fan >= fans))
        return NVML_ERROR_INVALID_ARGUMENT;
    r = gpc_nvml_fact(device, GP_NVML_FAN, &got);
    if (r == NVML_SUCCESS)
        *speed = (unsigned int)got;
    return r;
}

/* --- clocks, engines ------------------------------------------------------ */

static nvmlReturn_t clock_read(nvmlDevice_t device, const enum gpc_nvml_fact *facts,
                               nvmlClockType_t type, unsigned int *clock)
{
    unsigned long long got;
    if (!clock || (unsigned)type >= NVML_CLOCK_COUNT)
        return gpc_nvml_bad_argument(device);
    nvmlReturn_t r = gpc_nvml_fact(device, facts[type], &got);
    if (r == NVML_SUCCESS)
        *clock = (unsigned int)got;
    return r;
}

#define CLOCKS(kind)                                                                               \
    {[NVML_CLOCK_GRAPHICS] = GP_NVML_CLOCK_GRAPHICS##kind,                                         \
     [NVML_CLOCK_SM] = GP_NVML_CLOCK_SM##kind,                                                     \
     [NVML_CLOCK_MEM] = GP_NVML_CLOCK_MEMORY##kind,                                                \
     [NVML_CLOCK_VIDEO] = GP_NVML_CLOCK_VIDEO##kind}

static const enum gpc_nvml_fact clocks_max[NVML_CLOCK_COUNT] = CLOCKS(_MAX);
static const enum gpc_nvml_fact clocks[NVML_CLOCK_ID_COUNT][NVML_CLOCK_COUNT] = {
    [NVML_CLOCK_ID_CURRENT] = CLOCKS(),
    [NVML_CLOCK_ID_APP_CLOCK_TARGET] = CLOCKS(_APPLICATION),
    [NVML_CLOCK_ID_APP_CLOCK_DEFAULT] = CLOCKS(_DEFAULT),
    [NVML_CLOCK_ID_CUSTOMER_BOOST_MAX] = CLOCKS(_BOOST),
};

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                                       unsigned int *clock)
{
    return clock_read(device, clocks_max, type, clock);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t clockType,
                                                nvmlClockId_t clockId, unsigned int *clockMHz)
{
    if ((unsigned)clockId >= NVML_CLOCK_ID_COUNT)
        return gpc_nvml_bad_argument(device);
    return clock_read(device, clocks[clockId], clockType, clockMHz);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                                    unsigned int *clock)
{
    return nvmlDeviceGetClock(device, type, NVML_CLOCK_ID_CURRENT, clock);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device,
                                                            nvmlClockType_t clockType,
                                                            unsigned int *clockMHz)
{
    return nvmlDeviceGetClock(device, clockType, NVML_CLOCK_ID_APP_CLOCK_TARGET, clockMHz);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device,
                                                                   nvmlClockType_t clockType,
                                                                   unsigned int *clockMHz)
{
    return nvmlDeviceGetClock(device, clockType, NVML_CLOCK_ID_APP_CLOCK_DEFAULT, clockMHz);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device,
                                                                nvmlClockType_t clockType,
                                                                unsigned int *clockMHz)
{
    return nvmlDeviceGetClock(device, clockType, NVML_CLOCK_ID_CUSTOMER_BOOST_MAX, clockMHz);
}

static nvmlReturn_t engine_read(nvmlDevice_t device, enum gpc_nvml_fact fact, unsigned int *percent,
                                unsigned int *period_us)
{
    unsigned long long got;
    if (!percent || !period_us)
        return gpc_nvml_bad_argument(device);
    nvmlReturn_t r = gpc_nvml_fact(device, fact, &got);
    if (r != NVML_SUCCESS)
        return r;
    *percent = (unsigned int)got;
    *period_us = 1000000 / 6; /* what the drivers say of theirs */
    return NVML_SUCCESS;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device,
                                                             unsigned int *utilization,
                                                             unsigned int *samplingPeriodUs)
{
    return engine_read(device, GP_NVML_UTILISATION_ENCODER, utilization, samplingPeriodUs);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device,
                                                             unsigned int *utilization,
                                                             unsigned int *samplingPeriodUs)
{
    return engine_read(device, GP_NVML_UTILISATION_DECODER, utilization, samplingPeriodUs);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetJpgUtilization(nvmlDevice_t device,
                                                         unsigned int *utilization,
                                                         unsigned int *samplingPeriodUs)
{
    return engine_read(device, GP_NVML_UTILISATION_JPEG, utilization, samplingPeriodUs);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetOfaUtilization(nvmlDevice_t device,
                                                         unsigned int *utilization,
                                                         unsigned int *samplingPeriodUs)
{
    return engine_read(device, GP_NVML_UTILISATION_OFA, utilization, samplingPeriodUs);
}

/* --- errors of memory ----------------------------------------------------- */

static const enum gpc_nvml_fact ecc_facts[2][2] = {
    [NVML_VOLATILE_ECC] = {GP_NVML_ECC_VOLATILE_CORRECTED, GP_NVML_ECC_VOLATILE_UNCORRECTED},
    [NVML_AGGREGATE_ECC] = {GP_NVML_ECC_AGGREGATE_CORRECTED, GP_NVML_ECC_AGGREGATE_UNCORRECTED},
};

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device,
                                                         nvmlMemoryErrorType_t errorType,
                                                         nvmlEccCounterType_t counterType,
                                                         unsigned long long *eccCounts)
{
    if (!eccCounts || (unsigned)errorType > 1 || (unsigned)counterType > 1)
        return gpc_nvml_bad_argument(device);
    return gpc_nvml_fact(device, ecc_facts[counterType][errorType], eccCounts);
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device,
                                                             nvmlMemoryErrorType_t errorType,
                                                             nvmlEccCounterType_t counterType,
                                                             nvmlMemoryLocation_t locationType,
                                                             unsigned long long *count)
{
#define PLACES(counter)                                                                            \
    {                                                                                              \
        {GP_NVML_ECC_##counter##_CORRECTED_DRAM, GP_NVML_ECC_##counter##_CORRECTED_SRAM},          \
        {                                                                                          \
            GP_NVML_ECC_##counter##_UNCORRECTED_DRAM, GP_NVML_ECC_##counter##_UNCORRECTED_SRAM     \
        }                                                                                          \
    }
    static const enum gpc_nvml_fact facts[2][2][2] = {
        [NVML_VOLATILE_ECC] = PLACES(VOLATILE),
        [NVML_AGGREGATE_ECC] = PLACES(AGGREGATE),
    };
#undef PLACES
    if (!count || (unsigned)errorType > 1 || (unsigned)counterType > 1 ||
        (unsigned)locationType >= NVML_MEMORY_LOCATION_COUNT)
        return gpc_nvml_bad_argument(device);
    if (locationType != NVML_MEMORY_LOCATION_DRAM && locationType != NVML_MEMORY_LOCATION_SRAM)
        return gpc_nvml_refuse_device(__func__, device);
    bool sram = locationType == NVML_MEMORY_LOCATION_SRAM;
    return gpc_nvml_fact(device, facts[counterType][errorType][sram], count);
}

/* --- fields --------------------------------------------------------------- */

static const struct {
    unsigned int id;
    enum gpc_nvml_fact fact;
    nvmlValueType_t type;
} fields[] = {
    {NVML_FI_DEV_ECC_CURRENT, GP_NVML_ECC, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_ECC_PENDING, GP_NVML_ECC_PENDING, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_MEMORY_TEMP, GP_NVML_TEMPERATURE_MEMORY, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, GP_NVML_ENERGY, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG},
    {NVML_FI_DEV_ENERGY, GP_NVML_ENERGY, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG},
    {NVML_FI_DEV_POWER_AVERAGE, GP_NVML_POWER, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_POWER_INSTANT, GP_NVML_POWER, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_POWER_MIN_LIMIT, GP_NVML_POWER_MIN, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_POWER_MAX_LIMIT, GP_NVML_POWER_MAX, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_POWER_DEFAULT_LIMIT, GP_NVML_POWER_DEFAULT, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_POWER_CURRENT_LIMIT, GP_NVML_POWER_ENFORCED, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_POWER_REQUESTED_LIMIT, GP_NVML_POWER_LIMIT, NVML_VALUE_TYPE_UNSIGNED_INT},
};

static void field_read(nvmlDevice_t device, nvmlFieldValue_t *v)
{
    unsigned long long got = 0;
    v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].id != v->fieldId)
            continue;
        v->nvmlReturn = gpc_nvml_fact(device, fields[i].fact, &got);
        v->valueType = fields[i].type;
    }
    if (v->fieldId == NVML_FI_DEV_NVLINK_LINK_COUNT) {
        v->nvmlReturn = gpc_nvml_fact(device, GP_NVML_NVLINKS, &got);
        v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        got = (unsigned)__builtin_popcountll(got);
    }
    if (v->nvmlReturn != NVML_SUCCESS)
        return;
    memset(&v->value, 0, sizeof v->value);
    if (v->valueType == NVML_VALUE_TYPE_UNSIGNED_INT)
        v->value.uiVal = (unsigned int)got;
    else
        v->value.ullVal = got;
}

GPC_NVML_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount,
                                                      nvmlFieldValue_t *values)
{
    nvmlReturn_t r = gpc_nvml_known(device);
    if (r != NVML_SUCCESS)
        return r;
    if (!values || valuesCount <= 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    for (int i = 0; i < valuesCount; i++) {
        values[i].timestamp = (long long)t.tv_sec * 1000000 + t.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        field_read(device, &values[i]);
    }
    return NVML_SUCCESS;
}
