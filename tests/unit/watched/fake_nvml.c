/* Two cards as libnvidia-ml.so.1 would tell of them: the second has another process on it before the run begins. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int instance, compute; } process_t;

static long calls;
static const unsigned long long GIB = 1ULL << 30;

int nvmlInit_v2(void) { return getenv("FAKE_NVML_BROKEN") ? 9 : 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned int n) { strncpy(text, "580.95.05", n); return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **card) { *card = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetName(void *card, char *text, unsigned int n) { strncpy(text, "NVIDIA H200", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *card, memory_t *memory)
{
    unsigned long long used = card == (void *)1 ? (++calls > 2 ? 20 * GIB : GIB) : 5 * GIB;
    memory->total = 141 * GIB; memory->used = used; memory->free = memory->total - used;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned int *count, process_t *processes)
{
    const char *pid = getenv("FAKE_NVML_PID");
    *count = 0;
    if (card == (void *)1 && pid) { *count = 1; processes[0].pid = atoi(pid); processes[0].used = 18 * GIB; }
    if (card == (void *)2) { *count = 1; processes[0].pid = 1; processes[0].used = 5 * GIB; }
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *card, rates_t *rates) { rates->gpu = 90; rates->memory = 40; return 0; }
int nvmlDeviceGetPowerUsage(void *card, unsigned int *milliwatts) { *milliwatts = 500000; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *card, unsigned int *milliwatts) { *milliwatts = 700000; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *card, unsigned long long *millijoules)
{
    static long asked;
    *millijoules = 1000000ULL + 2000ULL * asked++;
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *card, unsigned long long *reasons) { *reasons = 0x40; return 0; }
int nvmlDeviceGetTemperature(void *card, unsigned int sensor, unsigned int *celsius) { *celsius = 83; return 0; }
