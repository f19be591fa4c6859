/* Events: each record replaces the last; whoever waits keeps the record it was given. */
#include "emulator.h"

#include <stdlib.h>

#define CREATE_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

bool record_reached(const struct record *record) {
    return !record || record->stream->done >= record->number;
}

void release_record(struct record *record) {
    if (--record->references) return;
    release_stream(record->stream);
    free(record);
}

static void forget_record(struct event *event) {
    if (event->record) release_record(event->record);
    if (event->capture) release_capture(event->capture);
    event->record = NULL;
    event->capture = NULL;
    event->frontier.count = 0;
}

void record_on(struct event *event, struct stream *stream) {
    forget_record(event);
    struct record *record = zeroed(sizeof *record);
    record->references = 1;
    record->stream = stream;
    record->number = stream->submitted;
    stream->references++;
    event->record = record;
}

void release_event(struct event *event) {
    if (--event->references) return;
    forget_record(event);
    free(event->frontier.items);
    free(event);
}

/* -- made and destroyed --------------------------------------------------------------------- */

EXPORT CUresult cuEventCreate(CUevent *handle, unsigned flags) {
    ENTER();
    struct context *context;
    TRY(current_context(&context));
    REQUIRE(handle && !(flags & ~(unsigned)CREATE_FLAGS), CUDA_ERROR_INVALID_VALUE);
    bool timed = !(flags & CU_EVENT_DISABLE_TIMING);
    REQUIRE(!(flags & CU_EVENT_INTERPROCESS && timed), CUDA_ERROR_INVALID_VALUE);
    struct event *event = zeroed(sizeof *event);
    event->context = context;
    event->flags = flags;
    event->references = 1;
    *handle = event->handle = new_handle(EVENT, event);
    return CUDA_SUCCESS;
}

#define ENTER_EVENT(handle)                         \
    ENTER();                                        \
    struct event *event = object_of(EVENT, handle); \
    REQUIRE(event, CUDA_ERROR_INVALID_HANDLE)

EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
    ENTER_EVENT(handle);
    drop_handle(handle);
    release_event(event);
    return CUDA_SUCCESS;
}

/* -- recorded and waited for ---------------------------------------------------------------- */

static CUresult record(CUevent handle, CUstream on, unsigned flags) {
    struct event *event = object_of(EVENT, handle);
    REQUIRE(event, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!(flags & ~(unsigned)RECORD_FLAGS), CUDA_ERROR_INVALID_VALUE);
    struct stream *stream;
    TRY(find_target(on, &stream));
    REQUIRE(event->context == stream->context, CUDA_ERROR_INVALID_HANDLE);
    bool external = flags & CU_EVENT_RECORD_EXTERNAL;
    REQUIRE(stream->capture || !external, CUDA_ERROR_ILLEGAL_STATE);
    if (!stream->capture || external) {
        add_work(stream, &(struct action){RECORD, .event = event},
                 CU_GRAPH_NODE_TYPE_EVENT_RECORD);
        return CUDA_SUCCESS;
    }
    forget_record(event); /* no node: the event stands for a place in the graph */
    event->capture = stream->capture;
    event->capture->references++;
    for (size_t i = 0; i < stream->frontier.count; i++)
        APPEND(event->frontier, stream->frontier.items[i]);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER();
    return record(event, stream, CU_EVENT_RECORD_DEFAULT);
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    ENTER();
    return record(event, stream, flags);
}

/* The place in a graph that an event stands for ends with the capture. */
static CUresult refuse_stale(const struct event *event) {
    return event->capture && event->capture->ended ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult wait_captured(struct stream *stream, struct event *event) {
    CUresult refused = CUDA_SUCCESS;
    if (stream->capture && stream->capture != event->capture) {
        stream->capture->valid = false;
        refused = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    } else if (stream->sort == LEGACY) {
        refused = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    } else if (!event->capture->valid) {
        refused = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (refused)
        event->capture->valid = false;
    else
        join_capture(stream, event->capture, &event->frontier);
    return refused;
}

EXPORT CUresult cuStreamWaitEvent(CUstream on, CUevent handle, unsigned flags) {
    ENTER_EVENT(handle);
    REQUIRE(!(flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    struct stream *stream;
    TRY(find_target(on, &stream));
    bool external = flags & CU_EVENT_WAIT_EXTERNAL;
    CUresult stale = refuse_stale(event);
    if (stale && stream->capture) stream->capture->valid = false;
    if (stale) return stale;
    REQUIRE(stream->capture || !external, CUDA_ERROR_ILLEGAL_STATE);
    if (event->capture) return wait_captured(stream, event);
    if (stream->capture && !external) {
        if (!event->record) return CUDA_SUCCESS;
        stream->capture->valid = false;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (stream->capture || !record_reached(event->record))
        add_work(stream, &(struct action){AWAIT, .event = event}, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
    return CUDA_SUCCESS;
}

/* -- asked ---------------------------------------------------------------------------------- */

static CUresult refuse_captured(struct event *event) {
    if (!event->capture) return refuse_unsafe();
    TRY(refuse_stale(event));
    event->capture->valid = false;
    return CUDA_ERROR_CAPTURED_EVENT;
}

EXPORT CUresult cuEventQuery(CUevent handle) {
    ENTER_EVENT(handle);
    TRY(refuse_captured(event));
    return record_reached(event->record) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent handle) {
    ENTER_EVENT(handle);
    TRY(refuse_captured(event));
    if (event->record) wait_for(event->record->stream, event->record->number);
    return CUDA_SUCCESS;
}

static CUresult elapsed(float *milliseconds, CUevent from, CUevent to) {
    struct event *start = object_of(EVENT, from), *end = object_of(EVENT, to);
    REQUIRE(milliseconds, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(start && end, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE);
    TRY(refuse_stale(start));
    TRY(refuse_stale(end));
    REQUIRE(!start->capture && !end->capture, CUDA_ERROR_CAPTURED_EVENT);
    REQUIRE(start->record && end->record, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(start->context == end->context, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(record_reached(start->record) && record_reached(end->record), CUDA_ERROR_NOT_READY);
    *milliseconds = (float)(end->record->milliseconds - start->record->milliseconds);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    ENTER();
    return elapsed(milliseconds, start, end);
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    ENTER();
    return elapsed(milliseconds, start, end);
}
