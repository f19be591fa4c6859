/* Streams: created ones, and a context's legacy and per-thread ones, made when first asked for. */
#include "emulator.h"

#include <stdlib.h>

/* The per-thread streams of a thread, which end with it. */
struct own_stream {
    struct own_stream *next;
    struct stream *stream;
};
static pthread_key_t own_streams;
static pthread_once_t key_made = PTHREAD_ONCE_INIT;

struct stream *new_stream(struct context *context, unsigned flags, int priority) {
    struct stream *stream = zeroed(sizeof *stream);
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->references = 1;
    stream->id = next_id();
    stream->next = context->streams;
    context->streams = stream;
    return stream;
}

void release_stream(struct stream *stream) {
    if (--stream->references) return;
    struct stream **link = &stream->context->streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    free(stream->frontier.items);
    free(stream);
}

void end_stream(struct stream *stream) {
    if (stream->destroyed) return;
    if (stream->capture && stream->capture->origin == stream) { /* nobody else can end it */
        free_graph(stream->capture->graph);
        end_capture(stream->capture);
    }
    if (stream->handle) drop_handle(stream->handle);
    stream->destroyed = true;
    release_stream(stream);
}

static struct stream *legacy_stream(struct context *context) {
    if (!context->legacy) {
        context->legacy = new_stream(context, 0, 0);
        context->legacy->sort = LEGACY;
    }
    return context->legacy;
}

static void end_thread(void *first) {
    if (in_forked_child()) return;
    pthread_mutex_lock(&lock);
    for (struct own_stream *own = first, *next; own; own = next) {
        next = own->next;
        end_stream(own->stream);
        release_stream(own->stream);
        free(own);
    }
    pthread_mutex_unlock(&lock);
}

static void make_key(void) { pthread_key_create(&own_streams, end_thread); }

static struct stream *per_thread_stream(struct context *context) {
    pthread_once(&key_made, make_key);
    struct own_stream *first = pthread_getspecific(own_streams);
    for (struct own_stream *own = first; own; own = own->next)
        if (own->stream->context == context && !own->stream->destroyed) return own->stream;
    struct own_stream *own = zeroed(sizeof *own);
    own->stream = new_stream(context, 0, 0);
    own->stream->sort = PER_THREAD;
    own->stream->references++;
    own->next = first;
    pthread_setspecific(own_streams, own);
    return own->stream;
}

CUresult find_stream(CUstream handle, struct stream **stream) {
    if ((uintptr_t)handle > (uintptr_t)CU_STREAM_PER_THREAD) {
        *stream = object_of(STREAM, handle);
        return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    struct context *context;
    TRY(current_context(&context));
    *stream = handle == CU_STREAM_PER_THREAD ? per_thread_stream(context) : legacy_stream(context);
    return CUDA_SUCCESS;
}

/* A capturing stream itself may be asked this; the legacy one beside it may not. */
static CUresult refuse_legacy(struct stream *stream) {
    return stream->sort == LEGACY ? refuse_capturing(stream) : CUDA_SUCCESS;
}

CUresult find_target(CUstream handle, struct stream **stream) {
    TRY(find_stream(handle, stream));
    if ((*stream)->capture && !(*stream)->capture->valid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return refuse_legacy(*stream);
}

/* -- made and destroyed --------------------------------------------------------------------- */

static CUresult create(CUstream *handle, unsigned flags, int priority) {
    struct context *context;
    TRY(current_context(&context));
    REQUIRE(handle && flags <= CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
    if (priority > LOWEST_PRIORITY) priority = LOWEST_PRIORITY;
    if (priority < HIGHEST_PRIORITY) priority = HIGHEST_PRIORITY;
    struct stream *stream = new_stream(context, flags, priority);
    *handle = stream->handle = new_handle(STREAM, stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *handle, unsigned flags) {
    ENTER();
    return create(handle, flags, 0);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority) {
    ENTER();
    return create(handle, flags, priority);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    ENTER();
    struct stream *stream = object_of(STREAM, handle);
    REQUIRE(stream, CUDA_ERROR_INVALID_HANDLE);
    end_stream(stream);
    return CUDA_SUCCESS;
}

/* -- asked ---------------------------------------------------------------------------------- */

#define ENTER_STREAM(handle) \
    ENTER();                 \
    struct stream *stream;   \
    TRY(find_stream(handle, &stream))

EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority) {
    ENTER_STREAM(handle);
    TRY(refuse_legacy(stream));
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
    ENTER_STREAM(handle);
    TRY(refuse_capturing(stream));
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
    ENTER_STREAM(handle);
    TRY(refuse_capturing(stream));
    *id = stream->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetDevice(CUstream handle, CUdevice *device) {
    ENTER_STREAM(handle);
    TRY(refuse_capturing(stream));
    *device = stream->context->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
    ENTER_STREAM(handle);
    TRY(refuse_legacy(stream));
    *context = stream->context->handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green) {
    ENTER_STREAM(handle);
    TRY(refuse_legacy(stream));
    *context = stream->context->handle;
    if (green) *green = NULL; /* there are no green contexts */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *green) {
    ENTER_STREAM(handle);
    *green = NULL;
    return CUDA_SUCCESS;
}

/* The legacy stream is as busy as the blocking ones beside it. */
static bool is_idle(const struct stream *stream) {
    if (stream->done < stream->submitted) return false;
    if (stream->sort != LEGACY) return true;
    for (struct stream *other = stream->context->streams; other; other = other->next) {
        bool is_blocking = !(other->flags & CU_STREAM_NON_BLOCKING);
        if (is_blocking && other->done < other->submitted) return false;
    }
    return true;
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
    ENTER_STREAM(handle);
    TRY(refuse_capturing(stream));
    TRY(refuse_unsafe());
    return is_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    ENTER_STREAM(handle);
    TRY(refuse_capturing(stream));
    TRY(refuse_unsafe());
    if (stream->sort == LEGACY) submit(stream, &(struct action){NO_WORK}); /* behind the blocking */
    wait_for(stream, stream->submitted);
    return CUDA_SUCCESS;
}
