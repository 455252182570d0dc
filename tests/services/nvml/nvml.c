/* A stand-in for NVIDIA's libnvidia-ml.so.1, for the tests: no GPU, and every answer is chosen.
 *
 *     gcc -shared -fPIC -o libnvidia-ml.so.1 nvml.c                    a driver of today
 *     gcc -shared -fPIC -DOLD_DRIVER -o libnvidia-ml.so.1 nvml.c       one that lacks newer calls
 *
 * What it plays is a text of words "key=value". The first one comes from the environment variable
 * NVML_STANDIN; `standin_play(text)` replaces it while the program runs.
 *
 *     count=2                        GPUs there are
 *     mig=3                          instances that a GPU is cut into; 0 is not cut
 *     temperature=65  power=250000   what calls answer, in NVML's units (memory in MiB)
 *     error.power=3                  this call fails with this nvmlReturn_t
 *     error.gpu=15                   every call about a GPU fails
 *     after.power=2                  its failure begins with the third call
 *     delay.power=300                this call takes so many milliseconds, or until something else is played
 *     ...@1                          any of these for GPU 1 only: error.gpu@1=15
 *
 * `standin_calls(name)` tells how often a call was made. Underscores in texts stand for spaces.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25,
};

/* --- what is played ------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char script[4096];
static int users; /* nvmlInit less nvmlShutdown */

static struct {
    char name[24];
    int gpu;
    long long times;
} calls[512];

void standin_play(const char *text) {
    pthread_mutex_lock(&lock);
    snprintf(script, sizeof script, "%s", text);
    memset(calls, 0, sizeof calls);
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("NVML_STANDIN");
    standin_play(text ? text : "");
}

/* Copies the value of the last word "key=value"; returns whether there is one. */
static int find(const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    int found = 0;
    pthread_mutex_lock(&lock);
    for (const char *word = script; *word;) {
        size_t end = strcspn(word, " \n");
        if (end > length && !strncmp(word, key, length) && word[length] == '=') {
            snprintf(value, size, "%.*s", (int)(end - length - 1), word + length + 1);
            found = 1;
        }
        word += end + strspn(word + end, " \n");
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* The value for this GPU, else for all; -1 is no GPU. */
static int find_for(const char *key, int gpu, char *value, size_t size) {
    char own[64];
    snprintf(own, sizeof own, "%s@%d", key, gpu);
    return (gpu >= 0 && find(own, value, size)) || find(key, value, size);
}

static long long number(const char *key, int gpu, long long otherwise) {
    char value[64];
    return find_for(key, gpu, value, sizeof value) ? strtoll(value, NULL, 0) : otherwise;
}

static int text(const char *key, int gpu, const char *otherwise, char *out, unsigned size) {
    char value[96];
    if (!find_for(key, gpu, value, sizeof value)) snprintf(value, sizeof value, "%s", otherwise);
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    for (char *c = value; *c; c++)
        if (*c == '_') *c = ' ';
    strcpy(out, value);
    return SUCCESS;
}

static long long count_call(const char *name, int gpu) {
    long long times = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 512; i++) {
        if (!calls[i].name[0]) {
            snprintf(calls[i].name, sizeof calls[i].name, "%s", name);
            calls[i].gpu = gpu;
        }
        if (calls[i].gpu == gpu && !strcmp(calls[i].name, name)) {
            times = ++calls[i].times;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return times;
}

long long standin_calls(const char *name) {
    long long times = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 512; i++)
        if (!strcmp(calls[i].name, name)) times += calls[i].times;
    pthread_mutex_unlock(&lock);
    return times;
}

/* What every call does first: count, take its time, fail. */
static int enter(const char *name, int gpu) {
    char key[64];
    long long times = count_call(name, gpu), failure;

    snprintf(key, sizeof key, "delay.%s", name);
    for (long long waited = 0; waited < number(key, gpu, 0); waited += 5)
        nanosleep(&(struct timespec){0, 5000000}, NULL);

    if (!users && strcmp(name, "init")) return UNINITIALIZED;
    if (gpu >= 0 && gpu >= number("count", -1, 1)) return GPU_IS_LOST;
    if (gpu >= 0 && (failure = number("error.gpu", gpu, 0))) return (int)failure;
    snprintf(key, sizeof key, "after.%s", name);
    if (times <= number(key, gpu, 0)) return SUCCESS;
    snprintf(key, sizeof key, "error.%s", name);
    return (int)number(key, gpu, 0);
}

/* --- handles: GPU + 1, and above that the MIG instance + 1 ----------------------------------- */

typedef struct device *Device;

static Device handle_of(int gpu, int instance) {
    return (Device)(uintptr_t)((gpu + 1) | (instance + 1) << 16);
}

static int gpu_of(Device device) { return (int)((uintptr_t)device & 0xffff) - 1; }

static int instance_of(Device device) { return (int)((uintptr_t)device >> 16) - 1; }

/* The calls that answer for a whole GPU only refuse its instances, each in its own way. */
static int enter_whole(const char *name, Device device, int refusal) {
    int failure = enter(name, gpu_of(device));
    return failure || instance_of(device) < 0 ? failure : refusal;
}

/* --- the library and the system --------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int failure = enter("init", -1);
    if (!failure) users++;
    return failure;
}

int nvmlShutdown(void) {
    int failure = enter("shutdown", -1);
    if (!failure) users--;
    return failure;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    int failure = enter("driver", -1);
    return failure ? failure : text("driver", -1, "580.65.06", out, size);
}

int nvmlSystemGetCudaDriverVersion(int *out) {
    int failure = enter("cuda", -1);
    if (!failure) *out = (int)number("cuda", -1, 13000);
    return failure;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    int failure = enter("count", -1);
    if (!failure) *out = (unsigned)number("count", -1, 1);
    return failure;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) {
    int failure = enter("handle", -1);
    if (failure) return failure;
    if (index >= (unsigned)number("count", -1, 1)) return INVALID_ARGUMENT;
    if ((failure = (int)number("error.gpu", (int)index, 0))) return failure;
    *out = handle_of((int)index, -1);
    return SUCCESS;
}

/* --- what a GPU and its instances tell --------------------------------------------------------- */

int nvmlDeviceGetName(Device device, char *out, unsigned size) {
    int failure = enter("name", gpu_of(device));
    if (failure) return failure;
    failure = text("name", gpu_of(device), "NVIDIA_H200", out, size);
    if (!failure && instance_of(device) >= 0)
        snprintf(out + strlen(out), size - strlen(out), " MIG 1g.18gb");
    return failure;
}

int nvmlDeviceGetUUID(Device device, char *out, unsigned size) {
    char own[64];
    int failure = enter("uuid", gpu_of(device));
    if (instance_of(device) < 0)
        snprintf(own, sizeof own, "GPU-00000000-0000-0000-0000-%012d", gpu_of(device));
    else
        snprintf(own, sizeof own, "MIG-00000000-0000-0000-%04d-%012d", instance_of(device),
                 gpu_of(device));
    if (failure) return failure;
    return text(instance_of(device) < 0 ? "uuid" : "-", gpu_of(device), own, out, size);
}

struct memory {
    unsigned long long total, free, used;
};

int nvmlDeviceGetMemoryInfo(Device device, struct memory *memory) {
    int gpu = gpu_of(device), failure = enter("memory", gpu);
    if (failure) return failure;
    long long parts = instance_of(device) < 0 ? 1 : number("mig", gpu, 1);
    memory->total = ((unsigned long long)number("total", gpu, 81920) << 20) / (unsigned)parts;
    memory->used = ((unsigned long long)number("used", gpu, 10240) << 20) / (unsigned)parts;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *pending) {
    int failure = enter_whole("mig", device, INVALID_ARGUMENT);
    if (failure) return failure;
    if (number("mig", gpu_of(device), -1) < 0) return NOT_SUPPORTED;
    *now = *pending = number("mig", gpu_of(device), 0) > 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *out) {
    int failure = enter_whole("instances", device, INVALID_ARGUMENT);
    if (!failure) *out = number("mig", gpu_of(device), -1) < 0 ? 0 : 7;
    return failure;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *out) {
    int failure = enter_whole("instance", device, INVALID_ARGUMENT);
    if (failure) return failure;
    if ((long long)index >= number("mig", gpu_of(device), 0)) return NOT_FOUND;
    *out = handle_of(gpu_of(device), (int)index);
    return SUCCESS;
}

/* --- what only a whole GPU tells --------------------------------------------------------------- */

struct utilization {
    unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(Device device, struct utilization *rates) {
    int failure = enter_whole("utilization", device, NOT_SUPPORTED);
    if (!failure && number("mig", gpu_of(device), 0) > 0) failure = NOT_SUPPORTED;
    if (failure) return failure;
    rates->gpu = (unsigned)number("utilization", gpu_of(device), 37);
    rates->memory = (unsigned)number("memory_utilization", gpu_of(device), 20);
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device device, int which, unsigned *out) {
    int failure = enter_whole("clock", device, INVALID_ARGUMENT), gpu = gpu_of(device);
    if (failure) return failure;
    if (which < 0 || which > 3) return INVALID_ARGUMENT;
    *out = (unsigned)(which == 2 ? number("memory_clock", gpu, 2619) : number("clock", gpu, 1410));
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, unsigned long long *out) {
    (void)kind, (void)counter;
    int failure = enter_whole("ecc", device, NOT_SUPPORTED);
    if (!failure) *out = (unsigned long long)number("ecc", gpu_of(device), 0);
    return failure;
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    int failure = enter_whole("capability", device, INVALID_ARGUMENT);
    if (failure) return failure;
    *major = (int)number("capability", gpu_of(device), 90) / 10;
    *minor = (int)number("capability", gpu_of(device), 90) % 10;
    return SUCCESS;
}

struct pci {
    char legacy_id[16];
    unsigned domain, bus, device, pci_id, subsystem_id;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(Device device, struct pci *pci) {
    int failure = enter_whole("pci", device, INVALID_ARGUMENT);
    if (failure) return failure;
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned)gpu_of(device) + 1;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

static int temperature(Device device, int sensor, int *out) {
    int failure = enter_whole("temperature", device, NOT_SUPPORTED);
    if (failure) return failure;
    if (sensor) return INVALID_ARGUMENT;
    *out = (int)number("temperature", gpu_of(device), 65);
    return SUCCESS;
}

/* Calls with one number for an answer. */
#define NUMBER(function, type, key, otherwise)                                                     \
    int function(Device device, type *out) {                                                       \
        int failure = enter_whole(key, device, NOT_SUPPORTED);                                     \
        if (!failure) *out = (type)number(key, gpu_of(device), otherwise);                         \
        return failure;                                                                            \
    }

NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power", 250000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "limit", 700000)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "generation", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "width", 16)

#ifdef OLD_DRIVER
/* What a driver of 2018 has, and newer ones are about to drop. */
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *out) {
    return temperature(device, sensor, (int *)out);
}
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "reasons", 0)
#else
struct temperature {
    unsigned version;
    int sensor, value;
};

int nvmlDeviceGetTemperatureV(Device device, struct temperature *asked) {
    if (asked->version != (sizeof *asked | 1u << 24)) return VERSION_MISMATCH;
    return temperature(device, asked->sensor, &asked->value);
}
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "reasons", 0)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy", 1234567)
#endif
