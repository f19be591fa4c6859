/* An emulated CUDA driver: test equipment, and no evidence about hardware.
 *
 * It implements the documented driver API as far as cuda.bindings, cuda.core, Warp's streams and
 * events, and StreamKit use it. A stream is a list of operations that one engine thread runs in
 * any order that streams, events and the default streams allow. Device memory is malloc's, and
 * kernels do nothing. One lock guards everything. */
#pragma once

#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL /* every name means itself: the header of who builds a driver */
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* Of CUDA 13: the header of CUDA 12 does not declare them. */
CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context);
CUresult cuCtxSynchronize_v2(CUcontext context);

#define MAX_DEVICES 16
#define RECORD_FLAGS (CU_EVENT_RECORD_DEFAULT | CU_EVENT_RECORD_EXTERNAL)
#define LOWEST_PRIORITY 0
#define HIGHEST_PRIORITY (-5)

struct context;
struct stream;
struct event;
struct record;
struct graph;
struct node;
struct capture;
struct pool;
struct user_object;

/* -- the process (process.c) ---------------------------------------------------------------- */

extern pthread_mutex_t lock;
extern int device_count, driver_version;
extern _Thread_local bool inside_host_function;

/* What every entry point does first: count the call, let it fail if a fault is set, refuse it
 * where the driver would. It holds the lock until it returns. */
CUresult enter(const char *function, bool needs_init, bool *entered);
void leave(bool *entered);
bool in_forked_child(void);
int setting(const char *name, int otherwise); /* a variable of the environment */
uint64_t next_id(void); /* ids are never given again */
#define ENTER_IF(needs_init)                                             \
    __attribute__((cleanup(leave))) bool entered = false;                \
    CUresult refused = enter(__func__, needs_init, &entered);            \
    if (refused) return refused
#define ENTER() ENTER_IF(true)
#define TRY(call)                                                        \
    do {                                                                 \
        CUresult tried = (call);                                         \
        if (tried) return tried;                                         \
    } while (0)
#define REQUIRE(condition, otherwise)                                    \
    do {                                                                 \
        if (!(condition)) return (otherwise);                            \
    } while (0)

/* -- calls (control.c) ---------------------------------------------------------------------- */

CUresult count_call(const char *function); /* the code of the fault that is due, or 0 */
extern const char *entry_point;               /* the entry point that holds the lock */
extern CUresult broken;                    /* with which everything fails; 0 if it does not */
void read_faults(const char *text);

/* -- handles (handles.c) -------------------------------------------------------------------- */

enum kind {
    NOTHING, CONTEXT, STREAM, EVENT, GRAPH, NODE, EXECUTABLE, POOL, USER_OBJECT, FUNCTION, KINDS
};
extern bool recycles_handles;
extern bool refuses_dead_handles; /* with an error, as a real driver may at its best */
extern int complaints;            /* the descriptor to which the end of the process is explained */

void *new_handle(enum kind kind, void *object);
/* NULL if it is no live handle of the kind. The use of a dead stream, event or context, which is
 * undefined behaviour on hardware, ends the process. */
void *object_of(enum kind kind, const void *handle);
void end_events_of(const struct context *context);
bool is_handle_of(const void *handle, const void *object); /* for one that may have gone */
void drop_handle(const void *handle);
int live_handles(enum kind kind);

/* -- growing arrays ------------------------------------------------------------------------- */

#define ARRAY(type)   \
    struct {          \
        type *items;  \
        size_t count; \
    }
#define APPEND(array, item)                                                                 \
    do {                                                                                    \
        if (((array).count & ((array).count - 1)) == 0) /* full at each power of two */     \
            (array).items = grown((array).items, (array).count, sizeof *(array).items);     \
        (array).items[(array).count++] = (item);                                            \
    } while (0)
void *grown(void *items, size_t count, size_t size);
void *zeroed(size_t size);
typedef ARRAY(struct node *) nodes;

/* -- devices and contexts ------------------------------------------------------------------- */

struct context {
    CUcontext handle;
    int device;
    bool is_primary, alive;
    ARRAY(struct context *) peers;
    unsigned flags, retained;
    uint64_t id;
    struct stream *legacy;
    struct stream *streams; /* all that still exist, destroyed but busy ones too */
};

bool is_device(CUdevice device);
struct context *primary_context(CUdevice device);
CUresult current_context(struct context **context);
CUresult context_of(CUcontext handle, struct context **context); /* NULL: the current one */
void make_primary_contexts(void);

/* -- work: what a stream runs and a graph holds (engine.c) ---------------------------------- */

enum work {
    NO_WORK, CALL_HOST, CALL_BACK, COPY, FILL, WAIT_VALUE, WRITE_VALUE, FREE, LET_GO, RECORD, AWAIT
};

struct action {
    enum work work;
    union {
        struct { CUhostFn function; void *data; } host;
        struct { CUstreamCallback function; CUstream stream; void *data; } back;
        struct { char *to; const char *from; size_t bytes; } copy;
        struct { char *to; size_t pitch, size, width, height; uint32_t value; } fill;
        struct { void *word; uint64_t value; unsigned flags, bytes; } value;
        void *memory; /* of FREE, and of a graph's nodes that allocate and free */
        struct user_object *kept;
        struct event *event; /* of RECORD and AWAIT */
    };
};

struct stream {
    CUstream handle;
    enum { CREATED, LEGACY, PER_THREAD } sort;
    struct context *context;
    struct stream *next, *next_busy;
    unsigned flags;
    int priority, references;
    bool destroyed, busy, running;
    uint64_t id, submitted, done;
    struct operation *first, *last;
    struct capture *capture;
    nodes frontier; /* of a capturing stream: what its next node depends on */
};

struct record { /* one recording of an event */
    struct stream *stream;
    uint64_t number;
    double milliseconds;
    int references;
};

void submit(struct stream *stream, const struct action *action);
void wait_for(struct stream *stream, uint64_t number);
void wait_for_context(struct context *context);
bool record_reached(const struct record *record);
void release_record(struct record *record);

/* -- streams and events --------------------------------------------------------------------- */

struct event {
    CUevent handle;
    struct context *context;
    unsigned flags;
    int references;
    struct record *record;
    struct capture *capture; /* recorded in it */
    nodes frontier;
};

/* The stream of a handle: 0 and 1 are the legacy stream, 2 is the calling thread's. */
CUresult find_stream(CUstream handle, struct stream **stream);
/* The same, for a call that adds work, which captures restrict. */
CUresult find_target(CUstream handle, struct stream **stream);
struct stream *new_stream(struct context *context, unsigned flags, int priority);
void release_stream(struct stream *stream);
void end_stream(struct stream *stream); /* destroys it: its pending work runs all the same */
void release_event(struct event *event);
void record_on(struct event *event, struct stream *stream);
double now_in_milliseconds(void);

/* -- capture and graphs --------------------------------------------------------------------- */

struct capture {
    struct graph *graph;
    struct stream *origin;
    ARRAY(struct stream *) streams;
    CUstreamCaptureMode mode;
    pthread_t thread;
    uint64_t id;
    bool valid, ended;
    int references;
};

/* Refuse a call that is unsafe while this thread, or any in global mode, captures. */
CUresult refuse_unsafe(void);
/* Refuse a question about the stream itself while it, or for legacy a blocking one, captures. */
CUresult refuse_capturing(struct stream *stream);
struct capture *blocking_capture(const struct context *context);
void join_capture(struct stream *stream, struct capture *capture, const nodes *frontier);
void end_capture(struct capture *capture); /* its graph is the caller's */
void release_capture(struct capture *capture);
/* Add work to a stream: a node of the graph it captures, or an operation of its queue. */
void add_work(struct stream *stream, const struct action *action, CUgraphNodeType type);

struct node {
    CUgraphNode handle;
    struct graph *graph;
    CUgraphNodeType type;
    struct action action;
    CUfunction function; /* of a kernel's node, with what it was given */
    void **parameters;
    nodes dependencies;
};

struct graph {
    CUgraph handle;
    uint64_t id;
    bool allocates, is_instantiated; /* one that allocates has one executable at a time */
    nodes nodes; /* each after those it depends on */
    ARRAY(struct user_object *) kept;
};

struct graph *new_graph(void);
struct node *new_node(struct graph *graph, CUgraphNodeType type, const nodes *dependencies);
void add_once(nodes *list, struct node *node);
struct graph *copy_graph(const struct graph *graph);
void free_graph(struct graph *graph);
void keep_with_graph(struct graph *graph, void *object, CUhostFn destroy);
void retain_user_object(struct user_object *object);
void release_user_object(struct user_object *object);

/* -- memory --------------------------------------------------------------------------------- */

struct pool {
    CUmemoryPool handle;
    int device;
    cuuint64_t used, used_high, reserved_high, threshold;
    int reuse[3]; /* by events, opportunistic, by internal dependencies */
    CUmemAccess_flags access[MAX_DEVICES];
};

CUresult allocate(void **memory, size_t bytes, int device, CUmemorytype type, struct pool *pool);
bool deallocate(void *memory);
bool is_allocated(CUdeviceptr pointer);
CUmemorytype type_of(CUdeviceptr pointer); /* of the host where nothing is allocated */
size_t size_of(CUdeviceptr pointer); /* of the allocation with it, 0 without one */
void give_to_graph(CUdeviceptr pointer);
bool is_of_graph(CUdeviceptr pointer);
bool is_lent(CUdeviceptr pointer);
void lend(CUdeviceptr pointer, bool on);
bool begin_to_free(CUdeviceptr pointer); /* false if no memory begins there */
void make_default_pools(void);
