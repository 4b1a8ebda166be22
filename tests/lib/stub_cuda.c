/* A libcuda.so.1 without a device: streams are threads, kernels run on the CPU, and a device's addresses are of
 * no use to the host.
 *
 * A device address lies in a range that nobody may touch; the memory that it stands for is elsewhere.  Pinned
 * memory is mapped twice: the host has one mapping, "the device" the other.  So whoever takes one kind of
 * address for the other is found out at once.  Everything that a real driver does later is done later, by the
 * stream's thread, after a delay that the tests choose.
 *
 * It is stricter than any driver: whatever the manual lets a driver refuse, it refuses.  A call that needs a context
 * needs the right one, and while a thread captures a stream, whatever may be unsafe then fails in other threads,
 * and spoils the capture.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "cuda/decide.h"

enum {
    OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_IMPLICIT = 906,
    NON_BLOCKING = 1,
};
enum { GLOBAL, THREAD_LOCAL, RELAXED, MODES };
enum { MOST_RANGES = 4096, MOST_FAILURES = 16, PAGE = 4096 };

/* ---- State ---------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;

typedef struct {
    uint8_t *at;        /* what the device calls it */
    uint8_t *real;      /* where it is for kernels */
    uint8_t *host;      /* pinned memory: where it is for the host */
    size_t size;
    int device;         /* -1: pinned */
} range;

static range ranges[MOST_RANGES];
static int n_ranges;
static uint8_t *reserved, *next_address;
static int initialised, sticky;
/* What the tests ask for; stub_cuda.py has their names. */
enum counted {
    ALLOCATIONS, ALLOCATIONS_BEGUN, LIVE_PINNED, LIVE_EVENTS, MODULE_LOADS, SHARED_BYTES, IDS_IN_LINE, COUNTED,
};
static int counts[COUNTED];
static pid_t pid;
static int64_t delay_us, allocation_us;

static struct { char call[48]; int after, code; } failures[MOST_FAILURES];
static int n_failures;

enum { DEVICES = 8 };
struct fdv_context_ { int device; };
static struct fdv_context_ contexts[DEVICES];
static int retained[DEVICES];
static __thread fdv_context current[16];
static __thread int depth;
static __thread int thread_mode = GLOBAL;

typedef struct work {
    struct work *next;
    enum { LAUNCH, RECORD, WRITE, READ, BUSY } kind;
    fdk_job job;
    unsigned blocks, threads, shared;
    struct fdv_event_ *event;
    void *to, *from;
    size_t size;
} work;
enum { MOST_WAITS = 20000 }; /* of 1 ms, for another delay: a test that gives none fails, and does not hang */

struct fdv_stream_ {
    work *first, **last;
    pthread_t thread;
    int device;         /* -1: whichever is asked for */
    int blocking;       /* the legacy stream waits for it, and it for that */
    int capturing, mode, spoilt;
    pthread_t owner;
    struct fdv_stream_ *next;
};
struct fdv_event_ { int recorded, done; int users, destroyed; int64_t at; fdv_context context; }; /* at: ns */
static struct fdv_stream_ *legacy[DEVICES], *streams;

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : atoi(text);
}

void stub_fail(const char *call, int after, int code)
{
    pthread_mutex_lock(&lock);
    snprintf(failures[n_failures].call, sizeof failures[0].call, "%s", call);
    failures[n_failures].after = after;
    failures[n_failures++].code = code;
    pthread_mutex_unlock(&lock);
}

/* Both, if negative: until there is another number. */
void stub_slow_allocation(int64_t us) { __atomic_store_n(&allocation_us, us, __ATOMIC_RELAXED); }
void stub_delay(int64_t us) { __atomic_store_n(&delay_us, us, __ATOMIC_RELAXED); }
int stub_count(int what) { return __atomic_load_n(&counts[what], __ATOMIC_RELAXED); }
static void count(enum counted what, int more) { __atomic_fetch_add(&counts[what], more, __ATOMIC_RELAXED); }

static void take_long(const int64_t *delay)
{
    int64_t us;
    int waits = MOST_WAITS;
    while ((us = __atomic_load_n(delay, __ATOMIC_RELAXED)) < 0 && waits-- > 0)
        usleep(1000);
    usleep(us < 0 ? 0 : (useconds_t)us);
}

/* A child's copy of the lock may be held by a thread that the child does not have. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* STUB_CUDA_FAIL=call:after:code */
__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("STUB_CUDA_FAIL");
    char call[48];
    int after, code, length;
    delay_us = number("STUB_CUDA_DELAY_US", 0);
    reserved = mmap(NULL, (size_t)1 << 36, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    next_address = reserved;
    pthread_atfork(NULL, NULL, in_child);
    for (int k = 0; k < DEVICES; k++)
        contexts[k].device = k;
    for (; text != NULL && sscanf(text, "%47[^:]:%d:%d%n", call, &after, &code, &length) == 3; text += length)
        stub_fail(call, after, code);
}

/* The code that a test has asked for; a child of the process that initialised the driver gets one, too. */
static int trouble(const char *call)
{
    const int needs_none = strcmp(call, "cuInit") == 0 || strcmp(call, "cuDriverGetVersion") == 0;
    int code = (initialised && pid != getpid()) || (!initialised && !needs_none) ? NOT_INITIALIZED : OK;
    pthread_mutex_lock(&lock);
    for (int k = 0; k < n_failures && code == OK; k++)
        if (strcmp(failures[k].call, call) == 0 && failures[k].after-- == 0)
            code = failures[k].code;
    if (code == OK)
        code = sticky;
    pthread_mutex_unlock(&lock);
    return code;
}

#define ENTER(call) do { int code_ = trouble(call); if (code_ != OK) return code_; } while (0)

/* Whether the thread may not make calls that may be unsafe while a stream is captured; the capture is spoilt. */
static int forbidden(void)
{
    int found = 0;
    if (thread_mode == RELAXED)
        return 0;
    pthread_mutex_lock(&lock);
    for (fdv_stream s = streams; s != NULL; s = s->next) {
        const int own = s->capturing && pthread_equal(s->owner, pthread_self());
        if (!s->capturing || s->mode == RELAXED || (!own && (thread_mode != GLOBAL || s->mode != GLOBAL)))
            continue;
        s->spoilt = 1;
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

#define ENTER_UNSAFE(call) do { ENTER(call); if (forbidden()) return CAPTURE_UNSUPPORTED; } while (0)

/* Whether a stream is the legacy one of a device of which a blocking stream is being captured. */
static int implied(fdv_stream stream, fdv_context context)
{
    int found = 0;
    if (stream != NULL)
        return 0;
    pthread_mutex_lock(&lock);
    for (fdv_stream s = streams; s != NULL; s = s->next)
        found |= s->capturing && s->blocking && s->device == context->device;
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- Memory --------------------------------------------------------------------------------------------- */

static uint8_t *map(int file, size_t size)
{
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

static range *add_range(size_t size, int device)
{
    const size_t pages = (size + PAGE - 1) / PAGE * PAGE;
    int file = memfd_create("stub", 0);
    range *r = NULL;
    if (file < 0 || ftruncate(file, (off_t)pages) < 0)
        abort();
    pthread_mutex_lock(&lock);
    for (int k = 0; k < n_ranges && r == NULL; k++)
        if (ranges[k].at == NULL)
            r = &ranges[k];
    if (r == NULL && n_ranges < MOST_RANGES)
        r = &ranges[n_ranges++];
    if (r == NULL)
        abort();
    r->size = pages;
    r->device = device;
    r->real = map(file, pages);
    r->host = device < 0 ? map(file, pages) : NULL;
    r->at = next_address;
    next_address += pages + PAGE;
    if (next_address > reserved + ((size_t)1 << 35)) /* many small ones come and go in the long tests */
        next_address = reserved;
    count(LIVE_PINNED, device < 0 ? (int)pages : 0);
    pthread_mutex_unlock(&lock);
    close(file);
    return r;
}

static void drop_range(range *r)
{
    munmap(r->real, r->size);
    if (r->host != NULL)
        munmap(r->host, r->size);
    count(LIVE_PINNED, r->device < 0 ? -(int)r->size : 0);
    memset(r, 0, sizeof *r);
}

static range *range_of(const void *at)
{
    for (int k = 0; k < n_ranges; k++)
        if (ranges[k].at != NULL && (uint8_t *)at >= ranges[k].at && (uint8_t *)at < ranges[k].at + ranges[k].size)
            return &ranges[k];
    return NULL;
}

/* What a kernel uses in place of a device address; NULL: it is none. */
static void *real_of(const void *at)
{
    range *r;
    pthread_mutex_lock(&lock);
    r = range_of(at);
    pthread_mutex_unlock(&lock);
    return r == NULL ? NULL : r->real + ((uint8_t *)at - r->at);
}

/* For the tests: a device's memory. */
void *stub_alloc(size_t size, int device) { return add_range(size == 0 ? 1 : size, device)->at; }

static range *pinned(const void *memory)
{
    for (int k = 0; k < n_ranges; k++)
        if (ranges[k].host == memory && memory != NULL)
            return &ranges[k];
    return NULL;
}

static int release(const void *at, range *(*find)(const void *))
{
    range *r;
    pthread_mutex_lock(&lock);
    r = find(at);
    if (r != NULL)
        drop_range(r);
    pthread_mutex_unlock(&lock);
    return r != NULL ? OK : INVALID_VALUE;
}

void stub_free(void *at) { release(at, range_of); }

void stub_put(void *to, const void *from, size_t size) { memcpy(real_of(to), from, size); }

/* ---- Streams -------------------------------------------------------------------------------------------- */

static int translate(fdk_job *job)
{
    fdk_array *arrays = &job->tokens;
    int good = 1;
#define TRANSLATE(field) \
    if (field != NULL && (*(void **)&field = real_of(field)) == NULL) \
        good = 0;
    for (int k = 0; k < 10; k++)
        TRANSLATE(arrays[k].data)
    TRANSLATE(job->live_batch)
    TRANSLATE(job->not_need_stop)
    TRANSLATE(job->payload)
    TRANSLATE(job->result)
    TRANSLATE(job->plan)
    return good && job->payload != NULL && job->result != NULL;
}

/* For the tests: how the kernel is wrong, in one launch of `every`; stub_cuda.py has the names. */
enum wrong {
    NOT_WRONG, WRONG_ID, WRONG_SCORE, WRONG_RANK, WRONG_COUNT, WRONG_HEADER, ROW_SHIFTED, FIRST_COLUMN, ROWS_OF_OTHERS,
    TOO_SHORT, TOO_LONG, NOTHING_WRITTEN, REFUSES, SAYS_WIDE, LAST_WORD_MISSING, STALE,
};
static int wrong_way, wrong_every = 1, launches;
void stub_wrong(int way, int every)
{
    __atomic_store_n(&wrong_every, every, __ATOMIC_RELAXED);
    __atomic_store_n(&launches, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&wrong_way, way, __ATOMIC_RELEASE);
}

static void spoil_inputs(fdk_job *job, int way)
{
    if (way == FIRST_COLUMN)
        job->ids.col = 0;
    if (way == ROWS_OF_OTHERS)
        job->scores.row = 0;
    if (way == ROW_SHIFTED)
        job->ranks_at.base -= 1;
}

static void spoil_message(const fdk_job *job, int way)
{
    const int32_t batch = job->result->batch, rows = job->result->rows, last = (int32_t)(job->result->length / 4) - 1;
    int32_t *words = job->payload;
    if (way == WRONG_ID)
        words[fdk_place(&job->ids_at, batch, rows, 0, 0, 0)] ^= 1;
    if (way == WRONG_SCORE)
        words[fdk_place(&job->scores_at, batch, rows, 0, 0, 0)] ^= 1;
    if (way == WRONG_RANK)
        words[fdk_place(&job->ranks_at, batch, rows, 0, 0, 0)] += 1;
    if (way == WRONG_COUNT)
        words[job->counts_at] -= 1;
    if (way == WRONG_HEADER)
        words[job->stop_word] = -words[job->stop_word];
    if (way == LAST_WORD_MISSING)
        words[last] = 0;
    if (way == TOO_SHORT)
        job->result->length -= 4;
    if (way == TOO_LONG)
        job->result->length += 4;
    if (way == NOTHING_WRITTEN)
        job->result->length = FDK_NOT_RUN;
    if (way == REFUSES)
        job->result->length = FDK_REFUSED;
    if (way == SAYS_WIDE)
        job->result->wide = 256 + FDP_TOKEN_WIDE;
}

static void launch(work *w)
{
    uint8_t *shared = malloc(w->shared == 0 ? 1 : w->shared);
    const int chosen = __atomic_load_n(&wrong_way, __ATOMIC_ACQUIRE);
    const int turn = __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    const int way = turn % __atomic_load_n(&wrong_every, __ATOMIC_RELAXED) == 0 ? chosen : NOT_WRONG;
    if (!translate(&w->job)) {
        pthread_mutex_lock(&lock);
        sticky = ILLEGAL_ADDRESS;
        pthread_mutex_unlock(&lock);
        free(shared);
        return;
    }
    spoil_inputs(&w->job, way);
    for (unsigned block = 0; block < w->blocks; block++)
        for (int phase = 0; phase < FDK_PHASES; phase++)
            for (unsigned thread = 0; thread < w->threads; thread++)
                fdk_phase(&w->job, phase, shared, (int)block, (int)thread, (int)w->blocks, (int)w->threads);
    spoil_message(&w->job, way);
    free(shared);
}

static void leave_event(fdv_event event)
{
    if (--event->users == 0 && event->destroyed) {
        free(event);
        count(LIVE_EVENTS, -1);
    }
}

static void *stream_main(void *data)
{
    const fdv_stream stream = data;
    for (;;) {
        work *w;
        pthread_mutex_lock(&lock);
        while (stream->first == NULL)
            pthread_cond_wait(&moved, &lock);
        w = stream->first;
        stream->first = w->next;
        if (stream->first == NULL)
            stream->last = &stream->first;
        pthread_mutex_unlock(&lock);
        if (w->kind != RECORD)
            take_long(&delay_us);
        if (w->kind == BUSY)
            usleep((useconds_t)w->size);
        if (w->kind == LAUNCH)
            launch(w);
        if (w->kind == READ) {
            memcpy(w->to, real_of(w->from), w->size);
            pthread_mutex_lock(&lock);
            w->event->done = 1;
            pthread_cond_broadcast(&moved);
            pthread_mutex_unlock(&lock);
        }
        if (w->kind == WRITE) {
            void *to = real_of(w->to);
            if (to != NULL) /* else a test has ended before its tensor was written */
                memcpy(to, w->from, w->size);
            free(w->from);
        }
        if (w->kind == RECORD) {
            pthread_mutex_lock(&lock);
            struct timespec t;
            clock_gettime(CLOCK_MONOTONIC, &t);
            w->event->at = t.tv_sec * 1000000000 + t.tv_nsec;
            w->event->done++;
            leave_event(w->event);
            pthread_cond_broadcast(&moved);
            pthread_mutex_unlock(&lock);
        }
        free(w);
    }
    return NULL;
}

fdv_stream stub_stream_of(int device, int blocking)
{
    fdv_stream stream = calloc(1, sizeof *stream);
    stream->last = &stream->first;
    stream->device = device;
    stream->blocking = blocking;
    pthread_mutex_lock(&lock);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
    pthread_create(&stream->thread, NULL, stream_main, stream);
    pthread_detach(stream->thread);
    return stream;
}

fdv_stream stub_stream(void) { return stub_stream_of(-1, 0); }

/* Begin a capture in the calling thread, `on` being its mode and 1, or end it: what cuStreamEndCapture tells. */
int stub_capture(fdv_stream stream, int on)
{
    int code;
    pthread_mutex_lock(&lock);
    code = stream->spoilt ? CAPTURE_INVALIDATED : OK;
    stream->capturing = on != 0;
    stream->mode = on - 1;
    stream->spoilt = 0;
    stream->owner = pthread_self();
    pthread_mutex_unlock(&lock);
    return code;
}

static void append(fdv_stream stream, fdv_context context, work *w)
{
    if (stream == NULL) {
        static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
        pthread_mutex_lock(&making);
        if (legacy[context->device] == NULL)
            legacy[context->device] = stub_stream_of(context->device, 0);
        stream = legacy[context->device];
        pthread_mutex_unlock(&making);
    }
    pthread_mutex_lock(&lock);
    *stream->last = w;
    stream->last = &w->next;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

/* Whether a stream belongs to a context. */
static int belongs(fdv_stream stream, fdv_context context)
{
    return context != NULL && (stream == NULL || stream->device < 0 || stream->device == context->device);
}

/* For the tests: device memory gets its values by work on a stream. */
void stub_put_later(void *to, const void *from, size_t size, fdv_stream stream)
{
    work *w = calloc(1, sizeof *w);
    w->kind = WRITE;
    w->to = to;
    w->from = malloc(size);
    memcpy(w->from, from, size);
    w->size = size;
    append(stream, &contexts[0], w);
}

/* For the tests: a copy to the host, as a framework makes it; it waits for the stream. */
void stub_get(void *to, void *from, size_t size, fdv_stream stream, int device)
{
    struct fdv_event_ copied = {0};
    work *w = calloc(1, sizeof *w);
    w->kind = READ;
    w->to = to;
    w->from = from;
    w->size = size;
    w->event = &copied;
    append(stream, &contexts[device], w);
    pthread_mutex_lock(&lock);
    while (!copied.done)
        pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
}

/* ---- The driver API ------------------------------------------------------------------------------------- */

fdv_result cuInit(unsigned flags)
{
    ENTER("cuInit");
    if (number("STUB_CUDA_DEVICES", 2) == 0)
        return NO_DEVICE;
    initialised = 1;
    pid = getpid();
    return flags == 0 ? OK : INVALID_VALUE;
}

fdv_result cuDriverGetVersion(int *version)
{
    ENTER("cuDriverGetVersion");
    *version = number("STUB_CUDA_VERSION", 12020);
    return OK;
}

fdv_result cuGetErrorName(fdv_result error, const char **name)
{
    *name = error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_STUB";
    return OK;
}

fdv_result cuGetErrorString(fdv_result error, const char **text)
{
    *text = error == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "as the test wants it";
    return OK;
}

fdv_result cuDeviceGetCount(int *count)
{
    ENTER("cuDeviceGetCount");
    *count = number("STUB_CUDA_DEVICES", 2);
    return OK;
}

fdv_result cuDeviceGet(fdv_device *device, int ordinal)
{
    ENTER("cuDeviceGet");
    *device = ordinal;
    return ordinal >= 0 && ordinal < number("STUB_CUDA_DEVICES", 2) ? OK : INVALID_DEVICE;
}

fdv_result cuDeviceGetAttribute(int *value, int attribute, fdv_device device)
{
    ENTER("cuDeviceGetAttribute");
    (void)device;
    *value = attribute == FDV_CAPABILITY_MAJOR ? number("STUB_CUDA_MAJOR", 8) : 0;
    return OK;
}

fdv_result cuDevicePrimaryCtxRetain(fdv_context *context, fdv_device device)
{
    ENTER("cuDevicePrimaryCtxRetain");
    __atomic_store_n(&retained[device], 1, __ATOMIC_RELAXED);
    *context = &contexts[device];
    return OK;
}

fdv_result cuDevicePrimaryCtxGetState(fdv_device device, unsigned *flags, int *active)
{
    ENTER("cuDevicePrimaryCtxGetState");
    *flags = 0;
    *active = __atomic_load_n(&retained[device], __ATOMIC_RELAXED);
    return OK;
}

fdv_result cuThreadExchangeStreamCaptureMode(int *mode)
{
    const int before = thread_mode;
    ENTER("cuThreadExchangeStreamCaptureMode");
    if (*mode < 0 || *mode >= MODES)
        return INVALID_VALUE;
    thread_mode = *mode;
    *mode = before;
    return OK;
}

/* For the tests: the mode of the calling thread. */
int stub_thread_mode(void) { return thread_mode; }

static fdv_context now(void) { return depth > 0 ? current[depth - 1] : NULL; }

fdv_result cuCtxGetCurrent(fdv_context *context)
{
    ENTER("cuCtxGetCurrent");
    *context = now();
    return OK;
}

fdv_result cuCtxSetCurrent(fdv_context context)
{
    ENTER("cuCtxSetCurrent");
    if (depth == 0)
        depth = 1;
    current[depth - 1] = context;
    return OK;
}

fdv_result cuCtxPushCurrent_v2(fdv_context context)
{
    ENTER("cuCtxPushCurrent");
    current[depth++] = context;
    return OK;
}

fdv_result cuCtxPopCurrent_v2(fdv_context *context)
{
    ENTER("cuCtxPopCurrent");
    if (depth == 0)
        return INVALID_CONTEXT;
    *context = current[--depth];
    return OK;
}

/* For the tests: how many contexts this thread has pushed and not popped. */
int stub_depth(void) { return depth; }

/* For the tests: 1 while a load waits for `stub_load`, which STUB_CUDA_LOAD=held makes it do. */
static int load_waits, load_goes_on;
int stub_load_waits(void) { return __atomic_load_n(&load_waits, __ATOMIC_ACQUIRE); }
void stub_load(void) { __atomic_store_n(&load_goes_on, 1, __ATOMIC_RELEASE); }

fdv_result cuModuleLoadData(fdv_module *module, const void *image)
{
    ENTER_UNSAFE("cuModuleLoadData");
    if (getenv("STUB_CUDA_LOAD") != NULL) {
        __atomic_store_n(&load_waits, 1, __ATOMIC_RELEASE);
        while (!__atomic_load_n(&load_goes_on, __ATOMIC_ACQUIRE))
            usleep(1000);
    }
    *module = (fdv_module)now();
    count(MODULE_LOADS, 1);
    if (memcmp(image, "\177ELF", 4) == 0) /* machine code */
        return number("STUB_CUDA_CUBINS", 1) && now() != NULL ? OK : INVALID_IMAGE;
    return now() != NULL && strstr(image, ".entry fdk_pack") != NULL ? OK : INVALID_IMAGE;
}

fdv_result cuModuleGetFunction(fdv_function *function, fdv_module module, const char *name)
{
    ENTER_UNSAFE("cuModuleGetFunction");
    *function = (fdv_function)module;
    return strcmp(name, "fdk_pack") == 0 ? OK : NOT_FOUND;
}

fdv_result cuFuncGetAttribute(int *value, int attribute, fdv_function function)
{
    ENTER_UNSAFE("cuFuncGetAttribute");
    *value = 40;
    return attribute == FDV_FUNCTION_REGISTERS && (fdv_context)function == now() ? OK : INVALID_VALUE;
}

fdv_result cuMemHostAlloc(void **memory, size_t size, unsigned flags)
{
    ENTER_UNSAFE("cuMemHostAlloc");
    if (now() == NULL)
        return INVALID_CONTEXT;
    if (flags != (FDV_HOST_PORTABLE | FDV_HOST_MAPPED))
        return INVALID_VALUE;
    count(ALLOCATIONS_BEGUN, 1);
    take_long(&allocation_us);
    count(ALLOCATIONS, 1);
    *memory = add_range(size, -1)->host;
    memset(*memory, 0xA5, size); /* the driver promises nothing about it */
    return OK;
}

fdv_result cuMemHostGetDevicePointer_v2(fdv_address *address, void *memory, unsigned flags)
{
    range *r;
    ENTER_UNSAFE("cuMemHostGetDevicePointer");
    pthread_mutex_lock(&lock);
    r = pinned(memory);
    if (r != NULL)
        *address = (fdv_address)r->at;
    pthread_mutex_unlock(&lock);
    return r != NULL && flags == 0 ? OK : INVALID_VALUE;
}

fdv_result cuMemFreeHost(void *memory)
{
    ENTER_UNSAFE("cuMemFreeHost");
    return release(memory, pinned);
}

fdv_result cuPointerGetAttribute(void *value, int attribute, fdv_address address)
{
    range *r;
    ENTER("cuPointerGetAttribute");
    pthread_mutex_lock(&lock);
    r = range_of((void *)address);
    if (r != NULL)
        *(int *)value = r->device;
    pthread_mutex_unlock(&lock);
    return r != NULL && attribute == FDV_POINTER_ORDINAL ? OK : INVALID_VALUE;
}

fdv_result cuEventCreate(fdv_event *event, unsigned flags)
{
    ENTER_UNSAFE("cuEventCreate");
    if (now() == NULL)
        return INVALID_CONTEXT;
    *event = calloc(1, sizeof **event);
    (*event)->context = now();
    count(LIVE_EVENTS, 1);
    if (flags == 0 && getenv("FD_POSTPROC_TEST_DRIVER") != NULL) /* .ci/gpu-run times with it */
        return OK;
    return flags == (FDV_EVENT_BLOCKING | FDV_EVENT_NO_TIMING) ? OK : INVALID_VALUE;
}

fdv_result cuEventRecord(fdv_event event, fdv_stream stream)
{
    work *w;
    ENTER("cuEventRecord");
    if (event->context != now())
        return INVALID_CONTEXT;
    if (!belongs(stream, now()))
        return INVALID_HANDLE;
    if (implied(stream, now()))
        return CAPTURE_IMPLICIT;
    w = calloc(1, sizeof *w);
    w->kind = RECORD;
    w->event = event;
    pthread_mutex_lock(&lock);
    event->recorded++;
    event->users++;
    pthread_mutex_unlock(&lock);
    append(stream, now(), w);
    return OK;
}

fdv_result cuEventSynchronize(fdv_event event)
{
    int goal;
    ENTER_UNSAFE("cuEventSynchronize");
    if (event->context != now())
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    goal = event->recorded;
    while (event->done < goal)
        pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
    return trouble("");
}

fdv_result cuStreamIsCapturing(fdv_stream stream, int *status)
{
    ENTER("cuStreamIsCapturing");
    if (now() == NULL)
        return INVALID_CONTEXT;
    if (!belongs(stream, now()))
        return INVALID_HANDLE;
    if (implied(stream, now()))
        return CAPTURE_IMPLICIT;
    *status = stream != NULL && stream->capturing;
    return OK;
}

fdv_result cuLaunchKernel(fdv_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          fdv_stream stream, void **arguments, void **extra)
{
    work *w;
    ENTER("cuLaunchKernel");
    if ((fdv_context)function != now())
        return INVALID_CONTEXT;
    if (!belongs(stream, now()))
        return INVALID_HANDLE;
    if (implied(stream, now()))
        return CAPTURE_IMPLICIT;
    __atomic_store_n(&counts[SHARED_BYTES], (int)shared, __ATOMIC_RELAXED);
    const fdk_job *job = arguments[0];
    const uintptr_t ids = (uintptr_t)job->payload + 4 * (uintptr_t)fdk_ids_begin(job);
    __atomic_store_n(&counts[IDS_IN_LINE], (int)(ids % FDK_LINE), __ATOMIC_RELAXED);
    if (grid_y * grid_z * block_y * block_z != 1 || shared > 48 * 1024 || extra != NULL)
        return INVALID_VALUE;
    w = calloc(1, sizeof *w);
    w->kind = LAUNCH;
    memcpy(&w->job, arguments[0], sizeof w->job);
    w->blocks = grid_x;
    w->threads = block_x;
    w->shared = shared;
    if (__atomic_load_n(&wrong_way, __ATOMIC_ACQUIRE) == STALE) { /* it does not wait for its stream */
        launch(w);
        free(w);
        return OK;
    }
    append(stream, now(), w);
    return OK;
}

/* ---- What tests of a real driver use besides (real_cuda.py) ------------------------------------------------- */

fdv_result cuMemAlloc_v2(fdv_address *address, size_t size)
{
    range *r;
    ENTER_UNSAFE("cuMemAlloc");
    if (now() == NULL)
        return INVALID_CONTEXT;
    r = add_range(size, now()->device);
    memset(r->real, 0xA5, size);
    *address = (fdv_address)r->at;
    return OK;
}

fdv_result cuMemFree_v2(fdv_address address)
{
    ENTER_UNSAFE("cuMemFree");
    return release((void *)address, range_of);
}

fdv_result cuStreamCreate(fdv_stream *stream, unsigned flags)
{
    ENTER_UNSAFE("cuStreamCreate");
    if (now() == NULL)
        return INVALID_CONTEXT;
    *stream = stub_stream_of(now()->device, 0);
    return flags == NON_BLOCKING ? OK : INVALID_VALUE;
}

fdv_result cuMemcpyHtoD_v2(fdv_address to, const void *from, size_t size)
{
    ENTER_UNSAFE("cuMemcpyHtoD");
    if (now() == NULL || real_of((void *)to) == NULL)
        return INVALID_VALUE;
    memcpy(real_of((void *)to), from, size);
    return OK;
}

fdv_result cuMemcpyDtoH_v2(void *to, fdv_address from, size_t size)
{
    ENTER_UNSAFE("cuMemcpyDtoH");
    if (now() == NULL || real_of((void *)from) == NULL)
        return INVALID_VALUE;
    memcpy(to, real_of((void *)from), size);
    return OK;
}

fdv_result cuMemcpyHtoDAsync_v2(fdv_address to, const void *from, size_t size, fdv_stream stream)
{
    ENTER("cuMemcpyHtoDAsync");
    stub_put_later((void *)to, from, size, stream);
    return OK;
}

fdv_result cuMemcpyDtoHAsync_v2(void *to, fdv_address from, size_t size, fdv_stream stream)
{
    ENTER("cuMemcpyDtoHAsync");
    if (now() == NULL || real_of((void *)from) == NULL)
        return INVALID_VALUE;
    stub_get(to, (void *)from, size, stream, now()->device);
    return OK;
}

fdv_result cuStreamSynchronize(fdv_stream stream)
{
    (void)stream; /* the copy before has waited */
    ENTER_UNSAFE("cuStreamSynchronize");
    return OK;
}

/* Work that takes so many microseconds, as real_cuda.py has it. */
fdv_result cuLaunchHostFunc(fdv_stream stream, void (*function)(void *), void *us)
{
    work *w = calloc(1, sizeof *w);
    (void)function;
    w->kind = BUSY;
    w->size = (size_t)us;
    append(stream, &contexts[0], w);
    return OK;
}

fdv_result cuStreamBeginCapture_v2(fdv_stream stream, int mode)
{
    ENTER("cuStreamBeginCapture");
    stub_capture(stream, mode + 1);
    return OK;
}

fdv_result cuStreamEndCapture(fdv_stream stream, void **graph)
{
    ENTER("cuStreamEndCapture");
    *graph = NULL;
    return stub_capture(stream, 0);
}

fdv_result cuEventElapsedTime(float *milliseconds, fdv_event begin, fdv_event end)
{
    ENTER("cuEventElapsedTime");
    pthread_mutex_lock(&lock);
    *milliseconds = (float)(end->at - begin->at) / 1e6f;
    pthread_mutex_unlock(&lock);
    return begin->done && end->done ? OK : INVALID_HANDLE;
}

fdv_result cuDeviceGetName(char *name, int size, fdv_device device)
{
    ENTER("cuDeviceGetName");
    snprintf(name, (size_t)size, "stub %d", device);
    return OK;
}
