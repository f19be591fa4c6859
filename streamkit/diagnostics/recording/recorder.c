/* The recorder of driver calls, which CUPTI calls at the beginning and at the end of each.
 *
 * It runs inside calls of the driver, in any thread. So it runs no Python, never takes the GIL,
 * changes no reference count and sees no exception: one that passes through a destructor stays. It
 * copies what a call was given into chunks, which Python reads when a block has ended. It asks the
 * driver about a stream only inside the calls that use it: first, and as long as it may capture.
 *
 * One lock guards what is noted. The driver is asked without it: a caller can hold a lock of
 * CUDA's, for which a thread that asks would wait.
 *
 * It includes no header of CUDA's or Python's, so that one build serves all their versions: Python
 * fills in the functions of the driver and the layout of frames (recorder.py, frames.py). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define AT(object, offset, type) (*(type *)((char *)(object) + (offset)))
#define TYPE(object) AT(object, 8, const void *) /* of Python's */
#define LENGTH(object) AT(object, 16, uint32_t)
#define ROUNDED(bytes) (((bytes) + 7) & ~(size_t)7)
#define CALLS 1024 /* CUPTI's numbers are below it */
#define BUCKETS 4096
#define CHUNK ((size_t)1 << 18)
#define MOST_PARAMETERS 4096 /* of a kernel */
#define UPLOADS 16           /* whose memory is looked at again */
#define LOOKED_AT 16384      /* bytes of an upload: all, or so many in pieces */
#define PIECES 16

/* -- what Python fills in ---------------------------------------------------------------------- */

/* What is noted of a call. */
EXPORT struct plan {
    uint16_t size;  /* bytes of its parameters that are used */
    uint8_t when;   /* AT_BEGINNING, AT_END */
    uint8_t more;   /* what is noted beside the parameters */
    uint8_t at;     /* TARGET, UPLOAD: which byte of the parameters points to it */
    uint8_t length; /* TARGET: its bytes */
    uint8_t stream; /* which byte of these, or of the configuration; NO_STREAM, NULL_STREAM */
    uint8_t flags;  /* PER_THREAD: its null stream is the thread's */
} recorder_plans[CALLS];
enum { AT_BEGINNING = 1, AT_END = 2, NULL_STREAM = 254, NO_STREAM = 255 };
enum {
    LAUNCH = 1,    /* a kernel and the bytes of its parameters */
    LAUNCH_WITH,   /* the same of a launch with a configuration */
    TARGET,        /* bytes to which a parameter points, before or after the call */
    FREED,         /* the memory at the first parameter, as it is at the beginning */
    MEMORY_MADE,   /* memory whose address the call has written to such bytes */
    MEMORY_MAPPED, /* the memory at the first parameter, as it is at the end */
    UPLOAD,        /* what the pinned memory has from which it will copy */
    UPLOADED,      /* what such memory of the latest uploads has by now */
    NAME           /* the name of a call that is not known, for parameters */
};
enum { PER_THREAD = 1, UNLOADS = 2, MAY_CAPTURE = 4, ENDS_STREAMS = 8, MAKES_STREAM = 16 };

/* Functions of the driver. */
EXPORT struct {
    int (*stream_context)(uint64_t, uint64_t *);
    int (*stream_is_capturing)(uint64_t, int *);
    int (*stream_flags)(uint64_t, unsigned *);
    int (*stream_id)(uint64_t, uint64_t *);
    int (*context_device)(int *);
    int (*pointer_attributes)(unsigned, int *, void **, uint64_t);
    int (*parameter[2])(uint64_t, size_t, size_t *, size_t *); /* NULL before CUDA 12.4 */
} recorder_driver;
#define driver recorder_driver

/* Functions of Python's, and where things are in its structures. */
EXPORT struct {
    void *(*thread_state)(void);
    int (*add_pending_call)(int (*)(void *), void *);
    int (*is_true)(const void *), (*is_raised)(const void *);
    void (*clear)(void);
    const void *notice, *recursion_error, *code_type, *string_type, *bytes_type;
    int32_t current_frame, of_cframe; /* of_cframe: -1 if the state points to the frame */
    int32_t frame_code, frame_instruction, frame_previous, frame_owner;
    int32_t code_units, code_begins, code_file, code_lines, code_first_line;
    int32_t string_state, string_ascii, string_compact, bytes_data;
} recorder_python;
#define python recorder_python
enum { OWNED_BY_GENERATOR = 1, OWNED_BY_C = 3 }; /* frames */
enum { LEGACY = 1, OF_THREAD = 2 };              /* handles of streams */

EXPORT _Atomic int recorder_of_races; /* listeners to be told of new lines, those of launches too */
EXPORT _Atomic int recorder_notice;   /* NEW_LINE, TOLD: and Python has still to begin */
enum { NEW_LINE = 1, TOLD = 2 };

/* -- what Python reads ------------------------------------------------------------------------- */

EXPORT _Atomic uint64_t recorder_count;         /* facts that were noted */
EXPORT _Atomic uint64_t recorder_lost;          /* calls for which there was no memory */
EXPORT const uint32_t recorder_source = SOURCE; /* what this was built from */

/* A record: this head, the parameters, and what is noted beside them. */
struct fact {
    uint32_t size;            /* bytes of the whole record */
    uint16_t call;            /* 0: a stream that was met, with a struct stream for parameters */
    uint8_t fate;             /* FAILED, CAPTURED: it does not run */
    uint8_t more;             /* as in the plan */
    uint32_t thread, fields;  /* bytes of the parameters */
    uint64_t context, stream; /* the stream's handle; 0 for a call without one */
    struct place *place;
    int64_t since;   /* of a call that has ended: the facts before it began; else -1 */
    uint64_t beside; /* bytes beside the parameters */
};
enum { FAILED = 1, CAPTURED = 2 };
struct chunk {
    struct chunk *next; /* the one before it */
    size_t used, size;
    char bytes[];
};
struct stream {
    uint64_t handle, id, context;                 /* 0: not known */
    int32_t device, flags, is_capturing, padding; /* -1: not known */
};
struct memory {
    uint64_t start, size, sort, context;
};
struct content {
    uint64_t at, size, digest; /* of the bytes that are looked at */
};
struct kernel {
    struct kernel *next;
    uint64_t function;
    const char *symbol;
    int32_t count;            /* of its parameters; -1 if they are not known */
    uint32_t bytes, extent;   /* of the parameters alone, and with the gaps between them */
    uint32_t parameters[][2]; /* the offset and the size of each */
};
struct text {
    const char *data;
    uint32_t bytes, width; /* of a character: 1, 2 or 4; 0 in bytes */
};
struct place {
    struct place *next;
    const void *code; /* a hint: another code can have had its address */
    int64_t at;       /* the code unit */
    struct text file, lines;
    int32_t first_line, is_library;
};

/* -- what is kept while there are listeners ---------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t session; /* odd while calls are noted */
static void *const *libraries; /* beginnings of their files; NULL: no lines are wanted */
static struct chunk *noted, *kept;
static struct {
    struct met {
        struct met *next;
        uint64_t handle, context;
        uint32_t thread;
        int is_known; /* else it captures or did, and is asked again */
    } *streams[BUCKETS];
    struct kernel *kernels[BUCKETS];
    struct place *places[BUCKETS];
    struct content uploads[UPLOADS]; /* the latest ones, with their streams */
    size_t next_upload;
} tables;

static __thread uint32_t own_thread;
static __thread struct begun {
    uint64_t session, since;
    struct memory memory;
    uint32_t call;
    struct fact *fact; /* NULL if its beginning is not noted */
} begun;               /* the latest call of this thread */

static uint32_t this_thread(void) {
    return own_thread ? own_thread : (own_thread = (uint32_t)syscall(SYS_gettid));
}

static void in_child(void) {
    pthread_mutex_init(&lock, NULL); /* another thread can have held it */
    own_thread = 0;
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, in_child);
}

static size_t bucket(uint64_t key) {
    return (size_t)((key * 0x9E3779B97F4A7C15u) >> 52) % BUCKETS;
}

static void *room(struct chunk **chunk, size_t size) {
    if (!*chunk || (*chunk)->size - (*chunk)->used < size) {
        size_t most = size > CHUNK ? size : CHUNK;
        struct chunk *made = malloc(sizeof *made + most);
        if (!made) return NULL;
        *made = (struct chunk){*chunk, 0, most};
        *chunk = made;
    }
    (*chunk)->used += size;
    return (*chunk)->bytes + (*chunk)->used - size;
}

static void *copy(const void *data, size_t size) {
    void *made = room(&kept, ROUNDED(size));
    return made ? memcpy(made, data, size) : NULL;
}

static void let_go(struct chunk **chunks) {
    for (struct chunk *next; *chunks; *chunks = next) {
        next = (*chunks)->next;
        free(*chunks);
    }
}

/* -- the line of the user's: a thread's own frames, which stay as they are while it is in C ---- */

static struct text text_of(const void *object) {
    if (TYPE(object) == python.bytes_type)
        return (struct text){(char *)object + python.bytes_data, LENGTH(object), 0};
    if (TYPE(object) != python.string_type) return (struct text){"", 0, 0};
    uint32_t state = AT(object, python.string_state, uint32_t), width = state >> 2 & 7;
    int32_t begins = state >> 6 & 1 ? python.string_ascii : python.string_compact;
    return (struct text){(char *)object + begins, LENGTH(object) * width, width};
}

static int same(struct text one, struct text other) {
    return one.bytes == other.bytes && one.width == other.width &&
           !memcmp(one.data, other.data, one.bytes);
}

static int is_library(struct text file) {
    for (void *const *one = libraries; *one; one++) {
        struct text begins = text_of(*one), start = file;
        if (start.bytes > begins.bytes) start.bytes = begins.bytes;
        if (same(start, begins)) return 1;
    }
    return 0;
}

/* The address of a code finds a place, and the content proves it. */
static struct place *place_at(const void *code, int64_t at) {
    struct place **slot = &tables.places[bucket((uintptr_t)code + (uint64_t)at)];
    struct text file = text_of(AT(code, python.code_file, void *));
    struct text lines = text_of(AT(code, python.code_lines, void *));
    int32_t first_line = AT(code, python.code_first_line, int32_t);
    for (struct place *one = *slot; one; one = one->next)
        if (one->code == code && one->at == at && one->first_line == first_line &&
            same(one->file, file) && same(one->lines, lines))
            return one;
    file.data = copy(file.data, file.bytes);
    lines.data = copy(lines.data, lines.bytes);
    if (!file.data || !lines.data) return NULL;
    struct place all = {*slot, code, at, file, lines, first_line, is_library(file)}, *made;
    if (recorder_of_races && !recorder_notice && !all.is_library) recorder_notice = NEW_LINE;
    return (made = copy(&all, sizeof all)) ? *slot = made : NULL;
}

/* Find the thread's frames, the innermost first; with `users` those of libraries are passed over. A
 * thread without a state of Python's has none. From 3.14 on a bit of a code's address is a tag. */
static int frames(struct place **found, int most, int users) {
    int count = 0;
    void *state = libraries ? python.thread_state() : NULL;
    void *frame = state ? AT(state, python.current_frame, void *) : NULL;
    if (frame && python.of_cframe >= 0) frame = AT(frame, python.of_cframe, void *);
    for (; frame && count < most; frame = AT(frame, python.frame_previous, void *)) {
        int owner = AT(frame, python.frame_owner, char);
        void *object = (void *)(AT(frame, python.frame_code, uintptr_t) & ~(uintptr_t)1);
        if (owner >= OWNED_BY_C || !object || TYPE(object) != python.code_type) continue;
        char *units = (char *)object + python.code_units;
        int64_t at = (AT(frame, python.frame_instruction, char *) - units) / 2;
        int32_t begins = AT(object, python.code_begins, int32_t);
        if (at < begins && (owner != OWNED_BY_GENERATOR || at < 0)) continue;
        struct place *place = place_at(object, at);
        if (place && !(users && place->is_library)) found[count++] = place;
    }
    return count;
}

/* -- the driver's answers ---------------------------------------------------------------------- */

static struct memory memory_at(uint64_t address) {
    struct memory found = {0, 0, 0, 0};
    int which[] = {11, 12, 2, 1}; /* of CUpointer_attribute: start, size, type, context */
    void *where[] = {&found.start, &found.size, &found.sort, &found.context};
    if (driver.pointer_attributes(4, which, where, address)) found.size = 0; /* none of CUDA's */
    return found;
}

/* A stream that captures is not asked for its id and flags, because that would break the capture,
 * and the legacy stream is not while any blocking stream captures. */
static struct stream stream_with(uint64_t handle, uint64_t context) {
    struct stream found = {handle, 0, context, -1, -1, -1, 0};
    if (driver.stream_is_capturing(handle, &found.is_capturing)) found.is_capturing = -1;
    if (handle > OF_THREAD && driver.stream_context(handle, &found.context)) found.context = 0;
    if (found.context == context && driver.context_device(&found.device)) found.device = -1;
    if (found.is_capturing) return found;
    if (driver.stream_id(handle, &found.id)) found.id = 0;
    if (driver.stream_flags(handle, (unsigned *)&found.flags)) found.flags = -1;
    return found;
}

static void ask_for_parameters(struct kernel *kernel, uint64_t function) {
    *kernel = (struct kernel){.function = function, .count = -1};
    for (int which = 0; which < 2 && kernel->count < 0; which++) {
        size_t offset, size;
        int count = 0, code = -1;
        kernel->bytes = kernel->extent = 0;
        while (driver.parameter[which] && count < MOST_PARAMETERS &&
               !(code = driver.parameter[which](function, (size_t)count, &offset, &size))) {
            kernel->bytes += (uint32_t)size;
            kernel->extent = (uint32_t)(offset + size);
            kernel->parameters[count][0] = (uint32_t)offset;
            kernel->parameters[count++][1] = (uint32_t)size;
        }
        if (code == 1) kernel->count = count; /* the answer for a parameter that there is not */
    }
}

/* -- with the lock ----------------------------------------------------------------------------- */

static struct kernel *kernel_of(uint64_t function) {
    struct kernel *one = tables.kernels[bucket(function)];
    while (one && one->function != function) one = one->next;
    return one;
}

static struct kernel *new_kernel(const struct kernel *asked, const char *symbol) {
    size_t count = asked->count < 0 ? 0 : (size_t)asked->count;
    struct kernel *made = copy(asked, sizeof *asked + count * sizeof *asked->parameters);
    struct kernel **slot = &tables.kernels[bucket(asked->function)];
    if (!made || !(made->symbol = copy(symbol, strlen(symbol) + 1))) return NULL;
    made->next = *slot;
    return *slot = made;
}

static struct met *met(uint64_t handle, uint64_t context) {
    struct met *one = tables.streams[bucket(handle)];
    while (one && (one->handle != handle || (handle <= OF_THREAD && one->context != context) ||
                   (handle == OF_THREAD && one->thread != this_thread())))
        one = one->next;
    return one;
}

/* Add a fact with the first bytes beside its parameters; return the room for the others. */
static char *note(struct fact fact, const void *fields, const void *beside, size_t bytes) {
    if (!(session & 1)) return NULL; /* the last listener has closed meanwhile */
    size_t head = sizeof fact + ROUNDED(fact.fields), size = head + ROUNDED(fact.beside);
    char *at = room(&noted, size);
    recorder_lost += !at;
    if (!at) return NULL;
    fact.size = (uint32_t)size;
    fact.thread = this_thread();
    begun.fact = memcpy(at, &fact, sizeof fact);
    if (fact.fields) memcpy(at + sizeof fact, fields, fact.fields);
    recorder_count++;
    return bytes ? (char *)memcpy(at + head, beside, bytes) + bytes : at + head;
}

/* -- a call ------------------------------------------------------------------------------------ */

/* The beginning of CUPTI's own structure. */
struct data {
    int32_t site; /* 0 at the beginning of a call */
    const char *name, *fields;
    const int32_t *result;
    const char *symbol;
    uint64_t context;
};

static uint64_t stream_of(const struct plan *plan, const char *fields) {
    if (plan->stream == NO_STREAM) return 0;
    if (plan->more == LAUNCH_WITH) fields = AT(fields, 0, char *); /* its CUlaunchConfig */
    uint64_t handle = plan->stream == NULL_STREAM ? 0 : AT(fields, plan->stream, uint64_t);
    return handle ? handle : plan->flags & PER_THREAD ? OF_THREAD : LEGACY;
}

/* Note what a stream is that was not met before, or is new; return whether it captures. */
static int look_at(uint64_t handle, uint64_t context, int is_new) {
    pthread_mutex_lock(&lock);
    struct met *known = met(handle, context); /* if it is new, one that ended with its context */
    int is_known = known && known->is_known && !is_new;
    pthread_mutex_unlock(&lock);
    if (is_known) return 0;
    struct stream found = stream_with(handle, context);
    struct fact fact = {.fields = sizeof found, .context = context, .stream = handle, .since = -1};
    pthread_mutex_lock(&lock);
    known = met(handle, context);
    if (is_new || !known || (!known->is_known && !found.is_capturing)) note(fact, &found, NULL, 0);
    struct met **slot = &tables.streams[bucket(handle)];
    struct met all = {*slot, handle, context, this_thread(), 0};
    if (!known && (known = copy(&all, sizeof all))) *slot = known;
    if (known) known->is_known = !found.is_capturing;
    pthread_mutex_unlock(&lock);
    return found.is_capturing > 0;
}

/* The buffer in which a launch can have its parameters; NULL if it does not hold them all. */
static const char *packed(const char *extra, const struct kernel *kernel) {
    const char *buffer = NULL;
    uint64_t size = 0;
    for (; extra && AT(extra, 0, uint64_t); extra += 16) {
        if (AT(extra, 0, uint64_t) == 1) buffer = AT(extra, 8, char *);
        if (AT(extra, 0, uint64_t) == 2) size = *AT(extra, 8, uint64_t *);
    }
    return size < kernel->extent ? NULL : buffer;
}

static void launch(const struct plan *plan, struct fact fact, const struct data *data) {
    int has_configuration = plan->more == LAUNCH_WITH;
    const char *fields = data->fields;
    char *const *pointers = AT(fields, has_configuration ? 16 : 48, char *const *);
    const char *extra = plan->size % 32 ? NULL : AT(fields, plan->size - 8, char *);
    uint64_t function = AT(fields, has_configuration ? 8 : 0, uint64_t);
    pthread_mutex_lock(&lock);
    struct kernel *kernel = kernel_of(function);
    if (!kernel) {
        pthread_mutex_unlock(&lock);
        struct kernel *asked = malloc(sizeof *asked + MOST_PARAMETERS * sizeof *asked->parameters);
        if (asked) ask_for_parameters(asked, function);
        pthread_mutex_lock(&lock);
        kernel = kernel_of(function);
        if (!kernel && asked) kernel = new_kernel(asked, data->symbol ? data->symbol : "a kernel");
        free(asked);
    }
    recorder_lost += !kernel;
    if (kernel) {
        const char *buffer = !pointers && kernel->count > 0 ? packed(extra, kernel) : NULL;
        uint64_t is_known = kernel->count == 0 || (kernel->count > 0 && (pointers || buffer));
        uint64_t head[] = {(uintptr_t)kernel, is_known};
        if (recorder_of_races) frames(&fact.place, 1, 1);
        fact.beside = sizeof head + (is_known ? kernel->bytes : 0);
        char *to = note(fact, NULL, head, sizeof head);
        for (int one = 0; to && is_known && one < kernel->count; one++) {
            uint32_t offset = kernel->parameters[one][0], size = kernel->parameters[one][1];
            to = (char *)memcpy(to, buffer ? buffer + offset : pointers[one], size) + size;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Look at what the memory of an upload has; return 0 if it is not there any more. The system copies
 * it, because a program may unmap it at any time. */
static int look(struct content *memory) {
    uint64_t words[LOOKED_AT / 8 + 1], digest = memory->size;
    size_t pieces = memory->size > LOOKED_AT ? PIECES : 1;
    size_t length = pieces > 1 ? LOOKED_AT / PIECES : memory->size, last = memory->size - length;
    struct iovec to = {words, length * pieces}, from[PIECES];
    for (size_t one = 0; one < pieces; one++)
        from[one] = (struct iovec){(char *)memory->at + last * one / (PIECES - 1), length};
    words[to.iov_len / 8] = 0;
    if (process_vm_readv(getpid(), &to, 1, from, pieces, 0) != (ssize_t)to.iov_len) return 0;
    for (size_t one = 0; one < (to.iov_len + 7) / 8; one++)
        digest = (digest ^ words[one] ^ digest >> 29) * 0x9E3779B97F4A7C15u;
    memory->digest = digest;
    return 1;
}

/* Look at the memory of an upload, or of the latest ones, for the last time if their stream has
 * come; return the bytes of what is known. */
static size_t contents(struct content *found, const char *upload, uint64_t stream) {
    struct content *one = tables.uploads, *end = one + UPLOADS;
    if (upload) {
        while (one < end && memcmp(one, upload, offsetof(struct content, digest))) one++;
        if (one == end) one = tables.uploads + tables.next_upload++ % UPLOADS;
        *one = (struct content){AT(upload, 0, uint64_t), AT(upload, 8, uint64_t), stream};
        end = one + 1;
    }
    size_t count = 0;
    for (; one < end; one++) {
        found[count] = *one;
        count += one->size && look(&found[count]);
        if (!upload && one->digest == stream) one->size = 0;
    }
    return count * sizeof *found;
}

/* Note a call at its beginning or end, with `memory` that was asked for at its beginning. */
static void add(const struct plan *plan, struct fact fact, const struct data *data,
                struct memory memory) {
    const char *fields = data->fields;
    const void *beside = &memory;
    struct content found[UPLOADS];
    fact.fields = plan->size;
    fact.beside = plan->more && plan->more < UPLOAD ? sizeof memory : 0;
    if (plan->more == TARGET) {
        beside = AT(fields, plan->at, void *);
        fact.beside = beside ? plan->length : 0;
    } else if (plan->more == NAME) {
        fact.fields = (uint32_t)strlen(fields = data->name);
    } else if (plan->more == MEMORY_MADE || plan->more == MEMORY_MAPPED) {
        uint64_t address = AT(fields, 0, uint64_t);
        if (plan->more == MEMORY_MADE) address = *(uint64_t *)address;
        memory = memory_at(address);
        if (!memory.size) /* then it is as the call asked for it */
            memory = (struct memory){address, plan->size > 8 ? AT(fields, 8, uint64_t) : 1, 0, 0};
    }
    pthread_mutex_lock(&lock);
    int is_pinned = plan->more == UPLOADED || (plan->more == UPLOAD && memory.sort == 1);
    if (is_pinned && recorder_of_races) {
        fact.beside = contents(found, plan->at ? fields + plan->at : NULL, fact.stream);
        beside = found;
    }
    frames(&fact.place, 1, 1);
    note(fact, fields, beside, fact.beside);
    /* others get the handles */
    if (plan->flags & UNLOADS) memset(tables.kernels, 0, sizeof tables.kernels);
    if (plan->flags & ENDS_STREAMS) memset(tables.streams, 0, sizeof tables.streams);
    pthread_mutex_unlock(&lock);
}

static void begins(const struct plan *plan, struct fact fact, const struct data *data) {
    struct memory memory = {0, 0, 0, 0};
    if (fact.stream && look_at(fact.stream, data->context, 0)) fact.fate = CAPTURED;
    if (plan->more == FREED || plan->more == UPLOAD)
        memory = memory_at(AT(data->fields, plan->at, uint64_t));
    begun = (struct begun){session, recorder_count, memory, fact.call, NULL};
    if (plan->more == LAUNCH || plan->more == LAUNCH_WITH) return launch(plan, fact, data);
    if (plan->when & AT_BEGINNING) add(plan, fact, data, memory);
}

static void ends(const struct plan *plan, struct fact fact, const struct data *data) {
    int is_own = begun.session == session && begun.call == fact.call, is_capturing = 0;
    if (!*data->result && plan->flags & MAY_CAPTURE)
        driver.stream_is_capturing(fact.stream, &is_capturing);
    if (*data->result || is_capturing) {
        pthread_mutex_lock(&lock);
        struct met *known = is_capturing ? met(fact.stream, data->context) : NULL;
        if (known) known->is_known = 0;
        if (is_own && begun.session == session && begun.fact)
            begun.fact->fate = is_capturing ? CAPTURED : FAILED;
        pthread_mutex_unlock(&lock);
    } else if (plan->when & AT_END) {
        fact.since = (int64_t)(is_own ? begun.since : recorder_count);
        if (plan->flags & MAKES_STREAM) look_at(*AT(data->fields, 0, uint64_t *), data->context, 1);
        add(plan, fact, data, is_own ? begun.memory : (struct memory){0});
    }
}

/* Let Python read names, in the main thread. What it raises passes, but for a stack too deep. */
static int notice(void *object) {
    int code = python.is_true(object);
    if (code < 0) recorder_notice = NEW_LINE; /* the next call asks again */
    if (code >= 0 || !python.is_raised(python.recursion_error)) return code;
    return python.clear(), 0;
}

/* The function that CUPTI calls. */
EXPORT void recorder_call(void *user, int domain, uint32_t call, const struct data *data) {
    (void)user, (void)domain;
    const struct plan *plan = &recorder_plans[call % CALLS];
    if (!(session & 1) || !plan->when) return;
    struct fact fact = {.call = (uint16_t)call, .more = plan->more, .context = data->context,
                        .stream = stream_of(plan, data->fields), .since = -1};
    (data->site ? ends : begins)(plan, fact, data);
    int state = NEW_LINE;
    if (atomic_compare_exchange_strong(&recorder_notice, &state, TOLD) &&
        python.add_pending_call(notice, (void *)python.notice)) /* too many wait already */
        recorder_notice = NEW_LINE;
}

/* -- for Python -------------------------------------------------------------------------------- */

/* Begin to note calls, or end and forget them. */
EXPORT void recorder_note(int on) {
    pthread_mutex_lock(&lock);
    recorder_count = recorder_lost = 0;
    session = (session | 1) + !on; /* odd if it is on */
    memset(&tables, 0, sizeof tables);
    let_go(&noted);
    let_go(&kept);
    pthread_mutex_unlock(&lock);
}

/* Return the newest chunk; none of those that are there changes from now on, until they go. */
EXPORT const struct chunk *recorder_read(void) {
    pthread_mutex_lock(&lock);
    struct chunk *newest = noted;
    if (newest) newest->size = newest->used;
    pthread_mutex_unlock(&lock);
    return newest;
}

/* Have lines, of frames whose files begin otherwise than those of libraries: objects of Python's,
 * the last one NULL. No objects: no lines from now on, and no thread is looking at its frames when
 * this returns. When the interpreter ends, it frees states of threads that are still in C calls. */
EXPORT void recorder_have_lines(void *const *files_of_libraries) {
    pthread_mutex_lock(&lock);
    libraries = files_of_libraries;
    pthread_mutex_unlock(&lock);
}

/* Find all frames of the calling thread. */
EXPORT int recorder_frames(struct place **found, int most) {
    pthread_mutex_lock(&lock);
    int count = frames(found, most, 0);
    pthread_mutex_unlock(&lock);
    return count;
}
