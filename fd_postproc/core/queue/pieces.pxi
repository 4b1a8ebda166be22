# Compact frames in pieces that do not come from a queue.
cimport cython
from libc.string cimport memcpy
from fd_postproc.headers.frames cimport (
    FDF_NO_MEMORY, FDF_REFUSED, FDF_WHOLE, fdf_accept, fdf_assembly, fdf_begin, fdf_free,
)
from fd_postproc.headers.sysv cimport fds_now
from fd_postproc.headers.wire cimport FDW_VERSION, fdw_frame_header, fdw_is_frame


def _frame_head(payload, mtype):
    """Read the header of a compact frame, or of a piece, unchecked; None if a message is none.

    Channel (None if the number is none's), requests, columns, place of the piece, number of pieces, and
    whose frame it is: sender and number.
    """
    cdef Py_buffer view
    cdef fdw_frame_header h
    if mtype != FDW_MTYPE_COMPACT:
        return None
    _get_bytes(payload, &view)
    try:
        if not fdw_is_frame(view.buf, view.len):
            return None
        memcpy(&h, view.buf, sizeof(h))
    finally:
        PyBuffer_Release(&view)
    if h.version != FDW_VERSION:
        return None
    channel = CHANNELS[h.channel] if h.channel < len(CHANNELS) else None
    return channel, h.batch, h.cols, h.fragment, h.fragments, (h.sender, h.seq)


@cython.final
cdef class _Pieces:
    """Joins frames of a channel as a `Receiver` does."""

    cdef fdf_assembly frames
    cdef fdw_layout layout
    cdef int channel

    def __cinit__(self, channel, layout):
        self.channel = _channel_number(channel)
        self.layout = _c_layout(layout)
        fdf_begin(&self.frames, &self.layout, self.channel, _checksums(), 1)

    def __dealloc__(self):
        fdf_free(&self.frames)

    @property
    def incomplete(self):
        """int: frames that were given up, and those of which not all has come so far."""
        return self.frames.incomplete + self.frames.open

    def add(self, payload):
        """The step that a frame, or a frame's last piece, completes; None: more is to come.

        Raises MalformedMessage.
        """
        cdef Py_buffer view
        cdef fdw_message m
        cdef fdw_fault fault
        cdef int status
        _get_bytes(payload, &view)
        try:
            status = fdf_accept(
                &self.frames, &self.layout, self.channel, view.buf, view.len, fds_now(), &m, &fault)
            if status == FDF_REFUSED:
                raise _malformed(self.channel, &fault)
            if status == FDF_NO_MEMORY:
                raise MemoryError
            return _gathered(&m) if status == FDF_WHOLE else None
        finally:
            PyBuffer_Release(&view)
