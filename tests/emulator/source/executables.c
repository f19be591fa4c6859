/* Executable graphs and their launches, and the user objects that graphs keep alive. */
#include "emulator.h"

#include <stdlib.h>

struct executable {
    struct graph *graph; /* a copy: the original may change or go */
    struct graph *original; /* it may have gone */
    CUgraph original_handle;
    uint64_t original_id;
    cuuint64_t flags;
    struct event *end; /* of its last launch, which the next one waits for on any stream */
};

#define FLAGS                                                                          \
    (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | \
     CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

static CUresult instantiate(CUgraphExec *executable, CUgraph handle, cuuint64_t flags) {
    struct graph *graph = object_of(GRAPH, handle);
    REQUIRE(graph && executable, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!(flags & ~(cuuint64_t)FLAGS), CUDA_ERROR_INVALID_VALUE);
    TRY(refuse_unsafe());
    REQUIRE(!graph->allocates || !graph->is_instantiated, CUDA_ERROR_NOT_SUPPORTED);
    graph->is_instantiated = true;
    struct executable *made = zeroed(sizeof *made);
    made->graph = copy_graph(graph);
    made->original = graph;
    made->original_handle = handle;
    made->original_id = graph->id;
    made->flags = flags & ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    made->end = zeroed(sizeof *made->end);
    made->end->references = 1;
    *executable = new_handle(EXECUTABLE, made);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                            unsigned long long flags) {
    ENTER();
    return instantiate(executable, graph, flags);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    ENTER();
    parameters->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    parameters->hErrNode_out = NULL;
    return instantiate(executable, graph, parameters->flags);
}

#define ENTER_EXECUTABLE(handle)                                   \
    ENTER();                                                       \
    struct executable *executable = object_of(EXECUTABLE, handle); \
    REQUIRE(executable, CUDA_ERROR_INVALID_VALUE)

EXPORT CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags) {
    ENTER_EXECUTABLE(handle);
    *flags = executable->flags;
    return CUDA_SUCCESS;
}

/* What was launched holds its own copies of the work. */
EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
    ENTER_EXECUTABLE(handle);
    TRY(refuse_unsafe());
    struct graph *original = executable->original;
    if (is_handle_of(executable->original_handle, original) &&
        original->id == executable->original_id)
        original->is_instantiated = false;
    free_graph(executable->graph);
    release_event(executable->end);
    free(executable);
    drop_handle(handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
    ENTER_EXECUTABLE(handle);
    struct stream *stream;
    TRY(find_target(stream_handle, &stream));
    return refuse_capturing(stream); /* nothing to bring anywhere */
}

/* What a launch before left allocated is in the way, unless the executable frees it. */
static CUresult lend_memory(const struct executable *executable) {
    const nodes *nodes = &executable->graph->nodes;
    bool frees = executable->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    for (size_t i = 0; i < nodes->count && !frees; i++)
        if (nodes->items[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            REQUIRE(!is_lent((CUdeviceptr)nodes->items[i]->action.memory),
                    CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < nodes->count; i++) {
        const struct node *node = nodes->items[i];
        bool allocates = node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        if (allocates || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            lend((CUdeviceptr)node->action.memory, allocates);
    }
    return CUDA_SUCCESS;
}

/* One after another, which is one of the orders that the graph allows. What it keeps alive stays
 * until it has run. */
static void launch(const struct graph *graph, struct stream *stream) {
    for (size_t i = 0; i < graph->nodes.count; i++) {
        const struct node *node = graph->nodes.items[i];
        submit(stream, &node->action);
    }
    for (size_t i = 0; i < graph->kept.count; i++) {
        retain_user_object(graph->kept.items[i]);
        submit(stream, &(struct action){LET_GO, .kept = graph->kept.items[i]});
    }
}

EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    ENTER_EXECUTABLE(handle);
    struct stream *stream;
    TRY(find_target(stream_handle, &stream));
    TRY(refuse_capturing(stream));
    TRY(lend_memory(executable));
    if (!record_reached(executable->end->record))
        submit(stream, &(struct action){AWAIT, .event = executable->end});
    launch(executable->graph, stream);
    submit(stream, &(struct action){RECORD, .event = executable->end});
    return CUDA_SUCCESS;
}

/* -- what graphs keep alive ----------------------------------------------------------------- */

struct user_object {
    CUuserObject handle; /* NULL: memory of an allocation node, which nobody has a handle of */
    void *object;
    CUhostFn destroy;
    unsigned references;
};

static void release(struct user_object *object, unsigned count) {
    object->references -= count < object->references ? count : object->references;
    if (object->references) return;
    if (object->handle) drop_handle(object->handle);
    bool was_inside = inside_host_function;
    inside_host_function = true; /* it may call nothing of the driver */
    object->destroy(object->object);
    inside_host_function = was_inside;
    free(object);
}

void retain_user_object(struct user_object *object) { object->references++; }

void release_user_object(struct user_object *object) { release(object, 1); }

void keep_with_graph(struct graph *graph, void *object, CUhostFn destroy) {
    struct user_object *made = zeroed(sizeof *made);
    *made = (struct user_object){NULL, object, destroy, 1};
    APPEND(graph->kept, made);
}

EXPORT CUresult cuUserObjectCreate(CUuserObject *handle, void *object, CUhostFn destroy,
                                   unsigned references, unsigned flags) {
    ENTER();
    REQUIRE(handle && destroy && references, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CUDA_ERROR_INVALID_VALUE);
    struct user_object *made = zeroed(sizeof *made);
    *made = (struct user_object){new_handle(USER_OBJECT, made), object, destroy, references};
    *handle = made->handle;
    return CUDA_SUCCESS;
}

#define ENTER_USER_OBJECT(handle)                                \
    ENTER();                                                     \
    struct user_object *object = object_of(USER_OBJECT, handle); \
    REQUIRE(object, CUDA_ERROR_INVALID_VALUE)

EXPORT CUresult cuUserObjectRetain(CUuserObject handle, unsigned count) {
    ENTER_USER_OBJECT(handle);
    object->references += count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuUserObjectRelease(CUuserObject handle, unsigned count) {
    ENTER_USER_OBJECT(handle);
    release(object, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count,
                                        unsigned flags) {
    ENTER_USER_OBJECT(handle);
    struct graph *graph = object_of(GRAPH, graph_handle);
    REQUIRE(graph && !(flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE), CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++) APPEND(graph->kept, object);
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->references += count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle,
                                         unsigned count) {
    ENTER_USER_OBJECT(handle);
    struct graph *graph = object_of(GRAPH, graph_handle);
    REQUIRE(graph, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = graph->kept.count; i-- > 0 && count;) {
        if (graph->kept.items[i] != object) continue;
        graph->kept.items[i] = graph->kept.items[graph->kept.count - 1];
        graph->kept.count--;
        count--;
        release(object, 1);
    }
    return count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
