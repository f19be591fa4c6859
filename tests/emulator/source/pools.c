/* Pools, and memory allocated and freed in the order of a stream. */
#include "emulator.h"

static struct pool *default_pools[MAX_DEVICES], *current_pools[MAX_DEVICES];

static struct pool *new_pool(int device) {
    struct pool *pool = zeroed(sizeof *pool);
    pool->device = device;
    for (int i = 0; i < 3; i++) pool->reuse[i] = 1;
    pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    pool->handle = new_handle(POOL, pool);
    return pool;
}

void make_default_pools(void) {
    for (int device = 0; device < device_count; device++)
        default_pools[device] = current_pools[device] = new_pool(device);
}

/* -- memory --------------------------------------------------------------------------------- */

static void free_with_graph(void *memory) { deallocate(memory); }

static CUresult allocate_on(CUdeviceptr *pointer, size_t bytes, struct pool *pool,
                            struct stream *stream) {
    if (!pool) pool = current_pools[stream->context->device];
    if (!stream->capture) TRY(refuse_unsafe());
    *pointer = 0;
    if (!bytes) return CUDA_SUCCESS;
    TRY(allocate((void **)pointer, bytes, pool->device, CU_MEMORYTYPE_DEVICE, pool));
    if (!stream->capture) return CUDA_SUCCESS;
    add_work(stream, &(struct action){NO_WORK, .memory = (void *)*pointer},
             CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    stream->capture->graph->allocates = true;
    give_to_graph(*pointer);
    keep_with_graph(stream->capture->graph, (void *)*pointer, free_with_graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream handle) {
    ENTER();
    struct stream *stream;
    TRY(find_target(handle, &stream));
    return allocate_on(pointer, bytes, NULL, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool from,
                                        CUstream handle) {
    ENTER();
    struct pool *pool = object_of(POOL, from);
    REQUIRE(pool, CUDA_ERROR_INVALID_VALUE);
    struct stream *stream;
    TRY(find_target(handle, &stream));
    return allocate_on(pointer, bytes, pool, stream);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
    ENTER();
    struct stream *stream;
    TRY(find_target(handle, &stream));
    REQUIRE(is_allocated(pointer), CUDA_ERROR_INVALID_VALUE);
    if (stream->capture) {
        REQUIRE(is_of_graph(pointer), CUDA_ERROR_INVALID_VALUE);
        add_work(stream, &(struct action){NO_WORK, .memory = (void *)pointer},
                 CU_GRAPH_NODE_TYPE_MEM_FREE);
        return CUDA_SUCCESS;
    }
    TRY(refuse_unsafe());
    REQUIRE(begin_to_free(pointer), CUDA_ERROR_INVALID_VALUE);
    if (!is_of_graph(pointer)) /* that lives as long as its graph */
        submit(stream, &(struct action){FREE, .memory = (void *)pointer});
    return CUDA_SUCCESS;
}

/* -- pools ---------------------------------------------------------------------------------- */

#define ENTER_DEVICE(device) \
    ENTER();                 \
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE)

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    ENTER_DEVICE(device);
    *pool = default_pools[device]->handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    ENTER();
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_VALUE); /* and not INVALID_DEVICE */
    *pool = current_pools[device]->handle;
    return CUDA_SUCCESS;
}

#define ENTER_POOL(handle)                       \
    ENTER();                                     \
    struct pool *pool = object_of(POOL, handle); \
    REQUIRE(pool, CUDA_ERROR_INVALID_VALUE)

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
    ENTER_POOL(handle);
    REQUIRE(pool->device == device, CUDA_ERROR_INVALID_VALUE);
    TRY(refuse_unsafe());
    current_pools[device] = pool;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    ENTER();
    REQUIRE(is_device(properties->location.id), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
    TRY(refuse_unsafe());
    *pool = new_pool(properties->location.id)->handle;
    return CUDA_SUCCESS;
}

/* The pool itself stays: what was allocated from it may outlive its handle. */
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    ENTER_POOL(handle);
    REQUIRE(pool != default_pools[pool->device], CUDA_ERROR_INVALID_VALUE);
    if (current_pools[pool->device] == pool)
        current_pools[pool->device] = default_pools[pool->device];
    drop_handle(handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t bytes) {
    ENTER_POOL(handle);
    (void)bytes; /* nothing is held back */
    TRY(refuse_unsafe());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access,
                                   size_t count) {
    ENTER_POOL(handle);
    REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) { /* noted only: all memory is in reach of all devices */
        bool is_own = access[i].location.id == pool->device;
        REQUIRE(is_device(access[i].location.id), CUDA_ERROR_INVALID_DEVICE);
        REQUIRE(access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ, CUDA_ERROR_NOT_SUPPORTED);
        REQUIRE(access[i].flags || !is_own, CUDA_ERROR_INVALID_DEVICE);
    }
    TRY(refuse_unsafe());
    for (size_t i = 0; i < count; i++) pool->access[access[i].location.id] = access[i].flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle,
                                   CUmemLocation *location) {
    ENTER_POOL(handle);
    REQUIRE(is_device(location->id), CUDA_ERROR_INVALID_VALUE);
    TRY(refuse_unsafe());
    *flags = pool->access[location->id];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                      void *value) {
    ENTER_POOL(handle);
    TRY(refuse_unsafe());
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        REQUIRE(!*(cuuint64_t *)value, CUDA_ERROR_INVALID_VALUE); /* it begins anew */
        pool->reserved_high = pool->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        REQUIRE(!*(cuuint64_t *)value, CUDA_ERROR_INVALID_VALUE);
        pool->used_high = pool->used;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                      void *value) {
    ENTER_POOL(handle);
    TRY(refuse_unsafe());
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = pool->threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = pool->reserved_high;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->used_high;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
