# A wait with a time limit: no task, and one timer for all waits of an event loop.
import asyncio
import collections.abc
import weakref

from asyncio import CancelledError, current_task, get_running_loop

from fd_postproc.headers.lists cimport drop_reference

cdef extern from "Python.h":
    # -1 error, 0 the end with its value, 1 what is waited for.
    int PyIter_Send(object one, object value, PyObject **result) except -1

cdef double LOOK_S = 0.5  # between two looks of a loop at its waits


@cython.final
@cython.internal
cdef class Waits:
    """The pending waits of an event loop, which ends those whose time is over."""

    cdef object loop      # weakly: it may be the key of this
    cdef dict pending
    cdef bint looks

    def __cinit__(self, loop):
        self.loop, self.pending = weakref.ref(loop), {}

    cdef int add(self, Wait wait) except -1:
        self.pending[wait] = None
        if not self.looks:
            self.looks = True
            self.loop().call_later(LOOK_S, self.look)
        return 0

    def look(self):
        """Give up the waits whose time is over."""
        loop = self.loop()
        cdef double now = loop.time()
        for wait in [one for one in self.pending if (<Wait>one).end <= now]:
            (<Wait>wait).give_up()
        self.looks = bool(self.pending)
        if self.looks:
            loop.call_later(LOOK_S, self.look)


cdef object _waits_of = weakref.WeakKeyDictionary()
cdef object _last_loop = None
cdef Waits _last_waits = None


cdef Waits _waits_here():
    """The waits of the running loop."""
    global _last_loop, _last_waits
    loop = get_running_loop()
    if _last_loop is None or _last_loop() is not loop:
        _last_waits = _waits_of.get(loop)
        if _last_waits is None:
            _last_waits = _waits_of[loop] = Waits(loop)
        _last_loop = weakref.ref(loop)
    return _last_waits


@cython.final
@cython.internal
cdef class Wait:
    """Awaitable of an awaitable's value, with a time limit; `wait_for` makes one.

    The awaitable runs in the task that waits.  The end of the time cancels that task, and the cancellation
    becomes a TimeoutError here.
    """

    cdef object inner      # a coroutine, or the iterator of another awaitable
    cdef double timeout, end  # seconds; the loop's time
    cdef Waits waits       # where it is pending
    cdef object task, before  # before: how often it had been cancelled; None: Python 3.10 does not count
    cdef bint is_late

    def __cinit__(self, awaitable, double timeout):
        self.inner = awaitable if hasattr(awaitable, "send") else awaitable.__await__()
        self.timeout = timeout

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        cdef bint over = False
        found = self._go_on(None, &over)
        if over:
            raise StopIteration(found)
        return found

    def send(self, value):
        """Go on with the awaitable: what it waits for next.  StopIteration has its value."""
        cdef bint over = False
        found = self._go_on(value, &over)
        if over:
            raise StopIteration(found)
        return found

    cdef object _go_on(self, value, bint *over):
        cdef PyObject *result = NULL
        try:
            over[0] = PyIter_Send(self.inner, value, &result) == 0
        except BaseException as error:
            if self._is_timeout(error):
                raise asyncio.TimeoutError from None
            raise
        found = <object>result
        drop_reference(result)
        if over[0]:
            self._settle()
        elif self.waits is None:
            self._begin()
        return found

    cdef int _begin(self) except -1:
        self.task = current_task()
        if self.task is None:  # nobody can be cancelled: there is no limit
            return 0
        self.before = self.task.cancelling() if hasattr(self.task, "cancelling") else None
        self.waits = _waits_here()
        self.end = self.waits.loop().time() + self.timeout
        self.waits.add(self)
        return 0

    cdef int _settle(self) except -1:
        if self.waits is not None:
            self.waits.pending.pop(self, None)
        return 0

    def throw(self, *error):
        """Raise an error where the awaitable waits."""
        try:
            return self.inner.throw(*error)
        except BaseException as raised:
            if self._is_timeout(raised):
                raise asyncio.TimeoutError from None
            raise

    def close(self):
        """End the awaitable."""
        self._settle()
        self.inner.close()

    cdef bint _is_timeout(self, error) except -1:
        """End the wait with an error; whether the error is our own cancellation."""
        self._settle()
        if not self.is_late or not isinstance(error, CancelledError):
            return False
        return self.before is None or self.task.uncancel() <= self.before

    cdef int give_up(self) except -1:
        """Cancel the task: the time is over."""
        self._settle()
        self.is_late = True
        self.task.cancel()
        return 0


collections.abc.Coroutine.register(Wait)  # what asyncio makes a task of


def wait_for(awaitable, timeout):
    """Wait as ``asyncio.wait_for`` does; a timeout of 5 s and more may come half a second late.

    Python 3.10 does not count cancellations: one that comes in the very turn of the timeout is lost there.

    Raises
    ------
    TimeoutError
        After `timeout` seconds (asyncio's, which is Python's from 3.11 on).
    """
    if timeout is None or timeout < 5:
        return asyncio.wait_for(awaitable, timeout)
    return Wait(awaitable, timeout)
