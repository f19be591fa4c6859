/* Memory: malloc's, with the device and the pool it is counted to. */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT ((size_t)1 << 30)
#define UNWRITTEN 0xCD /* what a program reads that should have been written first */

static struct allocation {
    struct allocation *next;
    char *start;
    size_t bytes;
    int device;
    CUmemorytype type;
    struct pool *pool;
    bool of_graph; /* which frees it when it goes */
    bool is_lent;  /* of a graph's: by a launch, and not freed since */
} *allocations;

CUresult allocate(void **memory, size_t bytes, int device, CUmemorytype type, struct pool *pool) {
    REQUIRE(memory && bytes, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(bytes <= LIMIT, CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(!posix_memalign(memory, 512, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    memset(*memory, UNWRITTEN, bytes);
    struct allocation *made = zeroed(sizeof *made);
    *made = (struct allocation){allocations, *memory, bytes, device, type, pool, false, false};
    allocations = made;
    if (pool) pool->used += bytes;
    if (pool && pool->used > pool->used_high) pool->used_high = pool->used;
    if (pool && pool->used > pool->reserved_high) pool->reserved_high = pool->used;
    return CUDA_SUCCESS;
}

static void uncount(struct allocation *allocation) {
    if (allocation->pool) allocation->pool->used -= allocation->bytes;
    allocation->pool = NULL;
}

bool deallocate(void *memory) {
    struct allocation **link = &allocations, *found;
    while (*link && (*link)->start != memory) link = &(*link)->next;
    if (!(found = *link)) return false;
    *link = found->next;
    uncount(found);
    free(found->start);
    free(found);
    return true;
}

static struct allocation *find(CUdeviceptr pointer) {
    for (struct allocation *found = allocations; found; found = found->next)
        if ((char *)pointer >= found->start && (char *)pointer < found->start + found->bytes)
            return found;
    return NULL;
}

bool is_allocated(CUdeviceptr pointer) { return find(pointer); }

CUmemorytype type_of(CUdeviceptr pointer) {
    struct allocation *found = find(pointer);
    return found ? found->type : CU_MEMORYTYPE_HOST;
}

size_t size_of(CUdeviceptr pointer) {
    struct allocation *found = find(pointer);
    return found ? found->bytes : 0;
}

void give_to_graph(CUdeviceptr pointer) { find(pointer)->of_graph = true; }

bool is_of_graph(CUdeviceptr pointer) { return find(pointer)->of_graph; }

bool is_lent(CUdeviceptr pointer) { return find(pointer)->is_lent; }

void lend(CUdeviceptr pointer, bool on) {
    struct allocation *found = find(pointer);
    if (found) found->is_lent = on; /* what a graph frees may have gone with another graph */
}

/* Its pool no longer counts it, though its stream frees it later. */
bool begin_to_free(CUdeviceptr pointer) {
    struct allocation *found = find(pointer);
    if (!found || found->start != (char *)pointer) return false;
    if (!found->of_graph) uncount(found);
    found->is_lent = false;
    return true;
}

static CUresult allocate_here(void **memory, size_t bytes, CUmemorytype type) {
    struct context *context;
    TRY(current_context(&context));
    TRY(refuse_unsafe());
    return allocate(memory, bytes, context->device, type, NULL);
}

static CUresult release(void *memory, CUmemorytype type) {
    struct context *context;
    TRY(current_context(&context));
    if (!memory) return CUDA_SUCCESS;
    struct allocation *found = find((CUdeviceptr)memory);
    REQUIRE(found && found->start == memory && found->type == type, CUDA_ERROR_INVALID_VALUE);
    TRY(refuse_unsafe());
    wait_for_context(context); /* it waits for the device, as the real one does */
    found->is_lent = false;
    if (!found->of_graph) deallocate(memory);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    ENTER();
    return allocate_here((void **)pointer, bytes, CU_MEMORYTYPE_DEVICE);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    ENTER();
    return release((void *)pointer, CU_MEMORYTYPE_DEVICE);
}

#define HOST_FLAGS \
    (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)

static CUresult allocate_pinned(void **pointer, size_t bytes) {
    *pointer = NULL;
    return bytes ? allocate_here(pointer, bytes, CU_MEMORYTYPE_HOST) : CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    ENTER();
    REQUIRE(!(flags & ~(unsigned)HOST_FLAGS), CUDA_ERROR_INVALID_VALUE);
    return allocate_pinned(pointer, bytes);
}

EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    ENTER();
    return allocate_pinned(pointer, bytes);
}

EXPORT CUresult cuMemFreeHost(void *pointer) {
    ENTER();
    return release(pointer, CU_MEMORYTYPE_HOST);
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned flags) {
    ENTER();
    REQUIRE(!flags && find((CUdeviceptr)pointer), CUDA_ERROR_INVALID_VALUE);
    *device = (CUdeviceptr)pointer;
    return CUDA_SUCCESS;
}

static CUresult describe(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    struct allocation *found = find(pointer);
    REQUIRE(found, CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)value = found->pool ? NULL : primary_context(found->device)->handle;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = found->type;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = found->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        REQUIRE(found->type == CU_MEMORYTYPE_HOST, CUDA_ERROR_INVALID_VALUE);
        *(CUdeviceptr *)value = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)value = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = (CUdeviceptr)found->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = found->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(bool *)value = false;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)value = found->pool ? found->pool->handle : NULL;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                                      CUdeviceptr pointer) {
    ENTER();
    return describe(value, attribute, pointer);
}

/* What a pointer has not is zero; one that is not CUDA's is a host pointer. */
EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes,
                                       void **values, CUdeviceptr pointer) {
    ENTER();
    for (unsigned i = 0; i < count; i++) {
        if (!describe(values[i], attributes[i], pointer)) continue;
        bool is_number = attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
                         attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        bool is_flag = attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED;
        memset(values[i], 0, is_flag ? sizeof(bool) : is_number ? sizeof(int) : sizeof(void *));
        if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER && !find(pointer))
            *(CUdeviceptr *)values[i] = pointer;
    }
    return CUDA_SUCCESS;
}
