"""Planted bugs: does the suite notice them?

``python -m tests.mutate`` makes each of the listed one-line changes (`bugs/`) in a private copy of the tree,
one after another, runs the tests that are relevant for it, and says which changes no test has noticed.
"""
