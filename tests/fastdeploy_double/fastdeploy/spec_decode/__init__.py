"""Speculative methods; members compare equal to their names.  Older versions have the names alone."""

from fastdeploy._shapes import enumeration

SpecMethod = enumeration("SpecMethod", __name__, base=str)
