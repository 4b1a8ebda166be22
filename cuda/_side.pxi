# Saves, on a stream of our own, of tensors that were declared complete.
#
# They do not wait for what a caller has queued on the tensors' stream since then: with overlapping steps,
# that is the whole next forward pass.
from libc.stdint cimport uintptr_t

cdef dict _ready = {}       # ordinal -> the addresses of the last two marks' tensors, and the tensors


def mark(list inputs, uintptr_t stream):
    """Declare that tensors are complete once everything that is now on their stream has run.

    Until then, and until the mark after the next one, they are kept alive, so that nothing else gets their
    addresses.  A save whose tensors on the device are all among them waits for this point of the stream only.

    Parameters
    ----------
    inputs : list of DeviceInput
        All of one device.
    stream : int

    Raises
    ------
    CudaError
        If the driver refuses.
    """
    cdef fdr_error error
    cdef fdr_gpu *gpu
    cdef int status
    _require()
    gpu = _gpu(inputs[0].device)
    with nogil:
        status = fdr_mark(&_driver, gpu, <fdv_stream>stream, &error)
    if status < 0:
        raise _failed((<bytes>error.call).decode(), error.driver)
    before = _ready.get(gpu.ordinal, (None, None))[0]
    _ready[gpu.ordinal] = {value.address: value for value in inputs}, before


def unmark():
    """Forget all marks."""
    _ready.clear()


cdef int _choose_stream(fdr_job *job) except -1:
    """Take our own stream if all tensors on the device are complete as soon as the mark is reached."""
    cdef const fdk_array *arrays = &job.kernel.tokens
    cdef int k
    last, before = _ready.get(job.gpu.ordinal, (None, None))
    if last is None or job.kernel.not_need_stop != NULL:
        return 0
    for k in range(10):
        if arrays[k].data == NULL or job.sizes[k] >= 0:
            continue
        address = <uintptr_t>arrays[k].data
        if address not in last and (before is None or address not in before):
            return 0
    job.side = True
    job.after = job.gpu.ready
    return 0
