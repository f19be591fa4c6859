/* Graphs: what a capture makes, looked at and freed. */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>

struct graph *new_graph(void) {
    struct graph *graph = zeroed(sizeof *graph);
    graph->handle = new_handle(GRAPH, graph);
    graph->id = next_id();
    return graph;
}

void add_once(nodes *list, struct node *node) {
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i] == node) return;
    APPEND(*list, node);
}

static bool uses_event(const struct node *node) {
    return node->action.work == RECORD || node->action.work == AWAIT;
}

struct node *new_node(struct graph *graph, CUgraphNodeType type, const nodes *dependencies) {
    struct node *node = zeroed(sizeof *node);
    node->graph = graph;
    node->type = type;
    node->handle = new_handle(NODE, node);
    for (size_t i = 0; i < dependencies->count; i++)
        APPEND(node->dependencies, dependencies->items[i]);
    APPEND(graph->nodes, node);
    return node;
}

void add_work(struct stream *stream, const struct action *action, CUgraphNodeType type) {
    if (!stream->capture) {
        submit(stream, action);
        return;
    }
    struct node *node = new_node(stream->capture->graph, type, &stream->frontier);
    node->action = *action;
    if (uses_event(node)) action->event->references++;
    stream->frontier.count = 0;
    APPEND(stream->frontier, node);
}

static size_t place_of(const struct node *node) {
    size_t place = 0;
    while (node->graph->nodes.items[place] != node) place++;
    return place;
}

/* A copy is nobody's to look at: it has no handles. */
static struct node *copy_node(const struct node *node, struct graph *graph) {
    struct node *copy = zeroed(sizeof *copy);
    copy->graph = graph;
    copy->type = node->type;
    copy->action = node->action;
    if (uses_event(copy)) copy->action.event->references++;
    for (size_t i = 0; i < node->dependencies.count; i++) /* those come first in their graph */
        APPEND(copy->dependencies, graph->nodes.items[place_of(node->dependencies.items[i])]);
    return copy;
}

struct graph *copy_graph(const struct graph *graph) {
    struct graph *copy = zeroed(sizeof *copy);
    for (size_t i = 0; i < graph->nodes.count; i++)
        APPEND(copy->nodes, copy_node(graph->nodes.items[i], copy));
    for (size_t i = 0; i < graph->kept.count; i++) {
        retain_user_object(graph->kept.items[i]);
        APPEND(copy->kept, graph->kept.items[i]);
    }
    return copy;
}

static void free_node(struct node *node) {
    if (node->handle) drop_handle(node->handle);
    if (uses_event(node)) release_event(node->action.event);
    free(node->dependencies.items);
    free(node->parameters);
    free(node);
}

void free_graph(struct graph *graph) {
    for (size_t i = 0; i < graph->nodes.count; i++) free_node(graph->nodes.items[i]);
    for (size_t i = 0; i < graph->kept.count; i++)
        release_user_object(graph->kept.items[i]);
    if (graph->handle) drop_handle(graph->handle);
    free(graph->nodes.items);
    free(graph->kept.items);
    free(graph);
}

/* -- entry points --------------------------------------------------------------------------- */

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    ENTER();
    REQUIRE(graph && !flags, CUDA_ERROR_INVALID_VALUE);
    *graph = new_graph()->handle;
    return CUDA_SUCCESS;
}

#define ENTER_GRAPH(handle)                         \
    ENTER();                                        \
    struct graph *graph = object_of(GRAPH, handle); \
    REQUIRE(graph, CUDA_ERROR_INVALID_VALUE)

EXPORT CUresult cuGraphDestroy(CUgraph handle) {
    ENTER_GRAPH(handle);
    free_graph(graph);
    return CUDA_SUCCESS;
}

/* Write as many as there is room for, and how many there are; a caller without room only counts. */
static CUresult list_nodes(CUgraph handle, CUgraphNode *found, size_t *count, bool only_roots) {
    struct graph *graph = object_of(GRAPH, handle);
    REQUIRE(graph && count, CUDA_ERROR_INVALID_VALUE);
    size_t room = found ? *count : 0, there = 0;
    for (size_t i = 0; i < graph->nodes.count; i++) {
        struct node *node = graph->nodes.items[i];
        if (only_roots && node->dependencies.count) continue;
        if (there < room) found[there] = node->handle;
        there++;
    }
    for (size_t i = there; i < room; i++) found[i] = NULL;
    *count = there;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *found, size_t *count) {
    ENTER();
    return list_nodes(graph, found, count, false);
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *found, size_t *count) {
    ENTER();
    return list_nodes(graph, found, count, true);
}

static CUresult list_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to,
                           CUgraphEdgeData *data, size_t *count) {
    struct graph *graph = object_of(GRAPH, handle);
    REQUIRE(graph && count, CUDA_ERROR_INVALID_VALUE);
    size_t room = from && to ? *count : 0, there = 0;
    for (size_t i = 0; i < graph->nodes.count; i++) {
        struct node *node = graph->nodes.items[i];
        for (size_t k = 0; k < node->dependencies.count; k++, there++) {
            if (there >= room) continue;
            from[there] = node->dependencies.items[k]->handle;
            to[there] = node->handle;
            if (data) data[there] = (CUgraphEdgeData){0};
        }
    }
    *count = there;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    ENTER();
    return list_edges(graph, from, to, NULL, count);
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                                   CUgraphEdgeData *data, size_t *count) {
    ENTER();
    return list_edges(graph, from, to, data, count);
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type) {
    ENTER();
    struct node *node = object_of(NODE, handle);
    REQUIRE(node && type, CUDA_ERROR_INVALID_VALUE);
    *type = node->type;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDebugDotPrint(CUgraph handle, const char *path, unsigned flags) {
    ENTER_GRAPH(handle);
    (void)flags;
    FILE *file = fopen(path, "w");
    REQUIRE(file, CUDA_ERROR_OPERATING_SYSTEM);
    fprintf(file, "digraph dot {\n");
    for (size_t i = 0; i < graph->nodes.count; i++) {
        struct node *node = graph->nodes.items[i];
        fprintf(file, "\"%p\" [label=\"type %d\"];\n", (void *)node->handle, node->type);
        for (size_t k = 0; k < node->dependencies.count; k++)
            fprintf(file, "\"%p\" -> \"%p\";\n", (void *)node->dependencies.items[k]->handle,
                    (void *)node->handle);
    }
    fprintf(file, "}\n");
    fclose(file);
    return CUDA_SUCCESS;
}
