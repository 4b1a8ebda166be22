"""Speculative methods; members compare equal to their names."""

from enum import Enum


class SpecMethod(str, Enum):
    MTP = "mtp"
    NGRAM = "ngram"
