/* Stream capture: how it begins, spreads over streams, is broken and ends. */
#include "emulator.h"

#include <stdlib.h>

static ARRAY(struct capture *) captures; /* those that have not ended */
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void release_capture(struct capture *capture) {
    if (--capture->references) return;
    free(capture->streams.items);
    free(capture);
}

/* -- what a capture forbids ----------------------------------------------------------------- */

static bool forbids(const struct capture *capture) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (pthread_equal(capture->thread, pthread_self())) return true;
    return capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult refuse_unsafe(void) {
    CUresult found = CUDA_SUCCESS;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return found;
    for (size_t i = 0; i < captures.count; i++) {
        if (!forbids(captures.items[i])) continue;
        captures.items[i]->valid = false;
        found = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return found;
}

struct capture *blocking_capture(const struct context *context) {
    for (struct stream *stream = context->streams; stream; stream = stream->next)
        if (stream->capture && !(stream->flags & CU_STREAM_NON_BLOCKING)) return stream->capture;
    return NULL;
}

CUresult refuse_capturing(struct stream *stream) {
    bool is_legacy = stream->sort == LEGACY;
    struct capture *capture = is_legacy ? blocking_capture(stream->context) : stream->capture;
    if (!capture) return CUDA_SUCCESS;
    capture->valid = false;
    return is_legacy ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* Of the legacy stream, asking for the status alone breaks nothing. */
static CUresult refuse_status(const struct stream *stream) {
    bool implicit = stream->sort == LEGACY && blocking_capture(stream->context);
    return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    ENTER();
    REQUIRE(mode && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
    CUstreamCaptureMode previous = thread_mode;
    thread_mode = *mode;
    *mode = previous;
    return CUDA_SUCCESS;
}

/* -- begun, joined, ended ------------------------------------------------------------------- */

void join_capture(struct stream *stream, struct capture *capture, const nodes *frontier) {
    if (!stream->capture) {
        stream->capture = capture;
        stream->references++;
        APPEND(capture->streams, stream);
    }
    for (size_t i = 0; i < frontier->count; i++) add_once(&stream->frontier, frontier->items[i]);
}

#define ENTER_STREAM(handle) \
    ENTER();                 \
    struct stream *stream;   \
    TRY(find_stream(handle, &stream))

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    ENTER_STREAM(handle);
    REQUIRE(mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(stream->sort != LEGACY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(!stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    struct capture *capture = zeroed(sizeof *capture);
    capture->graph = new_graph();
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->id = next_id();
    capture->valid = true;
    capture->references = 1;
    APPEND(captures, capture);
    join_capture(stream, capture, &(nodes){0});
    return CUDA_SUCCESS;
}

static bool reaches(const struct node *from, const struct node *node) {
    if (from == node) return true;
    for (size_t i = 0; i < from->dependencies.count; i++)
        if (reaches(from->dependencies.items[i], node)) return true;
    return false;
}

static bool is_joined(const struct stream *fork, const struct stream *origin) {
    for (size_t i = 0; i < fork->frontier.count; i++) {
        bool reached = false;
        for (size_t k = 0; k < origin->frontier.count && !reached; k++)
            reached = reaches(origin->frontier.items[k], fork->frontier.items[i]);
        if (!reached) return false;
    }
    return true;
}

static CUresult verdict(const struct capture *capture) {
    bool is_own = pthread_equal(capture->thread, pthread_self());
    REQUIRE(is_own || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED,
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD); /* which ends it all the same */
    REQUIRE(capture->valid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    for (size_t i = 0; i < capture->streams.count; i++)
        REQUIRE(is_joined(capture->streams.items[i], capture->origin),
                CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    return CUDA_SUCCESS;
}

void end_capture(struct capture *capture) {
    for (size_t i = 0; i < captures.count; i++)
        if (captures.items[i] == capture) captures.items[i] = captures.items[captures.count - 1];
    captures.count--;
    capture->ended = true;
    for (size_t i = 0; i < capture->streams.count; i++) {
        capture->streams.items[i]->capture = NULL;
        capture->streams.items[i]->frontier.count = 0;
        release_stream(capture->streams.items[i]);
    }
    capture->streams.count = 0;
    release_capture(capture);
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    ENTER_STREAM(handle);
    REQUIRE(graph, CUDA_ERROR_INVALID_VALUE);
    *graph = NULL;
    struct capture *capture = stream->capture;
    REQUIRE(capture, CUDA_ERROR_ILLEGAL_STATE);
    if (capture->origin != stream) {
        capture->valid = false;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    CUresult found = verdict(capture);
    if (found)
        free_graph(capture->graph);
    else
        *graph = capture->graph->handle;
    end_capture(capture);
    return found;
}

/* End every capture, so that what one test left open fails no other; how many there were. */
EXPORT int emulated_end_captures(void) {
    pthread_mutex_lock(&lock);
    int ended = 0;
    for (; captures.count; ended++) {
        free_graph(captures.items[0]->graph);
        end_capture(captures.items[0]);
    }
    pthread_mutex_unlock(&lock);
    return ended;
}

/* -- asked ---------------------------------------------------------------------------------- */

static CUstreamCaptureStatus status_of(const struct stream *stream) {
    if (!stream->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                  : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    ENTER_STREAM(handle);
    REQUIRE(status, CUDA_ERROR_INVALID_VALUE);
    TRY(refuse_status(stream));
    *status = status_of(stream);
    return CUDA_SUCCESS;
}

static CUresult describe(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                         CUgraph *graph, const CUgraphNode **dependencies,
                         const CUgraphEdgeData **edges, size_t *count) {
    static _Thread_local CUgraphNode *found; /* valid until the thread asks again */
    static _Thread_local CUgraphEdgeData *plain;
    struct stream *stream;
    TRY(find_stream(handle, &stream));
    TRY(refuse_status(stream));
    *status = status_of(stream);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    size_t there = stream->frontier.count;
    free(found);
    free(plain);
    found = zeroed((there + 1) * sizeof *found);
    plain = zeroed((there + 1) * sizeof *plain);
    for (size_t i = 0; i < there; i++) found[i] = stream->frontier.items[i]->handle;
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph->handle;
    if (dependencies) *dependencies = found;
    if (edges) *edges = plain;
    if (count) *count = there;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                          cuuint64_t *id, CUgraph *graph,
                                          const CUgraphNode **dependencies, size_t *count) {
    ENTER();
    return describe(stream, status, id, graph, dependencies, NULL, count);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                                          cuuint64_t *id, CUgraph *graph,
                                          const CUgraphNode **dependencies,
                                          const CUgraphEdgeData **edges, size_t *count) {
    ENTER();
    return describe(stream, status, id, graph, dependencies, edges, count);
}

static CUresult depend_on(CUstream handle, CUgraphNode *dependencies, size_t count,
                          unsigned flags) {
    struct stream *stream;
    TRY(find_stream(handle, &stream));
    REQUIRE(stream->capture, CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(stream->capture->valid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    REQUIRE(flags <= CU_STREAM_SET_CAPTURE_DEPENDENCIES, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        struct node *node = object_of(NODE, dependencies[i]);
        REQUIRE(node && node->graph == stream->capture->graph, CUDA_ERROR_INVALID_VALUE);
    }
    if (flags & CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->frontier.count = 0;
    for (size_t i = 0; i < count; i++)
        add_once(&stream->frontier, object_of(NODE, dependencies[i]));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies,
                                                  size_t count, unsigned flags) {
    ENTER();
    return depend_on(stream, dependencies, count, flags);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *dependencies,
                                                     const CUgraphEdgeData *edges, size_t count,
                                                     unsigned flags) {
    ENTER();
    (void)edges;
    return depend_on(stream, dependencies, count, flags);
}
