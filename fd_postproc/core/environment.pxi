# Environment variables, as C sees them.
from libc.stdlib cimport getenv


def environment_variable(str name):
    """``os.environ.get(name) or None``, in a tenth of its time: an empty variable counts as unset."""
    cdef const char *value = getenv(name.encode())
    return None if value == NULL or value[0] == 0 else os.fsdecode(<bytes>value)


cdef int _checksums() except -1:
    """Whether compact frames are sent with a checksum, and the checksum of those that come is verified."""
    return CHECKSUM.of(environment_variable(CHECKSUM.name))
