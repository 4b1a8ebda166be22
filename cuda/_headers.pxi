# The C declarations of the headers here; the comments are there.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t
from fd_postproc.headers.lane cimport fdq_lane, fdq_limits
from fd_postproc.headers.pack cimport fdp_fault, fdp_source
from fd_postproc.headers.wire cimport fdw_layout

cdef extern from "cuda/driver.h" nogil:
    enum:
        FDV_OLDEST_DRIVER
        FDV_OLDEST_MAJOR
        FDV_NO_DEVICE
        FDV_NOT_INITIALIZED
        FDV_CAPABILITY_MAJOR
        FDV_CAPABILITY_MINOR
        FDV_POINTER_ORDINAL
        FDV_CAPTURE_UNSUPPORTED

    ctypedef int fdv_result
    ctypedef int fdv_device
    ctypedef void *fdv_context
    ctypedef void *fdv_stream
    ctypedef void *fdv_event
    ctypedef uint64_t fdv_address

    ctypedef struct fdv_driver:
        fdv_result (*Init)(unsigned flags)
        fdv_result (*DriverGetVersion)(int *version)
        fdv_result (*GetErrorName)(fdv_result error, const char **name)
        fdv_result (*GetErrorString)(fdv_result error, const char **text)
        fdv_result (*DeviceGetCount)(int *count)
        fdv_result (*DeviceGet)(fdv_device *device, int ordinal)
        fdv_result (*DeviceGetAttribute)(int *value, int attribute, fdv_device device)
        fdv_result (*PrimaryCtxGetState)(fdv_device device, unsigned *flags, int *active)
        fdv_result (*PointerGetAttribute)(void *value, int attribute, fdv_address address)

    bint fdv_is_capture(fdv_result result)
    const char *fdv_open(fdv_driver *driver, const char *library, int *symbol)

cdef extern from "cuda/ring.h" nogil:
    ctypedef struct fdr_gpu:
        int ordinal

    ctypedef struct fdr_error:
        uint64_t ticket
        int32_t kind
        fdv_result driver
        const char *call
        int32_t queue
        fdq_limits limits
        fdp_fault refused
        int64_t claimed
        int64_t capacity

    ctypedef struct fdr_lane:
        fdq_lane queue
        int64_t lost

    ctypedef struct fdr_kept:
        int64_t length
        uint8_t *payload

    int64_t fdk_capacity(const fdw_layout *layout, int channel, int dialect)

cdef extern from "cuda/load.h" nogil:
    ctypedef struct fdr_image:
        pass

    int fdr_load(const fdv_driver *driver, const fdr_image *images, fdv_device device, fdr_gpu *gpu,
                 fdr_error *error)

cdef extern from "fdk_images.h":
    const fdr_image *fdk_images

cdef extern from "cuda/ring_save.h" nogil:
    enum:
        FDR_DRIVER
        FDR_QUEUE
        FDR_TOO_BIG
        FDR_LAYOUT
        FDR_REFUSED
        FDR_WIDE
        FDR_SIZE
        FDK_INT64
        FDK_INT32
        FDK_FLOAT32
        FDR_FAILED
        FDR_SAVED
        FDR_WAITING
        FDR_BROKEN
        FDR_STOPPED
        FDR_UNFIT
        FDR_CAPTURED
        FDR_GROWING

    ctypedef struct fdr_ring:
        int n
        fdr_error failure
        int64_t held, held_ns

    int fdr_start(fdr_ring *r, const fdv_driver *driver, int n)
    int fdr_drain(fdr_ring *r, int64_t deadline)
    int64_t fdr_stop(fdr_ring *r, int64_t deadline)
    int fdr_take_error(fdr_ring *r, fdr_error *error, int64_t *more)
    uint64_t fdr_owed(const fdr_ring *r)
    uint64_t fdr_finished(const fdr_ring *r)
    int fdr_is_broken(const fdr_ring *r)

    ctypedef struct fdk_array:
        const void *data
        int64_t row
        int64_t col
        int64_t type

    ctypedef struct fdk_job:
        fdk_array tokens
        fdk_array ids
        fdk_array scores
        fdk_array ranks
        fdk_array counts
        fdk_array offsets
        fdk_array decoded
        fdk_array prompts
        fdk_array preempted
        fdk_array steps
        const uint8_t *not_need_stop

    ctypedef struct fdr_job:
        fdr_gpu *gpu
        fdv_stream stream
        fdr_lane *lane
        fdk_job kernel
        int64_t sizes[10]
        fdp_fault fault
        fdr_kept *kept

    int fdk_prepare(fdk_job *job, const fdp_source *s, const fdw_layout *layout, int dialect, uint64_t seq,
                    uint64_t sender, uint32_t service, int64_t capacity, fdp_fault *fault)
    int64_t fdr_most_requests(const fdr_job *job)
    int fdr_save(fdr_ring *r, fdr_job *job, uint64_t *ticket, fdr_error *error, int64_t slice)
