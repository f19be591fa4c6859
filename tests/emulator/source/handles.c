/* Handles: opaque numbers, never addresses, so that one that was dropped is recognised and what it
 * stood for can be freed. */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>

#define INDEX_BITS 24
#define SHIFT 8 /* a handle looks like the address of something larger than a byte */

bool recycles_handles, refuses_dead_handles;
int complaints = 2;

struct slot {
    enum kind kind;
    unsigned generation; /* how often the slot was dropped, unless handles are recycled */
    void *object; /* NULL: dropped */
    size_t next_free; /* one more than its index; 0: none */
};

static ARRAY(struct slot) slots;
static size_t first_free[KINDS]; /* a recycled handle is one of the same kind */
static int live[KINDS];

static uintptr_t handle_of(size_t index) {
    return ((uintptr_t)slots.items[index].generation << INDEX_BITS | (index + 1)) << SHIFT;
}

static struct slot *slot_of(const void *handle) {
    size_t index = (((uintptr_t)handle >> SHIFT) & ((1u << INDEX_BITS) - 1)) - 1;
    return index < slots.count ? &slots.items[index] : NULL;
}

static bool is_alive(const struct slot *slot, const void *handle) {
    return slot->object && handle_of((size_t)(slot - slots.items)) == (uintptr_t)handle;
}

/* One of an earlier generation, or of this one in a slot that is free. */
static bool was_dropped(const struct slot *slot, const void *handle) {
    uintptr_t last = handle_of((size_t)(slot - slots.items)), low = (1u << SHIFT) - 1;
    return !((uintptr_t)handle & low) && (uintptr_t)handle <= last - (slot->object != NULL);
}

void *new_handle(enum kind kind, void *object) {
    if (!first_free[kind]) {
        APPEND(slots, (struct slot){0});
        first_free[kind] = slots.count;
    }
    size_t index = first_free[kind] - 1;
    struct slot *slot = &slots.items[index];
    first_free[kind] = slot->next_free;
    slot->kind = kind;
    slot->object = object;
    live[kind]++;
    return (void *)handle_of(index);
}

void *object_of(enum kind kind, const void *handle) {
    static const char *names[KINDS] = {[CONTEXT] = "context", [STREAM] = "stream",
                                       [EVENT] = "event"};
    struct slot *slot = slot_of(handle);
    if (!slot || slot->kind != kind) return NULL; /* never given */
    if (is_alive(slot, handle)) return slot->object;
    if (names[kind] && !refuses_dead_handles && was_dropped(slot, handle)) {
        dprintf(complaints, "\nemulated driver: %s was given a dead %s, %p\n", entry_point, names[kind],
                handle);
        abort();
    }
    return NULL;
}

bool is_handle_of(const void *handle, const void *object) {
    struct slot *slot = slot_of(handle);
    return slot && is_alive(slot, handle) && slot->object == object;
}

void drop_handle(const void *handle) {
    struct slot *slot = slot_of(handle);
    live[slot->kind]--;
    slot->next_free = first_free[slot->kind];
    first_free[slot->kind] = (size_t)(slot - slots.items) + 1;
    slot->object = NULL;
    slot->generation += !recycles_handles;
}

void end_events_of(const struct context *context) {
    for (size_t index = 0; index < slots.count; index++) {
        struct event *event = slots.items[index].object;
        if (slots.items[index].kind != EVENT || !event || event->context != context) continue;
        drop_handle((const void *)handle_of(index));
        release_event(event);
    }
}

int live_handles(enum kind kind) { return live[kind]; }
