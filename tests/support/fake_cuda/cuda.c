/* A libcuda.so.1 for machines without a card: the calls that cuda_helper.py makes.

   A process is a "user" when it has written a file named after its innermost pid into
   $FAKE_CUDA_DIR: "<state> <thread>". Its own thread (own.c) does what the
   driver's would: it closes the device when the state becomes 2 and opens it when it
   becomes 1 again, and says so in "<pid>.done". One with thread 0 uses NVML alone.

   As with the real one (580), moving goes on when whoever has asked for it is killed,
   stands while the process is stopped, and whoever asks for the state waits for its end.

   Faults: one that has written "<pid>.forks" is locked only when "<pid>.forked" is
   there, so that it forks between a survey and the moment in which it stands; one with
   "<pid>.imports" is emptied without a word and never filled, as a process is that has
   memory of another open; $FAKE_CUDA_REFUSAL is what a checkpoint returns. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    OK = 0,
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    ILLEGAL_STATE = 401,
    NOT_READY = 600,
    NOT_SUPPORTED = 801
};
enum { RUNNING, LOCKED, CHECKPOINTED };

static int innermost(int pid) {
    char path[64], line[512], *left;
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "NSpid:", 6))
            for (char *word = strtok_r(line + 6, "\t\n ", &left); word;
                 word = strtok_r(0, "\t\n ", &left))
                found = atoi(word);
    fclose(file);
    return found;
}

static void path_of(char *path, int pid, const char *suffix) {
    snprintf(path, 512, "%s/%d%s", getenv("FAKE_CUDA_DIR"), innermost(pid), suffix);
}

static int read_two(int pid, const char *suffix, int *first, int *second) {
    char path[512];
    path_of(path, pid, suffix);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    int count = fscanf(file, "%d %d", first, second);
    fclose(file);
    return count;
}

static int change(int pid, int before, int after) {
    char path[512], new_path[512];
    int state, thread;
    if (read_two(pid, "", &state, &thread) != 2) return NOT_INITIALIZED;
    if (state != before) return ILLEGAL_STATE;
    path_of(path, pid, "");
    path_of(new_path, pid, ".new");
    FILE *file = fopen(new_path, "w");
    fprintf(file, "%d %d", after, thread);
    fclose(file);
    rename(new_path, path);
    return OK;
}

/* Until the process's own thread has done what the state asks for. */
static int await(int pid, int state) {
    struct timespec pause = {0, 2000000};
    for (int i = 0; i < 5000; i++) {
        int done = -1, ignored;
        if (read_two(pid, ".done", &done, &ignored) >= 1 && done == state) return OK;
        nanosleep(&pause, 0);
    }
    return NOT_READY;
}

/* Only a restore leads from "emptied" to a state in which it is to be filled. */
static int moves(int pid, int state) {
    int done = RUNNING, ignored;
    read_two(pid, ".done", &done, &ignored);
    if (state == CHECKPOINTED) return done != CHECKPOINTED;
    return state == LOCKED && done == CHECKPOINTED;
}

int cuInit(unsigned flags) { (void)flags; return OK; }
int cuDeviceGetCount(int *count) { *count = 1; return OK; }
int cuDeviceGet(int *device, int number) { *device = number; return OK; }
int cuDeviceGetUuid_v2(char *uuid, int device) {
    (void)device;
    memset(uuid, 0xab, 16);
    return OK;
}
int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    snprintf(name, size, "Fake GPU");
    return OK;
}
int cuGetErrorName(int code, const char **name) {
    (void)code;
    *name = "CUDA_ERROR_FAKE";
    return OK;
}
int cuCheckpointProcessGetState(int pid, int *state) {
    int thread;
    if (read_two(pid, "", state, &thread) != 2) return NOT_INITIALIZED;
    return moves(pid, *state) ? await(pid, *state) : OK;
}
int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread) {
    int state;
    if (read_two(pid, "", &state, thread) != 2) return NOT_INITIALIZED;
    return *thread ? OK : INVALID_VALUE;
}
static int exists(int pid, const char *suffix) {
    char path[512];
    path_of(path, pid, suffix);
    return access(path, F_OK) == 0;
}
int cuCheckpointProcessLock(int pid, void *arguments) {
    struct timespec pause = {0, 2000000};
    (void)arguments;
    int code = change(pid, RUNNING, LOCKED);
    for (int i = 0; i < 5000 && exists(pid, ".forks") && !exists(pid, ".forked"); i++)
        nanosleep(&pause, 0);
    return code;
}
int cuCheckpointProcessCheckpoint(int pid, void *arguments) {
    (void)arguments;
    const char *refusal = getenv("FAKE_CUDA_REFUSAL");
    if (refusal) return atoi(refusal);
    int code = change(pid, LOCKED, CHECKPOINTED);
    return code ? code : await(pid, CHECKPOINTED);
}
int cuCheckpointProcessRestore(int pid, void *arguments) {
    (void)arguments;
    if (exists(pid, ".imports")) return INVALID_VALUE;
    int code = change(pid, CHECKPOINTED, LOCKED);
    return code ? code : await(pid, LOCKED);
}
int cuCheckpointProcessUnlock(int pid, void *arguments) {
    (void)arguments;
    return change(pid, LOCKED, RUNNING);
}

/* Memory of the card is memory of the process, and every queue is empty at once. */

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = context;
    return OK;
}
int cuCtxSetCurrent(void *context) { return context ? OK : INVALID_VALUE; }
int cuMemAlloc_v2(uint64_t *address, size_t size) {
    *address = (uint64_t)(uintptr_t)calloc(1, size);
    return *address ? OK : INVALID_VALUE;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    memcpy((void *)(uintptr_t)to, from, size);
    return OK;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    memcpy(to, (void *)(uintptr_t)from, size);
    return OK;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream) {
    (void)stream;
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, size);
    return OK;
}
int cuMemHostAlloc(void **held, size_t size, unsigned flags) {
    (void)flags;
    *held = calloc(1, size);
    return *held ? OK : INVALID_VALUE;
}
int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    *stream = stream;
    return OK;
}
int cuStreamSynchronize(void *stream) { return stream ? OK : INVALID_VALUE; }
int cuEventCreate(void **event, unsigned flags) { return cuStreamCreate(event, flags); }
int cuEventRecord(void *event, void *stream) {
    return event && stream ? OK : INVALID_VALUE;
}
int cuEventSynchronize(void *event) { return cuStreamSynchronize(event); }
