/* Contexts: a primary one for each device, created ones, and a stack of current ones per thread. */
#include "emulator.h"

#define DEPTH 64

static struct context *primaries[MAX_DEVICES];
static _Thread_local struct context *stack[DEPTH];
static _Thread_local int depth;

/* A context is never freed: it may still be on some thread's stack. */
static struct context *new_context(CUdevice device, unsigned flags) {
    struct context *context = zeroed(sizeof *context);
    context->device = device;
    context->flags = flags;
    context->id = next_id();
    return context;
}

void make_primary_contexts(void) {
    for (int device = 0; device < device_count; device++) {
        primaries[device] = new_context(device, 0);
        primaries[device]->is_primary = true;
        primaries[device]->handle = new_handle(CONTEXT, primaries[device]);
    }
}

struct context *primary_context(CUdevice device) { return primaries[device]; }

static struct context *top(void) { return depth ? stack[depth - 1] : NULL; }

CUresult current_context(struct context **context) {
    *context = top();
    REQUIRE(*context, CUDA_ERROR_INVALID_CONTEXT);
    return (*context)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_of(CUcontext handle, struct context **context) {
    if (!handle) return current_context(context);
    *context = object_of(CONTEXT, handle);
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static void end_context(struct context *context) {
    wait_for_context(context);
    context->alive = false;
    context->legacy = NULL;
    for (struct stream *stream = context->streams, *next; stream; stream = next) {
        next = stream->next; /* ending a stream may free it */
        end_stream(stream);
    }
    end_events_of(context);
}

/* Of the ways to wait there is one, and no flag is unknown. */
static CUresult check_flags(unsigned flags) {
    unsigned waits = flags & CU_CTX_SCHED_MASK;
    REQUIRE(!(flags & ~(unsigned)CU_CTX_FLAGS_MASK), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!(waits & (waits - 1)), CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

/* -- primary contexts ----------------------------------------------------------------------- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER();
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(context, CUDA_ERROR_INVALID_VALUE);
    primaries[device]->alive = true;
    primaries[device]->retained++;
    *context = primaries[device]->handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER();
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(primaries[device]->retained, CUDA_ERROR_INVALID_CONTEXT);
    if (!--primaries[device]->retained) end_context(primaries[device]);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    ENTER();
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
    TRY(check_flags(flags));
    primaries[device]->flags = flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    ENTER();
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
    *flags = primaries[device]->flags;
    *active = primaries[device]->alive;
    return CUDA_SUCCESS;
}

/* -- created contexts ----------------------------------------------------------------------- */

static CUresult create(CUcontext *handle, unsigned flags, CUdevice device) {
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(depth < DEPTH, CUDA_ERROR_OUT_OF_MEMORY);
    struct context *context = new_context(device, flags);
    context->alive = true;
    context->handle = new_handle(CONTEXT, context);
    stack[depth++] = context;
    *handle = context->handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    ENTER();
    return create(context, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags,
                               CUdevice device) {
    ENTER();
    (void)parameters;
    return create(context, flags, device);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
    ENTER();
    struct context *context = object_of(CONTEXT, handle);
    REQUIRE(context && !context->is_primary, CUDA_ERROR_INVALID_CONTEXT);
    end_context(context);
    drop_handle(handle);
    if (top() == context) depth--;
    return CUDA_SUCCESS;
}

/* -- the current one ------------------------------------------------------------------------ */

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle) {
    ENTER();
    struct context *context = object_of(CONTEXT, handle);
    REQUIRE(context, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(depth < DEPTH, CUDA_ERROR_OUT_OF_MEMORY);
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *handle) {
    ENTER();
    REQUIRE(depth, CUDA_ERROR_INVALID_CONTEXT);
    struct context *context = stack[--depth];
    if (handle) *handle = context->handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
    ENTER();
    if (!handle) {
        if (depth) depth--;
        return CUDA_SUCCESS;
    }
    struct context *context = object_of(CONTEXT, handle);
    REQUIRE(context, CUDA_ERROR_INVALID_CONTEXT);
    if (!depth) depth = 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *handle) {
    ENTER();
    REQUIRE(handle, CUDA_ERROR_INVALID_VALUE);
    *handle = top() ? top()->handle : NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER();
    struct context *context;
    TRY(current_context(&context));
    *device = context->device;
    return CUDA_SUCCESS;
}

#define ENTER_CONTEXT(handle) \
    ENTER();                  \
    struct context *context;  \
    TRY(context_of(handle, &context))

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext handle) {
    ENTER_CONTEXT(handle);
    *device = context->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext handle, unsigned long long *id) {
    ENTER_CONTEXT(handle);
    *id = context->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext handle, unsigned *version) {
    ENTER_CONTEXT(handle);
    *version = 3020;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
    ENTER_CONTEXT(NULL);
    *flags = context->flags | (context->is_primary ? CU_CTX_MAP_HOST : 0);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetFlags(unsigned flags) {
    ENTER_CONTEXT(NULL);
    TRY(check_flags(flags));
    context->flags = flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    ENTER_CONTEXT(NULL);
    REQUIRE(limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE, CUDA_ERROR_INVALID_VALUE);
    *value = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER_CONTEXT(NULL);
    if (least) *least = LOWEST_PRIORITY;
    if (greatest) *greatest = HIGHEST_PRIORITY;
    return CUDA_SUCCESS;
}

static CUresult synchronize(struct context *context) {
    for (struct stream *stream = context->streams; stream; stream = stream->next)
        if (stream->capture) TRY(refuse_capturing(stream));
    TRY(refuse_unsafe());
    wait_for_context(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    ENTER_CONTEXT(NULL);
    return synchronize(context);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext handle) {
    ENTER_CONTEXT(handle);
    return synchronize(context);
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    ENTER_CONTEXT(NULL);
    struct context *other = object_of(CONTEXT, peer);
    REQUIRE(other, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(other->device != context->device, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    for (size_t i = 0; i < context->peers.count; i++)
        REQUIRE(context->peers.items[i] != other, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    APPEND(context->peers, other);
    return CUDA_SUCCESS;
}
