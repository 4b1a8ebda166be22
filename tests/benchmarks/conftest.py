"""The benchmark suite's own extensions, which no wheel has."""

from benchmarks import extensions

extensions.ensure()
