/* Calls of a driver as CUDA makes them: with a lock held, from threads of C and from destructors,
 * and with CUPTI's callback at the beginning and at the end of each. No Python runs in them. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef void (*callback)(void *, int, uint32_t, const void *);
callback called;
const char *symbol = "kernel", *name = "cuNewCall";
static pthread_mutex_t cuda = PTHREAD_MUTEX_INITIALIZER;

void half_of_call(int site, uint32_t number, const void *fields, int32_t code) {
    struct {
        int32_t site;
        const char *name;
        const void *fields;
        const int32_t *result;
        const char *symbol;
        uint64_t context;
    } data = {site, name, fields, &code, symbol, 77};
    called(NULL, 1, number, &data);
}

void call(uint32_t number, const void *fields, int32_t code) {
    pthread_mutex_lock(&cuda);
    half_of_call(0, number, fields, code);
    nanosleep(&(struct timespec){0, 20000}, NULL);
    half_of_call(1, number, fields, code);
    pthread_mutex_unlock(&cuda);
}

void call_often(uint32_t number, const void *fields, int times) {
    while (times--) call(number, fields, 0);
}

/* The destructor of a capsule that stands for a stream. */
void destroy(void *capsule) {
    call(326, (uint64_t[]){(uintptr_t)capsule}, 0); /* cuStreamDestroy */
}

static void *run(void *fields) {
    call(119, fields, 0); /* cuEventRecord */
    return NULL;
}

/* Call in a thread of which Python knows nothing. */
void call_in_thread(void *fields) {
    pthread_t thread;
    pthread_create(&thread, NULL, run, fields);
    pthread_join(thread, NULL);
}

/* -- what the recorder asks --------------------------------------------------------------------- */

enum { CONTEXT, IS_CAPTURING, FLAGS, ID, DEVICE, MEMORY, OF_FUNCTION, OF_KERNEL };
uint64_t sort = 2, asked[8], says[8] = {5, 0, 0, 9, 0, 64, 0, 0}; /* of parameters: the code */

#define ANSWER(function, number, type)                  \
    static int function(uint64_t of, type *found) {     \
        (void)of, asked[number]++;                      \
        *found = (type)says[number];                    \
        return 0;                                       \
    }
ANSWER(context, CONTEXT, uint64_t)
ANSWER(is_capturing, IS_CAPTURING, int)
ANSWER(flags, FLAGS, unsigned)
ANSWER(id, ID, uint64_t)
static int device(int *found) {
    return *found = 0;
}

/* An allocation of so many bytes is at each address. */
static int memory(unsigned count, int *which, uint64_t **found, uint64_t address) {
    uint64_t answer[] = {address, says[MEMORY], sort, 77};
    asked[MEMORY]++;
    for (unsigned one = 0; one < count; one++) memcpy(found[one], &answer[one], which ? 8 : 0);
    return !says[MEMORY];
}

/* The parameters are an address and a float. */
static int parameter(int which, size_t number, size_t *offset, size_t *size) {
    asked[which]++;
    *offset = number * 8;
    *size = number ? 4 : 8;
    return says[which] ? (int)says[which] : number == 2;
}
static int of_function(uint64_t of, size_t number, size_t *offset, size_t *size) {
    return (void)of, parameter(OF_FUNCTION, number, offset, size);
}
static int of_kernel(uint64_t of, size_t number, size_t *offset, size_t *size) {
    return (void)of, parameter(OF_KERNEL, number, offset, size);
}
void *answers[] = {context, is_capturing, flags, id, device, memory, of_function, of_kernel};
