/* Kernels: they have a name and parameters, and do nothing. */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>

struct function {
    CUfunction handle;
    char *name;
    size_t count, *offsets, *sizes; /* of its parameters */
};

/* Make a function, which lives as long as the process. None of this is CUDA. */
EXPORT CUfunction emulated_function(const char *name, size_t count, const size_t *sizes) {
    pthread_mutex_lock(&lock);
    struct function *function = zeroed(sizeof *function);
    function->handle = new_handle(FUNCTION, function);
    function->name = strdup(name);
    function->count = count;
    function->offsets = zeroed((count + 1) * sizeof *sizes);
    function->sizes = zeroed((count + 1) * sizeof *sizes);
    for (size_t i = 0; i < count; i++) {
        function->sizes[i] = sizes[i];
        function->offsets[i + 1] = (function->offsets[i] + sizes[i] + 7) / 8 * 8;
    }
    pthread_mutex_unlock(&lock);
    return function->handle;
}

static void **copy_parameters(const struct function *function, void **parameters) {
    size_t pointers = (function->count + 1) * sizeof *parameters;
    void **copy = zeroed(pointers + function->offsets[function->count]);
    for (size_t i = 0; i < function->count; i++) {
        copy[i] = (char *)copy + pointers + function->offsets[i];
        memcpy(copy[i], parameters[i], function->sizes[i]);
    }
    return copy;
}

EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z,
                               unsigned shared, CUstream stream_handle, void **parameters,
                               void **extra) {
    ENTER();
    struct function *function = object_of(FUNCTION, handle);
    REQUIRE(function, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(grid_x && grid_y && grid_z && block_x && block_y && block_z, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!extra && (parameters || !function->count), CUDA_ERROR_INVALID_VALUE);
    (void)shared;
    struct stream *stream;
    TRY(find_target(stream_handle, &stream));
    add_work(stream, &(struct action){NO_WORK}, CU_GRAPH_NODE_TYPE_KERNEL);
    if (stream->capture) {
        struct node *node = stream->frontier.items[0];
        node->function = handle;
        node->parameters = copy_parameters(function, parameters);
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction handle) {
    ENTER();
    struct function *function = object_of(FUNCTION, handle);
    REQUIRE(function && name, CUDA_ERROR_INVALID_VALUE);
    *name = function->name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction handle, size_t place, size_t *offset, size_t *size) {
    ENTER();
    struct function *function = object_of(FUNCTION, handle);
    REQUIRE(function && offset && place < function->count, CUDA_ERROR_INVALID_VALUE);
    *offset = function->offsets[place];
    if (size) *size = function->sizes[place];
    return CUDA_SUCCESS;
}

/* -- what a graph's nodes were given -------------------------------------------------------- */

#define ENTER_NODE(handle, kind)                                                   \
    ENTER();                                                                       \
    struct node *node = object_of(NODE, handle);                                   \
    REQUIRE(node && found && node->type == CU_GRAPH_NODE_TYPE_##kind, CUDA_ERROR_INVALID_VALUE)

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *found) {
    ENTER_NODE(handle, KERNEL);
    *found = (CUDA_KERNEL_NODE_PARAMS){.func = node->function,
                                       .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                       .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,
                                       .kernelParams = node->parameters};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D *found) {
    ENTER_NODE(handle, MEMCPY);
    const struct action *action = &node->action;
    *found = (CUDA_MEMCPY3D){.WidthInBytes = action->copy.bytes, .Height = 1, .Depth = 1};
    found->srcMemoryType = type_of((CUdeviceptr)action->copy.from);
    found->dstMemoryType = type_of((CUdeviceptr)action->copy.to);
    if (found->srcMemoryType == CU_MEMORYTYPE_HOST) found->srcHost = action->copy.from;
    else found->srcDevice = (CUdeviceptr)action->copy.from;
    if (found->dstMemoryType == CU_MEMORYTYPE_HOST) found->dstHost = action->copy.to;
    else found->dstDevice = (CUdeviceptr)action->copy.to;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *found) {
    ENTER_NODE(handle, MEMSET);
    const struct action *action = &node->action;
    *found = (CUDA_MEMSET_NODE_PARAMS){.dst = (CUdeviceptr)action->fill.to,
                                       .pitch = action->fill.pitch, .value = action->fill.value,
                                       .elementSize = (unsigned)action->fill.size,
                                       .width = action->fill.width, .height = action->fill.height};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *found) {
    ENTER_NODE(handle, MEM_ALLOC);
    *found = (CUDA_MEM_ALLOC_NODE_PARAMS){.dptr = (CUdeviceptr)node->action.memory,
                                          .bytesize = size_of((CUdeviceptr)node->action.memory)};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr *found) {
    ENTER_NODE(handle, MEM_FREE);
    *found = (CUdeviceptr)node->action.memory;
    return CUDA_SUCCESS;
}
