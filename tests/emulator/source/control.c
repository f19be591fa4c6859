/* What a test asks of the emulator itself: faults to inject, calls made, what is still alive.
 * None of this is CUDA, and the names say so. */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 1024 /* more than there are entry points */
#define NAME 64

CUresult broken;
const char *entry_point;

static struct call {
    char name[NAME];
    uint64_t made;
    int until_fault; /* 1: the next call fails; 0: none does */
    CUresult fault;
} calls[SLOTS];

/* The slot of a public name: of cuMemAlloc_v2 and cuEventRecord_ptsz without what is added. */
static struct call *call_of(const char *function) {
    char name[NAME] = "";
    strncpy(name, function, NAME - 1);
    char *suffix = strstr(name, "_ptsz");
    if (suffix) *suffix = 0;
    suffix = strstr(name, "_v");
    if (suffix) *suffix = 0;
    unsigned hash = 2166136261u; /* FNV-1a */
    for (const char *letter = name; *letter; letter++)
        hash = (hash ^ (unsigned char)*letter) * 16777619u;
    struct call *call = &calls[hash % SLOTS];
    while (*call->name && strcmp(call->name, name)) /* taken by another name: the next one */
        call = call == &calls[SLOTS - 1] ? calls : call + 1;
    memcpy(call->name, name, NAME);
    return call;
}

/* What is the thread's or the device's, not the broken context's, still works. */
static bool survives(const char *function) {
    static const char *those[] = {"cuInit", "cuDriver", "cuDevice", "cuCtxGetCurrent",
                                  "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent",
                                  "cuCtxGetDevice", "cuThreadExchange"};
    for (size_t i = 0; i < sizeof those / sizeof *those; i++)
        if (!strncmp(function, those[i], strlen(those[i]))) return true;
    return false;
}

CUresult count_call(const char *function) {
    struct call *call = call_of(entry_point = function);
    call->made++;
    if (call->until_fault && !--call->until_fault) return call->fault;
    return broken && !survives(function) ? broken : CUDA_SUCCESS;
}

static void set_fault(const char *function, int nth, int code) {
    struct call *call = call_of(function);
    call->until_fault = nth;
    call->fault = (CUresult)code;
}

/* EMULATED_FAIL: "cuStreamCreate:1:2,cuEventRecord:3:719" */
void read_faults(const char *text) {
    char *copy = strdup(text), *rest = copy;
    for (char *entry; (entry = strsep(&rest, ",")) != NULL;) {
        char *name = strsep(&entry, ":"), *nth = strsep(&entry, ":"), *code = entry;
        if (code) set_fault(name, atoi(nth), atoi(code));
    }
    free(copy);
}

/* The n-th call of a function from now fails with a code and does nothing; 0 takes it back. */
EXPORT void emulated_fail(const char *function, int nth, int code) {
    pthread_mutex_lock(&lock);
    set_fault(function, nth, code);
    pthread_mutex_unlock(&lock);
}

/* From now on everything fails with a code, as after a fault of a kernel, until it is 0 again. */
EXPORT void emulated_break(int code) {
    pthread_mutex_lock(&lock);
    broken = (CUresult)code;
    pthread_mutex_unlock(&lock);
}

/* Take every fault back; return how many had not come. */
EXPORT int emulated_clear_faults(void) {
    pthread_mutex_lock(&lock);
    int pending = 0;
    for (struct call *call = calls; call < calls + SLOTS; call++) {
        pending += call->until_fault > 0;
        call->until_fault = 0;
    }
    pthread_mutex_unlock(&lock);
    return pending;
}

EXPORT uint64_t emulated_calls(const char *function) {
    pthread_mutex_lock(&lock);
    uint64_t made = call_of(function)->made;
    pthread_mutex_unlock(&lock);
    return made;
}

/* All calls made: a difference of zero proves that nothing touched the driver. */
EXPORT uint64_t emulated_all_calls(void) {
    uint64_t made = 0;
    pthread_mutex_lock(&lock);
    for (struct call *call = calls; call < calls + SLOTS; call++) made += call->made;
    pthread_mutex_unlock(&lock);
    return made;
}

/* Write "name count" for every function called, one per line; return the bytes it takes. */
EXPORT size_t emulated_list_calls(char *text, size_t size) {
    size_t used = 0;
    pthread_mutex_lock(&lock);
    for (struct call *call = calls; call < calls + SLOTS; call++) {
        if (!call->made) continue;
        int wrote = snprintf(used < size ? text + used : NULL, used < size ? size - used : 0,
                             "%s %llu\n", call->name, (unsigned long long)call->made);
        used += (size_t)wrote;
    }
    pthread_mutex_unlock(&lock);
    return used;
}

EXPORT void emulated_reset_calls(void) {
    pthread_mutex_lock(&lock);
    for (struct call *call = calls; call < calls + SLOTS; call++) call->made = 0;
    pthread_mutex_unlock(&lock);
}

/* How many handles of a kind are alive: "streams", "events", ... ; -1 for an unknown kind. */
EXPORT int emulated_live(const char *kind) {
    static const char *names[KINDS] = {"",      "contexts",    "streams", "events", "graphs",
                                       "nodes", "executables", "pools",   "user objects",
                                       "functions"};
    for (int i = 1; i < KINDS; i++) {
        if (strcmp(names[i], kind)) continue;
        pthread_mutex_lock(&lock);
        int live = live_handles((enum kind)i);
        pthread_mutex_unlock(&lock);
        return live;
    }
    return -1;
}

/* Where the end of the process is explained: to a descriptor that nobody captures. */
EXPORT void emulated_complain_to(int descriptor) { complaints = descriptor; }

/* Whether handles are given again at once, the last one dropped first. */
EXPORT void emulated_recycle(int on) {
    pthread_mutex_lock(&lock);
    recycles_handles = on;
    pthread_mutex_unlock(&lock);
}
