# The clock of what is measured in every step; deadlines go by the kernel's own.
from libc.stdint cimport int64_t
from fd_postproc.headers.ticks cimport FDT_SOURCE, fdt_clock, fdt_now

cdef fdt_clock _ticks  # one for all extensions of the process, so that their times compare


def _clock_source():
    """What the kernel makes its clock of; empty if it does not say."""
    try:
        with open("/sys/devices/system/clocksource/clocksource0/current_clocksource") as file:
            return file.read().strip()
    except OSError:
        return ""


_ticks.is_steady = FDT_SOURCE[0] != 0 and FDT_SOURCE.decode() == _clock_source()


cdef int64_t quick_now() noexcept:
    return fdt_now(&_ticks)
