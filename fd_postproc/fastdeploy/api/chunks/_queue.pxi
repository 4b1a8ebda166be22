# The queue that a stream waits at, and one wait: no coroutine, and no timer of its own.

cdef double _NEVER = float("inf")
cdef double _EARLY = 1e-3    # seconds: loops that count milliseconds may call a timer that much too early


cdef class QuickQueue:
    """The fast operations of an unlimited asyncio queue; `Queue` is the whole.

    A timer is set at the first wait that has a limit, and looks after the ones that follow as well: a stream
    that gets its results every few milliseconds needs one in ten seconds, not one for each.
    """

    cdef object items, getters, loop
    cdef object waiter           # the future of the only one that waits, until it is woken or gives up
    cdef list waits              # those that have a limit
    cdef double armed            # when the timer is due, by the loop's clock
    cdef object __weakref__
    cdef public Py_ssize_t _unfinished_tasks
    cdef public bint _is_shutdown

    def attach(self, items, getters):
        """Attach the queue's items and waiters.

        Parameters
        ----------
        items, getters : collections.deque
            The queue's own; of items, and of the futures of those that wait.
        """
        self.items, self.getters = items, getters
        self.waits, self.armed = [], _NEVER

    def put_nowait(self, item):
        """Put an item, as asyncio's queue does."""
        if self._is_shutdown:
            return _stock_put_nowait(self, item)
        self.items.append(item)
        self._unfinished_tasks += 1
        self.wake()

    def get(self):
        """An awaitable for the next item, in place of asyncio's coroutine."""
        cdef Next made = Next.__new__(Next)
        made.queue, made.deadline = self, _NEVER
        return made

    cdef int wake(self) except -1:
        """Wake the first waiter."""
        self.waiter = None
        while self.getters:
            waiter = self.getters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        return 0

    cdef int watch(self, Next one) except -1:
        """Start the timer of a waiter that has a time limit."""
        one.deadline = <double>self.loop.time() + one.seconds
        self.waits.append(one)
        if one.deadline < self.armed:
            self.arm(one.deadline)
        return 0

    cdef int arm(self, double deadline) except -1:
        # A weak reference: the timer of a stream that has ended must not keep its results.
        self.loop.call_at(deadline, _times_up, _weakref(self))
        self.armed = deadline
        return 0

    cdef int look(self) except -1:
        cdef double now = self.loop.time(), first = _NEVER
        cdef Next one
        self.armed = _NEVER
        for each in self.waits:
            one = <Next>each
            if one.deadline <= now + _EARLY:
                one.late, self.waiter = True, None
                if not one.future.done():
                    one.future.set_result(None)
            elif one.deadline < first:
                first = one.deadline
        if first != _NEVER:
            self.arm(first)
        return 0


def _times_up(queue):
    """End a wait whose time is over; the loop calls this with a weak reference."""
    found = queue()
    if found is not None:
        (<QuickQueue>found).look()


@cython.final
cdef class Next:
    """Awaitable for the next item of a queue; it can be awaited once."""

    cdef QuickQueue queue
    cdef object future
    cdef double seconds, deadline
    cdef bint late

    def within(self, double seconds):
        """The same with a time limit in seconds, after which it raises asyncio's TimeoutError."""
        self.seconds, self.deadline = seconds, 0
        return self

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.step()

    def send(self, value):
        """Advance, as a coroutine's method does."""
        return self.step()

    cdef object step(self):
        cdef QuickQueue queue = self.queue
        if queue.items:
            self.end()
            raise StopIteration(queue.items.popleft())
        if self.late:
            self.end()
            raise _TimeoutError
        if queue._is_shutdown:
            self.end()
            raise StopIteration(queue.get_nowait())
        if queue.loop is None:
            queue.loop = _get_running_loop()
        self.future = queue.loop.create_future()
        self.future._asyncio_future_blocking = True
        queue.waiter = None if queue.getters else self.future
        queue.getters.append(self.future)
        if self.deadline == 0:
            queue.watch(self)
        return self.future

    cdef int end(self) except -1:
        """End the wait."""
        if self.deadline != _NEVER and self.deadline != 0:
            self.queue.waits.remove(self)
        self.deadline = _NEVER
        return 0

    def throw(self, kind, value=None, traceback=None):
        """Raise in the waiter, as a coroutine's method does: the task was cancelled."""
        future, self.future = self.future, None
        self.queue.waiter = None
        self.end()
        if future is not None:
            future.cancel()
            if future in self.queue.getters:
                self.queue.getters.remove(future)
            if self.queue.items and not future.cancelled():  # told, and takes nothing: the next one
                self.queue.wake()
        if value is None:
            value = kind if isinstance(kind, BaseException) else kind()
        raise value

    def close(self):
        """Close, as a coroutine's method does."""
        try:
            self.throw(GeneratorExit)
        except GeneratorExit:
            pass


from asyncio import Queue as _StockQueue, TimeoutError as _TimeoutError, get_running_loop as _get_running_loop
from weakref import ref as _weakref

_stock_put_nowait = _StockQueue.put_nowait
