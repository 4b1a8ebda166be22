# How floats are printed: the shortest digits always, the rest as a serialiser does it.
from itertools import product as _product


def _fill_powers():
    """Fill the table of powers of ten for shortest digits: 128 bits each, rounded up."""
    for k in range(FDJ_POWER_MIN, FDJ_POWER_MAX + 1):
        # 10^k = power * 2^shift, power of 128 bits
        shift = ((k * 1741647) >> 19) - 127
        numerator = 10**k if k >= 0 else 1
        denominator = 1 if k >= 0 else 10**-k
        if shift >= 0:
            denominator <<= shift
        else:
            numerator <<= -shift
        power = -(-numerator // denominator)
        fdj_powers[k - FDJ_POWER_MIN][0] = power >> 64
        fdj_powers[k - FDJ_POWER_MIN][1] = power & 0xFFFFFFFFFFFFFFFF


_fill_powers()

PROBES = (
    *(0.0, -0.0, 1.0, -1.5, 123456789.0, 1e15, 1.5e15, 9007199254740993.0, 9999999999999998.0, 1e16, 1.5e16),
    *(1.7976931348623157e308, 1e100, -1e21, 1e22, 0.1, 0.001, 1e-4, 1.5e-4, 1e-5, 1.49999996e-5, 9.9e-6),
    *(1e-6, -1.1920928955078125e-07, 1e-9, 2.5e-10, 5e-324, 2.2250738585072014e-308, -0.6794287562370300),
)
"""Sample floats that show how a serialiser prints floats."""


@cython.final
cdef class FloatStyle:
    """A serialiser's style of printing floats.

    Parameters
    ----------
    least, most : int
        Where plain notation ends: of a number whose decimal point lies `most` places behind the first digit
        at most, and more than `least`.
    plus : bool
        Whether a positive exponent has a sign.
    two : bool
        Whether an exponent has two digits at least.
    """

    cdef fdj_style style

    def __init__(self, int least, int most, bint plus, bint two):
        if not (-6 <= least <= 0 and 1 <= most <= 21):
            raise ValueError(f"least={least} is to be from -6 to 0, most={most} from 1 to 21")
        self.style.least, self.style.most, self.style.plus, self.style.two = least, most, plus, two

    def text(self, double value):
        """The text of a float in this style; ``null`` if it is not finite."""
        cdef _Writer writer = _Writer.begin(self)
        try:
            if fdj_double(&writer.out, value, &self.style):
                raise MemoryError
            return writer.text()
        finally:
            writer.end()

    @staticmethod
    def of(dump):
        """The style in which a function from floats to JSON prints them; None: none of those known here."""
        expected = [dump(value) for value in PROBES]
        for known in _product((-5, -4, -6), (16, 17, 15, 21), (True, False), (False, True)):
            style = FloatStyle(*known)
            if [style.text(value) for value in PROBES] == expected:
                return style
        return None


PYTHON = FloatStyle(-4, 16, True, True)
"""The style of Python's ``repr``, which Python's json uses."""
