/* The process: initialisation, the lock, forked children, a real driver beside this one. */
#include "emulator.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int device_count = 2, driver_version = 13000;
_Thread_local bool inside_host_function;

static bool initialised;
static volatile int forked; /* written by a child alone, before it has threads */

/* A child gets a copy of the lock: a fork waits until no other thread holds it, so that what a test
 * asks of the emulator itself works there too. */
static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork(void) { pthread_mutex_unlock(&lock); }

static void begin_child(void) {
    forked = initialised;
    after_fork();
}

bool in_forked_child(void) { return forked; }

int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

__attribute__((constructor)) static void read_environment(void) {
    driver_version = setting("EMULATED_VERSION", driver_version);
    device_count = setting("EMULATED_DEVICES", device_count);
    if (device_count > MAX_DEVICES) device_count = MAX_DEVICES;
    recycles_handles = setting("EMULATED_RECYCLE", 0);
    refuses_dead_handles = setting("EMULATED_REFUSE_DEAD", 0);
    const char *faults = getenv("EMULATED_FAIL");
    if (faults) read_faults(faults);
    pthread_atfork(before_fork, after_fork, begin_child);
}

uint64_t next_id(void) {
    static uint64_t last = 16;
    return ++last;
}

void *zeroed(size_t size) {
    void *memory = calloc(1, size);
    if (!memory) abort();
    return memory;
}

void *grown(void *items, size_t count, size_t size) {
    items = realloc(items, (count ? 2 * count : 1) * size);
    if (!items) abort();
    return items;
}

CUresult enter(const char *function, bool needs_init, bool *entered) {
    if (inside_host_function && !forked) return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&lock);
    *entered = true;
    CUresult fault = count_call(function);
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (fault) return fault;
    return needs_init && !initialised ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

void leave(bool *entered) {
    if (*entered) pthread_mutex_unlock(&lock);
}

static int is_another_driver(struct dl_phdr_info *library, size_t size, void *found) {
    (void)size;
    const char *slash = strrchr(library->dlpi_name, '/');
    const char *name = slash ? slash + 1 : library->dlpi_name;
    if (strncmp(name, "libcuda.so", 10)) return 0;
    for (int i = 0; i < library->dlpi_phnum; i++) { /* is this very function in it? */
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];
        uintptr_t offset = (uintptr_t)is_another_driver - library->dlpi_addr - part->p_vaddr;
        if (part->p_type == PT_LOAD && offset < part->p_memsz) return 0;
    }
    snprintf(found, 256, "%s", library->dlpi_name);
    return 1;
}

/* Results of an emulator must never pass for those of a GPU. */
static bool beside_a_real_driver(void) {
    char found[256] = "";
    if (!access("/proc/driver/nvidia/version", F_OK))
        snprintf(found, sizeof found, "the kernel's NVIDIA driver");
    else
        dl_iterate_phdr(is_another_driver, found);
    if (*found) fprintf(stderr, "the emulated CUDA driver refuses to work beside %s\n", found);
    return *found;
}

EXPORT CUresult cuInit(unsigned flags) {
    ENTER_IF(false);
    REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
    if (initialised) return CUDA_SUCCESS;
    REQUIRE(!beside_a_real_driver(), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    REQUIRE(device_count > 0, CUDA_ERROR_NO_DEVICE);
    make_primary_contexts();
    make_default_pools();
    initialised = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    ENTER_IF(false);
    REQUIRE(version, CUDA_ERROR_INVALID_VALUE);
    *version = driver_version;
    return CUDA_SUCCESS;
}
