/* The engine: one thread runs what streams hold, and a second one the host functions, which may
 * block without holding up other streams.
 *
 * Among the operations that may run next the engine picks by lot: what a program leaves unordered
 * comes in any order, but for EMULATED_SEED the same one as far as the program itself is steady. */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_NANOSECONDS 50000 /* between two looks at a word that a stream waits for */

struct dependency {
    struct stream *stream;
    uint64_t number;
};

struct operation {
    struct operation *next;
    uint64_t number; /* its place in its stream, from 1 */
    struct action action;
    ARRAY(struct dependency) dependencies;
    struct record *record;
};

static struct stream *busy_streams;
static struct stream *calling; /* the stream whose host function is to run */
static pthread_cond_t work_came = PTHREAD_COND_INITIALIZER;
static pthread_cond_t work_done = PTHREAD_COND_INITIALIZER;
static pthread_cond_t call_came = PTHREAD_COND_INITIALIZER;

double now_in_milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* -- running one operation ------------------------------------------------------------------ */

static void fill(const struct action *action) {
    for (size_t row = 0; row < action->fill.height; row++)
        for (size_t column = 0; column < action->fill.width; column++)
            memcpy(action->fill.to + row * action->fill.pitch + column * action->fill.size,
                   &action->fill.value, action->fill.size);
}

static uint64_t read_word(const struct action *action) {
    void *word = action->value.word;
    if (action->value.bytes == 8) return __atomic_load_n((uint64_t *)word, __ATOMIC_ACQUIRE);
    return __atomic_load_n((uint32_t *)word, __ATOMIC_ACQUIRE);
}

static void write_word(const struct action *action) {
    void *word = action->value.word;
    uint64_t value = action->value.value;
    if (action->value.bytes == 8)
        __atomic_store_n((uint64_t *)word, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)word, (uint32_t)value, __ATOMIC_RELEASE);
}

static bool word_allows(const struct action *action) {
    uint64_t word = read_word(action), value = action->value.value;
    bool wide = action->value.bytes == 8;
    switch (action->value.flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: /* cyclic, as a counter that wraps */
        return wide ? (int64_t)(word - value) >= 0 : (int32_t)(word - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return word == value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (word & value) != 0;
    default:
        return wide ? ~(word | value) != 0 : (uint32_t)~(word | value) != 0;
    }
}

/* Without the lock. */
static void perform(const struct action *action) {
    switch (action->work) {
    case COPY:
        memmove(action->copy.to, action->copy.from, action->copy.bytes);
        break;
    case FILL:
        fill(action);
        break;
    case WRITE_VALUE:
        write_word(action);
        break;
    case CALL_HOST:
        inside_host_function = true;
        action->host.function(action->host.data);
        inside_host_function = false;
        break;
    case CALL_BACK:
        inside_host_function = true;
        action->back.function(action->back.stream, CUDA_SUCCESS, action->back.data);
        inside_host_function = false;
        break;
    case FREE:
        pthread_mutex_lock(&lock);
        deallocate(action->memory);
        pthread_mutex_unlock(&lock);
        break;
    case LET_GO:
        pthread_mutex_lock(&lock);
        release_user_object(action->kept);
        pthread_mutex_unlock(&lock);
        break;
    case NO_WORK:
    case RECORD:
    case AWAIT:
    case WAIT_VALUE: /* all there is to these is when they are done */
        break;
    }
}

static void finish(struct stream *stream) {
    struct operation *operation = stream->first;
    stream->done = operation->number;
    stream->first = operation->next;
    stream->running = false;
    if (operation->record) {
        operation->record->milliseconds = now_in_milliseconds();
        release_record(operation->record);
    }
    for (size_t i = 0; i < operation->dependencies.count; i++)
        release_stream(operation->dependencies.items[i].stream);
    free(operation->dependencies.items);
    free(operation);
    if (!stream->first) {
        struct stream **link = &busy_streams;
        while (*link != stream) link = &(*link)->next_busy;
        *link = stream->next_busy;
        stream->busy = false;
        release_stream(stream);
    }
    pthread_cond_broadcast(&work_done);
    pthread_cond_signal(&work_came); /* what waited for this may be next */
}

/* -- choosing the next ---------------------------------------------------------------------- */

static bool may_run(const struct stream *stream, bool *polled) {
    if (stream->running) return false;
    const struct operation *operation = stream->first;
    for (size_t i = 0; i < operation->dependencies.count; i++) {
        const struct dependency *dependency = &operation->dependencies.items[i];
        if (dependency->stream->done < dependency->number) return false;
    }
    if (operation->action.work != WAIT_VALUE || word_allows(&operation->action)) return true;
    *polled = true;
    return false;
}

static unsigned draw(unsigned below) {
    static uint32_t state;
    if (!state) {
        const char *seed = getenv("EMULATED_SEED");
        state = seed && atoi(seed) ? (uint32_t)atoi(seed) : 1;
    }
    state ^= state << 13; /* xorshift32 */
    state ^= state >> 17;
    state ^= state << 5;
    return state % below;
}

static struct stream *choose(bool *polled) {
    struct stream *chosen = NULL;
    unsigned candidates = 0;
    for (struct stream *stream = busy_streams; stream; stream = stream->next_busy) {
        bool is_call = stream->first->action.work == CALL_HOST ||
                       stream->first->action.work == CALL_BACK;
        if (is_call && calling) continue; /* host functions run one at a time */
        if (may_run(stream, polled) && !draw(++candidates)) chosen = stream;
    }
    return chosen;
}

static void *run_host_functions(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!calling) pthread_cond_wait(&call_came, &lock);
        struct action action = calling->first->action;
        pthread_mutex_unlock(&lock);
        perform(&action);
        pthread_mutex_lock(&lock);
        struct stream *stream = calling;
        calling = NULL;
        finish(stream);
    }
    return NULL;
}

static void *run_streams(void *unused) {
    (void)unused;
    /* what a test must not take for granted is that the device is fast, or always as fast */
    const struct timespec time = {.tv_nsec = setting("EMULATED_OPERATION_US", 0) * 1000L};
    const int one_in = setting("EMULATED_SLOW_ONE_IN", 1);
    pthread_mutex_lock(&lock);
    for (;;) {
        bool polled = false;
        struct stream *stream = choose(&polled);
        if (!stream && polled) {
            pthread_mutex_unlock(&lock);
            nanosleep(&(struct timespec){.tv_nsec = POLL_NANOSECONDS}, NULL);
            pthread_mutex_lock(&lock);
        } else if (!stream) {
            pthread_cond_wait(&work_came, &lock);
        } else {
            struct action action = stream->first->action;
            stream->running = true;
            if (action.work == CALL_HOST && broken) { /* after an error they are not called */
                finish(stream);
                continue;
            }
            if (action.work == CALL_HOST || action.work == CALL_BACK) {
                calling = stream;
                pthread_cond_signal(&call_came);
                continue;
            }
            bool is_slow = time.tv_nsec && !draw((unsigned)one_in);
            pthread_mutex_unlock(&lock);
            if (is_slow) nanosleep(&time, NULL);
            perform(&action);
            pthread_mutex_lock(&lock);
            finish(stream);
        }
    }
    return NULL;
}

static void start_threads(void) {
    static bool started;
    pthread_t thread;
    if (started) return;
    started = true;
    if (pthread_create(&thread, NULL, run_streams, NULL)) abort();
    pthread_detach(thread);
    if (pthread_create(&thread, NULL, run_host_functions, NULL)) abort();
    pthread_detach(thread);
}

/* -- queueing ------------------------------------------------------------------------------- */

static void depend(struct operation *operation, struct stream *stream, uint64_t number) {
    if (stream->done >= number) return;
    stream->references++;
    APPEND(operation->dependencies, ((struct dependency){stream, number}));
}

static bool is_blocking(const struct stream *stream) {
    return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* The legacy stream runs behind all that the blocking streams hold, and they behind it. */
static void depend_on_legacy(struct operation *operation, const struct stream *stream) {
    struct context *context = stream->context;
    if (stream->sort == LEGACY) {
        for (struct stream *other = context->streams; other; other = other->next)
            if (other != stream && is_blocking(other)) depend(operation, other, other->submitted);
    } else if (is_blocking(stream) && context->legacy) {
        depend(operation, context->legacy, context->legacy->submitted);
    }
}

void submit(struct stream *stream, const struct action *action) {
    start_threads();
    struct operation *operation = zeroed(sizeof *operation);
    operation->action = *action;
    operation->number = ++stream->submitted;
    depend_on_legacy(operation, stream);
    struct record *awaited = action->work == AWAIT ? action->event->record : NULL;
    if (awaited) depend(operation, awaited->stream, awaited->number);
    if (action->work == RECORD) {
        record_on(action->event, stream);
        operation->record = action->event->record;
        operation->record->references++;
    }
    if (stream->first)
        stream->last->next = operation;
    else
        stream->first = operation;
    stream->last = operation;
    if (!stream->busy) {
        stream->busy = true;
        stream->references++;
        stream->next_busy = busy_streams;
        busy_streams = stream;
    }
    pthread_cond_signal(&work_came);
}

void wait_for(struct stream *stream, uint64_t number) {
    stream->references++;
    while (stream->done < number) pthread_cond_wait(&work_done, &lock);
    release_stream(stream);
}

void wait_for_context(struct context *context) {
    for (struct stream *stream = context->streams; stream;) {
        if (stream->done == stream->submitted) {
            stream = stream->next;
        } else {
            wait_for(stream, stream->submitted);
            stream = context->streams; /* the list may have changed meanwhile */
        }
    }
}
