/* Copies and fills. All memory is one address space here, as with unified addressing. */
#include "emulator.h"

static CUresult add_copy(CUstream handle, void *to, const void *from, size_t bytes, bool waits) {
    struct stream *stream;
    TRY(find_target(handle, &stream));
    if (!bytes) return CUDA_SUCCESS;
    REQUIRE(to && from, CUDA_ERROR_INVALID_VALUE);
    add_work(stream, &(struct action){COPY, .copy = {to, from, bytes}},
             CU_GRAPH_NODE_TYPE_MEMCPY);
    if (waits && !stream->capture) wait_for(stream, stream->submitted);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER();
    return add_copy(stream, (void *)to, (void *)from, bytes, false);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                                     CUstream stream) {
    ENTER();
    return add_copy(stream, (void *)to, from, bytes, false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER();
    bool is_pageable = !is_allocated((CUdeviceptr)to); /* which the driver itself writes */
    return add_copy(stream, to, (void *)from, bytes, is_pageable);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                     CUstream stream) {
    ENTER();
    return add_copy(stream, (void *)to, (void *)from, bytes, false);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                  CUcontext from_context, size_t bytes, CUstream stream) {
    ENTER();
    (void)to_context, (void)from_context;
    struct stream *found;
    TRY(find_target(stream, &found));
    TRY(refuse_capturing(found));
    return add_copy(stream, (void *)to, (void *)from, bytes, false);
}

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    ENTER();
    return add_copy(NULL, (void *)to, (void *)from, bytes, true);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    ENTER();
    return add_copy(NULL, (void *)to, from, bytes, true);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    ENTER();
    return add_copy(NULL, to, (void *)from, bytes, true);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    ENTER();
    return add_copy(NULL, (void *)to, (void *)from, bytes, false);
}

struct area {
    CUdeviceptr to;
    size_t pitch, width, height;
};

static CUresult add_fill(CUstream handle, struct area area, uint32_t value, size_t size) {
    struct stream *stream;
    TRY(find_target(handle, &stream));
    if (!area.width || !area.height) return CUDA_SUCCESS;
    REQUIRE(is_allocated(area.to) && area.to % size == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(area.height == 1 || area.width * size <= area.pitch, CUDA_ERROR_INVALID_VALUE);
    struct action action = {FILL, .fill = {(char *)area.to, area.pitch, size, area.width,
                                           area.height, value}};
    add_work(stream, &action, CU_GRAPH_NODE_TYPE_MEMSET);
    return CUDA_SUCCESS;
}

#define FILLS(bits, type)                                                                        \
    EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count,             \
                                           CUstream stream) {                                    \
        ENTER();                                                                                 \
        return add_fill(stream, (struct area){to, 0, count, 1}, value, sizeof(type));            \
    }                                                                                            \
    EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count) {             \
        ENTER();                                                                                 \
        return add_fill(NULL, (struct area){to, 0, count, 1}, value, sizeof(type));              \
    }                                                                                            \
    EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value,           \
                                             size_t width, size_t height, CUstream stream) {     \
        ENTER();                                                                                 \
        return add_fill(stream, (struct area){to, pitch, width, height}, value, sizeof(type));   \
    }                                                                                            \
    EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value,             \
                                           size_t width, size_t height) {                        \
        ENTER();                                                                                 \
        return add_fill(NULL, (struct area){to, pitch, width, height}, value, sizeof(type));     \
    }
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)
