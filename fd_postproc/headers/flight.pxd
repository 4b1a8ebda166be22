# The C declarations of flight.h that Cython code uses; the comments are there.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from fd_postproc.headers.wire cimport fdw_step

cdef extern from "fd_postproc/headers/flight.h" nogil:
    enum:
        FDB_HEAD
        FDB_ENTRY
        FDB_BUSY
        FDB_KEY
        FDB_QUEUE
        FDB_TEXT
        FDB_FRAME
        FDB_DATA

    ctypedef struct fdb_step_body:
        uint32_t length
        float receive
        float build
        float put
        uint16_t results
        uint32_t sender

    ctypedef struct fdb_queue_body:
        uint32_t messages
        uint32_t bytes
        uint32_t max_bytes
        uint32_t msgmax
        int32_t last_sender
        int32_t last_receiver
        uint16_t running
        uint16_t transfers
        uint32_t state
        uint32_t ticks
        int32_t code

    ctypedef union fdb_body:
        int64_t numbers[5]
        fdb_queue_body queue

    ctypedef struct fdb_entry:
        uint8_t kind
        uint8_t flags
        uint16_t slot
        int64_t time
        fdb_body body

    ctypedef struct fdb_ring:
        uint8_t *memory
        uint64_t entries

    uint32_t fdb_check(const uint64_t *words)
    void fdb_begin(fdb_ring *ring, void *memory, uint64_t size, const uint8_t *key)
    void fdb_set(fdb_ring *ring, int where, uint64_t value)
    void fdb_put(fdb_ring *ring, const fdb_entry *entry)
    void fdb_put_bytes(fdb_ring *ring, int kind, int64_t now, const uint8_t *bytes, int64_t size)
    void fdb_step(fdb_ring *ring, const fdw_step *s, int dialect, int64_t now, const fdb_step_body *body)
