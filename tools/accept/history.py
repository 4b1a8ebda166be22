"""Versions of FastDeploy in a git repository, as source trees."""

import subprocess
import tempfile
from pathlib import Path


def trees(repository, span, paths):
    """Commits of first parents that change one of the paths, newest first: tree, name, day of each."""
    listing = git(repository, "log", "--first-parent", "--format=%h %as", *span.split(), "--", *paths)
    for line in listing.splitlines():
        commit, day = line.split()
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(
                ["git", "-C", repository, "archive", commit, "fastdeploy"], capture_output=True, check=True
            )
            subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
            yield Path(folder), commit, day


def git(repository, *arguments):
    """What git prints."""
    done = subprocess.run(["git", "-C", repository, *arguments], capture_output=True, text=True, check=True)
    return done.stdout
