"""A copy of the checkout, for tests that build in it or change it."""

import shutil

from tests.lib.page_commands import ROOT


def copy_tree(folder):
    """Sources, documents and tests, without what was built; returns the copy."""
    ignored = shutil.ignore_patterns(".*_cache", ".git", ".hypothesis", "*.so", "build", "dist", "*.egg-info")
    return shutil.copytree(ROOT, folder, ignore=ignored)
