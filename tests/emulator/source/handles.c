/* Handles: opaque numbers, never addresses, so that one that was dropped is recognised and what it
 * stood for can be freed. */
#include "emulator.h"

#define INDEX_BITS 24
#define SHIFT 8 /* a handle looks like the address of something larger than a byte */

bool recycles_handles;
unsigned dead_handles_used;

struct slot {
    enum kind kind;
    unsigned generation; /* how often the slot was dropped, unless handles are recycled */
    void *object;
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
    if (index >= slots.count || handle_of(index) != (uintptr_t)handle) return NULL;
    return &slots.items[index];
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
    struct slot *slot = slot_of(handle);
    if (slot && slot->kind == kind) return slot->object;
    dead_handles_used++;
    return NULL;
}

bool is_handle_of(const void *handle, const void *object) {
    struct slot *slot = slot_of(handle);
    return slot && slot->object == object;
}

void drop_handle(const void *handle) {
    struct slot *slot = slot_of(handle);
    live[slot->kind]--;
    slot->next_free = first_free[slot->kind];
    first_free[slot->kind] = (size_t)(slot - slots.items) + 1;
    slot->kind = NOTHING;
    slot->object = NULL;
    slot->generation += !recycles_handles;
}

int live_handles(enum kind kind) { return live[kind]; }
