/* A libnvidia-ml.so.1 for machines without a card: the calls that sampling/nvml.py makes.

   One card, that of cuda.c, with 1 GiB. Each process that has $FAKE_CUDA_DEVICE open, and
   has told cuda.c's folder of itself, has 100 MiB of it; nobody computes anything. */

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
#define EACH (100ull << 20)
#define TOTAL (1ull << 30)

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
} Process;

static int has_device(const char *pid) {
    char folder[64], path[330], target[256];
    int found = 0;
    snprintf(folder, sizeof folder, "/proc/%s/fd", pid);
    DIR *all = opendir(folder);
    if (!all) return 0;
    for (struct dirent *one; !found && (one = readdir(all));) {
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length > 0) target[length] = 0;
        found = length > 0 && !strcmp(target, getenv("FAKE_CUDA_DEVICE"));
    }
    closedir(all);
    return found;
}

/* Whether it has told the driver's folder of itself, under its innermost pid. */
static int is_told(const char *pid) {
    char path[512], line[512];
    snprintf(path, sizeof path, "/proc/%s/status", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    path[0] = 0;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "NSpid:", 6))
            for (char *word = strtok(line + 6, "\t\n "); word; word = strtok(0, "\t\n "))
                snprintf(path, sizeof path, "%s/%s", getenv("FAKE_CUDA_DIR"), word);
    fclose(file);
    return path[0] && access(path, F_OK) == 0;
}

static unsigned users(Process *found, unsigned most) {
    unsigned count = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *one; (one = readdir(all));)
        if (isdigit(one->d_name[0]) && has_device(one->d_name) && is_told(one->d_name)) {
            if (count < most)
                found[count] = (Process){atoi(one->d_name), EACH, ~0u, ~0u};
            count++;
        }
    closedir(all);
    return count;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "false NVML"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) {
    static int card;
    (void)number;
    *device = &card;
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    (void)device;
    memory->total = TOTAL;
    memory->used = users(0, 0) * EACH;
    memory->free = TOTAL - memory->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *device, Rates *rates) {
    (void)device;
    *rates = (Rates){0, 0};
    return OK;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
    (void)device, (void)now, (void)later;
    return NOT_SUPPORTED;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) {
    (void)device;
    snprintf(uuid, size, "GPU-abababab-abab-abab-abab-abababababab");
    return OK;
}
int nvmlDeviceGetName(void *device, char *name, unsigned size) {
    (void)device;
    snprintf(name, size, "Fake GPU");
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *all) {
    (void)device;
    unsigned most = all ? *count : 0;
    *count = users(all, most);
    return *count > most ? INSUFFICIENT_SIZE : OK;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *all) {
    (void)device, (void)all;
    *count = 0;
    return OK;
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, Process *a) {
    (void)device, (void)a;
    *count = 0;
    return OK;
}
int nvmlDeviceGetProcessUtilization(void *device, void *all, unsigned *count,
                                    unsigned long long since) {
    (void)device, (void)all, (void)count, (void)since;
    return NOT_FOUND;
}
