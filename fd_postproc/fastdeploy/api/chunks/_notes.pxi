# Notes of what was left to FastDeploy, and the count of what was written here.

cdef long long _written = 0
cdef dict _notes = {}
cdef object _listener = None    # a function that gets each note, too


cpdef note(str reason):
    """Count one use of FastDeploy's own code, or one stand-in that became a full model."""
    _notes[reason] = count = _notes.get(reason, 0) + 1
    if _listener is not None:
        _listener(reason, count)


def tell_notes_to(function):
    """Set the function that receives each noted reason and its count; None removes it."""
    global _listener
    _listener = function


def forget_totals():
    """Reset the totals to zero."""
    global _written
    _written = 0
    _notes.clear()


def totals():
    """Totals of this process: the number of models that were written here, and of fallbacks by reason."""
    return _written, dict(_notes)
