# Sums of a step for FastDeploy's counters and metrics: counted in C, given to them at its end.
cimport cython
from libc.stdint cimport int64_t
from libc.string cimport memset

cdef enum:
    _MOST_BUCKETS = 64
    _MOST_HEADS = 64


@cython.final
cdef class Sums:
    """A step's sums for FastDeploy's counters and metrics, until they are taken and observed.

    The fused updates mean the same as one update a request: the same counts in the same buckets, the same
    totals.

    Attributes
    ----------
    steps, decoded : int
        Requests that were advanced, and tokens for the scheduler's log, since they were last taken.
    """

    cdef object gaps         # the histogram time_per_output_token, or None: FastDeploy's method is called
    cdef object tokens       # the counter generation_tokens_total
    cdef list buckets
    cdef double bounds[_MOST_BUCKETS]
    cdef int64_t hits[_MOST_BUCKETS]
    cdef Py_ssize_t n_bounds
    cdef double gap_sum
    cdef int64_t n_gaps, n_tokens
    cdef readonly int64_t steps, decoded
    cdef object decode_log   # on_decode_tokens of the scheduler's logger, or None: it gets each request's
    cdef int64_t heads[_MOST_HEADS]
    cdef Py_ssize_t n_heads

    def __cinit__(self):
        memset(self.hits, 0, sizeof(self.hits))
        memset(self.heads, 0, sizeof(self.heads))

    @property
    def fused(self):
        """Whether samples of the metrics are summed up."""
        return self.gaps is not None

    def fuse(self, metrics):
        """Sum up samples of the histogram of this name, if it is a plain one."""
        histogram = getattr(metrics, "time_per_output_token", None)
        counter = getattr(metrics, "generation_tokens_total", None)
        bounds = getattr(histogram, "_upper_bounds", None)
        buckets = getattr(histogram, "_buckets", None)
        if (type(histogram).__module__ != "prometheus_client.metrics" or not isinstance(bounds, list)
                or not isinstance(buckets, list) or len(bounds) != len(buckets)
                or not 0 < len(bounds) <= _MOST_BUCKETS or getattr(histogram, "_labelnames", None) != ()
                or not hasattr(histogram, "_sum") or counter is None):
            return
        cdef Py_ssize_t i
        for i in range(len(bounds)):
            self.bounds[i] = bounds[i]
        self.n_bounds = len(bounds)
        self.buckets, self.gaps, self.tokens = buckets, histogram, counter

    cdef inline void add_gap(self, double gap) noexcept:
        cdef Py_ssize_t i
        self.gap_sum += gap
        self.n_gaps += 1
        for i in range(self.n_bounds):
            if gap <= self.bounds[i]:
                self.hits[i] += 1
                return

    def tell_decoded(self):
        """Report the decoded tokens to the scheduler's log, in one call."""
        cdef int64_t decoded = self.decoded
        self.decoded = 0
        self.decode_log(decoded)

    def take(self):
        """Take the sums for FastDeploy's attributes, and reset them to zero.

        Returns
        -------
        steps, tokens : int
        heads : list of int
            Requests whose first, second, ... token was accepted; empty without speculation.
        """
        cdef Py_ssize_t i
        cdef int64_t steps = self.steps, tokens = self.n_tokens
        cdef list heads = []
        for i in range(self.n_heads):
            heads.append(self.heads[i])
            self.heads[i] = 0
        self.steps = self.n_tokens = self.n_heads = 0
        return steps, tokens, heads

    def observe(self, int64_t tokens):
        """Observe the samples since the last call; `tokens` is from `take`."""
        cdef Py_ssize_t i
        cdef int64_t n
        cdef int64_t gaps = self.n_gaps
        cdef double total = self.gap_sum
        self.n_gaps = 0
        self.gap_sum = 0.0
        if self.gaps is None:
            return
        self.tokens.inc(tokens)
        if gaps:
            self.gaps._sum.inc(total)
            for i in range(self.n_bounds):
                n = self.hits[i]
                self.hits[i] = 0
                if n:
                    self.buckets[i].inc(n)
