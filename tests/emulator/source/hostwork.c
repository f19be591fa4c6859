/* Host functions on a stream, and waits and writes of a value, with which a test holds one. */
#include "emulator.h"

EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    ENTER();
    REQUIRE(function, CUDA_ERROR_INVALID_VALUE);
    struct stream *stream;
    TRY(find_target(handle, &stream));
    add_work(stream, &(struct action){CALL_HOST, .host = {function, data}},
             CU_GRAPH_NODE_TYPE_HOST);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *data,
                                    unsigned flags) {
    ENTER();
    REQUIRE(function && !flags, CUDA_ERROR_INVALID_VALUE);
    struct stream *stream;
    TRY(find_target(handle, &stream));
    TRY(refuse_capturing(stream));
    submit(stream, &(struct action){CALL_BACK, .back = {function, handle, data}});
    return CUDA_SUCCESS;
}

static CUresult add_value(enum work work, CUstream handle, CUdeviceptr word, cuuint64_t value,
                          unsigned flags, unsigned bytes) {
    unsigned known = work == WAIT_VALUE ? CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH
                                        : CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
    REQUIRE(word % bytes == 0 && word && !(flags & ~known), CUDA_ERROR_INVALID_VALUE);
    struct stream *stream;
    TRY(find_target(handle, &stream));
    add_work(stream, &(struct action){work, .value = {(void *)word, value, flags, bytes}},
             CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr word, cuuint32_t value,
                                       unsigned flags) {
    ENTER();
    return add_value(WAIT_VALUE, stream, word, value, flags, 4);
}

EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr word, cuuint64_t value,
                                       unsigned flags) {
    ENTER();
    return add_value(WAIT_VALUE, stream, word, value, flags, 8);
}

EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr word, cuuint32_t value,
                                        unsigned flags) {
    ENTER();
    return add_value(WRITE_VALUE, stream, word, value, flags, 4);
}

EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr word, cuuint64_t value,
                                        unsigned flags) {
    ENTER();
    return add_value(WRITE_VALUE, stream, word, value, flags, 8);
}
