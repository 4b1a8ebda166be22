# The C declarations of sequences.h that Cython code uses; the comments are there.
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef extern from "fd_postproc/headers/sequences.h" nogil:
    enum:
        FDN_MOST

    ctypedef struct fdn_sender:
        int64_t sender
        int64_t next
        int64_t frames
        int64_t missing, doubled, reordered

    ctypedef struct fdn_sequences:
        fdn_sender *senders
        int64_t missing, doubled, reordered

    void fdn_begin(fdn_sequences *all)
    void fdn_note(fdn_sequences *all, uint64_t sender, uint64_t seq)
