/* cuGetProcAddress: how every library finds the rest. */
#include "emulator.h"

#include <string.h>

/* Each has a function of its own, so that calls of them are counted too. */
static CUresult not_supported(const char *function) {
    __attribute__((cleanup(leave))) bool entered = false;
    CUresult refused = enter(function, true, &entered);
    return refused ? refused : CUDA_ERROR_NOT_SUPPORTED;
}
#define ENTRY(name, version, function)
#define BOTH(name, version, function)
#define MISSING(name, version) \
    static CUresult missing_##name(void) { return not_supported(#name); }
#include "entry_points.h"
#undef ENTRY
#undef BOTH
#undef MISSING

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **address, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *found);

/* The one before CUDA 12 says with its code what the later one writes to `found`. */
EXPORT CUresult cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(name, address, version, flags, NULL);
}

static const struct entry {
    const char *name;
    int version;
    void *function, *per_thread;
} entries[] = {
#define ENTRY(name, version, function) {#name, version, function, function},
#define BOTH(name, version, function) {#name, version, function, function##_ptsz},
#define MISSING(name, version) {#name, version, missing_##name, missing_##name},
#include "entry_points.h"
#undef ENTRY
#undef BOTH
#undef MISSING
};

/* The newest that neither the caller nor the driver's own version is too old for. */
CUresult cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *found) {
    if (!name || !address) return CUDA_ERROR_INVALID_VALUE;
    const struct entry *best = NULL;
    bool known = false;
    for (const struct entry *entry = entries; entry < entries + sizeof entries / sizeof *entries;
         entry++) {
        if (strcmp(entry->name, name)) continue;
        known = true;
        if (entry->version > version || entry->version > driver_version) continue;
        if (!best || entry->version >= best->version) best = entry;
    }
    if (found)
        *found = best    ? CU_GET_PROC_ADDRESS_SUCCESS
                 : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                         : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    *address = !best ? NULL : per_thread ? best->per_thread : best->function;
    return best || found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
