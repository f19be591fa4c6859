/* Calls of a driver as CUDA makes them: with a lock held, from threads of C and from destructors,
 * and with CUPTI's callback at the beginning and at the end of each. No Python runs in them. */
#include <pthread.h>
#include <stdint.h>
#include <time.h>

typedef void (*callback)(void *, int, uint32_t, const void *);
static callback called;
static pthread_mutex_t cuda = PTHREAD_MUTEX_INITIALIZER;
static const struct timespec moment = {0, 20000};

void calls_go_to(callback to) {
    called = to;
}

/* A call with words for its parameters, which fails with a code that is not 0. */
void call(uint32_t number, const uint64_t *fields, int32_t code) {
    struct {
        int32_t site;
        const char *name;
        const uint64_t *fields;
        const int32_t *result;
        const char *symbol;
        uint64_t context;
    } data = {0, "call", fields, &code, "kernel", 77};
    pthread_mutex_lock(&cuda);
    called(NULL, 1, number, &data);
    nanosleep(&moment, NULL);
    data.site = 1;
    called(NULL, 1, number, &data);
    pthread_mutex_unlock(&cuda);
}

void call_often(uint32_t number, const uint64_t *fields, int times) {
    while (times--) call(number, fields, 0);
}

/* The destructor of a capsule that stands for a stream. */
void destroy(void *capsule) {
    uint64_t fields[] = {(uint64_t)(uintptr_t)capsule, 0};
    call(326, fields, 0); /* cuStreamDestroy */
}

static void *run(void *fields) {
    call(119, fields, 0); /* cuEventRecord */
    return NULL;
}

/* A call in a thread of which Python knows nothing. */
void call_in_thread(uint64_t *fields) {
    pthread_t thread;
    pthread_create(&thread, NULL, run, fields);
    pthread_join(thread, NULL);
}

/* What the recorder asks, in its order: streams are of the context 5 and have the id 9. */
static int context(uint64_t stream, uint64_t *found) {
    (void)stream;
    *found = 5;
    return 0;
}
static int zero(uint64_t stream, int *found) {
    (void)stream;
    *found = 0;
    return 0;
}
static int id(uint64_t stream, uint64_t *found) {
    (void)stream;
    *found = 9;
    return 0;
}
static int device(int *found) {
    *found = 0;
    return 0;
}
static int nothing(void) {
    return 1;
}
void *answers[] = {context, zero, zero, id, device, nothing, nothing, nothing};
